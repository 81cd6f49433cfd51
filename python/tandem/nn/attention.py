"""Softmax attention with its projections."""

import torch
from torch import Tensor, nn

import tandem.ops
from tandem.nn._heads import Heads, heads_of
from tandem.nn.caches import KeyValueCache
from tandem.nn.linear import Linear, output
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding, as_one_row, checked_sequences
from tandem.nn.rotary import RotaryEmbedding


class Attention(nn.Module):
    """Self-attention with grouped heads and RoPE. Parameters as transformers' Llama, Mistral, Qwen2 and Qwen3 have
    them, with H query heads, HKV key and value heads of K columns and d = hidden_size: q_proj.weight [H*K,d],
    k_proj.weight and v_proj.weight [HKV*K,d], o_proj.weight [d,H*K]; with biases also .bias, the first axis of these;
    with qk_norm q_norm.weight and k_norm.weight [K].

    Args:
        hidden_size: d, width of the tokens.
        num_heads: H.
        num_kv_heads: HKV, a divisor of H; None is H.
        head_dim: K, a multiple of 8 up to 256 where heads are normed or rotated; None is d / H.
        rotary: RoPE of queries and keys, or None. Layers may share it.
        qk_norm: whether queries and keys are normed, per head, before they are rotated (Qwen3).
        bias: whether q_proj, k_proj and v_proj have a bias (Qwen2).
        output_bias: whether o_proj has one.
        causal: whether a token sees none behind its own.
        window: how many tokens it sees at most, its own included, as transformers' sliding_window; None is all.
        eps: of q_norm and k_norm.

    Example, a prompt and the tokens behind it, one by one::

        >>> import torch
        >>> import tandem.nn
        >>> rotary = tandem.nn.RotaryEmbedding(32, positions=128)
        >>> attention = tandem.nn.Attention(64, num_heads=4, num_kv_heads=2, head_dim=32, rotary=rotary)
        >>> x = torch.randn(2, 12, 64)
        >>> with torch.no_grad():
        ...     cache = attention.new_cache(2, capacity=12)
        ...     parts = [attention(part, cache=cache) for part in x.split([9, 1, 1, 1], dim=1)]
        >>> torch.allclose(torch.cat(parts, 1), attention(x), atol=1e-5)
        True
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        rotary: RotaryEmbedding | None = None,
        qk_norm: bool = False,
        bias: bool = False,
        output_bias: bool = False,
        causal: bool = True,
        window: int | None = None,
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = hidden_size // num_heads if head_dim is None else head_dim
        self.causal, self.window = causal, window
        if num_heads % self.num_kv_heads:
            raise ValueError(f"[nn.Attention] num_kv_heads must divide num_heads = {num_heads}, got {num_kv_heads}")
        if window is not None and (window < 1 or not causal):
            raise ValueError(f"[nn.Attention] window must be at least 1, of causal attention, got {window}")
        where = {"device": device, "dtype": dtype}
        self.q_proj = Linear(hidden_size, num_heads * self.head_dim, bias, **where)
        self.k_proj = Linear(hidden_size, self.num_kv_heads * self.head_dim, bias, **where)
        self.v_proj = Linear(hidden_size, self.num_kv_heads * self.head_dim, bias, **where)
        self.o_proj = Linear(num_heads * self.head_dim, hidden_size, output_bias, **where)
        self.q_norm = RMSNorm(self.head_dim, eps, **where) if qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, eps, **where) if qk_norm else None
        self.rotary = rotary

    def new_cache(self, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KeyValueCache:
        """An empty cache of `batch` rows of up to `capacity` tokens, on the weights' device, of dtype, else theirs."""
        weight = self.k_proj.weight
        if self.rotary is not None:
            self.rotary.check(capacity)
        widths = (self.num_kv_heads, self.head_dim, self.head_dim)
        return KeyValueCache(batch, capacity, *widths, device=weight.device, dtype=dtype or weight.dtype)

    def forward(
        self,
        x: Tensor,
        *,
        norm: RMSNorm | None = None,
        residual: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        position_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """position_ids: None, or integers [B,T] or [1,T], by which RoPE rotates; else it goes by the place in the row,
        in the sequence, or behind the cache. The others as every layer takes them. Returns a tensor like x."""
        padding = Padding.of(attention_mask, x.shape[1])
        sequences = checked_sequences(cu_seqlens, padding, position_ids, cache)
        if self.rotary is not None:
            self.rotary.check(x.shape[1])
        if cache is not None:
            cache.count(x.shape[1], cache.capacity)
            position_ids = cache.positions(x.shape[1], padding) if position_ids is None else position_ids
        if position_ids is not None:
            position_ids = position_ids.expand(x.shape[:2])
        turns = self.rotary is not None
        products = (
            Heads(self.q_proj, self.head_dim, self.q_norm, turns),
            Heads(self.k_proj, self.head_dim, self.k_norm, turns),
            Heads(self.v_proj, self.head_dim),
        )
        q, k, v = heads_of(x, norm, products, self.rotary, position_ids, sequences)
        options = {"causal": self.causal, "window": None if self.window is None else (self.window - 1, 0)}
        if cache is not None:
            cache.append(k, v, padding)
            o = tandem.ops.attention(q, cache.k, cache.v, lengths_k=cache.lengths, **options)
        elif padding is not None:
            offsets = {"cu_seqlens_q": padding.cu_seqlens, "cu_seqlens_k": padding.cu_seqlens}
            o = tandem.ops.attention(*map(as_one_row, (q, k, v)), **offsets, **options).view(q.shape)
        else:
            o = tandem.ops.attention(q, k, v, cu_seqlens_q=sequences, cu_seqlens_k=sequences, **options)
        return output(self.o_proj, o.flatten(-2), residual)
