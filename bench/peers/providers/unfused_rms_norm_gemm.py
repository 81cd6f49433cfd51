"""Tandem's own baseline of rms_norm_gemm: a kernel for the norm, and cuBLASLt (bench/cuda/unfused_rms_norm_gemm.cu)."""

from .unfused_projection import UnfusedProjection


class UnfusedRmsNormGemm(UnfusedProjection):
    op = "rms_norm_gemm"
    kernels = "norm_cublaslt"
