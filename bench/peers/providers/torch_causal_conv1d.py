"""torch's conv1d with padding in front, of a transposed view, and silu; and the causal-conv1d package."""

import importlib

from ..gradients import forward_backward
from ..provider import Provider


class TorchConv1d(Provider):
    op = "causal_conv1d"
    name = "torch_conv1d"
    directions = ("forward", "forward_backward")
    note = "torch.nn.functional.conv1d on x.transpose(1, 2), groups = D, then silu"

    def load(self):
        self._torch = importlib.import_module("torch")

    def versions(self):
        return {"torch": self._torch.__version__}

    def refusal(self, case, dtype):
        if case.weight == "fp32" or case.bias == "fp32":
            return "one dtype of all tensors"
        return "" if case.cu_seqlens is None else "dense batches only"

    def convolve(self, case, inputs):
        functional = self._torch.nn.functional
        taps = (inputs["weight"].unsqueeze(1), inputs.get("bias"))
        z = functional.conv1d(inputs["x"].transpose(1, 2), *taps, padding=case.W - 1, groups=case.D)[..., : case.T]
        return functional.silu(z) if case.activation == "silu" else z

    def prepare(self, case, dtype, tensors, setting):
        def forward(inputs):
            return {"out": self.convolve(case, inputs).transpose(1, 2)}

        if case.direction == "forward":
            return lambda: forward(tensors)
        return forward_backward(case, tensors, forward)


class CausalConv1dPackage(TorchConv1d):
    """Its kernels for rows of channels, as x lies here."""

    name = "causal_conv1d"
    packages = ("causal-conv1d",)
    note = "causal_conv1d_fn on x.transpose(1, 2); its d_weight is summed by atomics"

    def load(self):
        super().load()
        self._call = importlib.import_module("causal_conv1d").causal_conv1d_fn

    def versions(self):
        return Provider.versions(self)

    def convolve(self, case, inputs):
        activation = "silu" if case.activation == "silu" else None
        return self._call(inputs["x"].transpose(1, 2), inputs["weight"], inputs.get("bias"), activation=activation)
