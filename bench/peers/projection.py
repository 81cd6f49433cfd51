"""projection's cases for peers: segments, costs, inputs, and the definition in fp64 on a few rows."""

import dataclasses

ACTIVATIONS = ("none", "silu", "sigmoid", "log_sigmoid", "softplus", "l2_normalize")  # their numbers in a call
CONSTANTS = {"log_sigmoid": ("divisor",), "softplus": ("min", "max"), "l2_normalize": ("head_width",)}
STRIDES = ("contiguous",)
FLAGS = ("fp32", "bias", "bias_fp32", "unused")
ROWS = 64  # of x that are compared


@dataclasses.dataclass(frozen=True)
class Segment:
    """A segment of a case, as cli/ops/projection.h has it."""

    columns: int
    activation: str
    constants: dict  # by the names of the call's numbers
    flags: frozenset

    @property
    def heads(self):
        return self.columns // int(self.constants["head_width"])

    @property
    def biased(self):
        return not self.flags.isdisjoint(("bias", "bias_fp32"))

    @property
    def out_bytes(self):
        return 4 if "fp32" in self.flags else 2


def parse(text):
    columns, activation, *words = text.split()
    numbers = [float(word) for word in words if word not in FLAGS]
    constants = dict(zip(CONSTANTS.get(activation, ()), numbers, strict=False))
    return Segment(int(columns), activation, constants, frozenset(words) & frozenset(FLAGS))


def segments(case):
    return [parse(text) for text in case.segments]


def wants(case):
    named = {"x": "dx"}
    for i, segment in enumerate(segments(case)):
        named[f"weight{i}"] = f"d_weight{i}"
        if segment.biased:
            named[f"bias{i}"] = f"d_bias{i}"
    return named


def why_not(case):
    if case.around is not None:
        return "pre-activations around a number"
    if any("unused" in segment.flags for segment in segments(case)):
        return "unused segments"
    return "sums of gradients" if (case.gradients, case.accumulate) != ("same", "no") else ""


def cost(case):
    """(bytes, flops) as the tandem program counts them. A forward alone keeps nothing for a backward here."""
    products = 2 * case.M * case.d * sum(segment.columns for segment in segments(case))
    gradients = case.direction != "forward"
    forward, backward = 2 * case.M * case.d, 4 * case.M * case.d  # x; x and dx
    for segment in segments(case):
        weight = 2 * case.d * segment.columns
        if segment.biased:
            weight += segment.columns * (4 if "bias_fp32" in segment.flags else 2)
        out = case.M * segment.columns * segment.out_bytes
        inverse_norms = 4 * case.M * segment.heads if segment.activation == "l2_normalize" else 0
        slope = out if segment.activation not in ("none", "l2_normalize") else 0
        forward += weight + out + (slope + inverse_norms if gradients else 0)
        # The gradients beside it; d_bias has x's dtype.
        backward += weight + 2 * case.d * segment.columns + (2 * segment.columns if segment.biased else 0)
        backward += out + slope + (out + inverse_norms if inverse_norms else 0)
    found = {
        "forward": (forward, products),
        "backward": (backward, 2 * products),
        "forward_backward": (forward + backward, 3 * products),
    }
    return found[case.direction]


def make(case, kind, generator, device):
    """{x, weight0, bias0, ...} as cli/ops/projection_make.cpp draws them, and for gradients d_out0..."""
    import torch

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    tensors = {"x": normal(case.M, case.d).to(kind)}
    for i, segment in enumerate(segments(case)):
        tensors[f"weight{i}"] = (case.d**-0.5 * normal(segment.columns, case.d)).to(kind)
        if segment.biased:
            bias = 0.5 * normal(segment.columns)
            tensors[f"bias{i}"] = bias if "bias_fp32" in segment.flags else bias.to(kind)
        if case.direction != "forward":
            d_out = normal(case.M, segment.columns)
            tensors[f"d_out{i}"] = d_out if "fp32" in segment.flags else d_out.to(kind)
    return tensors


def call_of(case, tensors):
    """The inputs of a forward call of the library, its outputs, which are made, and its numbers."""
    import torch

    x, outputs, numbers = tensors["x"], {}, {}
    for i, one in enumerate(segments(case)):
        dtype = torch.float32 if "fp32" in one.flags else x.dtype
        outputs[f"out{i}"] = torch.empty((case.M, one.columns), dtype=dtype, device=x.device)
        numbers[f"activation{i}"] = ACTIVATIONS.index(one.activation)
        numbers |= {f"{name}{i}": value for name, value in one.constants.items()}
    return {name: x for name, x in tensors.items() if not name.startswith("d_")}, outputs, numbers


def sample(case):
    """{output: rows that are compared}: the first, the last and some between; of a weight's gradient those of the last
    head, or the last 16."""
    count = min(case.M, ROWS)
    rows = [i * (case.M - 1) // max(count - 1, 1) for i in range(count)]
    found = {"dx": rows}
    for i, segment in enumerate(segments(case)):
        width = min(int(segment.constants.get("head_width", 16)), segment.columns)
        found[f"out{i}"] = rows
        found[f"d_weight{i}"] = found[f"d_bias{i}"] = list(range(segment.columns - width, segment.columns))
    return found


def define(case, tensors, rows):
    """The outputs of the case's direction by name, in fp64, in those rows; gradients by autograd."""
    import torch

    if case.direction not in ("forward", "forward_backward"):
        raise ValueError(f"{case.name}: no reference of direction {case.direction} of projection")
    wide = {name: x.double() for name, x in tensors.items() if not name.startswith("d_out")}
    parts = segments(case)
    gradients = case.direction == "forward_backward"
    with torch.set_grad_enabled(gradients):
        x = wide["x"][rows["dx"]].requires_grad_(gradients)
        outs = {
            f"out{i}": activate(one, product(x, wide[f"weight{i}"], wide.get(f"bias{i}")))
            for i, one in enumerate(parts)
        }
        found = {name: out.detach() for name, out in outs.items()}
        if not gradients:
            return found
        d_outs = [tensors[f"d_{name}"][rows[name]].double() for name in outs]
        (found["dx"],) = torch.autograd.grad(list(outs.values()), [x], d_outs)
        for i, one in enumerate(parts):
            chosen = rows[f"d_weight{i}"]
            own = {
                name: wide[f"{name}{i}"][chosen].requires_grad_() for name in ("weight", "bias") if f"{name}{i}" in wide
            }
            out = activate(one, product(wide["x"], **own))
            d_out = tensors[f"d_out{i}"][:, chosen].double()
            for name, gradient in zip(own, torch.autograd.grad(out, list(own.values()), d_out), strict=True):
                found[f"d_{name}{i}"] = gradient
    return found


def product(x, weight, bias=None):
    z = x @ weight.T
    return z if bias is None else z + bias


def activate(segment, z):
    import torch

    constants = segment.constants

    def l2_normalize():
        heads = z.unflatten(-1, (-1, int(constants["head_width"])))
        return (heads / (heads.square().sum(-1, keepdim=True) + 1e-6).sqrt()).flatten(-2)

    def softplus():
        y = torch.logaddexp(z, torch.zeros_like(z))
        return y.clamp(constants.get("min"), constants.get("max")) if constants else y

    return {
        "none": lambda: z,
        "silu": lambda: torch.nn.functional.silu(z),
        "sigmoid": lambda: torch.sigmoid(z),
        "log_sigmoid": lambda: torch.nn.functional.logsigmoid(z) / constants.get("divisor", 16),
        "softplus": softplus,
        "l2_normalize": l2_normalize,
    }[segment.activation]()
