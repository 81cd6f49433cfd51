"""Tandem's own baseline of projection: cuBLASLt products and kernels after them (bench/cuda/unfused_projection.cu)."""

from .. import projection
from .unfused import Unfused


class UnfusedProjection(Unfused):
    op = "projection"

    def refusal(self, case, dtype):
        widths = [case.d, *(one.columns for one in projection.segments(case))]
        return "" if all(width % 8 == 0 for width in widths) else "columns and d must be multiples of 8"
