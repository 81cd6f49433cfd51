"""Tandem's own baselines of the scans (bench/cuda/unfused_scan.cu): the scan one token after another and the gate, a
kernel each, for linear_scan behind a cuBLASLt product; and linear_scan as that product and Tandem's gated_scan."""

import ctypes

from ..library import Library, PreparedCall, ScanCall, Tokens, scan_call, scan_output
from ..provider import Provider


class UnfusedGatedScan(Provider):
    op = "gated_scan"
    name = "unfused"
    kernels = "scan_gate"

    def load(self):
        self._library = Library("libtandem_bench.so")

    def refusal(self, case, dtype):
        return "" if case.cu_seqlens is None else "dense batches only"

    def prepare(self, case, dtype, tensors, setting):
        out = scan_output(case, tensors)
        return PreparedCall(
            self._library, "tandem_bench_unfused_scan", scan_call(case, dtype, tensors, out), out, tensors
        )

    def variant(self, case, setting):
        return f"{self.name}.{self.kernels}"


class UnfusedLinearScan(UnfusedGatedScan):
    op = "linear_scan"
    kernels = "gemm_scan_gate"


class UnfusedTwoLinearScan(UnfusedLinearScan):
    name = "unfused_two"
    kernels = "gemm_gated_scan"

    def load(self):
        super().load()
        self._calls = Library("libtandem_calls.so")

    def prepare(self, case, dtype, tensors, setting):
        out = scan_output(case, tensors)
        return TwoKernels(self._library, self._calls, scan_call(case, dtype, tensors, out), out, tensors)


class TwoKernels(PreparedCall):
    """The product into x, where the workspace begins, and gated_scan with what is behind it."""

    def __init__(self, library, calls, call, output, tensors):
        super().__init__(library, "tandem_bench_projection", call, output, tensors)
        self.calls = calls
        self.scan = ScanCall.from_buffer_copy(call)
        self.scan.d, self.scan.u, self.scan.weight = 0, Tokens(), None
        # gated_scan's size is asked for with an x that is there; the memory comes after.
        self.scan.x = Tokens(self.workspace.data_ptr(), call.T * call.D, call.D)
        needed = ctypes.c_size_t()
        calls.call("tandem_bench_scan_workspace_bytes", ctypes.byref(self.scan), ctypes.byref(needed))
        self.scan_bytes = needed.value
        self.workspace = self.shared(output.device, self.bytes + self.scan_bytes)
        self.scan.x.data = self.workspace.data_ptr()

    def __call__(self):
        super().__call__()
        rest = ctypes.c_void_p(self.workspace.data_ptr() + self.bytes)
        self.calls.call("tandem_bench_scan_forward", ctypes.byref(self.scan), rest, ctypes.c_size_t(self.scan_bytes),
                        ctypes.c_void_p(self._current_stream()))  # fmt: skip
        return {"o": self.output}
