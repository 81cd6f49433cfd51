"""What a layer in torch does for rms_norm_gemm: rms_norm, and a product per weight or, where the weights are rows of
one matrix, one product; eager and compiled."""

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


def chain(case):
    """A function of the tensors by name that returns the outputs by name."""
    import torch

    def call(tensors):
        x, norm_weight = tensors["x"], tensors["norm_weight"]
        n = torch.nn.functional.rms_norm(x, (case.d,), norm_weight.to(x.dtype), rms_norm_gemm.eps(case))
        if "weight" in tensors:
            outs = product({**tensors, "x": n, "weight0": tensors["weight"]}, 0).split(columns(case), -1)
        else:
            outs = [product({**tensors, "x": n}, i) for i in range(len(case.segments))]
        wide = ["fp32" in one.flags for one in rms_norm_gemm.segments(case)]
        return {f"out{i}": out.float() if wide[i] else out for i, out in enumerate(outs)}

    return call
