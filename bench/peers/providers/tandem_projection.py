"""projection through its PyTorch op and, where the package is not installed, through libtandem_calls.so."""

import importlib

from .. import projection
from .tandem_scans import TandemGatedScan


class TandemProjection(TandemGatedScan):
    op = "projection"
    limits = {  # of tandem check
        dtype: {
            name: gradient if name.startswith("d") else out
            for name in ("dx", *(f"{stem}{i}" for stem in ("out", "d_weight", "d_bias") for i in range(8)))
        }
        for dtype, out, gradient in (("bf16", 2e-3, 4e-3), ("fp16", 2.5e-4, 6e-4))
    }

    def _forward(self, case, tensors):
        segments = projection.segments(case)
        weights, biases = ([tensors.get(f"{name}{i}") for i in range(len(segments))] for name in ("weight", "bias"))
        outs = self._op(tensors["x"], weights, [of_tandem(one) for one in segments], biases)
        return {f"out{i}": out for i, out in enumerate(outs)}


def of_tandem(segment):
    import torch

    constants = {name: int(x) if name == "head_width" else x for name, x in segment.constants.items()}
    dtype = torch.float32 if "fp32" in segment.flags else None
    return importlib.import_module("tandem.ops").Segment(segment.columns, segment.activation, dtype, **constants)
