"""Tandem's own baselines of the scans: the scan one token after another and the gate, a kernel each, for linear_scan
behind a cuBLASLt product (bench/cuda/unfused_scan.cu); and linear_scan as that product and Tandem's gated_scan
(bench/cuda/composed_linear_scan.cpp)."""

from .unfused import Unfused


class UnfusedGatedScan(Unfused):
    op = "gated_scan"
    kernels = "scan_gate"

    def refusal(self, case, dtype):
        return "" if case.cu_seqlens is None else "dense batches only"


class UnfusedLinearScan(UnfusedGatedScan):
    op = "linear_scan"
    kernels = "gemm_scan_gate"


class ComposedLinearScan(UnfusedLinearScan):
    name = "composed"
    kernels = "gemm_gated_scan"
