"""Depthwise causal convolution along time, and one token of it."""

from typing import Any, NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, needs_more_than_a_kernel, refuse

_step_directly = OPS["causal_conv1d_step"].run_directly


@closed
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor | None]:
    """The short convolution in front of Mamba's and other linear models' recurrences, every channel on its own::

        z_t = bias + sum over w of weight_w x_{t-(W-1)+w}       w from 0 to W-1
        out_t = z_t or silu(z_t)

    Axes: B batch, T time, D channels, W taps, N sequences. All tensors are on one device. Time is in front of the
    channels, as in fla's ``ShortConvolution``; ``causal_conv1d_fn`` has them the other way round: x.transpose(1, 2).

    Args:
        x: [B,T,D], bf16, fp16 or fp32, on the CPU also fp64 (then all is, arithmetic included). Strides are free:
            x is read where it is, at full speed when base and strides are multiples of 8 bytes (fp32: 16). Only an
            innermost stride other than 1 makes a copy.
        weight: [D,W], W from 2 to 4, x's dtype or fp32; the last column is for the token itself. That of a
            ``torch.nn.Conv1d`` is [D,1,W]: weight.squeeze(1).
        bias: [D], x's dtype or fp32.
        activation: "silu" (or "swish") or None.
        initial_state: the W-1 tokens before the first, the oldest first, [B,D,W-1] in x's dtype, or [N,D,W-1] with
            cu_seqlens; any strides. None is zeros. Not written to. causal-conv1d calls it initial_states; the last
            W-1 columns of fla's cache, [N,D,W], are this.
        output_final_state: whether to return the last W-1 tokens, what follows is convolved with.
        cu_seqlens: int32 or int64 [N+1], needs B = 1: sequence n is the tokens [cu_seqlens[n],
            cu_seqlens[n+1]). Sequences may be empty; tokens outside of all give out = 0. The values are checked on
            the CPU only; on a GPU they are clamped to [0,T], because nothing in a call waits for the GPU.

    Returns:
        out [B,T,D] in x's dtype, contiguous, and the final state, as initial_state, or None without
        output_final_state.

    Differentiable in x, weight, bias and initial_state, once; what does not require a gradient costs none. Gradients
    have their tensor's dtype; sums over the tokens are fp32, and repeat bit by bit. z is computed again: nothing but
    the inputs is kept. There is no forward mode.

    Under autocast x and initial_state are cast to its dtype; weight and bias stay as they are.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU, a build without CUDA. From
            ``backward()`` too, and for second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, one sequence in two pieces::

        >>> import torch
        >>> import tandem
        >>> B, T, D, W = 2, 100, 64, 4
        >>> x = torch.randn(B, T, D, dtype=torch.bfloat16)
        >>> weight, bias = torch.randn(D, W), torch.randn(D)
        >>> out, state = tandem.ops.causal_conv1d(x, weight, bias, activation="silu", output_final_state=True)
        >>> out.shape, out.dtype, state.shape, state.dtype
        (torch.Size([2, 100, 64]), torch.bfloat16, torch.Size([2, 64, 3]), torch.bfloat16)
        >>> torch.equal(state, x[:, -3:].transpose(1, 2))
        True
        >>> a, b = x[:, :60], x[:, 60:]
        >>> _, middle = tandem.ops.causal_conv1d(a, weight, bias, output_final_state=True)
        >>> rest, _ = tandem.ops.causal_conv1d(b, weight, bias, activation="silu", initial_state=middle)
        >>> torch.equal(rest, out[:, 60:])
        True
    """
    if others:
        refuse("causal_conv1d", others)
    silu = _is_silu("causal_conv1d", activation)
    x, initial_state = autocast(x, initial_state)
    arguments = (x, weight, bias, silu, initial_state, cu_seqlens, output_final_state)
    return OPS["causal_conv1d_forward"](*arguments)


@closed
def causal_conv1d_step(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    **others: NoReturn,
) -> Tensor:
    """One token of :func:`tandem.ops.causal_conv1d` per sequence; ``state`` is updated in place. The order of the
    arguments is that of ``causal_conv1d_update``.

    Args:
        x: [B,D], or [B,1,D] with the time axis of ``causal_conv1d``; bf16, fp16 or fp32, on the CPU also fp64.
        state: [B,D,W-1] in x's dtype, any strides, overwritten: its oldest token leaves, x's enters. The final state
            of ``causal_conv1d``, or zeros. Of a cache with more tokens, its last W-1 columns.
        weight: [D,W], as in ``causal_conv1d``.
        bias: [D], likewise.
        activation: "silu" (or "swish") or None.

    Returns:
        out, of x's shape and dtype, contiguous: the bits that ``causal_conv1d`` gives.

    Under autocast x is cast to its dtype; the other tensors stay as they are.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or stride breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU, a build without CUDA. Also where a
            gradient would be needed, and under torch.func's transforms: there is none.
        RuntimeError: CUDA failed.

    Example, a prompt at once and then token by token::

        >>> import torch
        >>> import tandem
        >>> x, weight = torch.randn(2, 12, 64), torch.randn(64, 4)
        >>> out, final_state = tandem.ops.causal_conv1d(x, weight, output_final_state=True)
        >>> _, state = tandem.ops.causal_conv1d(x[:, :8], weight, output_final_state=True)
        >>> steps = [tandem.ops.causal_conv1d_step(x[:, t], state, weight) for t in range(8, 12)]
        >>> torch.equal(torch.stack(steps, 1), out[:, 8:]), torch.equal(state, final_state)
        (True, True)
    """
    if others:
        refuse("causal_conv1d_step", others)
    silu = _is_silu("causal_conv1d_step", activation)
    if not needs_more_than_a_kernel():
        direct: Any = _step_directly(x, weight, bias, silu, state)
        if direct is not None and direct is not NotImplemented:
            return direct
    (x,) = autocast(x)
    # A time axis that is not of one token stays, and is refused with the shape that the caller gave.
    with_time = isinstance(x, Tensor) and x.dim() == 3 and x.size(1) == 1
    out = OPS["causal_conv1d_step"](x.squeeze(1) if with_time else x, weight, bias, silu, state)
    return out.unsqueeze(1) if with_time else out


def _is_silu(op: str, activation: str | None) -> float:
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"[{op}] activation must be silu, swish or None, got {activation!r}")
    return 0.0 if activation is None else 1.0
