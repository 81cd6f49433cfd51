"""Tensors that follow from a layer's settings."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Constants(nn.Module):
    """A module with tensors that are fp32 whatever dtype it is cast to, on its parameters' device, and not in its
    state dict. They are computed again wherever the module goes: from the meta device, too."""

    def constants(self, device: torch.device | str | None) -> dict[str, Tensor]:
        """The tensors by name, made on the device."""
        raise NotImplementedError

    def make_constants(self, device: torch.device | str | None) -> None:
        for name, value in self.constants(device).items():
            self.register_buffer(name, value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        (device,) = {buffer.device for buffer in self.buffers(recurse=False)}
        self.make_constants(device)
        return moved
