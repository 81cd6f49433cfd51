"""rms_norm_gemm through its PyTorch op and, where the package is not installed, through libtandem_calls.so."""

from .. import projection
from .tandem_scans import TandemGatedScan


class TandemRmsNormGemm(TandemGatedScan):
    op = "rms_norm_gemm"
    limits = {  # of tandem check
        dtype: {
            name: gradient if name.startswith("d") else out
            for name in ("dx", "d_norm_weight", *(f"{s}{i}" for s in ("out", "d_weight", "d_bias") for i in range(8)))
        }
        for dtype, out, gradient in (("bf16", 3.2e-3, 4e-3), ("fp16", 4e-4, 6e-4))
    }

    def _forward(self, case, tensors):
        import torch

        segments = projection.segments(case)
        weights, biases = ([tensors.get(f"{name}{i}") for i in range(len(segments))] for name in ("weight", "bias"))
        dtypes = [torch.float32 if "fp32" in one.flags else None for one in segments]
        outs = self._op(tensors["x"], tensors["norm_weight"], weights, biases, eps=case.eps, dtype=dtypes)
        return {f"out{i}": out for i, out in enumerate(outs)}
