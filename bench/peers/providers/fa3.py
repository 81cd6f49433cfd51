"""FlashAttention-3 for Hopper: its forward as the wheel fa3-fwd brings it, compiled for bf16, without windows and
without a backward, which comes from another wheel (fa3_backward.py)."""

import importlib

from ..provider import Provider, why_missing
from . import fa3_backward
from .torch_attention import offsets

FORWARD, BACKWARD = "fa3-fwd", fa3_backward.PACKAGE
NEEDS = {"forward": (FORWARD,), "backward": (BACKWARD,), "forward_backward": (FORWARD, BACKWARD)}


class Fa3(Provider):
    op = "attention"
    name = "fa3"
    directions = tuple(NEEDS)
    packages = (FORWARD,)

    def load(self):
        self.lacking = {}
        for package, load in ((FORWARD, self._load_forward), (BACKWARD, self._load_backward)):
            try:
                load()
            except Exception as error:  # a broken install raises anything
                self.lacking[package] = why_missing(error)
        self.directions = tuple(one for one, needs in NEEDS.items() if self.lacking.keys().isdisjoint(needs))
        if not self.directions:
            raise ImportError("; ".join(self.lacking.values()))

    def _load_forward(self):
        self._interface = importlib.import_module("fa3_fwd_interface")

    def _load_backward(self):
        self._backward = fa3_backward.Backward()

    def versions(self):
        found = {} if FORWARD in self.lacking else super().versions()
        return found if BACKWARD in self.lacking else {**found, BACKWARD: self._backward.version}

    def note_on(self, case):
        return "" if case.direction == "forward" else "gradients with deterministic=True"

    def refusal(self, case, dtype):
        of_forward = "" if case.direction == "backward" else self._refusal_of_forward(case, dtype)
        return of_forward or ("" if case.direction == "forward" else fa3_backward.refusal(case, dtype))

    def _refusal_of_forward(self, case, dtype):
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
        if case.direction == "backward":
            return lambda: self._backward(case, dtype, tensors, tensors["o"], tensors["log_sum_exp"])
        if case.direction == "forward_backward":

            def both():
                o, sums = self._interface.flash_attn_func(q, k, v, **named, return_attn_probs=True)
                return {"o": o, **self._backward(case, dtype, tensors, o, sums)}

            return both
        if case.cu_seqlens is None:
            return lambda: {"o": self._interface.flash_attn_func(q, k, v, **named)}
        starts, longest = offsets(case, q.device)
        return lambda: {
            "o": self._interface.flash_attn_varlen_func(q[0], k[0], v[0], *starts, *longest, **named).unsqueeze(0)
        }
