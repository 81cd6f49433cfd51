"""What a span of tokens does to the gradient by the state of gated linear attention, for sequence parallelism."""

from typing import NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, refuse


@closed
def gla_state_backward(
    q: Tensor,
    d_o: Tensor,
    log_decay: Tensor | None = None,
    *,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor]:
    """What a span of tokens adds to the gradient by the state before it, and its total log-decay::

        d_state = sum_t exp(g_1 + ... + g_t) scale * q_t d_o_t^T        total_log_decay = sum_t g_t
        gradient by the state before the span = exp(total_log_decay) * gradient by the state after it + d_state

    The counterpart of :func:`gla_state` in the backward pass, and no derivative of it. Of a sequence cut into
    consecutive parts, each on a device of its own, every device calls this on its part, all exchange the results
    (K*V + 1 numbers per head, however long the parts are), and each forms, from the last part to the first, the
    gradient by the state that its part ends with: the gradient that its ``final_state`` of :func:`tandem.ops.gla` gets.

    Args:
        q: [B,T,HQ,K], bf16 or fp16, on the CPU also fp32 and fp64. Axes, strides and what fp64 means as in
            :func:`tandem.ops.gla`.
        d_o: [B,T,H,V], the loss's gradient by o, as q.
        log_decay: [H] (constant per head) or [B,T,H] (per token), taken as fp32; None is no decay.
        scale: factor of the output, K^-0.5 when None.
        cu_seqlens: int32 or int64 [N+1], needs B = 1: each sequence is a span of its own. Sequences may be empty.

    Returns:
        d_state, fp32 [B,H,K,V] (with cu_seqlens [N,H,K,V]), and total_log_decay, fp32 [B,H] ([N,H]): 0 without
        tokens or decay, -inf where a token forgets everything before it.

    Under autocast q and d_o are cast to its dtype; log_decay stays fp32.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without
            CUDA. Also from ``backward()``: this op has no gradient.
        RuntimeError: CUDA failed.

    Example, the gradients of a sequence on three ranks (in one process; between devices,
    ``torch.distributed.all_gather`` passes d_state and total)::

        >>> import torch
        >>> import tandem
        >>> B, T, H, K, V = 2, 100, 4, 64, 32
        >>> q, k = torch.randn(2, B, T, H, K, dtype=torch.bfloat16).unbind()
        >>> v, d_o = torch.randn(2, B, T, H, V, dtype=torch.bfloat16).unbind()
        >>> g = torch.nn.functional.logsigmoid(torch.randn(B, T, H)) / 16
        >>> leaves = [x.requires_grad_() for x in (q, k, v, g)]
        >>> ranks = [slice(0, 40), slice(40, 41), slice(41, T)]
        >>> with torch.no_grad():  # the states that the parts begin with, as gla_state shows
        ...     begins = [torch.zeros(B, H, K, V)]
        ...     for r in ranks[:-1]:
        ...         state, total = tandem.ops.gla_state(k[:, r], v[:, r], g[:, r])
        ...         begins.append(total.exp()[..., None, None] * begins[-1] + state)
        ...     gathered = [tandem.ops.gla_state_backward(q[:, r], d_o[:, r], g[:, r]) for r in ranks]
        >>> d_final, gradients = torch.zeros(B, H, K, V), []
        >>> for r, begin, (d_state, total) in reversed(list(zip(ranks, begins, gathered))):
        ...     part = [x[:, r] for x in leaves]
        ...     o, final = tandem.ops.gla(*part, initial_state=begin, output_final_state=True)
        ...     gradients.insert(0, torch.autograd.grad([o, final], part, [d_o[:, r], d_final]))
        ...     d_final = total.exp()[..., None, None] * d_final + d_state
        >>> whole = torch.autograd.grad(tandem.ops.gla(*leaves)[0], leaves, d_o)
        >>> parts = [torch.cat(x, dim=1) for x in zip(*gradients)]
        >>> all(((a - b).norm() < 0.01 * b.norm()).item() for a, b in zip(parts, whole))
        True
    """
    if others:
        refuse("gla_state_backward", others)
    q, d_o = autocast(q, d_o)
    return OPS["gla_state_backward"](q, d_o, log_decay, scale, cu_seqlens)
