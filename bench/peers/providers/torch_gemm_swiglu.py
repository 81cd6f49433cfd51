"""What a layer in torch does for gemm_swiglu: rms_norm, one product of the stacked weight, and the gate, eager and
compiled; and with Liger's kernel for the gate."""

import importlib

from .. import gemm_swiglu
from . import torch_projection


class TorchEager(torch_projection.TorchEager):
    op = "gemm_swiglu"
    note = ""

    def chain(self, case):
        return lambda tensors: {"out": gate(case, products(case, tensors))}


class TorchCompile(TorchEager, torch_projection.TorchCompile):
    name = "torch_compile"


class Liger(TorchEager):
    name = "liger"
    packages = ("liger-kernel",)
    note = "torch's rms_norm and product, Liger's kernel for the gate, which is given halves without gaps"

    def load(self):
        super().load()
        # silu alone keeps g and u; its gelu is the tanh form.
        self._functions = {
            "silu": importlib.import_module("liger_kernel.ops.swiglu").LigerSiLUMulFunction,
            "gelu_tanh": importlib.import_module("liger_kernel.ops.geglu").LigerGELUMulFunction,
        }

    def refusal(self, case, dtype):
        return "" if case.activation in ("silu", "gelu_tanh") else f"no activation {case.activation}"

    def chain(self, case):
        function = self._functions[case.activation]

        def call(tensors):
            n, weight = normalized(case, tensors), tensors["weight"]
            halves = (weight[: case.F], weight[case.F :])
            return {"out": function.apply(*(self._torch.nn.functional.linear(n, half) for half in halves))}

        return call


def normalized(case, tensors):
    import torch

    if case.norm == "none":
        return tensors["x"]
    x, weight = tensors["x"], tensors["norm_weight"]
    return torch.nn.functional.rms_norm(x, (case.d,), weight.to(x.dtype), gemm_swiglu.EPS)


def products(case, tensors):
    import torch

    return torch.nn.functional.linear(normalized(case, tensors), tensors["weight"])


def gate(case, products):
    z, up = products.chunk(2, -1)
    return gemm_swiglu.activate(case, z) * up
