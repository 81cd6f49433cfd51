"""gemm_swiglu: the gated half of a transformer's MLP, with an RMS norm in front where it is asked for."""

import math

import torch
from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
_FORWARD = OPS["gemm_swiglu_forward"]


def gemm_swiglu(
    x: Tensor,
    weight: Tensor,
    up_weight: Tensor | None = None,
    activation: str = "silu",
    norm_weight: Tensor | None = None,
    eps: float | None = None,
    rstd: Tensor | None = None,
) -> Tensor:
    """Two products of the same rows, one of which gates the other, in one call::

        n = x                                     or  x / sqrt(mean of x^2 + eps) norm_weight
        out = f(n Wg^T) * (n Wu^T)

    f is silu in SwiGLU (Llama, Qwen, Mistral), gelu in GEGLU, relu in ReGLU. Products are accumulated in fp32, what
    follows them is of what was not rounded before, and the result is rounded once.

    Args:
        x: [...,d], bf16 or fp16, on the CPU also fp32 and fp64 (then all is). Leading axes are taken as one; strides
            are free where that makes no copy.
        weight: [2F,d], the gate's rows first; beside an up_weight the gate's alone, [F,d]. x's dtype.
        up_weight: None or [F,d]. x's dtype.
        activation: f: "silu" (z sigmoid(z)), "gelu" (by erf), "gelu_tanh" or "relu", as torch's own functions.
        norm_weight: None, or [d], in x's dtype or fp32: there is an RMS norm. n is rounded to x's dtype.
        eps: of the norm, finite and not negative; None is 1e-6. With 0 a row of zeros gives NaN.
        rstd: None, or fp32 (beside fp64 fp64), x's shape without its last axis: 1 / sqrt(mean of x^2 + eps) of each
            row, where another op has computed it. It needs norm_weight, and takes the place of eps.

    Returns:
        A tensor [...,F], contiguous, in x's dtype.

    Differentiable in x, the weights and norm_weight, once; what does not require a gradient costs none. Where one is
    required the forward keeps two tensors of the result's size in x's dtype, f'(n Wg^T) * (n Wu^T) and f(n Wg^T), and
    of a norm 1 / sqrt(mean of x^2 + eps) of each row, or the given rstd. A given rstd must be x's own: the gradient
    through it is part of that by x, and it gets none itself. Forward mode is by up_weight alone.

    Under autocast x and the two weights are cast to its dtype; norm_weight and rstd stay as they are.

    Raises:
        TypeError: an argument is no tensor.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without CUDA.
            From ``backward()`` too, and for second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, the MLP of a Llama block::

        >>> import torch
        >>> import tandem
        >>> B, T, d, F = 2, 100, 64, 192
        >>> x = torch.randn(B, T, d, dtype=torch.bfloat16)
        >>> norm_weight = torch.ones(d, dtype=torch.bfloat16)
        >>> weight = torch.randn(2 * F, d, dtype=torch.bfloat16) / d**0.5
        >>> down_weight = torch.randn(d, F, dtype=torch.bfloat16) / F**0.5
        >>> h = tandem.ops.gemm_swiglu(x, weight, norm_weight=norm_weight, eps=1e-5)
        >>> y = x + torch.nn.functional.linear(h, down_weight)
        >>> h.shape, y.shape
        (torch.Size([2, 100, 192]), torch.Size([2, 100, 64]))
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"[gemm_swiglu] activation must be one of {', '.join(_ACTIVATIONS)}, got {activation}")
    if not isinstance(weight, Tensor):
        raise TypeError(f"[gemm_swiglu] weight must be a torch.Tensor, got {type(weight).__name__}")
    gate_weight = weight
    if up_weight is None:
        if weight.dim() != 2 or weight.shape[0] % 2:
            raise ValueError(f"[gemm_swiglu] weight must have shape [2F,d] without up_weight, got {list(weight.shape)}")
        gate_weight, up_weight = weight.split([weight.shape[0] // 2] * 2)
    x, gate_weight, up_weight = autocast(x, gate_weight, up_weight)
    leading = x.shape[:-1] if isinstance(x, Tensor) else torch.Size()
    is_reshaped = isinstance(x, Tensor) and x.dim() not in (0, 2)
    rows = x.reshape(math.prod(leading), x.shape[-1]) if is_reshaped else x
    if isinstance(rstd, Tensor):
        if rstd.shape != leading:
            raise ValueError(
                f"[gemm_swiglu] rstd must have x's shape without its last axis, {list(leading)}, got {list(rstd.shape)}"
            )
        rstd = rstd.reshape(-1)
    number = float(_ACTIVATIONS.index(activation))
    out: Tensor = _FORWARD(rows, gate_weight, up_weight, number, norm_weight, eps, rstd, False, False, False)[0]
    return out.view(*leading, out.shape[-1]) if is_reshaped else out
