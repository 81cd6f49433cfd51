"""flash-linear-attention: simple GLA in chunks (states in memory), fused (states on chip), and one token at a time."""

import importlib

from ..provider import Provider


class Fla(Provider):
    name = "fla"
    packages = ("fla-core",)  # flash-linear-attention is its layers and models
    function = "chunk_simple_gla"
    _last = None  # (case, its offsets)

    def load(self):
        self._call = getattr(importlib.import_module("fla.ops.simple_gla"), self.function)

    def version_of_source(self, package):
        return {package: importlib.import_module("fla").__version__}

    def refusal(self, case, dtype):
        return "" if case.H == case.HQ else "no grouped heads"

    def prepare(self, case, dtype, tensors, setting):
        decay = tensors.get("log_decay")
        named = {} if decay is None else {"g_gamma" if decay.dim() == 1 else "g": decay}
        if case.cu_seqlens is not None:
            named["cu_seqlens"] = self._offsets(case, tensors["q"].device)
        return lambda: {"o": self._call(tensors["q"], tensors["k"], tensors["v"], scale=case.softmax_scale, **named)[0]}

    def _offsets(self, case, device):
        """One int64 tensor for all buffer sets: fla keeps what it derives from it by identity, and deriving it waits for
        the device, which a capture must not."""
        import torch

        if self._last is None or self._last[0] != case.name:
            self._last = case.name, torch.tensor(case.cu_seqlens, dtype=torch.int64, device=device)
        return self._last[1]

    def variant(self, case, setting):
        return self.function


class FlaFused(Fla):
    name = "fla_fused"
    function = "fused_chunk_simple_gla"


class FlaRecurrent(Fla):
    """What fla's layers call to decode: reads one state and writes another."""

    name = "fla_recurrent"
    directions = ("step",)
    function = "fused_recurrent_simple_gla"

    def refusal(self, case, dtype):
        if case.state_dtype != "fp32":
            return "returns states in fp32 only"
        return super().refusal(case, dtype)

    def prepare(self, case, dtype, tensors, setting):
        decay = tensors.get("log_decay")
        named = {} if decay is None else {"g_gamma" if decay.dim() == 1 else "g": decay}

        def run():
            o, state = self._call(tensors["q"], tensors["k"], tensors["v"], scale=case.softmax_scale,
                                  initial_state=tensors["state"], output_final_state=True, **named)  # fmt: skip
            return {"o": o, "state": state.unsqueeze(1)}

        return run
