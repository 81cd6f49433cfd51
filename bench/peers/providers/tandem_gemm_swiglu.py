"""gemm_swiglu through its PyTorch op and, where the package is not installed, through libtandem_calls.so."""

from .. import gemm_swiglu
from .tandem_scans import TandemGatedScan


class TandemGemmSwiglu(TandemGatedScan):
    op = "gemm_swiglu"
    limits = {  # of tandem check
        dtype: {"out": out, **dict.fromkeys(("dx", "d_weight", "d_norm_weight"), gradient)}
        for dtype, out, gradient in (("bf16", 3.2e-3, 4e-3), ("fp16", 4e-4, 6e-4))
    }

    def _forward(self, case, tensors):
        norm = {} if case.norm == "none" else {"norm_weight": tensors["norm_weight"], "eps": gemm_swiglu.EPS}
        return {"out": self._op(tensors["x"], tensors["weight"], activation=case.activation, **norm)}
