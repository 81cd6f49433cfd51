"""FlashAttention-3's forward for Hopper, as the wheel fa3-fwd brings it: compiled for bf16, without windows and without
a backward."""

import importlib

from ..provider import Provider
from .torch_attention import offsets


class Fa3(Provider):
    op = "attention"
    name = "fa3"
    packages = ("fa3-fwd",)

    def load(self):
        self._interface = importlib.import_module("fa3_fwd_interface")

    def refusal(self, case, dtype):
        if dtype != "bf16":
            return "the wheel is compiled for bf16 alone"
        if case.window_left is not None or case.window_right is not None:
            return "the wheel is compiled without windows"
        K, V = case.K, case.V
        if K % 8 or V % 8 or K > 256 or V > 256:
            return "heads of multiples of 8 columns up to 256"
        if K != V and not (K <= 64 or (128 < K <= 192 and 96 < V <= 128)):
            return f"no kernel for K = {K} with V = {V}"
        if case.cu_seqlens is None:
            return ""
        whole = all(ends is None or (ends[0], ends[-1]) == (0, length)
                    for ends, length in ((case.cu_seqlens, case.T), (case.cu_seqlens_k, case.TK)))  # fmt: skip
        return "" if whole else "needs every token in some sequence"

    def prepare(self, case, dtype, tensors, setting):
        q, k, v = (tensors[name] for name in "qkv")
        named = {"softmax_scale": case.softmax_scale, "causal": case.causal == "yes"}
        if case.cu_seqlens is None:
            return lambda: {"o": self._interface.flash_attn_func(q, k, v, **named)}
        starts, longest = offsets(case, q.device)
        return lambda: {
            "o": self._interface.flash_attn_varlen_func(q[0], k[0], v[0], *starts, *longest, **named).unsqueeze(0)
        }
