"""Gated linear attention with a decay per head and token."""

import torch
from torch import Tensor, nn

import tandem.ops
from tandem.nn._recurrence import recurrence, shared
from tandem.nn.caches import StateCache
from tandem.nn.linear import Linear, output, xavier
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, checked_sequences


class GatedLinearAttention(nn.Module):
    """Simple GLA: a decay exp(logsigmoid(gk_proj(x)) / gate_logit_normalizer) per head and token, a norm of each head
    and a silu gate. Parameters as fla's SimpleGatedLinearAttention without short convolutions, with H heads, HKV key
    and value heads, Dk = expand_k * d and Dv = expand_v * d: q_proj.weight [Dk,d], k_proj.weight [Dk*HKV/H,d],
    v_proj.weight [Dv*HKV/H,d], g_proj.weight [Dv,d], gk_proj.weight [H,d] and .bias [H], g_norm_swish_gate.weight
    [Dv/H], o_proj.weight [d,Dv].

    Its projections are one :func:`tandem.ops.projection`, its end one :func:`tandem.ops.gated_output`.

    Args:
        hidden_size: d, width of the tokens.
        num_heads: H.
        num_kv_heads: HKV, a divisor of H; None is H.
        expand_k: Dk / d.
        expand_v: Dv / d.
        feature_map: of queries and keys: None, "silu" or "sigmoid".
        gate_logit_normalizer: what the logarithm of the decay is divided by.
        eps: of the heads' norm.

    Example, a prompt and the tokens behind it, one by one::

        >>> import torch
        >>> import tandem.nn
        >>> layer = tandem.nn.GatedLinearAttention(64, num_heads=2)
        >>> x = torch.randn(2, 12, 64)
        >>> with torch.no_grad():
        ...     cache = layer.new_cache(2)
        ...     parts = [layer(part, cache=cache) for part in x.split([9, 1, 1, 1], dim=1)]
        >>> torch.allclose(torch.cat(parts, 1), layer(x), atol=1e-5)
        True
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        feature_map: str | None = None,
        gate_logit_normalizer: float = 16.0,
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
                f"[nn.GatedLinearAttention] num_heads = {num_heads} must divide the widths of keys and values, "
                f"{key_width} and {value_width}, and num_kv_heads it, got {num_kv_heads}"
            )
        self.head_k_dim, self.head_v_dim = key_width // num_heads, value_width // num_heads
        where = {"device": device, "dtype": dtype}
        self.q_proj = Linear(hidden_size, key_width, init=xavier, **where)
        self.k_proj = Linear(hidden_size, key_width // self.groups, init=xavier, **where)
        self.v_proj = Linear(hidden_size, value_width // self.groups, init=xavier, **where)
        self.g_proj = Linear(hidden_size, value_width, init=xavier, **where)
        self.gk_proj = Linear(hidden_size, num_heads, bias=True, init=xavier, **where)
        self.g_norm_swish_gate = RMSNorm(self.head_v_dim, eps, **where)
        self.o_proj = Linear(value_width, hidden_size, init=xavier, **where)
        Segment, feature = tandem.ops.Segment, feature_map or "none"
        self.segments = (
            Segment(key_width, feature),
            Segment(key_width // self.groups, feature),
            Segment(value_width // self.groups),
            Segment(value_width),
            Segment(num_heads, "log_sigmoid", divisor=gate_logit_normalizer, dtype=torch.float32),
        )

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
        products = (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.gk_proj)
        weights, biases = [one.weight for one in products], [one.bias for one in products]
        x = x if norm is None else norm(x)
        q, k, v, gate, log_decay = tandem.ops.projection(x, weights, self.segments, biases)
        q, k = (y.unflatten(-1, (-1, self.head_k_dim)) for y in (q, k))
        k, v = (shared(y, self.groups) for y in (k, v.unflatten(-1, (-1, self.head_v_dim))))
        o = recurrence(q, k, v, log_decay, padding=padding, cu_seqlens=sequences, cache=cache)
        end = {"group_norm_weight": self.g_norm_swish_gate.weight, "group_eps": self.g_norm_swish_gate.eps}
        return output(self.o_proj, o.flatten(-2), residual, gate, gate_activation="silu", **end)
