"""Tandem's own baseline of gated_output: cuBLASLt and kernels beside it (bench/cuda/unfused_gated_output.cu)."""

from .. import gated_output
from .unfused import Unfused

_WIDEST = 8192  # of what a CTA holds


class UnfusedGatedOutput(Unfused):
    op = "gated_output"
    kernels = "gate_cublaslt_norm"

    def refusal(self, case, dtype):
        width = gated_output.groups(case)
        if case.d_in % 8 or case.d % 8 or width % 8:
            return "d_in, d and group_width must be multiples of 8"
        wide = width > _WIDEST or (case.output_norm != "none" and case.d > _WIDEST)
        return f"group_width and, with a norm, d must be at most {_WIDEST}" if wide else ""
