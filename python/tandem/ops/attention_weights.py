"""The weights of attention, in memory."""

from typing import NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, refuse


@closed
def attention_weights(
    q: Tensor, k: Tensor, *, causal: bool = False, scale: float | None = None, **others: NoReturn
) -> Tensor:
    """The weights of softmax attention, for whoever looks at them or changes them before they meet values::

        w_ij = softmax_j(scale * q_i . k_j)         of the keys j that query i sees, else 0

    attention does not need them in memory. A weight is computed in fp32 and rounded once, so that a row's sum is 1 but
    for those roundings. A query that sees no key has weights of 0.

    Axes: B batch, TQ queries, TK keys, H query heads, HKV key heads (HKV divides H; head h reads key head h / (H/HKV)),
    K key dim. Both tensors are on one device.

    Args:
        q: [B,TQ,H,K], bf16 or fp16, on the CPU also fp32 and fp64. Strides, copies, and what fp64 means, as in gla.
        k: [B,TK,HKV,K], as q.
        causal: whether query i sees keys up to i + TK - TQ alone, the last query all of them.
        scale: factor of the scores, K^-0.5 when None.

    Returns:
        w [B,H,TQ,TK] in q's dtype, contiguous.

    Differentiable in q and k, once; what does not require a gradient costs none. Gradients have their tensor's dtype
    and are bitwise repeatable. Where one is required the forward keeps w. There is no forward mode.

    Under autocast q and k are cast to its dtype. fp64 stays fp64.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without CUDA.
            From ``backward()`` too, and for second derivatives and forward mode everywhere.
        RuntimeError: CUDA failed.

    Example::

        >>> import torch
        >>> import tandem
        >>> q, k = torch.randn(2, 2, 100, 4, 64)
        >>> w = tandem.ops.attention_weights(q, k, causal=True)
        >>> w.shape
        torch.Size([2, 4, 100, 100])
        >>> torch.allclose(w.sum(-1), torch.ones(2, 4, 100))
        True
    """
    if others:
        refuse("attention_weights", others)
    q, k = autocast(q, k)
    return OPS["attention_weights_forward"](q, k, scale, 1.0 if causal else None)
