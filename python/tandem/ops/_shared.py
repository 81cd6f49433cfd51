"""What the ops do with their arguments before the extension sees them."""

from typing import Any

import torch
from torch import Tensor


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in autocast's dtype where it is enabled for the first one's device, else as they are; None stays.

    By hand: torch.library.register_autocast would cast log_decay and states too.
    """
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    # fp64 is left alone, as torch's own ops leave it, and refused.
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x is None or x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def as_fp32(log_decay: Tensor | None) -> Tensor | None:
    """In fp32; what is not of a floating dtype is left alone, and refused."""
    return log_decay.float() if log_decay is not None and log_decay.is_floating_point() else log_decay


def scan_decay(x: Tensor, decay: Tensor | None) -> Tensor | None:
    """A scan's decay, or its log, in x's dtype or fp32; what is not of a floating dtype is left alone, and refused."""
    return decay if decay is None or decay.dtype == x.dtype else as_fp32(decay)
