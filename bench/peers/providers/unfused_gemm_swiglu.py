"""Tandem's own baseline of gemm_swiglu: cuBLASLt and kernels beside it (bench/cuda/unfused_gemm_swiglu.cu)."""

from .unfused import Unfused


class UnfusedGemmSwiglu(Unfused):
    op = "gemm_swiglu"

    def refusal(self, case, dtype):
        return "" if case.d % 8 == 0 and case.F % 8 == 0 else "d and F must be multiples of 8"
