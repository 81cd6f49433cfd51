"""The short convolution in front of a recurrence."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import tandem.ops
from tandem.nn._along_time import along_time
from tandem.nn.caches import StateCache
from tandem.nn.linear import kaiming
from tandem.nn.padding import Padding


class ShortConvolution(nn.Module):
    """Causal convolution along time, each channel on its own. Parameters as fla's ShortConvolution and
    torch.nn.Conv1d(D, D, W, groups=D): weight [D,1,W] and, with `bias`, bias [D].

    Args:
        channels: D.
        taps: W, from 2 to 4: how many tokens it sees.
        bias: whether there is one; it begins with zeros.
        activation: None or "silu".

    Example::

        >>> import torch
        >>> import tandem.nn
        >>> convolution = tandem.nn.ShortConvolution(64, activation="silu")
        >>> convolution(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    def __init__(
        self,
        channels: int,
        taps: int = 4,
        bias: bool = False,
        activation: str | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels, self.taps, self.activation = channels, taps, activation
        self.weight = nn.Parameter(torch.empty(channels, 1, taps, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        kaiming(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor,
        *,
        padding: Padding | None = None,
        cu_seqlens: Tensor | None = None,
        history: Tensor | None = None,
    ) -> Tensor:
        """x [B,T,D]; history: None, or the W-1 tokens before them, [B,D,W-1], overwritten with the last ones. Returns a
        tensor like x."""
        weight, bias, activation = self.weight.squeeze(1), self.bias, self.activation
        if history is not None and x.shape[1] == 1 and padding is None:
            state = history.to(x.dtype)
            out = tandem.ops.causal_conv1d_step(x, state, weight, bias, activation=activation)
            if state is not history:
                history.copy_(state)
            return out

        def op(x: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            return tandem.ops.causal_conv1d(x, weight, bias, activation=activation, **options)

        return along_time(op, (x,), history, padding, cu_seqlens, dtype=x.dtype)

    def extra_repr(self) -> str:
        return f"{self.channels}, taps={self.taps}, bias={self.bias is not None}, activation={self.activation}"


def convolved(
    xs: Sequence[Tensor],
    convolutions: Sequence[ShortConvolution],
    padding: Padding | None,
    cu_seqlens: Tensor | None,
    cache: StateCache | None,
) -> list[Tensor]:
    """Each x [B,T,D] through its convolution; in the cache's history they are side by side."""
    histories: Sequence[Tensor | None] = [None] * len(xs)
    if cache is not None:
        cache.check(*xs)
        histories = cache.history.split([one.channels for one in convolutions], dim=1)
    options = {"padding": padding, "cu_seqlens": cu_seqlens}
    return [one(x, history=past, **options) for x, one, past in zip(xs, convolutions, histories, strict=True)]


def new_history(batch: int, convolutions: Sequence[ShortConvolution | None]) -> Tensor | None:
    """What a cache of `batch` rows keeps for these, of which all or none are there."""
    there = [one for one in convolutions if one is not None]
    if not there:
        return None
    channels, weight = sum(one.channels for one in there), there[0].weight
    return torch.zeros(batch, channels, there[0].taps - 1, device=weight.device, dtype=weight.dtype)
