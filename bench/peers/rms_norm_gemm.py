"""rms_norm_gemm's cases for peers, with projection's segments: costs, inputs, and the fp64 definition on a few rows."""

from . import projection
from .projection import product, segments

STRIDES = ("contiguous", "packed")  # packed: the weights are rows of one matrix
EPS = 1e-6  # of a case that names none


def eps(case):
    return EPS if case.eps is None else case.eps


def wants(case):
    return {**projection.wants(case), "norm_weight": "d_norm_weight"}


def why_not(case):
    if case.rows != "normal":
        return f"rows {case.rows}"
    if any(" heads " in one for one in case.segments):
        return "heads that end in a norm or a rotation"
    if case.rstd != "computed":
        return "a given rstd"
    return projection.why_not(case)


def cost(case):
    """(bytes, flops) as the tandem program counts them. A forward alone keeps nothing for a backward here."""
    products = 2 * case.M * case.d * sum(segment.columns for segment in segments(case))
    norm_weight, rstd = case.d * (4 if case.norm == "fp32" else 2), 4 * case.M
    forward = 2 * case.M * case.d + norm_weight + (rstd if case.direction != "forward" else 0)
    backward = 4 * case.M * case.d + norm_weight + 2 * case.d + rstd  # gradients beside the inputs, in x's dtype
    for segment in segments(case):
        bias = segment.columns * (4 if "bias_fp32" in segment.flags else 2) if segment.biased else 0
        weight, out = 2 * case.d * segment.columns, case.M * segment.columns * segment.out_bytes
        forward += weight + bias + out
        backward += 2 * weight + bias + out + (2 * segment.columns if segment.biased else 0)
    found = {
        "forward": (forward, products),
        "backward": (backward, 2 * products),
        "forward_backward": (forward + backward, 3 * products),
    }
    return found[case.direction]


def make(case, kind, generator, device):
    """{x, norm_weight, weight0, bias0, ...} as cli/ops/rms_norm_gemm_make.cpp draws them, and for gradients d_out0...;
    with packed strides weights are rows of one matrix."""
    import torch

    tensors = projection.make(case, kind, generator, device)
    norm_weight = 1 + 0.25 * torch.randn(case.d, generator=generator, device=device)
    tensors["norm_weight"] = norm_weight if case.norm == "fp32" else norm_weight.to(kind)
    if case.strides == "packed":
        columns = [one.columns for one in segments(case)]
        stacked = torch.cat([tensors[f"weight{i}"] for i in range(len(columns))])
        tensors |= {f"weight{i}": rows for i, rows in enumerate(stacked.split(columns))}
    return tensors


def call_of(case, tensors):
    """The inputs of a forward call of the library, its outputs, which are made, and its numbers."""
    inputs, outputs, _ = projection.call_of(case, tensors)
    return inputs, outputs, {} if case.eps is None else {"eps": case.eps}


def sample(case):
    return {**projection.sample(case), "d_norm_weight": list(range(case.d))}


def normalize(case, x, norm_weight):
    return x * (x.square().mean(-1, keepdim=True) + eps(case)).rsqrt() * norm_weight


def define(case, tensors, rows):
    """The outputs of the case's direction by name, in fp64, in those rows; gradients by autograd."""
    import torch

    if case.direction not in ("forward", "forward_backward"):
        raise ValueError(f"{case.name}: no reference of direction {case.direction} of rms_norm_gemm")
    wide = {name: x.double() for name, x in tensors.items() if not name.startswith("d_out")}
    parts = range(len(segments(case)))
    gradients = case.direction == "forward_backward"
    with torch.set_grad_enabled(gradients):
        x = wide["x"][rows["dx"]].requires_grad_(gradients)
        n = normalize(case, x, wide["norm_weight"])
        outs = {f"out{i}": product(n, wide[f"weight{i}"], wide.get(f"bias{i}")) for i in parts}
        found = {name: out.detach() for name, out in outs.items()}
        if not gradients:
            return found
        d_outs = [tensors[f"d_{name}"][rows[name]].double() for name in outs]
        (found["dx"],) = torch.autograd.grad(list(outs.values()), [x], d_outs)
        norm_weight = wide["norm_weight"].requires_grad_()
        n = normalize(case, wide["x"], norm_weight)
        dn = sum(tensors[f"d_out{i}"].double() @ wide[f"weight{i}"] for i in parts)
        (found["d_norm_weight"],) = torch.autograd.grad(n, [norm_weight], dn)
    for i in parts:
        chosen = rows[f"d_weight{i}"]
        d_out = tensors[f"d_out{i}"][:, chosen].double()
        found[f"d_weight{i}"] = d_out.T @ n.detach()
        if f"bias{i}" in wide:
            found[f"d_bias{i}"] = d_out.sum(0)
    return found
