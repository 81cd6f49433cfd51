"""Mamba's selective scan, its state one number per channel: A = -1, delta = -log_decay, its input x / delta,
B = C = 1."""

import importlib

from ..provider import Provider


class MambaSelectiveScan(Provider):
    op = "gated_scan"
    name = "mamba_selective_scan"
    packages = ("mamba-ssm",)
    note = (
        "inputs in its own terms and layout [B,D,T]: A = -1, delta = -log_decay, u = x / delta, rounded to 16 bits "
        "before the call; B = C = 1; its z is the gate"
    )

    def load(self):
        importlib.import_module("selective_scan_cuda")  # the compiled extension that the function needs
        self._call = importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn

    def refusal(self, case, dtype):
        if case.decay_kind != "log_decay":
            return "takes the logarithm of the decay"
        return "" if case.cu_seqlens is None else "dense batches only"

    def prepare(self, case, dtype, tensors, setting):
        import torch

        def turned(x):
            return x.transpose(1, 2).contiguous()

        delta = turned(-tensors["log_decay"])
        u = turned((tensors["x"].float() / -tensors["log_decay"].float()).to(tensors["x"].dtype))
        gate = turned(tensors["gate"]) if "gate" in tensors else None
        A = torch.full((case.D, 1), -1.0, device=u.device)
        ones = torch.ones((case.B, 1, case.T), dtype=u.dtype, device=u.device)
        return lambda: {"o": self._call(u, delta, A, ones, ones, z=gate).transpose(1, 2)}

    def variant(self, case, setting):
        return "selective_scan_fn"
