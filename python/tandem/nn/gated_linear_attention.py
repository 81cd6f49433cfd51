"""Gated linear attention with a decay per head and token."""

import torch
from torch import Tensor
from torch.nn import functional as F

import tandem.ops
from tandem.nn._gated_heads import GatedHeads
from tandem.nn.caches import StateCache
from tandem.nn.convolution import convolved
from tandem.nn.linear import Linear, xavier
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, checked_sequences


class GatedLinearAttention(GatedHeads):
    """Simple GLA: a decay exp(logsigmoid(gk_proj(x)) / gate_logit_normalizer) per head and token, a norm of each head
    and a silu gate. Parameters as fla's SimpleGatedLinearAttention, with H heads, HKV key and value heads,
    Dk = expand_k * d and Dv = expand_v * d: q_proj.weight [Dk,d], k_proj.weight [Dk*HKV/H,d], v_proj.weight
    [Dv*HKV/H,d], g_proj.weight [Dv,d], gk_proj.weight [H,d] and .bias [H], g_norm_swish_gate.weight [Dv/H],
    o_proj.weight [d,Dv]; with conv_size also q_conv1d, k_conv1d and v_conv1d, :class:`ShortConvolution` with silu.

    Its projections are one :func:`tandem.ops.projection`, its end one :func:`tandem.ops.gated_output`.

    Args:
        hidden_size: d, width of the tokens.
        num_heads: H.
        num_kv_heads: HKV, a divisor of H; None is H.
        expand_k: Dk / d.
        expand_v: Dv / d.
        feature_map: of queries and keys: None, "silu" or "sigmoid".
        gate_logit_normalizer: what the logarithm of the decay is divided by.
        conv_size: taps of the short convolutions of queries, keys and values; None is without them.
        conv_bias: whether these have a bias.
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
        conv_size: int | None = None,
        conv_bias: bool = False,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if feature_map not in _FEATURE_MAPS:
            names = ", ".join(map(str, _FEATURE_MAPS))
            raise ValueError(f"[nn.GatedLinearAttention] feature_map must be one of {names}, got {feature_map}")
        sizes = (hidden_size, num_heads, num_kv_heads, expand_k, expand_v, conv_size, conv_bias)
        super().__init__(*sizes, eps, device, dtype)
        self.gk_proj = Linear(hidden_size, num_heads, bias=True, init=xavier, device=device, dtype=dtype)
        self.feature_map = feature_map
        Segment, feature = tandem.ops.Segment, "none" if self.convolutions else feature_map or "none"
        self.segments = (
            Segment(self.q_proj.out_features, feature),
            Segment(self.k_proj.out_features, feature),
            Segment(self.v_proj.out_features),
            Segment(self.g_proj.out_features),
            Segment(num_heads, "log_sigmoid", divisor=gate_logit_normalizer, dtype=torch.float32),
        )

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
        if self.convolutions:
            q, k, v = convolved((q, k, v), self.convolutions, padding, sequences, cache)
            feature_map = _FEATURE_MAPS[self.feature_map]
            q, k = feature_map(q), feature_map(k)
        q, k = (y.unflatten(-1, (-1, self.head_k_dim)) for y in (q, k))
        k, v = self.shared(k), self.shared(v.unflatten(-1, (-1, self.head_v_dim)))
        o = self.mix(q, k, v, log_decay, padding=padding, cu_seqlens=sequences, cache=cache)
        return self.end(o, gate, residual)


_FEATURE_MAPS = {None: lambda x: x, "silu": F.silu, "sigmoid": torch.sigmoid}
