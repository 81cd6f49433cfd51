"""What a span of tokens does to the state of gated linear attention: the hook for sequence parallelism."""

from typing import Any, NoReturn

import torch
from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, refuse


@closed
def gla_state(
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor]:
    """The state that a span of tokens leaves behind when it begins with none, and its total log-decay::

        state = sum_t exp(g_{t+1} + ... + g_T) k_t v_t^T        total_log_decay = sum_t g_t
        state after the span = exp(total_log_decay) * state before it + state

    Of a sequence cut into consecutive parts, each on a device of its own, every device calls this on its part, all
    exchange the results (K*V + 1 numbers per head, however long the parts are), and each forms the state that its
    part begins with: ``initial_state`` of :func:`tandem.ops.gla`.

    Args:
        k: [B,T,HQ,K], bf16 or fp16, on the CPU also fp32 and fp64. Axes, strides and what fp64 means as in
            :func:`tandem.ops.gla`.
        v: [B,T,H,V], as k.
        log_decay: [H] (constant per head) or [B,T,H] (per token), taken as fp32; None is no decay.
        cu_seqlens: int32 or int64 [N+1], needs B = 1: each sequence is a span of its own. Sequences may be empty.

    Returns:
        state, fp32 [B,H,K,V] (with cu_seqlens [N,H,K,V]), and total_log_decay, fp32 [B,H] ([N,H]): 0 without
        tokens or decay, -inf where a token forgets everything before it.

    Differentiable in k, v and log_decay, once; the gradient of log_decay is 0 where the token forgets everything. So
    autograd through the exchange of states trains on a sequence in parts; :func:`gla_state_backward` does the same
    without a second backward pass over each part. Forward mode has tangents of k and of v.

    Under autocast k and v are cast to its dtype; log_decay stays fp32.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without
            CUDA. From ``backward()`` too, and for second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, a sequence on three ranks (in one process; between devices, ``torch.distributed.all_gather`` passes
    state and total)::

        >>> import torch
        >>> import tandem
        >>> B, T, H, K, V = 2, 100, 4, 64, 32
        >>> q, k = torch.randn(2, B, T, H, K, dtype=torch.bfloat16).unbind()
        >>> v = torch.randn(B, T, H, V, dtype=torch.bfloat16)
        >>> g = torch.nn.functional.logsigmoid(torch.randn(B, T, H)) / 16
        >>> ranks = [slice(0, 40), slice(40, 41), slice(41, T)]
        >>> gathered = [tandem.ops.gla_state(k[:, r], v[:, r], g[:, r]) for r in ranks]
        >>> begin, outputs = torch.zeros(B, H, K, V), []
        >>> for r, (state, total) in zip(ranks, gathered):
        ...     outputs.append(tandem.ops.gla(q[:, r], k[:, r], v[:, r], g[:, r], initial_state=begin)[0])
        ...     begin = total.exp()[..., None, None] * begin + state
        >>> o, final = tandem.ops.gla(q, k, v, g, output_final_state=True)
        >>> torch.allclose(torch.cat(outputs, dim=1).float(), o.float(), rtol=0.02, atol=0.02)
        True
        >>> torch.allclose(begin, final, rtol=0.02, atol=0.05)
        True
    """
    if others:
        refuse("gla_state", others)
    k, v = autocast(k, v)
    return OPS["gla_state_forward"](k, v, log_decay, cu_seqlens)


def _backward(ctx: Any, d_state: Tensor | None, d_total_log_decay: Tensor | None) -> tuple[Tensor | None, ...]:
    k, v, log_decay, cu_seqlens = ctx.saved_tensors
    wants_dk, wants_dv, wants_d_log_decay, _ = ctx.needs_input_grad
    dk = dv = d_log_decay = None
    if d_state is not None:
        # The state is gla's final state, whatever q is. k stands for it, and zeros for d_o.
        inputs = (k, k, v, log_decay, None, None, cu_seqlens, None, torch.zeros_like(v), d_state)
        wants = (False, wants_dk, wants_dv, wants_d_log_decay, False)
        _, dk, dv, d_log_decay, _ = OPS["gla_backward"](*inputs, *wants)
    if d_total_log_decay is not None and wants_d_log_decay:
        through_total = _by_log_decay(d_total_log_decay, log_decay, cu_seqlens, k.shape[:2])
        d_log_decay = through_total if d_log_decay is None else d_log_decay + through_total
    return dk, dv, d_log_decay, None


def _by_log_decay(d_total: Tensor, log_decay: Tensor, cu_seqlens: Tensor | None, shape: torch.Size) -> Tensor:
    """The gradient by log_decay through its sums over the tokens of each sequence; shape is [B,T]."""
    B, T = shape
    if cu_seqlens is None:
        of_token = d_total[:, None].expand(B, T, -1)
    else:  # each token's sequence, found without reading cu_seqlens on the host; beside every one, a row of zeros
        tokens = torch.arange(T, device=d_total.device, dtype=cu_seqlens.dtype)
        sequence = torch.searchsorted(cu_seqlens, tokens, right=True) - 1
        sequence = sequence.where(sequence >= 0, d_total.size(0))
        of_token = torch.nn.functional.pad(d_total, (0, 0, 0, 1))[sequence][None]
    of_token = of_token.masked_fill(log_decay.exp() == 0, 0)  # the total is -inf, and stays there
    return of_token.sum((0, 1)) if log_decay.dim() == 1 else of_token


OPS["gla_state_forward"].differentiate_by(_backward)
