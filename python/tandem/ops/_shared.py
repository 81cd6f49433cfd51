"""What the ops do with their arguments before the extension sees them. What is no tensor passes, and is refused."""

from typing import Any

import torch
from torch import Tensor

_is_any_autocast_enabled = torch._C._is_any_autocast_enabled  # a quarter of a question by the device's name


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in autocast's dtype where it is enabled for the first one's device, else as they are; None stays.

    By hand: torch.library.register_autocast would cast log_decay and states too.
    """
    if not _is_any_autocast_enabled():
        return tensors
    first = tensors[0]
    if not isinstance(first, Tensor):
        return tensors
    device = first.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    # fp64 is left alone, as torch's own ops leave it.
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.dtype != torch.float64 else x for x in tensors)


def widened(first: Tensor, log_decay: Tensor | None) -> Tensor | None:
    """A decay in fp32, beside a first tensor of fp64 in fp64; what is not of a floating dtype is left alone, and
    refused."""
    if not isinstance(log_decay, Tensor):
        return log_decay
    dtype = torch.float64 if isinstance(first, Tensor) and first.dtype == torch.float64 else torch.float32
    return log_decay if log_decay.dtype == dtype or not log_decay.is_floating_point() else log_decay.to(dtype)


def scan_decay(x: Tensor, decay: Tensor | None) -> Tensor | None:
    """A scan's decay, or its log, in x's dtype or widened."""
    fits = not isinstance(decay, Tensor) or not isinstance(x, Tensor) or decay.dtype == x.dtype
    return decay if fits else widened(x, decay)
