"""Projection: several matrix products of the same rows, each with what follows it fused in."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast

_ACTIVATIONS = ("none", "silu", "sigmoid", "log_sigmoid", "softplus", "l2_normalize")
_OF = {"divisor": "log_sigmoid", "min": "softplus", "max": "softplus", "head_width": "l2_normalize"}
_MOST_SEGMENTS = 8
_FORWARD = OPS["projection_forward"]
_WEIGHTS, _BIASES = (
    [_FORWARD.table.arguments.index(f"{name}{i}") for i in range(_MOST_SEGMENTS)] for name in ("weight", "bias")
)
_OUTS = [[rows[0].name for rows in _FORWARD.table.results].index(f"out{i}") for i in range(_MOST_SEGMENTS)]


@dataclasses.dataclass(frozen=True)
class Segment:
    """Some columns of a :func:`tandem.ops.projection`, and what follows their product z.

    Args:
        columns: how many, 0 or more.
        activation: "none" (z), "silu" (z sigmoid(z)), "sigmoid", "log_sigmoid" (log(sigmoid(z)) / divisor),
            "softplus" (log(1 + exp(z)), clamped to [min, max]), or "l2_normalize" (z / sqrt(sum of z^2 + 1e-6), the
            sum over each head of head_width columns).
        dtype: of the output: None is x's, else torch.float32, as gla wants its log_decay.
        divisor: of log_sigmoid, positive; None is 16, as in GLA's gate.
        min: of softplus; None is no limit.
        max: of softplus; None is no limit.
        head_width: of l2_normalize, which needs it: a multiple of 8 up to 256 that divides columns.

    >>> import tandem
    >>> tandem.ops.Segment(16, "log_sigmoid", divisor=0)
    Traceback (most recent call last):
    ...
    ValueError: [projection] divisor of a Segment must be finite and positive, got 0
    """

    columns: int
    activation: str = "none"
    dtype: torch.dtype | None = None
    divisor: float | None = None
    min: float | None = None
    max: float | None = None
    head_width: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.columns, int) or self.columns < 0:
            self._refuse("columns", "an int, 0 or more", repr(self.columns))
        if self.activation not in _ACTIVATIONS:
            self._refuse("activation", f"one of {', '.join(_ACTIVATIONS)}", self.activation)
        if self.dtype not in (None, torch.float32):
            self._refuse("dtype", "None or torch.float32", self.dtype)
        for name, activation in _OF.items():
            value = getattr(self, name)
            if value is None:
                continue
            if self.activation != activation:
                raise ValueError(f"[projection] {name} of a Segment is of {activation}, got {self.activation}")
            if not isinstance(value, int | float) or not math.isfinite(value) or (name == "divisor" and value <= 0):
                self._refuse(name, "finite and positive" if name == "divisor" else "finite", value)
        if self.min is not None and self.max is not None and self.min > self.max:
            self._refuse("min", f"at most max = {self.max}", self.min)
        width = self.head_width
        if self.activation == "l2_normalize" and (width not in range(8, 257, 8) or self.columns % width):
            self._refuse("head_width", f"a multiple of 8 in [8,256] that divides columns = {self.columns}", width)

    def _refuse(self, name: str, expected: str, value: Any) -> None:
        raise ValueError(f"[projection] {name} of a Segment must be {expected}, got {value}")


def projection(
    x: Tensor,
    weight: Tensor | Sequence[Tensor],
    segments: Sequence[Segment],
    bias: Tensor | Sequence[Tensor | None] | None = None,
) -> tuple[Tensor, ...]:
    """The products of x with several weights, each with its own activation, in one call::

        z = x W^T + bias
        y = f(z)                            f: none, silu, sigmoid, log_sigmoid, softplus, l2_normalize

    What a layer computes from its tokens before the sequence mixing: queries, keys, values, gates and decays.
    Products are accumulated in fp32; activations are of what was not rounded before, and outputs are rounded once.

    Args:
        x: [...,d], bf16 or fp16, on the CPU also fp32 and fp64 (then all is). Leading axes are taken as one; strides
            are free where that makes no copy.
        weight: one tensor [columns of all segments, d] in their order, as torch.nn.Linear has it, or one [columns,d]
            per segment. x's dtype.
        segments: 1 to 8 of :class:`tandem.ops.Segment`: columns, what follows their product, and the output's dtype.
        bias: None, one tensor with the columns of all segments, or one [columns] or None per segment. x's dtype or
            fp32. Added before the activation.

    Returns:
        A tensor [...,columns] per segment, contiguous, in x's dtype or in fp32 where the segment says so.

    Differentiable in x, weights and biases, once; what does not require a gradient costs none. Where one is required
    the forward keeps, per segment: of silu, sigmoid, log_sigmoid and softplus dy/dz in y's dtype, of l2_normalize y
    and 1/norm of each head, of none nothing. There is no forward mode.

    Under autocast x and the weights are cast to its dtype; the biases stay as they are.

    Raises:
        TypeError: an argument is no tensor, or no Segment.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without CUDA.
            From ``backward()`` too, and for second derivatives and forward mode everywhere.
        RuntimeError: CUDA failed.

    Example, the inputs of a gated linear attention::

        >>> import torch
        >>> import tandem
        >>> B, T, d, H, K = 2, 100, 64, 4, 32
        >>> Segment = tandem.ops.Segment
        >>> layer = (
        ...     Segment(H * K, "l2_normalize", head_width=K),
        ...     Segment(H * K, "l2_normalize", head_width=K),
        ...     Segment(H * K),
        ...     Segment(H, "log_sigmoid", dtype=torch.float32),
        ... )
        >>> x = torch.randn(B, T, d, dtype=torch.bfloat16)
        >>> weight = torch.randn(3 * H * K + H, d, dtype=torch.bfloat16) / d**0.5
        >>> q, k, v, log_decay = tandem.ops.projection(x, weight, layer)
        >>> q, k, v = (y.unflatten(-1, (H, K)) for y in (q, k, v))
        >>> o, _ = tandem.ops.gla(q, k, v, log_decay)
        >>> o.shape, log_decay.dtype
        (torch.Size([2, 100, 4, 32]), torch.float32)
    """
    if not isinstance(segments, Sequence):
        raise TypeError(f"[projection] segments must be several of tandem.ops.Segment, got {type(segments).__name__}")
    for segment in segments:
        if not isinstance(segment, Segment):
            raise TypeError(f"[projection] segments must be of tandem.ops.Segment, got {type(segment).__name__}")
    plan = _plan(tuple(segments)) if torch.compiler.is_compiling() else _cached_plan(tuple(segments))
    x, *weights = autocast(x, *_per_segment("weight", weight, plan.columns))
    leading = x.shape[:-1] if isinstance(x, Tensor) else ()
    flat = not isinstance(x, Tensor) or x.dim() in (0, 2)
    rows = x if flat else x.reshape(math.prod(leading), x.shape[-1])
    arguments = plan.arguments.copy()
    arguments[0] = rows
    for place, one in zip(_WEIGHTS, weights, strict=False):
        arguments[place] = one
    if bias is not None:
        for place, one in zip(_BIASES, _per_segment("bias", bias, plan.columns), strict=False):
            arguments[place] = one
    results = _FORWARD(*arguments)
    outs = [results[place] for place in _OUTS[: len(plan.columns)]]
    if flat:
        return tuple(outs)
    return tuple([y.view(*leading, columns) for y, columns in zip(outs, plan.columns, strict=True)])


@dataclasses.dataclass(frozen=True)
class _Plan:
    columns: list[int]
    arguments: list[Any]  # of the call, but for tensors


def _plan(segments: tuple[Segment, ...]) -> _Plan:
    if not 1 <= len(segments) <= _MOST_SEGMENTS:
        raise ValueError(f"[projection] segments must be 1 to {_MOST_SEGMENTS}, got {len(segments)}")
    names = _FORWARD.table.arguments
    given: dict[str, Any] = {name: False if name in _FORWARD.table.flags else None for name in names}
    for i, segment in enumerate(segments):
        given[f"activation{i}"] = float(_ACTIVATIONS.index(segment.activation))
        for name in _OF:
            value = getattr(segment, name)
            given[f"{name}{i}"] = None if value is None else float(value)
        given[f"fp32_out{i}"] = segment.dtype is not None
    return _Plan([segment.columns for segment in segments], [given[name] for name in names])


_cached_plan = functools.lru_cache(maxsize=256)(_plan)


def _per_segment(name: str, given: Any, columns: list[int]) -> Sequence[Any]:
    """A tensor per segment: rows of one tensor, or those that are given. What is no tensor is refused later."""
    if isinstance(given, Tensor):
        axes = ["columns", "d"] if name == "weight" else ["columns"]
        if given.dim() != len(axes) or given.shape[0] != sum(columns):
            expected = ",".join([str(sum(columns)), *axes[1:]])
            raise ValueError(
                f"[projection] {name} must have shape [{','.join(axes)}] = [{expected}] for all segments, "
                f"got {list(given.shape)}"
            )
        return given.split(columns)
    if not isinstance(given, Sequence):
        raise TypeError(f"[projection] {name} must be a torch.Tensor or one per segment, got {type(given).__name__}")
    if len(given) != len(columns):
        raise ValueError(f"[projection] {name} must have a tensor per segment, {len(columns)}, got {len(given)}")
    for i, (one, count) in enumerate(zip(given, columns, strict=True)):
        if isinstance(one, Tensor) and one.dim() and one.shape[0] != count:
            raise ValueError(f"[projection] {name}[{i}] must have {count} rows, got {list(one.shape)}")
    return given
