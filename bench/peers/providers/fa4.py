"""FlashAttention-4 (flash-attn-4: CuTe DSL, compiled at first use), its kernels for Hopper, forward and backward."""

import importlib

from ..gradients import backward_alone, forward_backward
from ..provider import Provider
from .torch_attention import offsets


class Fa4(Provider):
    op = "attention"
    name = "fa4"
    directions = ("forward", "backward", "forward_backward")
    packages = ("flash-attn-4", "nvidia-cutlass-dsl")
    note = "gradients with deterministic=True"

    def load(self):
        self._interface = importlib.import_module("flash_attn.cute.interface")

    def refusal(self, case, dtype):
        if case.K > 256 or case.V > 256:
            return "heads of up to 256 columns"
        if case.cu_seqlens is not None and case.direction == "backward":
            return "packed sequences with the forward alone, or both"
        return ""

    def prepare(self, case, dtype, tensors, setting):
        right = 0 if case.causal == "yes" else case.window_right
        causal = right == 0 and case.window_left is None
        named = {"softmax_scale": case.softmax_scale, "causal": causal, "deterministic": True}
        if not causal:
            named["window_size"] = (case.window_left, right)
        packed = case.cu_seqlens is not None
        if packed:
            starts, longest = offsets(case, tensors["q"].device)

        def attend(inputs):
            q, k, v = (inputs[name] for name in "qkv")
            if not packed:
                return self._interface.flash_attn_func(q, k, v, **named)[0]
            return self._interface.flash_attn_varlen_func(q[0], k[0], v[0], None, *starts, *longest, **named)[0][None]

        if case.direction == "forward":
            return lambda: {"o": attend(tensors)}
        make = forward_backward if case.direction == "forward_backward" else backward_alone
        return make(case, tensors, attend)
