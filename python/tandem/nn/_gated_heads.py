"""What GatedLinearAttention and MultiScaleRetention have in common."""

from functools import partial

import torch
from torch import Tensor, nn

from tandem.nn._along_time import recurrence
from tandem.nn.caches import StateCache
from tandem.nn.convolution import ShortConvolution, new_history
from tandem.nn.linear import Linear, output, xavier
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding


class GatedHeads(nn.Module):
    """The parameters of fla's layers: queries, keys, values and their short convolutions, a gate, a norm of each head,
    the product at the end."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None,
        expand_k: float,
        expand_v: float,
        conv_size: int | None,
        conv_bias: bool,
        eps: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        key_width, value_width = round(hidden_size * expand_k), round(hidden_size * expand_v)
        for name, number in (("num_kv_heads", num_kv_heads), ("num_heads", num_heads)):
            of = {"num_heads": num_heads, "expand_k * d": key_width, "expand_v * d": value_width}
            for what, whole in of.items():
                if whole % number:
                    raise ValueError(f"[nn.{type(self).__name__}] {name} must divide {what} = {whole}, got {number}")
        self.num_heads, self.groups = num_heads, num_heads // num_kv_heads
        self.head_k_dim, self.head_v_dim = key_width // num_heads, value_width // num_heads
        where = {"device": device, "dtype": dtype}
        self.q_proj = Linear(hidden_size, key_width, init=xavier, **where)
        self.k_proj = Linear(hidden_size, key_width // self.groups, init=xavier, **where)
        self.v_proj = Linear(hidden_size, value_width // self.groups, init=xavier, **where)
        self.g_proj = Linear(hidden_size, value_width, init=xavier, **where)
        self.q_conv1d = self.k_conv1d = self.v_conv1d = None
        if conv_size is not None:
            convolution = partial(ShortConvolution, taps=conv_size, bias=conv_bias, activation="silu", **where)
            self.q_conv1d = convolution(self.q_proj.out_features)
            self.k_conv1d = convolution(self.k_proj.out_features)
            self.v_conv1d = convolution(self.v_proj.out_features)
        self.g_norm_swish_gate = RMSNorm(self.head_v_dim, eps, **where)
        self.o_proj = Linear(value_width, hidden_size, init=xavier, **where)

    def new_cache(self, batch: int, dtype: torch.dtype = torch.float32) -> StateCache:
        """An empty cache of `batch` rows, on the weights' device."""
        widths = (self.num_heads, self.head_k_dim, self.head_v_dim)
        history = new_history(batch, self.convolutions)
        return StateCache(batch, *widths, history=history, device=self.q_proj.weight.device, dtype=dtype)

    @property
    def convolutions(self) -> tuple[ShortConvolution, ...]:
        """Those of queries, keys and values, or none."""
        return tuple(one for one in (self.q_conv1d, self.k_conv1d, self.v_conv1d) if one is not None)

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        *,
        padding: Padding | None,
        cu_seqlens: Tensor | None,
        cache: StateCache | None,
    ) -> Tensor:
        """o [B,T,H,V] of q and k [B,T,H,K], v [B,T,H,V], log_decay [B,T,H] or [H]. A subclass may find it otherwise:
        over several GPUs by :func:`tandem.distributed.gla`."""
        return recurrence(q, k, v, log_decay, padding=padding, cu_seqlens=cu_seqlens, cache=cache)

    def shared(self, heads: Tensor) -> Tensor:
        """[B,T,HKV,K] as [B,T,H,K], each head for its neighbours."""
        return heads if self.groups == 1 else heads.repeat_interleave(self.groups, dim=-2)

    def end(self, o: Tensor, gate: Tensor, residual: Tensor | None) -> Tensor:
        """o [B,T,H,V] normed, gated by gate [B,T,H*V], projected, and added to the residual."""
        norm = {"group_norm_weight": self.g_norm_swish_gate.weight, "group_eps": self.g_norm_swish_gate.eps}
        return output(self.o_proj, o.flatten(-2), residual, gate, gate_activation="silu", **norm)
