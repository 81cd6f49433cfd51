"""The products of a layer: their parameters, and the one at its end."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import tandem.ops

Initializer = Callable[[Tensor], Any]
normal: Initializer = partial(nn.init.normal_, std=0.02)  # transformers' initializer_range
xavier: Initializer = partial(nn.init.xavier_uniform_, gain=2**-2.5)  # of RetNet and GLA
kaiming: Initializer = partial(nn.init.kaiming_uniform_, a=5**0.5)  # of torch's own layers, and so of Mamba-2


class Linear(nn.Linear):
    """The parameters of a product: weight [out_features,in_features] and, with `bias`, bias [out_features].

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether there is one; it begins with zeros.
        init: what fills the weight: by default a normal distribution of deviation 0.02, as in transformers.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        init: Initializer = normal,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.init = init
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        self.init(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def output(linear: nn.Linear, o: Tensor, residual: Tensor | None, *gate: Tensor, **options: Any) -> Tensor:
    """What :func:`tandem.ops.gated_output` makes of o. A residual of another dtype is added behind it: under autocast
    a stream of fp32 stays fp32."""
    inside = residual is not None and residual.dtype == o.dtype
    options |= {"bias": linear.bias, "residual": residual if inside else None}
    out = tandem.ops.gated_output(o, linear.weight, *gate, **options)
    return out if inside or residual is None else residual + out
