"""Attention without its weights in memory."""

from collections.abc import Sequence
from typing import Any, NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, refuse


@closed
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Sequence[int | None] | None = None,
    scale: float | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    lengths_k: Tensor | None = None,
    return_log_sum_exp: bool = False,
    **others: NoReturn,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention in one pass::

        s_ij = scale * q_i . k_j        where query i sees key j, else -inf
        o_i = sum_j softmax(s_i)_j v_j

    Which keys a query sees: query i of Tq queries and Tk keys stands at p = i + Tk - Tq, the last query beside the
    last key, and sees the keys from p - left to p + right of its window; causal is right = 0. A query that sees no
    key, or only keys with s = -inf, has o = 0. Arguments mean what they do in ``flash_attn_func``.

    Axes: B batch, TQ queries, TK keys, H query heads, HKV key and value heads (HKV divides H; head h reads key and
    value head h / (H/HKV)), K key dim, V value dim, N sequences. All tensors are on one device.

    Args:
        q: [B,TQ,H,K], bf16 or fp16, on the CPU also fp32 and fp64. Strides, copies, and what fp64 means, as in gla.
        k: [B,TK,HKV,K], as q.
        v: [B,TK,HKV,V], as q.
        causal: whether a query sees no key behind its own.
        window: (left, right), how many keys before and behind its own a query sees; None or -1 is all of them.
        scale: factor of the scores, K^-0.5 when None.
        cu_seqlens_q: int32 or int64 [N+1], needs B = 1 and cu_seqlens_k: sequence n is the queries [cu_seqlens_q[n],
            cu_seqlens_q[n+1]) and the keys [cu_seqlens_k[n], cu_seqlens_k[n+1]). Sequences may be empty; queries
            outside of all give o = 0. The values are checked on the CPU only; on a GPU they are clamped to [0,TQ]
            and [0,TK], because nothing in a call waits for the GPU.
        cu_seqlens_k: as cu_seqlens_q, which may be the same tensor.
        lengths_k: int32 or int64 [B], not beside cu_seqlens: batch b has lengths_k[b] keys (Tk above), and what lies
            behind them in k and v is not read: a cache that is longer than what it holds. Checked and clamped as
            cu_seqlens_q.
        return_log_sum_exp: whether to return log(sum_j exp(s_ij)), too.

    Returns:
        o [B,TQ,H,V] in v's dtype, contiguous; with return_log_sum_exp also fp32 [B,H,TQ], -inf where a query sees
        nothing.

    Differentiable in q, k and v, through both results, once; what does not require a gradient costs none. Gradients
    have their tensor's dtype and are bitwise repeatable. Where one is required the forward keeps o and the
    log-sum-exp. scale has none. Forward mode has tangents of v.

    Under autocast q, k and v are cast to its dtype. fp64 stays fp64.

    Raises:
        TypeError: an argument is no tensor, or unknown: dropout, biases, arbitrary masks and soft caps there are not.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without CUDA.
            From ``backward()`` too, and for other tangents and second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, eight query heads that share two key heads, and torch's own::

        >>> import torch
        >>> import tandem
        >>> B, T, H, HKV, K = 2, 100, 8, 2, 64
        >>> q = torch.randn(B, T, H, K)
        >>> k, v = torch.randn(2, B, T, HKV, K)
        >>> o, log_sum_exp = tandem.ops.attention(q, k, v, causal=True, return_log_sum_exp=True)
        >>> o.shape, log_sum_exp.shape
        (torch.Size([2, 100, 8, 64]), torch.Size([2, 8, 100]))
        >>> heads = [x.transpose(1, 2) for x in (q, k, v)]
        >>> same = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        >>> torch.allclose(same.transpose(1, 2), o, atol=1e-5)
        True

    and one token more, with a cache that has room for others::

        >>> cache = torch.full((2, B, 256, HKV, K), float("nan"))
        >>> cache[0, :, :T], cache[1, :, :T] = k, v
        >>> lengths = torch.full((B,), T, dtype=torch.int32)
        >>> last = tandem.ops.attention(q[:, -1:], *cache, causal=True, lengths_k=lengths)
        >>> torch.allclose(last, o[:, -1:], atol=1e-5)
        True
    """
    if others:
        refuse("attention", others)
    q, k, v = autocast(q, k, v)
    left, right = (None, None) if window is None else _sides(window)
    numbers = (scale, 1.0 if causal else None, left, right)
    o, log_sum_exp = OPS["attention_forward"](
        q, k, v, *numbers, cu_seqlens_q, cu_seqlens_k, lengths_k, return_log_sum_exp
    )
    return (o, log_sum_exp) if return_log_sum_exp else o


def _sides(window: Any) -> tuple[int | None, int | None]:
    if not isinstance(window, list | tuple) or len(window) != 2:
        raise ValueError(f"[attention] window must be None or (left, right), got {window!r}")
    # why floats: a call of these goes to its kernel without torch's dispatcher (src/direct.cpp).
    left, right = (float(side) if isinstance(side, int) and side != -1 else side for side in window)
    return None if left == -1 else left, None if right == -1 else right
