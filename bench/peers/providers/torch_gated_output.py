"""What a layer in torch does for gated_output: rms_norm of the groups, the gate, linear, the residual and the norm,
eager and compiled; and with Liger's kernels for the gate, and for the residual and the norm."""

import importlib

from .. import gated_output
from . import torch_projection


class TorchEager(torch_projection.TorchEager):
    op = "gated_output"
    note = ""

    def chain(self, case):
        def call(tensors):
            total = product(tensors, gated_output.gated(case, tensors))
            if "residual" in tensors:
                total = tensors["residual"] + total
            return named(case, gated_output.normalized(case, tensors, total), total)

        return call


class TorchCompile(TorchEager, torch_projection.TorchCompile):
    name = "torch_compile"


class Liger(TorchEager):
    name = "liger"
    packages = ("liger-kernel",)
    note = "torch's rms_norm of the groups and product, Liger's kernels for the gate, and for the residual and the norm"

    def load(self):
        super().load()
        swiglu = importlib.import_module("liger_kernel.ops.swiglu")
        norm = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")
        self._gate, self._norm = swiglu.LigerSiLUMulFunction, norm.LigerFusedAddRMSNormFunction

    def refusal(self, case, dtype):
        if case.output_gate not in ("none", "silu"):
            return f"no gate {case.output_gate}"
        if (case.output_norm, case.norm != "none", case.residual) != ("rms_norm", True, "yes"):
            return "its kernel is of a residual and an rms_norm with a weight"
        return ""

    def chain(self, case):
        def call(tensors):
            total = product(tensors, self.gated(case, tensors))
            weight = tensors["norm_weight"].to(total.dtype)
            return named(case, *self._norm.apply(total, tensors["residual"], weight, gated_output.EPS))

        return call

    def gated(self, case, tensors):
        y, width = tensors["o"], gated_output.groups(case)
        behind = case.behind_gate == "yes"
        if behind:
            y = self._gate.apply(tensors["gate"], y)
        if width:
            y = gated_output.group_norm(case, y, tensors["group_norm_weight"].to(y.dtype))
        return self._gate.apply(tensors["gate"], y) if gated_output.gates(case) and not behind else y


def product(tensors, a):
    import torch

    bias = tensors.get("bias")
    return torch.nn.functional.linear(a, tensors["weight"], None if bias is None else bias.to(a.dtype))


def named(case, out, total):
    return dict(zip(gated_output.outputs(case), (out, total), strict=False))
