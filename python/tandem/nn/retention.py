"""RetNet's retention: linear attention with a constant decay per head."""

import torch
from torch import Tensor

from tandem.nn._constants import Constants
from tandem.nn._heads import Heads, heads_of
from tandem.nn._recurrence import recurrence, shared
from tandem.nn.caches import StateCache
from tandem.nn.linear import Linear, output, xavier
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, checked_sequences
from tandem.nn.rotary import RotaryEmbedding


class MultiScaleRetention(Constants):
    """Queries and keys are rotated, head h decays by 1 - 2^(-5-h) per token, and each head is normed and gated.
    Parameters as fla's MultiScaleRetention, with H heads, HKV key and value heads, Dk = expand_k * d and
    Dv = expand_v * d: q_proj.weight [Dk,d], k_proj.weight [Dk*HKV/H,d], v_proj.weight [Dv*HKV/H,d], g_proj.weight
    [Dv,d], g_norm_swish_gate.weight [Dv/H], o_proj.weight [d,Dv].

    Args:
        hidden_size: d, width of the tokens.
        num_heads: H.
        num_kv_heads: HKV, a divisor of H; None is H.
        rotary: RoPE of queries and keys, which layers may share: of all Dk / H columns of a head in fla.
        expand_k: Dk / d.
        expand_v: Dv / d.
        eps: of the heads' norm.

    Example::

        >>> import torch
        >>> import tandem.nn
        >>> rotary = tandem.nn.RotaryEmbedding(32, positions=2048)
        >>> layer = tandem.nn.MultiScaleRetention(64, num_heads=2, rotary=rotary)
        >>> layer(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        rotary: RotaryEmbedding,
        expand_k: float = 1.0,
        expand_v: float = 2.0,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.groups = num_heads // (num_kv_heads or num_heads)
        key_width, value_width = round(hidden_size * expand_k), round(hidden_size * expand_v)
        if num_heads % (num_kv_heads or num_heads) or key_width % num_heads or value_width % num_heads:
            raise ValueError(
                f"[nn.MultiScaleRetention] num_heads = {num_heads} must divide the widths of keys and values, "
                f"{key_width} and {value_width}, and num_kv_heads it, got {num_kv_heads}"
            )
        self.head_k_dim, self.head_v_dim = key_width // num_heads, value_width // num_heads
        where = {"device": device, "dtype": dtype}
        self.q_proj = Linear(hidden_size, key_width, init=xavier, **where)
        self.k_proj = Linear(hidden_size, key_width // self.groups, init=xavier, **where)
        self.v_proj = Linear(hidden_size, value_width // self.groups, init=xavier, **where)
        self.g_proj = Linear(hidden_size, value_width, init=xavier, **where)
        self.g_norm_swish_gate = RMSNorm(self.head_v_dim, eps, **where)
        self.o_proj = Linear(value_width, hidden_size, init=xavier, **where)
        self.rotary = rotary
        self.make_constants(device)

    def constants(self, device: torch.device | str | None) -> dict[str, Tensor]:
        heads = torch.arange(self.num_heads, device=device)
        return {"log_decay": torch.log1p(-torch.exp2(-5.0 - heads))}

    def new_cache(self, batch: int, dtype: torch.dtype = torch.float32) -> StateCache:
        """A cache of `batch` rows, on the weights' device."""
        widths = (self.num_heads, self.head_k_dim, self.head_v_dim)
        return StateCache(batch, *widths, device=self.q_proj.weight.device, dtype=dtype)

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
        self.rotary.check(x.shape[1])
        positions = None if cache is None else cache.positions(x.shape[1], padding)
        products = (
            Heads(self.q_proj, self.head_k_dim, rotates=True),
            Heads(self.k_proj, self.head_k_dim, rotates=True),
            Heads(self.v_proj, self.head_v_dim),
            Heads(self.g_proj, self.head_v_dim),
        )
        q, k, v, gate = heads_of(x, norm, products, self.rotary, positions, sequences)
        k, v = shared(k, self.groups), shared(v, self.groups)
        o = recurrence(q, k, v, self.log_decay, padding=padding, cu_seqlens=sequences, cache=cache)
        end = {"group_norm_weight": self.g_norm_swish_gate.weight, "group_eps": self.g_norm_swish_gate.eps}
        return output(self.o_proj, o.flatten(-2), residual, gate.flatten(-2), gate_activation="silu", **end)
