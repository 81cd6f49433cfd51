"""What a layer in torch does for projection: a product per segment and a function after it, eager and compiled."""

from .. import projection
from ..gradients import forward_backward
from ..provider import Provider


class TorchEager(Provider):
    op = "projection"
    name = "torch_eager"
    directions = ("forward", "forward_backward")
    note = "l2 normalise is torch's rms_norm, with the root of the head's width in its weight: one kernel"

    def load(self):
        import torch

        self._torch = torch

    def versions(self):
        return {"torch": self._torch.__version__, **super().versions()}

    def prepare(self, case, dtype, tensors, setting):
        call = self.function(case, dtype)
        if case.direction == "forward_backward":
            return forward_backward(case, tensors, call)
        return lambda: call(tensors)

    def function(self, case, dtype):
        return self.chain(case)

    def chain(self, case):
        """A function of the tensors by name that returns the outputs by name."""
        segments = projection.segments(case)

        def call(tensors):
            return {f"out{i}": follow(one, product(tensors, i)) for i, one in enumerate(segments)}

        return call

    def variant(self, case, setting):
        return "eager"


class TorchCompile(TorchEager):
    name = "torch_compile"
    mode = "max-autotune-no-cudagraphs"
    note = ""
    _last = None  # (case, direction, dtype), and its function

    def function(self, case, dtype):
        key = case.name, case.direction, dtype
        if self._last is None or self._last[0] != key:
            # why: shapes of one function's code end at torch's limit of recompilations.
            self._torch.compiler.reset()
            self._last = key, self._torch.compile(self.chain(case), mode=self.mode, dynamic=False)
        return self._last[1]

    def variant(self, case, setting):
        return self.mode


def product(tensors, i):
    import torch

    x, bias = tensors["x"], tensors.get(f"bias{i}")
    return torch.nn.functional.linear(x, tensors[f"weight{i}"], None if bias is None else bias.to(x.dtype))


def follow(segment, z):
    import torch

    if "fp32" in segment.flags:
        z = z.float()
    if segment.activation != "l2_normalize":
        return projection.activate(segment, z)
    width = int(segment.constants["head_width"])
    heads, root = z.unflatten(-1, (-1, width)), torch.full((width,), width**-0.5, dtype=z.dtype, device=z.device)
    return torch.nn.functional.rms_norm(heads, (width,), root, eps=1e-6 / width).flatten(-2)
