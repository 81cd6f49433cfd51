"""flash-linear-attention's HGRN, h_t = exp(g_t) h_{t-1} + x_t, in chunks and one token at a time. It has no gate and
no projection: torch's silu and product after it, and for linear_scan torch's matrix product before it, are kernels
more."""

import importlib

from ..gradients import forward_backward
from ..provider import Provider

GATE = "fla's hgrn gives h; out = silu(gate) * h is formed by torch, in two kernels more"
PRODUCT = "x = u W^T is torch.matmul's; "


class FlaChunkHgrn(Provider):
    op = "gated_scan"
    name = "fla_chunk_hgrn"
    directions = ("forward", "forward_backward")
    packages = ("fla-core",)
    function = "chunk_hgrn"
    note = GATE

    def load(self):
        self._call = getattr(importlib.import_module("fla.ops.hgrn"), self.function)

    def version_of_source(self, package):
        return {package: importlib.import_module("fla").__version__}

    def refusal(self, case, dtype):
        if case.decay_kind != "log_decay":
            return "takes the logarithm of the decay"
        return "" if case.cu_seqlens is None else "dense batches only"

    def prepare(self, case, dtype, tensors, setting):
        named = self.offsets(tensors)

        def forward(inputs):
            return self.gated(self._call(self.x(inputs), inputs["log_decay"], **named)[0], inputs)

        if case.direction == "forward_backward":
            return forward_backward(case, tensors, forward)
        return lambda: {"o": forward(tensors)}

    def offsets(self, tensors):
        return {}

    def x(self, inputs):
        return inputs["x"]

    def gated(self, h, inputs):
        import torch

        return torch.nn.functional.silu(inputs["gate"]) * h if "gate" in inputs else h

    def variant(self, case, setting):
        return f"{self.function}, silu * h"


class FlaChunkHgrnAlone(FlaChunkHgrn):
    name = "fla_chunk_hgrn_alone"
    directions = ("forward",)
    same_function = False
    note = "fla's hgrn without any gate: a yardstick, less than the op"

    def gated(self, h, inputs):
        return h

    def variant(self, case, setting):
        return self.function


class FlaRecurrentHgrn(FlaChunkHgrn):
    name = "fla_recurrent_hgrn"
    function = "fused_recurrent_hgrn"

    def refusal(self, case, dtype):
        return super().refusal(case, dtype).replace("dense batches only", "")

    def offsets(self, tensors):
        return {"cu_seqlens": tensors["cu_seqlens"].long()} if "cu_seqlens" in tensors else {}


class Projected:
    """linear_scan by torch's product and fla's scan."""

    op = "linear_scan"
    directions = ("forward",)
    note = PRODUCT + GATE

    def x(self, inputs):
        import torch

        return torch.matmul(inputs["u"], inputs["weight"].T)

    def variant(self, case, setting):
        return f"matmul, {self.function}, silu * h"


class FlaChunkHgrnLinear(Projected, FlaChunkHgrn):
    pass


class FlaRecurrentHgrnLinear(Projected, FlaRecurrentHgrn):
    pass
