"""fla's layer of simple gated linear attention behind fla's norm, with the residual."""

import importlib

from ..provider import Provider


class FlaGlaBlock(Provider):
    op = "gla_block"
    name = "fla"
    directions = ("forward", "forward_backward")
    packages = ("flash-linear-attention", "fla-core")
    note = "SimpleGatedLinearAttention without short convolutions, whose decays are rounded to 16 bits"

    def load(self):
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise RuntimeError("fla's kernels need a GPU")
        self.import_layers()

    def import_layers(self):
        self._layers = importlib.import_module("fla.layers.simple_gla")
        self._norm = importlib.import_module("fla.modules").RMSNorm

    def version_of_source(self, package):
        return {package: importlib.import_module("fla").__version__}

    def prepare(self, case, dtype, tensors, setting):
        import torch

        from .. import block_maths

        with torch.device("meta"):
            mixer = self._layers.SimpleGatedLinearAttention(
                hidden_size=case.d, num_heads=case.H, use_short_conv=False, norm_eps=block_maths.EPS["heads"]
            )
            norm = self._norm(case.d, eps=block_maths.EPS["norm"])
        layer = torch.nn.ModuleDict({"norm": norm, "mixer": mixer})
        layer.load_state_dict(tensors["parameters"], strict=True, assign=True)
        leaves = dict(layer.named_parameters())
        return block_maths.call_of(case, tensors, lambda _, x: x + mixer(norm(x))[0], leaves)
