"""Matrix products of normalised rows: what stands in front of attention and of an MLP."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tandem._registration import OPS
from tandem._tables import as_number
from tandem.ops._shared import autocast

_MOST_WEIGHTS = 8
_FORWARD = OPS["rms_norm_gemm_forward"]
_TABLE = _FORWARD.table
_NOTHING: list[Any] = [False if name in _TABLE.flags else None for name in _TABLE.arguments]
_X, _NORM_WEIGHT, _EPS, _RSTD = (_TABLE.arguments.index(name) for name in ("x", "norm_weight", "eps", "rstd"))
_COS, _SIN, _POSITIONS, _SEQUENCES, _LENGTH, _LAYOUT = (
    _TABLE.arguments.index(name)
    for name in ("rope_cos", "rope_sin", "rope_positions", "cu_seqlens", "rope_length", "rope_layout")
)
_LAYOUTS = ("rotate_half", "interleaved")
_WEIGHTS, _BIASES, _WIDE, _HEAD_WIDTHS, _HEAD_NORM_WEIGHTS, _HEAD_EPS, _ROTATES = (
    [_TABLE.arguments.index(f"{name}{i}") for i in range(_MOST_WEIGHTS)]
    for name in ("weight", "bias", "fp32_out", "head_width", "head_norm_weight", "head_eps", "rotates")
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
    *,
    head_width: int | Sequence[int | None] | None = None,
    head_norm_weight: Tensor | Sequence[Tensor | None] | None = None,
    head_eps: float | Sequence[float | None] | None = None,
    rotates: bool | Sequence[bool] = False,
    rope_cos: Tensor | None = None,
    rope_sin: Tensor | None = None,
    rope_positions: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    rope_layout: str = "rotate_half",
) -> Tensor | tuple[Tensor, ...]:
    """The RMS norm of x and the products of it with one or several weights, in one call::

        n = x / sqrt(mean of x^2 + eps) norm_weight             the mean over the last axis
        z = n W^T + bias
        y = RoPE(z / sqrt(mean of z^2 + head_eps) head_norm_weight)    the mean over each head; each where it is asked

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
        head_width: of the heads that the columns are, a multiple of 8 up to 256; beside several weights also one of
            these, or None, for each.
        head_norm_weight: None or [head_width]; beside several weights None, or one of these for each. x's dtype or
            fp32. The norm of each head (Qwen3), of the fp32 z.
        head_eps: of these norms, finite and not negative; None is 1e-6. Beside several weights also one for each.
        rotates: whether RoPE rotates the heads, behind their norm; beside several weights also one for each.
        rope_cos, rope_sin: [P,R/2], x's dtype or fp32: cosines and sines of P positions and R/2 pairs of columns, of
            which R are at most a head; those behind R stay as they are. No gradient.
        rope_positions: int32 or int64 [...]: the row of the tables for each row of x. None: its place along the last
            of x's leading axes, or in its sequence of cu_seqlens. What leaves the tables is clamped.
        cu_seqlens: int32 or int64 [N+1]: where packed sequences begin; no rope_positions then.
        rope_layout: "rotate_half", whose pairs are columns j and j + R/2 (Llama), or "interleaved", 2j and 2j+1.

    Returns:
        A tensor [...,columns], contiguous; of several weights a tuple of them.

    Differentiable in x, norm weights, weights and biases, once; what does not require a gradient costs none. Where one
    is required the forward keeps fp32 [...], the rstd, if it is not given, and of each head norm z in x's dtype and
    fp32 [...,heads]. There is no forward mode.

    Under autocast x and the weights are cast to its dtype; norm weights, biases, rstd and tables stay as they are.

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

    and with norms of the heads and rotated queries and keys, as Qwen3 has them::

        >>> angles = torch.arange(T)[:, None] * 1e6 ** (-torch.arange(0, K, 2) / K)
        >>> heads = dict(head_width=(K, K, None), head_norm_weight=(torch.ones(K), torch.ones(K), None))
        >>> rope = dict(rotates=(True, True, False), rope_cos=angles.cos(), rope_sin=angles.sin())
        >>> q, k, v = tandem.ops.rms_norm_gemm(x, torch.ones(d), weights, **heads, **rope)
        >>> q.shape
        torch.Size([2, 100, 128])
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
    norms = [None] * count if head_norm_weight is None else _per_weight("head_norm_weight", head_norm_weight, count)
    if not isinstance(head_eps, list | tuple | None):
        head_eps = [None if norm is None else head_eps for norm in norms]
    for place, one in zip(_HEAD_NORM_WEIGHTS, norms, strict=False):
        arguments[place] = one
    for name, places, given in (
        ("head_width", _HEAD_WIDTHS, head_width),
        ("head_eps", _HEAD_EPS, head_eps),
        ("rotates", _ROTATES, rotates or None),
    ):
        if given is not None:
            for place, one in zip(places, _per_weight(name, given, count), strict=False):
                arguments[place] = None if one is None or one is False else as_number("rms_norm_gemm", name, one)
    if rope_cos is not None or rope_sin is not None:
        if rope_layout not in _LAYOUTS:
            raise ValueError(f"[rms_norm_gemm] rope_layout must be one of {', '.join(_LAYOUTS)}, got {rope_layout!r}")
        arguments[_COS], arguments[_SIN] = rope_cos, rope_sin
        arguments[_LAYOUT] = float(_LAYOUTS.index(rope_layout))
    arguments[_SEQUENCES] = cu_seqlens
    if rope_positions is not None:
        arguments[_POSITIONS] = _row_values(rope_positions, leading, "rope_positions")
    elif rope_cos is not None and cu_seqlens is None and leading:
        if is_compiling():  # to a graph a number is a constant: each length would have one of its own
            places = torch.arange(leading[-1], dtype=torch.int32, device=x.device)
            arguments[_POSITIONS] = places.expand(leading).reshape(math.prod(leading))
        elif leading[-1] > 0:
            arguments[_LENGTH] = float(leading[-1])
    results = _FORWARD(*arguments)
    outs = [results[place] for place in _OUTS[:count]]
    if not flat:
        outs = [y.view(*leading, y.shape[-1]) for y in outs]
    return outs[0] if isinstance(weight, Tensor) else tuple(outs)


def _row_values(given: Any, leading: Sequence[int], name: str = "rstd") -> Any:
    if not isinstance(given, Tensor) or len(leading) == 1:
        return given
    if given.shape != leading:
        raise ValueError(
            f"[rms_norm_gemm] {name} must have shape {list(leading)}, as x has rows, got {list(given.shape)}"
        )
    return given.reshape(math.prod(leading))


def _per_weight(name: str, given: Any, count: int) -> Sequence[Any]:
    """One of these for each weight: a list or tuple, or one value for all, or a tensor for a single weight."""
    if not isinstance(given, list | tuple):
        if name not in ("bias", "head_norm_weight") or count == 1:
            return [given] * count
        raise TypeError(f"[rms_norm_gemm] {name} must be one per weight, got {type(given).__name__}")
    if len(given) != count:
        raise ValueError(f"[rms_norm_gemm] {name} must be one per weight, {count}, got {len(given)}")
    return given
