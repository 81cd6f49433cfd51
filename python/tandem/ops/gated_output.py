"""gated_output: what follows a sequence mixing: a gate, the output projection, the residual and the next norm."""

import math
from typing import Any

import torch
from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast

# Their places are their numbers.
_GATE_ACTIVATIONS = (None, "silu", "sigmoid")
_NORMS = (None, "layer_norm", "rms_norm")
_FORWARD = OPS["gated_output_forward"]


def gated_output(
    o: Tensor,
    weight: Tensor,
    gate: Tensor | None = None,
    *,
    gate_activation: str | None = None,
    group_norm_weight: Tensor | None = None,
    group_width: int | None = None,
    group_eps: float | None = None,
    norm_behind_gate: bool = False,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    norm: str | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    eps: float | None = None,
    return_sum: bool = False,
    return_rstd: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """The chain behind attention or a recurrence, in one call::

        a = o                        without a gate
        a = h(o) * f(gate)           h before the gate (GLA, RetNet), or no h
        a = h(o * f(gate))           h behind the gate (Mamba-2)
        sum = residual + a W^T + bias
        out = norm(sum)

    h is an RMS norm of each group of neighbouring columns, of a head's for instance: h(y) = y / sqrt(mean of y^2 over
    the group + group_eps) group_norm_weight. a is rounded to o's dtype; products are accumulated in fp32 and the sum is
    rounded once. The norm is that of the rounded sum.

    Args:
        o: [...,d_in], bf16 or fp16, on the CPU also fp32 and fp64 (then all is). Leading axes are taken as one; strides
            are free where that makes no copy.
        weight: W, [d,d_in] as torch.nn.Linear has it. o's dtype.
        gate: None or [...,d_in]. o's dtype.
        gate_activation: f: "silu" (g sigmoid(g)), "sigmoid", or None for the gate as it stands.
        group_norm_weight: None, or [group_width], the same for each group, or [d_in], in o's dtype or fp32: there is h.
        group_width: columns of a group, a divisor of d_in; None is group_norm_weight's length.
        group_eps: of h, finite and not negative; None is 1e-6. With 0 a group of zeros gives NaN.
        norm_behind_gate: whether h is behind the gate.
        bias: None or [d], o's dtype or fp32.
        residual: None or [...,d]. o's dtype.
        norm: of the sum, over the last axis: "layer_norm", "rms_norm", or None.
        norm_weight: None, for 1, or [d], o's dtype or fp32.
        norm_bias: None, for 0, or [d], o's dtype or fp32; of layer_norm.
        eps: of norm, finite and not negative; None is 1e-6.
        return_sum: whether sum is returned, too: the next residual. It needs norm: without one out is the sum.
        return_rstd: whether 1 / sqrt(variance, or mean square, of sum + eps) is returned, too; with rms_norm
            rms_norm_gemm and gemm_swiglu take it, beside sum, as their rstd. It needs norm.

    Returns:
        out, a tensor [...,d], contiguous, in o's dtype. With return_sum or return_rstd a tuple of it and, in this
        order, sum, which is like it, and rstd, fp32 (beside fp64 fp64) [...].

    Differentiable in all tensors, by out and sum, once; what does not require a gradient costs none. rstd has no
    gradient: where it is used as above, that through it is part of the gradient by sum. Where a gradient is required
    the forward keeps sum and its rstd, of a layer_norm its mean, and h's, of each group; for that by the weight also a,
    unless it is o. Forward mode is, without a norm, by weight, bias and residual together or, without h, by o, bias and
    residual.

    Under autocast o, gate, weight and residual are cast to its dtype; the other weights and biases stay as they are.

    Raises:
        TypeError: an argument is no tensor.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without CUDA.
            From ``backward()`` too, and for second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, the end of a GLA layer and the norm of the MLP behind it::

        >>> import torch
        >>> import tandem
        >>> B, T, H, V, d = 2, 100, 4, 32, 64
        >>> o = torch.randn(B, T, H, V, dtype=torch.bfloat16)
        >>> gate = torch.randn(B, T, H * V, dtype=torch.bfloat16)
        >>> weight = torch.randn(d, H * V, dtype=torch.bfloat16) / (H * V)**0.5
        >>> x = torch.randn(B, T, d, dtype=torch.bfloat16)
        >>> n, x = tandem.ops.gated_output(
        ...     o.flatten(-2), weight, gate, gate_activation="silu", group_norm_weight=torch.ones(V),
        ...     residual=x, norm="rms_norm", norm_weight=torch.ones(d), return_sum=True)
        >>> n.shape, x.shape
        (torch.Size([2, 100, 64]), torch.Size([2, 100, 64]))
    """
    gate_number = _number("gate_activation", gate_activation, _GATE_ACTIVATIONS)
    norm_number = _number("norm", norm, _NORMS)
    for name, wanted in (("return_sum", return_sum), ("return_rstd", return_rstd)):
        if wanted and norm is None:
            raise ValueError(f"[gated_output] {name} needs norm")
    if group_width is None and isinstance(group_norm_weight, Tensor) and group_norm_weight.dim() == 1:
        group_width = group_norm_weight.shape[0]
    o, weight, gate, residual = autocast(o, weight, gate, residual)
    leading = o.shape[:-1] if isinstance(o, Tensor) else torch.Size()
    is_reshaped = isinstance(o, Tensor) and o.dim() not in (0, 2)
    if is_reshaped:
        gate, residual = _rows("gate", gate, leading), _rows("residual", residual, leading)
        o = o.reshape(math.prod(leading), o.shape[-1])
    out, total, _, rstd, *_ = _FORWARD(
        o,
        gate,
        gate_number,
        group_norm_weight,
        None if group_width is None else float(int(group_width)),
        group_eps,
        1.0 if norm_behind_gate else None,
        weight,
        bias,
        residual,
        norm_number,
        norm_weight,
        norm_bias,
        eps,
        bool(return_sum),
        False,
        bool(return_rstd),
        False,
        False,
    )
    results = [out, *([total] if return_sum else []), *([rstd] if return_rstd else [])]
    if is_reshaped:
        results = [x.view((*leading, *x.shape[1:])) for x in results]
    return results[0] if len(results) == 1 else tuple(results)


def _number(name: str, choice: Any, choices: tuple[str | None, ...]) -> float | None:
    if choice not in choices:
        raise ValueError(f"[gated_output] {name} must be {', '.join(map(str, choices[1:]))} or None, got {choice}")
    return None if choice is None else float(choices.index(choice))


def _rows(name: str, x: Any, leading: torch.Size) -> Any:
    """A tensor [...,columns] as rows: where o has several leading axes, these could fit by their product alone."""
    if not isinstance(x, Tensor):
        return x
    if x.dim() == 0 or x.shape[:-1] != leading:
        raise ValueError(f"[gated_output] {name} must have o's leading axes, {list(leading)}, got {list(x.shape)}")
    return x.reshape(math.prod(leading), x.shape[-1])
