"""Matrix products of normalised rows: what stands in front of attention and of an MLP."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast

_MOST_WEIGHTS = 8
_FORWARD = OPS["rms_norm_gemm_forward"]
_TABLE = _FORWARD.table
_NOTHING: list[Any] = [False if name in _TABLE.flags else None for name in _TABLE.arguments]
_X, _NORM_WEIGHT, _EPS, _RSTD = (_TABLE.arguments.index(name) for name in ("x", "norm_weight", "eps", "rstd"))
_WEIGHTS, _BIASES, _WIDE = (
    [_TABLE.arguments.index(f"{name}{i}") for i in range(_MOST_WEIGHTS)] for name in ("weight", "bias", "fp32_out")
)
_OUTS = [[rows[0].name for rows in _TABLE.results].index(f"out{i}") for i in range(_MOST_WEIGHTS)]


def rms_norm_gemm(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor | Sequence[Tensor],
    bias: Tensor | Sequence[Tensor | None] | None = None,
    eps: float | None = None,
    rstd: Tensor | None = None,
    dtype: torch.dtype | Sequence[torch.dtype | None] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """The RMS norm of x and the products of it with one or several weights, in one call::

        n = x / sqrt(mean of x^2 + eps) norm_weight             the mean over the last axis
        y = n W^T + bias

    What stands in front of attention (weights of queries, keys and values) and of an MLP. n is rounded to x's dtype
    once; products are accumulated in fp32 and rounded once.

    Args:
        x: [...,d], bf16 or fp16, on the CPU also fp32 and fp64 (then all is). Leading axes are taken as one; strides
            are free where that makes no copy.
        norm_weight: [d], x's dtype or fp32.
        weight: [columns,d] as torch.nn.Linear has it, or 1 to 8 such tensors, which may be rows of one. x's dtype.
        bias: None or [columns]; beside several weights None, or one of these for each. x's dtype or fp32.
        eps: finite and not negative; None is 1e-6.
        rstd: fp32 [...], 1 / sqrt(mean of x^2 + eps) of each row, where another op has computed it; eps is None then.
            It must be of this x: the gradient through it is part of x's, and it gets none itself.
        dtype: of the output: None is x's, else torch.float32; beside several weights also one of these for each.

    Returns:
        A tensor [...,columns], contiguous; of several weights a tuple of them.

    Differentiable in x, norm_weight, weights and biases, once; what does not require a gradient costs none. Where one
    is required the forward keeps fp32 [...], the rstd, if it is not given. There is no forward mode.

    Under autocast x and the weights are cast to its dtype; norm_weight, biases and rstd stay as they are.

    Raises:
        TypeError: an argument is no tensor.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without CUDA.
            From ``backward()`` too, and for second derivatives and forward mode everywhere.
        RuntimeError: CUDA failed.

    Example, the inputs of an attention with two heads per key::

        >>> import torch
        >>> import tandem
        >>> B, T, d, H, K = 2, 100, 64, 4, 32
        >>> x = torch.randn(B, T, d, dtype=torch.bfloat16)
        >>> weight = torch.randn(2 * H * K, d, dtype=torch.bfloat16) / d**0.5
        >>> weights = weight.split([H * K, H * K // 2, H * K // 2])
        >>> q, k, v = tandem.ops.rms_norm_gemm(x, torch.ones(d), weights, eps=1e-5)
        >>> q.shape, k.shape, v.dtype
        (torch.Size([2, 100, 128]), torch.Size([2, 100, 64]), torch.bfloat16)
    """
    weights = [weight] if isinstance(weight, Tensor) else weight
    if not isinstance(weights, Sequence):
        raise TypeError(f"[rms_norm_gemm] weight must be a torch.Tensor or several, got {type(weight).__name__}")
    count = len(weights)
    if not 1 <= count <= _MOST_WEIGHTS:
        raise ValueError(f"[rms_norm_gemm] weight must be 1 to {_MOST_WEIGHTS} tensors, got {count}")
    x, *weights = autocast(x, *weights)
    arguments = _NOTHING.copy()
    leading = x.shape[:-1] if isinstance(x, Tensor) else ()
    flat = not isinstance(x, Tensor) or x.dim() in (0, 2)
    arguments[_X] = x if flat else x.reshape(math.prod(leading), x.shape[-1])
    arguments[_NORM_WEIGHT] = norm_weight
    arguments[_EPS] = eps
    if rstd is not None:
        arguments[_RSTD] = _row_values(rstd, leading)
    for place, one in zip(_WEIGHTS, weights, strict=False):
        arguments[place] = one
    if bias is not None:
        for place, one in zip(_BIASES, _per_weight("bias", bias, count), strict=False):
            arguments[place] = one
    if dtype is not None:
        for place, one in zip(_WIDE, _per_weight("dtype", dtype, count), strict=False):
            if one not in (None, torch.float32):
                raise ValueError(f"[rms_norm_gemm] dtype must be None or torch.float32, got {one}")
            arguments[place] = one is not None
    results = _FORWARD(*arguments)
    outs = [results[place] for place in _OUTS[:count]]
    if not flat:
        outs = [y.view(*leading, y.shape[-1]) for y in outs]
    return outs[0] if isinstance(weight, Tensor) else tuple(outs)


def _row_values(rstd: Any, leading: Sequence[int]) -> Any:
    if not isinstance(rstd, Tensor) or len(leading) == 1:
        return rstd
    if rstd.shape != leading:
        raise ValueError(f"[rms_norm_gemm] rstd must have shape {list(leading)}, as x has rows, got {list(rstd.shape)}")
    return rstd.reshape(math.prod(leading))


def _per_weight(name: str, given: Any, count: int) -> Sequence[Any]:
    """One of these for each weight: a list or tuple, or one value for a dtype, or for a single weight."""
    if not isinstance(given, list | tuple):
        if name == "dtype" or count == 1:
            return [given] * count
        raise TypeError(f"[rms_norm_gemm] {name} must be one per weight, got {type(given).__name__}")
    if len(given) != count:
        raise ValueError(f"[rms_norm_gemm] {name} must be one per weight, {count}, got {len(given)}")
    return given
