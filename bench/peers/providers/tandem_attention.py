"""attention through its PyTorch op and, where the package is not installed, through libtandem_calls.so."""

import importlib

from .tandem_scans import TandemGatedScan


class TandemAttention(TandemGatedScan):
    op = "attention"
    directions = ("forward", "backward", "forward_backward")
    limits = {  # of tandem check
        dtype: {"o": out, **dict.fromkeys(("dq", "dk", "dv"), gradient)}
        for dtype, out, gradient in (("bf16", 2.5e-3, 4e-3), ("fp16", 3e-4, 6e-4))
    }

    def prepare(self, case, dtype, tensors, setting):
        if case.direction != "backward":
            return super().prepare(case, dtype, tensors, setting)
        backward = importlib.import_module("tandem._registration").OPS["attention_backward"]
        numbers = (case.softmax_scale, float(case.causal == "yes") or None, case.window_left, case.window_right)
        offsets = (tensors.get("cu_seqlens_q"), tensors.get("cu_seqlens_k"), None)
        q, k, v, o, sums, d_o = (tensors[name] for name in ("q", "k", "v", "o", "log_sum_exp", "d_o"))

        def call():
            found = backward(q, k, v, *numbers, *offsets, o, sums, d_o, None, True, True, True)
            return dict(zip(case.wants.values(), found, strict=True))

        return call

    def _forward(self, case, tensors):
        named = {name: tensors.get(name) for name in ("cu_seqlens_q", "cu_seqlens_k")}
        named |= {"causal": case.causal == "yes", "scale": case.softmax_scale}
        if case.window_left is not None or case.window_right is not None:
            named["window"] = (case.window_left, case.window_right)
        return {"o": self._op(tensors["q"], tensors["k"], tensors["v"], **named)}
