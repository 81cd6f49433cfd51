"""libtandem_bench.so and libtandem_calls.so through ctypes: ceilings, device state, the C calls of the ops."""

import ctypes
import os
import pathlib

from .cases import ROOT

DTYPES = {"bf16": 0, "fp16": 1}


class LibraryError(RuntimeError):
    """A library is missing, or a call into it failed."""


class Activation(ctypes.Structure):
    """tandem_bench_activation."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_longlong),
        ("time_stride", ctypes.c_longlong),
        ("head_stride", ctypes.c_longlong),
    ]


class GlaCall(ctypes.Structure):
    """tandem_bench_gla of bench/cuda/gla.h."""

    _fields_ = [
        ("device", ctypes.c_int), ("dtype", ctypes.c_int), ("B", ctypes.c_longlong), ("T", ctypes.c_longlong),
        ("H", ctypes.c_int), ("HQ", ctypes.c_int), ("K", ctypes.c_int), ("V", ctypes.c_int), ("scale", ctypes.c_float),
        ("q", Activation), ("k", Activation), ("v", Activation), ("o", Activation), ("log_decay", Activation),
        ("initial_state", ctypes.c_void_p), ("final_state", ctypes.c_void_p), ("N", ctypes.c_longlong),
        ("cu_seqlens", ctypes.c_void_p),
    ]  # fmt: skip


class Tokens(ctypes.Structure):
    """tandem_bench_tokens."""

    _fields_ = [("data", ctypes.c_void_p), ("batch_stride", ctypes.c_longlong), ("time_stride", ctypes.c_longlong)]


class ScanCall(ctypes.Structure):
    """tandem_bench_scan of bench/cuda/scan.h."""

    _fields_ = [
        ("device", ctypes.c_int), ("dtype", ctypes.c_int), ("fp32_decay", ctypes.c_int), ("log_decay", ctypes.c_int),
        ("B", ctypes.c_longlong), ("T", ctypes.c_longlong), ("D", ctypes.c_int), ("d", ctypes.c_int),
        ("x", Tokens), ("u", Tokens), ("decay", Tokens), ("gate", Tokens), ("out", Tokens),
        ("weight", ctypes.c_void_p), ("weight_stride", ctypes.c_longlong),
        ("initial_state", ctypes.c_void_p), ("final_state", ctypes.c_void_p), ("N", ctypes.c_longlong),
        ("cu_seqlens", ctypes.c_void_p),
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


def gla_call(case, dtype, tensors, output):
    """The C description of a call on torch tensors, which must outlive it."""

    def activation(x):
        strides = {4: lambda: x.stride()[:3], 3: x.stride, 1: lambda: (0, 0, x.stride(0))}[x.dim()]()
        return Activation(x.data_ptr(), *strides)

    decay, offsets = tensors.get("log_decay"), tensors.get("cu_seqlens")
    return GlaCall(
        tensors["q"].device.index, DTYPES[dtype], case.B, case.T, case.H, case.HQ, case.K, case.V, case.softmax_scale,
        activation(tensors["q"]), activation(tensors["k"]), activation(tensors["v"]), activation(output),
        Activation() if decay is None else activation(decay), None, None,
        case.B if offsets is None else len(offsets) - 1, None if offsets is None else offsets.data_ptr(),
    )  # fmt: skip


def scan_output(case, tensors):
    """Memory for out [B,T,D]."""
    import torch

    like = tensors["u"] if "u" in tensors else tensors["x"]
    return torch.empty((case.B, case.T, case.D), dtype=like.dtype, device=like.device)


def scan_call(case, dtype, tensors, output):
    """Describes a call of gated_scan, or of linear_scan where the tensors are u and weight, not x."""

    def tokens(name):
        x = output if name == "out" else tensors.get(name)
        return Tokens() if x is None else Tokens(x.data_ptr(), *x.stride()[:2])

    weight, offsets = tensors.get("weight"), tensors.get("cu_seqlens")
    return ScanCall(
        output.device.index or 0, DTYPES[dtype], case.decay_dtype == "fp32", case.decay_kind == "log_decay",
        case.B, case.T, case.D, 0 if weight is None else case.d,
        tokens("x"), tokens("u"), tokens(case.decay_kind), tokens("gate"), tokens("out"),
        None if weight is None else weight.data_ptr(), 0 if weight is None else weight.stride(0),
        None, None, case.B if offsets is None else len(offsets) - 1, None if offsets is None else offsets.data_ptr(),
    )  # fmt: skip


class PreparedCall:
    """`<function>_forward` of a shared object on torch's current stream, with the described output and scratch memory
    that all calls share, as they would in a program: calls of one stream follow each other."""

    _workspaces = {}

    def __init__(self, library, function, call, output, tensors):
        import torch

        self.library, self.function, self.call, self.output = library, function, call, output
        self.keeps = tensors  # the C description holds addresses only
        self._current_stream = lambda: torch.cuda.current_stream(output.device).cuda_stream
        self.bytes = self.needed(f"{function}_workspace_bytes")
        self.workspace = self.shared(output.device, self.bytes)

    def needed(self, function):
        needed = ctypes.c_size_t()
        self.library.call(function, ctypes.byref(self.call), ctypes.byref(needed))
        return needed.value

    @classmethod
    def shared(cls, device, size):
        import torch

        if device not in cls._workspaces or cls._workspaces[device].numel() < size:
            cls._workspaces[device] = torch.empty(max(size, 256), dtype=torch.uint8, device=device)
        return cls._workspaces[device]

    def __call__(self):
        workspace = ctypes.c_void_p(self.workspace.data_ptr()), ctypes.c_size_t(self.workspace.numel())
        stream = ctypes.c_void_p(self._current_stream())
        self.library.call(f"{self.function}_forward", ctypes.byref(self.call), *workspace, stream)
        return {"o": self.output}


def chosen_variant(library, function, call):
    """The kernel that the library picks for the call; the PyTorch package picks the same."""
    name = ctypes.create_string_buffer(128)
    library.call(f"{function}_variant", ctypes.byref(call), None, ctypes.c_size_t(0), None, name)
    return name.value.decode()
