"""What a layer in torch does for rms_norm_gemm: rms_norm, and a product per weight or, where the weights are rows of
one matrix, one product; eager and compiled; and with Liger's kernel for the norm."""

import importlib
import types

from .. import rms_norm_gemm
from ..gradients import forward_backward
from .torch_projection import TorchCompile, TorchEager, product


class TorchEagerNorm(TorchEager):
    op = "rms_norm_gemm"
    note = ""

    def prepare(self, case, dtype, tensors, setting):
        call = self.function(case, dtype)
        if case.strides != "packed":
            return (
                forward_backward(case, tensors, call) if case.direction == "forward_backward" else lambda: call(tensors)
            )
        one = stacked(case, tensors)
        if case.direction != "forward_backward":
            return lambda: call(one)
        wanted = {"x": "dx", "norm_weight": "d_norm_weight", "weight": "d_weight"}
        run = forward_backward(types.SimpleNamespace(wants=wanted), one, call)
        return lambda: apart(case, run())

    def chain(self, case):
        return chain(case)


class TorchCompileNorm(TorchCompile, TorchEagerNorm):
    pass


class Liger(TorchEagerNorm):
    name = "liger"
    packages = ("liger-kernel",)
    note = "Liger's kernel for the norm, torch's products"

    def load(self):
        super().load()
        self._norm = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction

    def chain(self, case):
        # As it patches Llama's, but for the gradient, which is not to lie in that of n.
        return chain(case, lambda x, weight, eps: self._norm.apply(x, weight, eps, 0.0, "llama", False))


def stacked(case, tensors):
    """The tensors with one weight in place of those that are its rows. No copy."""
    first = tensors["weight0"]
    rows = sum(columns(case))
    weight = first.as_strided((rows, case.d), (case.d, 1))
    return {**{name: x for name, x in tensors.items() if not name.startswith("weight")}, "weight": weight}


def apart(case, found):
    d_weights = found.pop("d_weight").split(columns(case))
    return {**found, **{f"d_weight{i}": d_weight for i, d_weight in enumerate(d_weights)}}


def columns(case):
    return [one.columns for one in rms_norm_gemm.segments(case)]


def rms_norm(x, weight, eps):
    import torch

    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def chain(case, norm=rms_norm):
    """A function of the tensors by name that returns the outputs by name."""

    def call(tensors):
        x, norm_weight = tensors["x"], tensors["norm_weight"]
        n = norm(x, norm_weight.to(x.dtype), rms_norm_gemm.eps(case))
        if "weight" in tensors:
            outs = product({**tensors, "x": n, "weight0": tensors["weight"]}, 0).split(columns(case), -1)
        else:
            outs = [product({**tensors, "x": n}, i) for i in range(len(case.segments))]
        wide = ["fp32" in one.flags for one in rms_norm_gemm.segments(case)]
        return {f"out{i}": out.float() if wide[i] else out for i, out in enumerate(outs)}

    return call
