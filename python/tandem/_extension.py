"""Loads the extension, which registers the ops with torch as ``torch.ops.tandem.*``."""

import ctypes
import pathlib
from collections.abc import Callable
from typing import Any

import torch

_PATH = pathlib.Path(__file__).parent / "libtandem_torch.so"
_ERRORS = {"ValueError": ValueError, "NotImplementedError": NotImplementedError}

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
    raise ImportError(f"tandem needs torch 2.10 or later, got {torch.__version__}")

torch.ops.load_library(str(_PATH))
_library = ctypes.CDLL(str(_PATH))
_library.tandem_cuda_unavailable_reason.restype = ctypes.c_char_p
_library.tandem_tables.restype = ctypes.c_char_p


def cuda_unavailable_reason() -> str:
    """Says why the ops cannot run on a GPU here: built without CUDA, no device, the driver's message.

    Returns:
        "" where there is a device. Whether an op takes it is the op's answer (NotImplementedError lists why not).

    >>> isinstance(cuda_unavailable_reason(), str)
    True
    """
    return str(_library.tandem_cuda_unavailable_reason(), encoding="utf-8")


def tables() -> bytes:
    """The library's calls as JSON, a list of what tandem._registration.Table takes."""
    return _library.tandem_tables()


def call(op: Callable[..., Any], *arguments: Any) -> Any:
    """What the op returns. Torch passes on no class of an exception from C++: the text begins with it."""
    try:
        return op(*arguments)
    except RuntimeError as error:
        name, _, text = str(error).partition(": ")
        if name in _ERRORS:
            raise _ERRORS[name](text) from None
        raise
