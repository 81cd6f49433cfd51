"""Tandem's own baseline: cuBLASLt products and separate element-wise kernels (bench/cuda/unfused_gla.cu)."""

from ..library import Library, PreparedCall, gla_call
from ..provider import Provider


class Unfused(Provider):
    name = "unfused"

    def load(self):
        self._library = Library("libtandem_bench.so")

    def refusal(self, case, dtype):
        if case.cu_seqlens is not None:
            return "dense batches only"
        return "" if case.K % 8 == 0 and case.V % 8 == 0 else "K and V must be multiples of 8"

    def prepare(self, case, dtype, tensors, setting):
        import torch

        o = torch.empty_like(tensors["v"])
        return PreparedCall(self._library, "tandem_bench_unfused_gla", gla_call(case, dtype, tensors, o), o, tensors)

    def variant(self, case, setting):
        return "unfused.cublaslt"
