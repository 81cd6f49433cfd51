"""Tandem's own baseline of attention: cuBLASLt and a softmax between (bench/cuda/unfused_attention.cu)."""

from .unfused import Unfused


class UnfusedAttention(Unfused):
    op = "attention"
    kernels = "cublaslt_softmax"

    def refusal(self, case, dtype):
        if case.cu_seqlens is not None:
            return "dense batches only"
        widths = case.K % 8 == 0 and case.V % 8 == 0 and case.TK % 8 == 0
        return "" if widths else "K, V and TK must be multiples of 8"
