"""Linear scan: gated_scan of a projection that is computed on the fly."""

from typing import NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, refuse, scan_decay


@closed
def linear_scan(
    u: Tensor,
    weight: Tensor,
    *,
    decay: Tensor | None = None,
    log_decay: Tensor | None = None,
    gate: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor | None]:
    """gated_scan of x = u W^T::

        x_t = W u_t
        s_t = a_t s_{t-1} + x_t             s_0 = initial_state or 0
        out_t = silu(gate_t) s_t            or s_t without a gate

    x is accumulated in fp32 and goes into the scan as it is or, where that is faster on CUDA, with a precision of
    2^-17 (bf16) or 2^-22 (fp16, where an x beyond 65,519 is then infinite). Axes: B batch, T time, d input width,
    D channels, N sequences. All tensors are on one device.

    Args:
        u: [B,T,d], bf16 or fp16, on the CPU also fp32 and fp64. Strides, and what fp64 means, as in gated_scan.
        weight: W, [D,d], u's dtype, as torch.nn.Linear has it.
        decay: a, [B,T,D], as in gated_scan. Exactly one of decay and log_decay must be given.
        log_decay: the natural logarithm of a instead.
        gate: [B,T,D], u's dtype.
        initial_state: fp32 [B,D], or [N,D] with cu_seqlens. None is zero. Not written to.
        output_final_state: whether to return the state after the last token.
        cu_seqlens: int32 or int64 [N+1], needs B = 1, as in gated_scan.

    Returns:
        out [B,T,D] in u's dtype, contiguous, and the final state, fp32 [B,D] (with cu_seqlens [N,D]), or None
        without output_final_state.

    Differentiable in u, weight, the decay, gate and initial_state, once; what does not require a gradient costs
    none. Gradients have their tensor's dtype. Where the decay or gate requires one the forward keeps x, in u's
    dtype, and the state before every 128th token: in 16 bits 2 B T D + 4 B D T / 128 bytes. Forward mode has
    tangents of u and initial_state, and of weight and initial_state.

    Under autocast u, weight and gate are cast to its dtype; the decay and the state stay as they are.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without CUDA.
            From ``backward()`` too, and for second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, against the two steps that it fuses::

        >>> import torch
        >>> import tandem
        >>> B, T, d, D = 2, 100, 32, 64
        >>> u, weight = torch.randn(B, T, d), torch.randn(D, d) / d**0.5
        >>> a, gate = torch.sigmoid(torch.randn(B, T, D) + 2), torch.randn(B, T, D)
        >>> out, state = tandem.ops.linear_scan(u, weight, decay=a, gate=gate, output_final_state=True)
        >>> out.shape, state.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 64]))
        >>> x = torch.nn.functional.linear(u, weight)
        >>> torch.allclose(tandem.ops.gated_scan(x, decay=a, gate=gate)[0], out, atol=1e-4)
        True
    """
    if others:
        refuse("linear_scan", others)
    u, weight, gate = autocast(u, weight, gate)
    decays = (scan_decay(u, decay), scan_decay(u, log_decay))
    kept = (False, False)  # but for gradients
    arguments = (u, weight, *decays, gate, initial_state, output_final_state, cu_seqlens, *kept)
    out, final_state, _, _ = OPS["linear_scan_forward"](*arguments)
    return out, final_state
