"""Tandem through its PyTorch op, and where the package is not installed, through the same C++ call in libtandem_calls.so."""

import ctypes
import importlib

from ..cases import WITH_GRADIENTS
from ..gradients import forward_backward
from ..library import Library, LibraryError, gla_call
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
            self._variants[case.name] = chosen_variant(self._library, case, dtype, tensors)
        if self._op is None:
            return c_call(self._library, "tandem_bench_gla", case, dtype, tensors)
        return lambda: {"o": self._forward(case, tensors)}

    def _forward(self, case, tensors):
        named = {"scale": case.scale, "cu_seqlens": tensors.get("cu_seqlens")}
        return self._op(tensors["q"], tensors["k"], tensors["v"], tensors.get("log_decay"), **named)[0]

    def variant(self, case, setting):
        if case.direction in WITH_GRADIENTS:
            return "library's choice"
        return self._variants.get(case.name, "") if case.direction == "forward" else ""


def backward_call(op, case, tensors):
    """The op that autograd calls."""
    q, k, v, d_o = (tensors[name] for name in ("q", "k", "v", "d_o"))
    wants = [name in case.wants for name in ("q", "k", "v", "log_decay", "initial_state")]

    def run():
        found = op(q, k, v, tensors.get("log_decay"), case.scale, None, tensors.get("cu_seqlens"), d_o, None, *wants)
        return dict(zip(case.wants.values(), found))

    return run


def step_call(op, case, tensors):
    """One token on a state of its own, which is updated in place."""
    state = tensors["state"].clone()

    def run():
        o = op(tensors["q"], tensors["k"], tensors["v"], state, tensors.get("log_decay"), scale=case.scale)
        return {"o": o, "state": state.unsqueeze(1)}

    run.restart = lambda: state.copy_(tensors["state"])
    return run


def chosen_variant(library, case, dtype, tensors):
    """The kernel that the library picks for the case; the PyTorch package picks the same."""
    import torch

    o = torch.empty_like(tensors["v"])
    call = gla_call(case, dtype, tensors, o)
    name = ctypes.create_string_buffer(128)
    library.call("tandem_bench_gla_variant", ctypes.byref(call), None, ctypes.c_size_t(0), None, name)
    torch.cuda.synchronize(o.device)
    return name.value.decode()


def c_call(library, function, case, dtype, tensors):
    """`<function>_forward` of a shared object with workspace and output of its own, on torch's current stream."""
    import torch

    o = torch.empty_like(tensors["v"])
    call = gla_call(case, dtype, tensors, o)
    needed = ctypes.c_size_t()
    library.call(f"{function}_workspace_bytes", ctypes.byref(call), ctypes.byref(needed))
    workspace = shared_workspace(o.device, needed.value)

    def run():
        stream = torch.cuda.current_stream(o.device).cuda_stream
        library.call(f"{function}_forward", ctypes.byref(call), ctypes.c_void_p(workspace.data_ptr()),
                     ctypes.c_size_t(workspace.numel()), ctypes.c_void_p(stream))  # fmt: skip
        return {"o": o}

    run.keeps = tensors  # the C description holds addresses only
    return run


_workspaces = {}


def shared_workspace(device, size):
    """Calls of one stream follow each other and share scratch memory, as they would in a program."""
    import torch

    if device not in _workspaces or _workspaces[device].numel() < size:
        _workspaces[device] = torch.empty(max(size, 256), dtype=torch.uint8, device=device)
    return _workspaces[device]
