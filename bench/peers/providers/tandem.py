"""Tandem through its PyTorch op, and where the package is not installed, through the same C++ call in
libtandem_calls.so."""

import importlib

from ..cases import WITH_GRADIENTS
from ..gradients import forward_backward
from ..library import Library, LibraryError, PreparedCall, forward_call
from ..provider import Provider


class Tandem(Provider):
    name = "tandem"
    directions = ("forward", "backward", "forward_backward", "step")
    limits = {  # of tandem check --direction backward
        dtype: {"dq": limit, "dk": limit, "dv": limit, "d_log_decay": 2 * limit}
        for dtype, limit in (("bf16", 3e-3), ("fp16", 5e-4))
    }

    _op = _step = _backward = _library = None

    def load(self):
        self._op = self._step = self._backward = self._library = None
        self._variants = {}
        try:
            self._library = Library("libtandem_calls.so")
        except LibraryError as error:
            missing = error
        try:
            ops = importlib.import_module("tandem.ops")
            self._op, self._step = ops.gla, ops.gla_step
            self._backward = importlib.import_module("torch").ops.tandem.gla_backward
        except Exception as error:  # not installed, or for another torch
            if self._library is None:
                raise LibraryError(f"neither the package ({error}) nor the library ({missing})") from error

    def versions(self):
        return {"tandem_call": "libtandem_calls.so" if self._op is None else "tandem.ops.gla"}

    def refusal(self, case, dtype):
        through_torch = {"backward": self._backward, "forward_backward": self._op, "step": self._step}
        here = through_torch.get(case.direction, True)
        return "" if here else f"a {case.direction} is called through the PyTorch package"

    def prepare(self, case, dtype, tensors, setting):
        if case.direction == "step":
            return step_call(self._step, case, tensors)
        if case.direction == "backward":
            return backward_call(self._backward, case, tensors)
        if case.direction == "forward_backward":
            return forward_backward(case, tensors, lambda inputs: self._forward(case, inputs))
        if self._library:
            import torch

            call, o = forward_call(self._library, case, tensors)
            self._variants[case.name] = call.variant()
            torch.cuda.synchronize(o.device)
            if self._op is None:
                return PreparedCall(call, o)
        return lambda: {"o": self._forward(case, tensors)}

    def _forward(self, case, tensors):
        q, k, v, decay = (tensors.get(name) for name in ("q", "k", "v", "log_decay"))
        named = {"cu_seqlens": tensors.get("cu_seqlens"), "save_states": case.saved_states == "yes"}
        return self._op(q, k, v, decay, scale=case.scale, **named)[0]

    def variant(self, case, setting):
        if case.direction in WITH_GRADIENTS:
            return "library's choice"
        return self._variants.get(case.name, "") if case.direction == "forward" else ""


def backward_call(op, case, tensors):
    """The op that autograd calls."""
    q, k, v, d_o = (tensors[name] for name in ("q", "k", "v", "d_o"))
    decay, scale, offsets = tensors.get("log_decay"), case.scale, tensors.get("cu_seqlens")
    states = None
    if case.saved_states == "yes":
        forward = importlib.import_module("torch").ops.tandem.gla_forward
        *_, states = forward(q, k, v, decay, scale, None, False, offsets, True)
    wants = [name in case.wants for name in ("q", "k", "v", "log_decay", "initial_state")]

    def run():
        found = op(q, k, v, decay, scale, None, offsets, states, d_o, None, *wants)
        return dict(zip(case.wants.values(), found, strict=False))  # the last ones, not wanted, are None

    return run


def step_call(op, case, tensors):
    """One token on a state of its own, which is updated in place."""
    state = tensors["state"].clone()

    def run():
        o = op(tensors["q"], tensors["k"], tensors["v"], tensors.get("log_decay"), state, scale=case.scale)
        return {"o": o, "state": state.unsqueeze(1)}

    run.restart = lambda: state.copy_(tensors["state"])
    return run
