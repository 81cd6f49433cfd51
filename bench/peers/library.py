"""libtandem_bench.so and libtandem_calls.so through ctypes: ceilings, device state, the C calls of gla."""

import ctypes
import os
import pathlib

from .cases import ROOT

DTYPES = {"bf16": 0, "fp16": 1}


class LibraryError(RuntimeError):
    """A library is missing, or a call into it failed."""


class Activation(ctypes.Structure):
    """tandem_bench_activation."""

    _fields_ = [("data", ctypes.c_void_p), ("batch_stride", ctypes.c_longlong), ("time_stride", ctypes.c_longlong), ("head_stride", ctypes.c_longlong)]


class GlaCall(ctypes.Structure):
    """tandem_bench_gla of bench/cuda/gla.h."""

    _fields_ = [
        ("device", ctypes.c_int), ("dtype", ctypes.c_int), ("B", ctypes.c_longlong), ("T", ctypes.c_longlong),
        ("H", ctypes.c_int), ("HQ", ctypes.c_int), ("K", ctypes.c_int), ("V", ctypes.c_int), ("scale", ctypes.c_float),
        ("q", Activation), ("k", Activation), ("v", Activation), ("o", Activation), ("log_decay", Activation),
        ("initial_state", ctypes.c_void_p), ("final_state", ctypes.c_void_p), ("N", ctypes.c_longlong), ("cu_seqlens", ctypes.c_void_p),
    ]  # fmt: skip


def folder():
    """Where the shared objects are: TANDEM_LIBRARY_DIR, else the newest build in this checkout."""
    if os.environ.get("TANDEM_LIBRARY_DIR"):
        return pathlib.Path(os.environ["TANDEM_LIBRARY_DIR"])
    found = sorted(ROOT.glob("build/*/bin/libtandem_bench.so"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise LibraryError("libtandem_bench.so is not found: build with CUDA (make bench), or name its folder in TANDEM_LIBRARY_DIR")
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
            self.call("tandem_bench_device_state", device, driver, ctypes.byref(clock), ctypes.byref(power), ctypes.byref(reasons))
        except LibraryError:
            return {}
        return {"driver": driver.value.decode(), "sm_clock_mhz": clock.value, "power_w": power.value, "throttle_reasons": f"{reasons.value:#x}"}


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
