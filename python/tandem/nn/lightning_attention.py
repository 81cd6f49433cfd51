"""Lightning attention: linear attention with slopes that shrink from layer to layer."""

from typing import Any

import torch
from torch import Tensor, nn

import tandem.ops
from tandem.nn._along_time import recurrence
from tandem.nn._constants import Constants
from tandem.nn.caches import StateCache
from tandem.nn.linear import Linear, output
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, checked_sequences


class LightningAttention(nn.Module):
    """MiniMax-01's: silu of queries, keys and values, a constant decay per head, no scale, a norm over all heads and a
    sigmoid gate. Parameters as transformers' MiniMaxLightningAttention, with H heads of K columns: qkv_proj.weight
    [H*3*K,d], whose rows are queries, keys and values of each head in turn, output_gate.weight [H*K,d], norm.weight
    [H*K], out_proj.weight [d,H*K].

    The state dict also has MiniMax's buffers, slope_rate, query_decay, key_decay and diagonal_decay, which follow from
    the settings: they are made for whoever reads it, and ignored where it is loaded.

    Args:
        hidden_size: d, width of the tokens.
        num_heads: H.
        head_dim: K; None is d / H.
        layer_idx: the layer's index,
        num_layers: and how many there are: the slopes of head h are
            2^(-8(h+1)/H) (1 - layer_idx / (num_layers - 1 + 1e-5) + 1e-5).
        eps: of the norm.
        block_size: of MiniMax's buffers.

    Example::

        >>> import torch
        >>> import tandem.nn
        >>> layer = tandem.nn.LightningAttention(64, num_heads=2, layer_idx=0, num_layers=8)
        >>> layer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        layer_idx: int,
        num_layers: int,
        eps: float = 1e-6,
        block_size: int = 256,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.block_size = block_size
        width, where = num_heads * self.head_dim, {"device": device, "dtype": dtype}
        self.qkv_proj = Linear(hidden_size, 3 * width, **where)
        self.output_gate = Linear(hidden_size, width, **where)
        self.norm = RMSNorm(width, eps, **where)
        self.out_proj = Linear(width, hidden_size, **where)
        self.segments = (tandem.ops.Segment(3 * width, "silu"), tandem.ops.Segment(width))
        self.decay = LightningDecay(num_heads, layer_idx, num_layers, device=device)

    def new_cache(self, batch: int, dtype: torch.dtype = torch.float32) -> StateCache:
        """An empty cache of `batch` rows, on the weights' device."""
        widths = (self.num_heads, self.head_dim, self.head_dim)
        return StateCache(batch, *widths, device=self.qkv_proj.weight.device, dtype=dtype)

    def forward(
        self,
        x: Tensor,
        *,
        norm: RMSNorm | None = None,
        residual: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        cu_seqlens: Tensor | None = None,
        cache: StateCache | None = None,
    ) -> Tensor:
        """Arguments as every layer takes them. Returns a tensor like x."""
        padding = Padding.of(attention_mask, x.shape[1])
        sequences = checked_sequences(cu_seqlens, padding, cache)
        x = x if norm is None else norm(x)
        weights = (self.qkv_proj.weight, self.output_gate.weight)
        qkv, gate = tandem.ops.projection(x, weights, self.segments)
        q, k, v = qkv.unflatten(-1, (self.num_heads, 3 * self.head_dim)).split(self.head_dim, dim=-1)
        o = recurrence(q, k, v, self.decay.log_decay, scale=1.0, padding=padding, cu_seqlens=sequences, cache=cache)
        end = {"group_norm_weight": self.norm.weight, "group_eps": self.norm.eps}
        return output(self.out_proj, o.flatten(-2), residual, gate, gate_activation="sigmoid", **end)

    def _decays_of_blocks(self) -> dict[str, Tensor]:
        slope = -self.decay.log_decay[:, None, None]
        place = torch.arange(1, self.block_size + 1, device=slope.device)[:, None]
        behind = place - place.T
        return {
            "slope_rate": slope,
            "query_decay": torch.exp(-slope * place),
            "key_decay": torch.exp(-slope * (self.block_size - place)),
            "diagonal_decay": torch.exp(-slope * behind).masked_fill(behind < 0, 0)[None],
        }

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination |= {prefix + name: value for name, value in self._decays_of_blocks().items()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in self._decays_of_blocks():
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *others)


class LightningDecay(Constants):
    """log_decay, fp32 [H]: the slopes, negative."""

    def __init__(
        self, num_heads: int, layer_idx: int, num_layers: int, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.num_heads, self.factor = num_heads, 1 - layer_idx / (num_layers - 1 + 1e-5) + 1e-5
        self.make_constants(device)

    def constants(self, device: torch.device | str | None) -> dict[str, Tensor]:
        heads = torch.arange(1, self.num_heads + 1, device=device)
        return {"log_decay": -torch.exp2(-8 / self.num_heads * heads) * self.factor}
