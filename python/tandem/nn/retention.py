"""RetNet's retention: linear attention with a constant decay per head."""

import torch
from torch import Tensor

from tandem.nn._constants import Constants
from tandem.nn._gated_heads import GatedHeads
from tandem.nn._heads import Heads, heads_of
from tandem.nn.caches import StateCache
from tandem.nn.convolution import convolved
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, checked_sequences
from tandem.nn.rotary import RotaryEmbedding


class MultiScaleRetention(GatedHeads):
    """Queries and keys are rotated, head h decays by 1 - 2^(-5-h) per token, and each head is normed and gated.
    Parameters as fla's MultiScaleRetention, with H heads, HKV key and value heads, Dk = expand_k * d and
    Dv = expand_v * d: q_proj.weight [Dk,d], k_proj.weight [Dk*HKV/H,d], v_proj.weight [Dv*HKV/H,d], g_proj.weight
    [Dv,d], g_norm_swish_gate.weight [Dv/H], o_proj.weight [d,Dv]; with conv_size also q_conv1d, k_conv1d and v_conv1d,
    :class:`ShortConvolution` with silu.

    Args:
        hidden_size: d, width of the tokens.
        num_heads: H.
        num_kv_heads: HKV, a divisor of H; None is H.
        rotary: RoPE of queries and keys, which layers may share: of all Dk / H columns of a head in fla.
        expand_k: Dk / d.
        expand_v: Dv / d.
        conv_size: taps of the short convolutions of queries, keys and values; None is without them.
        conv_bias: whether these have a bias.
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
        conv_size: int | None = None,
        conv_bias: bool = False,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = (hidden_size, num_heads, num_kv_heads, expand_k, expand_v, conv_size, conv_bias)
        super().__init__(*sizes, eps, device, dtype)
        self.rotary = rotary
        self.decay = RetentionDecay(num_heads, device=device)

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
        positions = None
        if cache is not None:
            cache.count(x.shape[1], self.rotary.positions)
            positions = cache.positions(x.shape[1], padding)
        rotates = not self.convolutions  # which come before RoPE
        products = (
            Heads(self.q_proj, self.head_k_dim, rotates=rotates),
            Heads(self.k_proj, self.head_k_dim, rotates=rotates),
            Heads(self.v_proj, self.head_v_dim),
            Heads(self.g_proj, self.head_v_dim),
        )
        q, k, v, gate = heads_of(x, norm, products, self.rotary, positions, sequences)
        if self.convolutions:
            flat = [y.flatten(-2) for y in (q, k, v)]
            flat = convolved(flat, self.convolutions, padding, sequences, cache)
            q, k, v = (y.unflatten(-1, one.shape[-2:]) for y, one in zip(flat, (q, k, v), strict=True))
            q, k = (self.rotary(y, positions, sequences) for y in (q, k))
        k, v = self.shared(k), self.shared(v)
        o = self.mix(q, k, v, self.decay.log_decay, padding=padding, cu_seqlens=sequences, cache=cache)
        return self.end(o, gate.flatten(-2), residual)


class RetentionDecay(Constants):
    """log_decay, fp32 [H]."""

    def __init__(self, num_heads: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.make_constants(device)

    def constants(self, device: torch.device | str | None) -> dict[str, Tensor]:
        return {"log_decay": torch.log1p(-torch.exp2(-5.0 - torch.arange(self.num_heads, device=device)))}
