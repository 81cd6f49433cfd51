"""Tandem's own baseline: cuBLASLt products and separate element-wise kernels (bench/cuda/unfused_gla.cu)."""

from ..library import Library, PreparedCall, forward_call
from ..provider import Provider


class Unfused(Provider):
    name = "unfused"
    kernels = "cublaslt"
    baseline = True

    def load(self):
        self._library = Library("libtandem_calls.so")

    def refusal(self, case, dtype):
        if case.cu_seqlens is not None:
            return "dense batches only"
        return "" if case.K % 8 == 0 and case.V % 8 == 0 else "K and V must be multiples of 8"

    def prepare(self, case, dtype, tensors, setting):
        return PreparedCall(*forward_call(self._library, case, tensors, self.name))

    def variant(self, case, setting):
        return f"{self.name}.{self.kernels}"
