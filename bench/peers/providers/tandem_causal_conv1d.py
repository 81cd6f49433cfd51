"""causal_conv1d through its PyTorch op and, where the package is not installed, through libtandem_calls.so."""

import importlib

from .tandem_scans import TandemGatedScan


class TandemCausalConv1d(TandemGatedScan):
    op = "causal_conv1d"
    directions = ("forward", "backward", "forward_backward")
    limits = {  # of tandem check
        dtype: dict.fromkeys(("out", "dx", "d_weight", "d_bias"), limit)
        for dtype, limit in (("bf16", 2**-8), ("fp16", 2**-11))
    }

    def prepare(self, case, dtype, tensors, setting):
        if case.direction != "backward":
            return super().prepare(case, dtype, tensors, setting)
        backward = importlib.import_module("tandem._registration").OPS["causal_conv1d_backward"]
        x, weight, bias, offsets = (tensors.get(name) for name in ("x", "weight", "bias", "cu_seqlens"))
        silu = float(case.activation == "silu")

        def call():
            wants_bias = bias is not None
            found = backward(
                x, weight, bias, silu, None, offsets, tensors["d_out"], None, True, True, wants_bias, False
            )
            return dict(zip(case.wants.values(), found, strict=False))

        return call

    def _forward(self, case, tensors):
        named = {name: tensors.get(name) for name in ("bias", "cu_seqlens")}
        activation = "silu" if case.activation == "silu" else None
        return {"out": self._op(tensors["x"], tensors["weight"], activation=activation, **named)[0]}
