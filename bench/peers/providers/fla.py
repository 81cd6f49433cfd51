"""flash-linear-attention: simple GLA in chunks (states in memory), fused (states on chip), and one token at a time."""

import contextlib
import importlib
import unittest.mock

from ..gradients import backward_alone, forward_backward
from ..provider import Provider


class Fla(Provider):
    name = "fla"
    directions = ("forward", "backward", "forward_backward")
    packages = ("fla-core",)  # flash-linear-attention is its layers and models
    function = "chunk_simple_gla"
    varlen_note = (
        "with cu_seqlens it reads the number of chunks back from the device in every call (item() "
        "in chunk_fwd_h), which no CUDA graph can hold: the graph has the value of the first call, "
        "so that its wait for the device is not in the time"
    )
    _last = None  # (case, its offsets, what was read from the device)

    def load(self):
        self._call = getattr(importlib.import_module("fla.ops.simple_gla"), self.function)

    def version_of_source(self, package):
        return {package: importlib.import_module("fla").__version__}

    def refusal(self, case, dtype):
        return "" if case.H == case.HQ else "no grouped heads"

    def prepare(self, case, dtype, tensors, setting):
        named, read = {}, None
        if case.cu_seqlens is not None:
            named["cu_seqlens"], read = self._offsets(case, tensors["q"].device)

        def forward(inputs):
            return self._call(
                inputs["q"], inputs["k"], inputs["v"], scale=case.softmax_scale, **decay_of(inputs), **named
            )[0]

        make = {"forward": plain, "backward": backward_alone, "forward_backward": forward_backward}[case.direction]
        call = make(case, tensors, forward)
        return with_remembered_reads(call, read) if read is not None and self.varlen_note else call

    def _offsets(self, case, device):
        """One int64 tensor for all buffer sets: fla keeps what it derives from it by identity, and deriving it waits
        for the device, which a capture must not."""
        import torch

        if self._last is None or self._last[0] != case.name:
            offsets = torch.tensor(case.cu_seqlens, dtype=torch.int64, device=device)
            self._last = case.name, offsets, {}
        return self._last[1:]

    def note_on(self, case):
        return self.note if case.cu_seqlens is None else self.varlen_note

    def variant(self, case, setting):
        return self.function


class FlaFused(Fla):
    name = "fla_fused"
    function = "fused_chunk_simple_gla"
    varlen_note = ""


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
        def run():
            q, k, v, state = (tensors[name] for name in ("q", "k", "v", "state"))
            options = {"scale": case.softmax_scale, "output_final_state": True, **decay_of(tensors)}
            o, state = self._call(q, k, v, initial_state=state, **options)
            return {"o": o, "state": state.unsqueeze(1)}

        return run


def decay_of(tensors):
    """log_decay under its name in fla."""
    decay = tensors.get("log_decay")
    return {} if decay is None else {"g_gamma" if decay.dim() == 1 else "g": decay}


def plain(case, tensors, forward):
    return lambda: {"o": forward(tensors)}


def with_remembered_reads(call, values):
    """The call with item() of a tensor that it has read before answered from `values` ({address:
    (tensor, value)}): right as long as nothing writes to that tensor, and nothing does to what fla
    derives from cu_seqlens."""

    def run():
        with remembered_reads(values):
            return call()

    return run


@contextlib.contextmanager
def remembered_reads(values):
    import torch

    read = torch.Tensor.item

    def item(tensor):
        address = tensor.data_ptr()
        if address not in values:
            values[address] = tensor, read(tensor)  # kept: its address must stay its own
        return values[address][1]

    with unittest.mock.patch.object(torch.Tensor, "item", item):
        yield
