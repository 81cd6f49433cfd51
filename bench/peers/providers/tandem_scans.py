"""Tandem's scans through their PyTorch ops, and where the package is not installed, through libtandem_calls.so."""

import importlib

from ..gradients import by_name, forward_backward
from ..library import Library, LibraryError, PreparedCall, forward_call
from ..provider import Provider


class TandemGatedScan(Provider):
    op = "gated_scan"
    name = "tandem"
    directions = ("forward", "forward_backward")
    limits = {  # of tandem check
        dtype: dict.fromkeys(("o", "dx", "d_decay", "d_log_decay", "d_gate"), limit)
        for dtype, limit in (("bf16", 2e-3), ("fp16", 3e-4))
    }

    _op = _library = None

    def load(self):
        self._op = self._library = None
        self._variants = {}
        try:
            self._library = Library("libtandem_calls.so")
        except LibraryError as error:
            missing = error
        try:
            self._op = getattr(importlib.import_module("tandem.ops"), self.op)
        except Exception as error:  # not installed, or for another torch
            if self._library is None:
                raise LibraryError(f"neither the package ({error}) nor the library ({missing})") from error

    def versions(self):
        return {"tandem_call": "libtandem_calls.so" if self._op is None else f"tandem.ops.{self.op}"}

    def refusal(self, case, dtype):
        if case.direction != "forward" and self._op is None:
            return f"a {case.direction} is called through the PyTorch package"
        return ""

    def prepare(self, case, dtype, tensors, setting):
        if case.direction == "forward_backward":
            return forward_backward(case, tensors, lambda inputs: self._forward(case, inputs))
        if self._library:
            import torch

            call, out = forward_call(self._library, case, tensors)
            self._variants[case.name] = call.variant()
            torch.cuda.synchronize()
            if self._op is None:
                return PreparedCall(call, out)
        return lambda: by_name(self._forward(case, tensors))

    def _forward(self, case, tensors):
        named = {name: tensors[name] for name in (case.decay_kind, "gate", "cu_seqlens") if name in tensors}
        return self._op(*(tensors[name] for name in ("x", "u", "weight") if name in tensors), **named)[0]

    def variant(self, case, setting):
        return "library's choice" if case.direction != "forward" else self._variants.get(case.name, "")


class TandemLinearScan(TandemGatedScan):
    op = "linear_scan"
    directions = ("forward",)
