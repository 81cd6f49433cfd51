"""Gated scan: an element-wise linear recurrence over time with a gated output."""

from typing import NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, is_any_autocast_enabled, refuse, scan_decay


@closed
def gated_scan(
    x: Tensor,
    *,
    decay: Tensor | None = None,
    log_decay: Tensor | None = None,
    gate: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor | None]:
    """Element-wise gated recurrence, every channel on its own::

        s_t = a_t s_{t-1} + x_t             s_0 = initial_state or 0
        out_t = silu(gate_t) s_t            or s_t without a gate

    HGRN is this op with x = (1 - a) i. Axes: B batch, T time, D channels, N sequences. All tensors are on one device.

    Args:
        x: [B,T,D], bf16, fp16 or fp32, on the CPU also fp64. With fp64, which is slow and meant for
            ``torch.autograd.gradcheck``, what is fp32 below is fp64, arithmetic included. Strides are free: tensors
            are read where they are, at full speed when bases and strides are multiples of 16 bytes. Only an innermost
            stride other than 1 makes a copy.
        decay: a, [B,T,D], meant to lie in (0,1), in x's dtype or fp32; other floating dtypes are converted to fp32.
            0 forgets everything before the token, exactly. Exactly one of decay and log_decay must be given.
        log_decay: the natural logarithm of a instead, likewise. -inf, and what is below about -87.3, forgets.
        gate: [B,T,D], x's dtype.
        initial_state: fp32 [B,D], or [N,D] with cu_seqlens. None is zero. Not written to.
        output_final_state: whether to return the state after the last token.
        cu_seqlens: int32 or int64 [N+1], needs B = 1: sequence n is the tokens [cu_seqlens[n],
            cu_seqlens[n+1]). Sequences may be empty; tokens outside of all give out = 0. The values are checked on
            the CPU only; on a GPU they are clamped to [0,T], because nothing in a call waits for the GPU.

    Returns:
        out [B,T,D] in x's dtype, contiguous, and the final state, fp32 [B,D] (with cu_seqlens [N,D]), or None
        without output_final_state.

    Differentiable in x, the decay, gate and initial_state, once; what does not require a gradient costs none.
    Gradients have their tensor's dtype, that of log_decay is 0 where it forgets. Where a decay or the gate requires a
    gradient the state before every 128th token is kept, in fp32; the backward computes the others again. Forward mode
    has tangents of x and initial_state.

    Under autocast x and gate are cast to its dtype; the decay and the state stay as they are.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU, a build without CUDA. From
            ``backward()`` too, and for second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, one sequence in two pieces::

        >>> import torch
        >>> import tandem
        >>> B, T, D = 2, 100, 64
        >>> x, gate = torch.randn(2, B, T, D, dtype=torch.bfloat16).unbind()
        >>> g = torch.nn.functional.logsigmoid(torch.randn(B, T, D) + 2)
        >>> out, state = tandem.ops.gated_scan(x, log_decay=g, gate=gate, output_final_state=True)
        >>> out.shape, out.dtype, state.shape, state.dtype
        (torch.Size([2, 100, 64]), torch.bfloat16, torch.Size([2, 64]), torch.float32)
        >>> a, b = slice(0, 60), slice(60, T)
        >>> _, middle = tandem.ops.gated_scan(x[:, a], log_decay=g[:, a], output_final_state=True)
        >>> rest, _ = tandem.ops.gated_scan(x[:, b], log_decay=g[:, b], gate=gate[:, b], initial_state=middle)
        >>> torch.allclose(rest.float(), out[:, b].float(), rtol=0.02, atol=0.02)
        True
    """
    if others:
        refuse("gated_scan", others)
    if is_any_autocast_enabled():
        x, gate = autocast(x, gate)
    decays = (scan_decay(x, decay), scan_decay(x, log_decay))
    kept = False  # but for gradients
    out, final_state, _ = OPS["gated_scan_forward"](
        x, *decays, gate, initial_state, output_final_state, cu_seqlens, kept
    )
    return out, final_state
