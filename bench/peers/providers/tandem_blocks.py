"""The blocks by the layers of tandem.nn."""

import importlib

from ..provider import Provider


class TandemBlock(Provider):
    """A mixer with its norm and the residual."""

    op = ""  # of the classes below
    name = "tandem"
    directions = ("forward", "forward_backward")

    def load(self):
        self._nn = importlib.import_module("tandem.nn")

    def layer(self, case, mixer, parameters):
        """The layer with these parameters, not copies."""
        import torch

        layer = torch.nn.ModuleDict({"norm": self._nn.RMSNorm(case.d, device="meta"), "mixer": mixer})
        layer.load_state_dict(parameters, strict=True, assign=True)
        return layer

    def prepare(self, case, dtype, tensors, setting):
        from ..block_maths import call_of

        layer = self.layer(case, self.mixer(case), tensors["parameters"])
        leaves = dict(layer.named_parameters())
        return call_of(case, tensors, lambda _, x: layer["mixer"](x, norm=layer["norm"], residual=x), leaves)


class TandemGlaBlock(TandemBlock):
    op = "gla_block"

    def mixer(self, case):
        return self._nn.GatedLinearAttention(case.d, case.H, device="meta")


class TandemMamba2Block(TandemBlock):
    op = "mamba2_block"

    def mixer(self, case):
        return self._nn.Mamba2(case.d, case.H, case.K, state_size=case.N, device="meta")


class TandemTransformerBlock(TandemBlock):
    op = "transformer_block"
    directions = ("forward", "step")

    def note_on(self, case):
        return "the cache's lengths are put back in every call, by one kernel" if case.direction == "step" else ""

    def prepare(self, case, dtype, tensors, setting):
        from ..block_maths import call_of

        x, nn = tensors["x"], self._nn
        rotary = nn.RotaryEmbedding(case.K, case.T + case.cached, device=x.device)
        attention = nn.Attention(case.d, case.H, rotary=rotary, device="meta")
        block = nn.TransformerBlock(attention, nn.GatedMLP(case.d, case.F, device="meta"), case.d, device="meta")
        block.load_state_dict(tensors["parameters"], strict=True, assign=True)
        if case.direction == "forward":
            return call_of(case, tensors, lambda _, x: block(x))
        cache = block.new_cache(case.B, case.cached + case.T)
        cache.k[:, : case.cached], cache.v[:, : case.cached] = tensors["keys"], tensors["values"]

        def step(_, x):
            cache.tokens = case.cached
            cache.lengths.fill_(case.cached)
            return block(x, cache=cache)

        return call_of(case, tensors, step)
