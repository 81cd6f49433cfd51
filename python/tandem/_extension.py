"""Loads the extension, which registers the ops with torch as ``torch.ops.tandem.*``."""

import ctypes
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

_PATH = pathlib.Path(__file__).parent / "libtandem_torch.so"
_ERRORS = {
    "ValueError": ValueError,
    "NotImplementedError": NotImplementedError,
    "OutOfMemoryError": torch.OutOfMemoryError,
}
_MOST_AXES = 6  # one more than the library takes, so that it sees what it refuses
# c10::ScalarType, which torch's ABI keeps. What is not here has the number of none.
_SCALAR_TYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
_UNDEFINED = 46
increment_version = torch._C._increment_version  # torch.autograd.graph's looks whether it is given one tensor

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
    raise ImportError(f"tandem needs torch 2.10 or later, got {torch.__version__}")


class _Described(ctypes.Structure):
    """Described of python/src/call.h."""

    _fields_ = (
        ("given", ctypes.c_int32),
        ("scalar_type", ctypes.c_int32),
        ("on_cuda", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("flag", ctypes.c_int32),
        ("number", ctypes.c_double),
        ("sizes", ctypes.c_int64 * _MOST_AXES),
        ("strides", ctypes.c_int64 * _MOST_AXES),
    )


torch.ops.load_library(str(_PATH))
_library = ctypes.CDLL(str(_PATH))
_with_interpreter = ctypes.PyDLL(str(_PATH))
_with_interpreter.tandem_direct.restype = ctypes.py_object
_with_interpreter.tandem_direct.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int64]
_with_interpreter.tandem_import.restype = ctypes.py_object
_with_interpreter.tandem_import.argtypes = [ctypes.py_object] * 6
_with_interpreter.tandem_import(
    torch.Tensor.__dlpack_c_exchange_api__,
    torch.Tensor,
    torch.nn.Parameter,
    torch.OutOfMemoryError,
    increment_version,
    # Each says whether something is to see a call: modes, a profiler, a tracer, a transform.
    (
        torch._C._len_torch_dispatch_stack,
        torch._C._is_torch_function_mode_enabled,
        torch._C._autograd._profiler_enabled,
        torch._C._get_tracing_state,
        torch._C._are_functorch_transforms_active,
    ),
)
_library.tandem_cuda_unavailable_reason.restype = ctypes.c_char_p
_library.tandem_set_batch_invariant.argtypes = [ctypes.c_bool]
_library.tandem_set_batch_invariant.restype = None
_library.tandem_is_batch_invariant.restype = ctypes.c_char_p
_library.tandem_tables.restype = ctypes.c_char_p
_library.tandem_refusal.restype = ctypes.c_char_p


def cuda_unavailable_reason() -> str:
    """Says why the ops cannot run on a GPU here: built without CUDA, no device, the driver's message.

    Returns:
        "" where there is a device. Whether an op takes it is the op's answer (NotImplementedError lists why not).

    >>> isinstance(cuda_unavailable_reason(), str)
    True
    """
    return str(_library.tandem_cuda_unavailable_reason(), encoding="utf-8")


def set_batch_invariant(wanted: bool) -> None:
    """Makes all later calls of the process batch-invariant, their gradients too, or no longer so: a sequence's results
    then have the same bits alone, as a row of a batch and packed with others by ``cu_seqlens``.

    Alike are tensors of the same dtypes, widths, heads, kind of decay and layout (strides and alignment), and the same
    wanted gradients, on the same device. What is summed over all sequences is not a sequence's: the gradients of
    linear_scan's weight and of gla's constant decay. It costs time where sequences are few and long, and for the scans;
    docs/batch_invariance.md of the sources says how much. On the CPU nothing changes: results are so in any case.

    Args:
        wanted: whether calls are to be batch-invariant. They also are with ``TANDEM_BATCH_INVARIANT=1`` in the
            environment.

    >>> set_batch_invariant(True)
    >>> is_batch_invariant()
    True
    >>> set_batch_invariant(False)
    """
    _library.tandem_set_batch_invariant(wanted)


def is_batch_invariant() -> bool:
    """Says whether calls are batch-invariant: by :func:`set_batch_invariant`, or by the environment.

    Raises:
        ValueError: ``TANDEM_BATCH_INVARIANT`` is neither 0 nor 1.
    """
    text = str(_library.tandem_is_batch_invariant(), encoding="utf-8")
    if text not in ("0", "1"):
        raise error_of(RuntimeError(text))
    return text == "1"


def direct_call(name: str, limited: int = -1, widest: int = 0) -> Callable[..., Any]:
    """A call past torch's dispatcher, which takes longer than the rest of a small call. It takes the arguments of
    torch's schema; a step's tensors may have the time axis, of one token, and then its output has it. With nothing done
    it returns None where a plain tensor among them is to have a gradient and torch can differentiate at once: nothing
    is to be converted before, nor to be refused, as one at the place `limited` of a last extent above `widest` may be.
    It returns NotImplemented where something would look on, and for what is no plain tensor as the kernels take it."""
    call: Callable[..., Any] = _with_interpreter.tandem_direct(name.encode(), limited, widest)
    return call


def tables() -> bytes:
    """The library's calls as JSON, a list of what tandem._tables.Table takes."""
    return _library.tandem_tables()


@dataclasses.dataclass(frozen=True)
class Shape:
    """All that the library's checks see of a tensor."""

    dtype: torch.dtype
    device: torch.device
    sizes: Sequence[int]
    strides: Sequence[int]

    def described(self) -> _Described:
        kept = slice(_MOST_AXES)
        index = self.device.index or 0
        sizes, strides = ((ctypes.c_int64 * _MOST_AXES)(*values[kept]) for values in (self.sizes, self.strides))
        scalar_type = _SCALAR_TYPES.get(self.dtype, _UNDEFINED)
        return _Described(1, scalar_type, self.device.type == "cuda", index, len(self.sizes), 0, 0.0, sizes, strides)


def refusal(name: str, arguments: Sequence[Shape | float | bool | None]) -> Exception | None:
    """What a call with such arguments would raise, before anything runs and without their values."""
    described = (_Described * len(arguments))()
    for place, value in enumerate(arguments):
        if isinstance(value, Shape):
            described[place] = value.described()
        elif isinstance(value, bool):
            described[place].flag = value
        elif value is not None:
            described[place].given, described[place].number = 1, value
    text = str(_library.tandem_refusal(name.encode(), described), encoding="utf-8")
    return error_of(RuntimeError(text)) if text else None


def error_of(error: Exception) -> Exception:
    """The error that one from the extension says. Torch passes on no class of an exception from C++: the text begins
    with it. To others torch may add its C++ frames, below the first line."""
    name, _, text = str(error).partition(": ")
    return _ERRORS[name](text) if name in _ERRORS else type(error)(str(error).partition("\n")[0])
