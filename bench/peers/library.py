"""libtandem_bench.so and libtandem_calls.so through ctypes: ceilings, device state, calls of the ops and baselines."""

import ctypes
import os
import pathlib

from .cases import PRODUCTS, ROOT, SCANS
from .gradients import by_name

DTYPES = {"torch.bfloat16": 0, "torch.float16": 1, "torch.float32": 2, "torch.int32": 3}
HOST = -1  # in place of a CUDA ordinal


class LibraryError(RuntimeError):
    """A library is missing, or a call into it failed."""


class Tensor(ctypes.Structure):
    """tandem_bench_tensor of bench/cuda/calls.h."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("data", ctypes.c_void_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int),
        ("shape", ctypes.c_int64 * 5), ("strides", ctypes.c_int64 * 5),
    ]  # fmt: skip


class Number(ctypes.Structure):
    """tandem_bench_number."""

    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_double)]


class Description(ctypes.Structure):
    """tandem_bench_call."""

    _fields_ = [
        ("function", ctypes.c_char_p), ("device", ctypes.c_int), ("tensor_count", ctypes.c_int),
        ("number_count", ctypes.c_int), ("tensors", ctypes.POINTER(Tensor)), ("numbers", ctypes.POINTER(Number)),
    ]  # fmt: skip


def folder():
    """Where the shared objects are: TANDEM_LIBRARY_DIR, else the newest build in this checkout."""
    if os.environ.get("TANDEM_LIBRARY_DIR"):
        return pathlib.Path(os.environ["TANDEM_LIBRARY_DIR"])
    found = sorted(ROOT.glob("build/*/bin/libtandem_bench.so"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise LibraryError(
            "libtandem_bench.so is not found: build with CUDA (make bench), or name its folder in TANDEM_LIBRARY_DIR"
        )
    return found[-1].parent


class Library:
    """One shared object; failures of its functions become LibraryError."""

    def __init__(self, name):
        path = folder() / name
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise LibraryError(f"{name}: {error}") from error
        self._library.tandem_bench_last_error.restype = ctypes.c_char_p

    def call(self, function, *arguments):
        if getattr(self._library, function)(*arguments) != 0:
            raise LibraryError(self._library.tandem_bench_last_error().decode(errors="replace"))

    def commit(self):
        self._library.tandem_bench_commit.restype = ctypes.c_char_p
        return self._library.tandem_bench_commit().decode()

    def ceilings(self, device):
        copy, matrix = ctypes.c_double(), ctypes.c_double()
        self.call("tandem_bench_ceilings", device, ctypes.byref(copy), ctypes.byref(matrix))
        return {"copy_tbps": copy.value, "bf16_tflops": matrix.value}

    def device_state(self, device):
        """{} where NVML is absent."""
        driver, clock, power = ctypes.create_string_buffer(64), ctypes.c_int(), ctypes.c_int()
        reasons = ctypes.c_ulonglong()
        try:
            self.call(
                "tandem_bench_device_state",
                device,
                driver,
                ctypes.byref(clock),
                ctypes.byref(power),
                ctypes.byref(reasons),
            )
        except LibraryError:
            return {}
        return {
            "driver": driver.value.decode(),
            "sm_clock_mhz": clock.value,
            "power_w": power.value,
            "throttle_reasons": f"{reasons.value:#x}",
        }


class Call:
    """A call of libtandem_calls.so: of the library, "gla_forward", or of a baseline, "unfused.gla_forward". Tensors of
    torch, outputs too, and numbers have the names of the C++ arguments."""

    def __init__(self, library, function, tensors, **numbers):
        self._library = library
        self.tensors = tensors  # the description holds addresses only
        index = next(iter(tensors.values())).device.index
        self.description = Description(
            function.encode(), HOST if index is None else index, len(tensors), len(numbers),
            (Tensor * len(tensors))(*(self._describe(name, x) for name, x in tensors.items())),
            (Number * len(numbers))(*((name.encode(), value) for name, value in numbers.items())),
        )  # fmt: skip

    @staticmethod
    def _describe(name, x):
        wide = ctypes.c_int64 * 5
        return Tensor(name.encode(), x.data_ptr(), DTYPES[str(x.dtype)], x.dim(), wide(*x.shape), wide(*x.stride()))

    def workspace_bytes(self):
        needed = ctypes.c_size_t()
        self._library.call("tandem_bench_call_workspace_bytes", ctypes.byref(self.description), ctypes.byref(needed))
        return needed.value

    def run(self, workspace=None, stream=None, variant=None):
        size = 0 if workspace is None else workspace.numel()
        data = None if workspace is None else workspace.data_ptr()
        self._library.call(
            "tandem_bench_call_run", ctypes.byref(self.description), ctypes.c_void_p(data), ctypes.c_size_t(size),
            ctypes.c_void_p(stream), variant,
        )  # fmt: skip

    def variant(self):
        """Makes the call on the default stream; returns the kernel that was chosen. The PyTorch package chooses the
        same."""
        name = ctypes.create_string_buffer(128)
        self.run(variant=name)
        return name.value.decode()


def forward_call(library, case, tensors, provider=""):
    """The forward of a case, by the library or a baseline, and its output, or outputs by name: new memory."""
    import torch

    function = (f"{provider}." if provider else "") + f"{case.op}_forward"
    if case.op in PRODUCTS:
        inputs, outputs, numbers = PRODUCTS[case.op].call_of(case, tensors)
        return Call(library, function, {**inputs, **outputs}, **numbers), outputs
    first = next(iter(tensors.values()))
    scan = case.op in SCANS
    output = torch.empty(
        (case.B, case.T, case.D) if scan else tensors["v"].shape, dtype=first.dtype, device=first.device
    )
    numbers = {} if scan else {"scale": case.softmax_scale}
    return Call(library, function, {**tensors, "out" if scan else "o": output}, **numbers), output


class PreparedCall:
    """A call on torch's current stream, with the outputs that it writes and scratch memory that all calls share, as
    they would in a program: calls of one stream follow each other."""

    _workspaces = {}

    def __init__(self, call, output):
        import torch

        self.call, self.output = call, output
        device = next(iter(by_name(output).values())).device
        self._current_stream = lambda: torch.cuda.current_stream(device).cuda_stream
        self.workspace = self.shared(device, call.workspace_bytes())

    @classmethod
    def shared(cls, device, size):
        import torch

        if device not in cls._workspaces or cls._workspaces[device].numel() < size:
            cls._workspaces[device] = torch.empty(max(size, 256), dtype=torch.uint8, device=device)
        return cls._workspaces[device]

    def __call__(self):
        self.call.run(self.workspace, self._current_stream())
        return by_name(self.output)
