"""Mamba-2's SSD in Triton: q = C, k = B, v = x * dt, log_decay = dt * A."""

import importlib
import importlib.util
import pathlib
import sys
import types

from ..provider import Provider


class Mamba2(Provider):
    name = "mamba2"
    packages = ("mamba-ssm",)
    settings = ("chunk256", "chunk128", "chunk64")
    note = "inputs in its own terms: A = -1, dt = -log_decay, x = scale * v / dt, rounded to 16 bits before the call"

    def load(self):
        try:
            module = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
        except Exception:  # its unbuilt extension, or one of a dozen packages that the SSD does not use
            module = _without_package_imports()
        self._call = module.mamba_chunk_scan_combined
        self._version = getattr(sys.modules.get("mamba_ssm"), "__version__", "unknown")

    def version_of_source(self, package):
        return {package: self._version}

    def refusal(self, case, dtype):
        if case.cu_seqlens is not None and (case.cu_seqlens[0], case.cu_seqlens[-1]) != (0, case.T):
            return "needs every token in some sequence"
        return "" if case.decay_kind == "per_token" else "needs a decay at every token"

    def prepare(self, case, dtype, tensors, setting):
        import torch

        dt = -tensors["log_decay"]
        x = (case.softmax_scale * tensors["v"].float() / dt.unsqueeze(-1)).to(tensors["v"].dtype)
        A = torch.full((case.H,), -1.0, device=dt.device)
        chunk = int(setting.removeprefix("chunk"))
        named = {}
        if case.cu_seqlens is not None:  # its own term: which sequence each token is of
            lengths = tensors["cu_seqlens"].diff()
            which = torch.arange(len(lengths), dtype=torch.int32, device=dt.device)
            named["seq_idx"] = which.repeat_interleave(lengths, output_size=case.T).unsqueeze(0)
        return lambda: {"o": self._call(x, dt, A, tensors["k"], tensors["q"], chunk, **named)}


def _without_package_imports():
    """mamba_ssm/__init__.py imports its compiled CUDA extension, which the Triton SSD does not need: where the sources
    lie on the path unbuilt, the package is entered without running that file."""
    spec = importlib.util.find_spec("mamba_ssm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'mamba_ssm'")
    for name in [name for name in sys.modules if name.split(".")[0] == "mamba_ssm"]:
        del sys.modules[name]
    package = types.ModuleType("mamba_ssm")
    package.__path__ = list(spec.submodule_search_locations)
    text = pathlib.Path(spec.origin).read_text()
    package.__version__ = text.split('__version__ = "')[1].split('"')[0] if '__version__ = "' in text else "unknown"
    sys.modules["mamba_ssm"] = package
    return importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
