"""gated_output's cases for peers: costs, inputs, and the definition in fp64 on a few rows."""

GATES = ("plain", "silu", "sigmoid")  # their numbers in a call, as those of the norms
NORMS = ("none", "layer_norm", "rms_norm")
STRIDES = ("contiguous",)
EPS = 1e-5  # of cli/ops/gated_output.h
GROUP_EPS = 1e-6  # the library's own
ROWS = 64  # that are compared: of what has rows, and of the weight's gradient
BAND = 2048  # rows of the definition at a time


def gates(case):
    return case.output_gate != "none"


def groups(case):
    """Columns of a group; 0 without a norm of groups."""
    if case.group_norm == "none":
        return 0
    return case.group_width or case.d_in


def vectors(case):
    """{vector of weights: its length}, and who says its dtype."""
    width = case.d_in if case.group_weight == "by_column" else groups(case)
    found = {"group_norm_weight": (case.group_norm, width), "bias": (case.bias, case.d)}
    if case.output_norm != "none":
        found["norm_weight"] = (case.norm, case.d)
    if case.output_norm == "layer_norm":
        found["norm_bias"] = (case.norm, case.d)
    return {name: (kind, length) for name, (kind, length) in found.items() if kind != "none"}


def matrices(case):
    """{matrix with a row for each of o: its columns}."""
    found = {"o": case.d_in}
    if gates(case):
        found["gate"] = case.d_in
    if case.residual == "yes":
        found["residual"] = case.d
    return found


def wants(case):
    return {name: f"d_{name}" for name in (*matrices(case), "weight", *vectors(case))}


def outputs(case):
    return ("out", "sum") if case.sum == "yes" else ("out",)


def why_not(case):
    if (case.rows, case.gated) != ("normal", "kept"):
        return f"rows {case.rows}, gated {case.gated}"
    return "sums of gradients" if (case.gradients, case.accumulate) != ("same", "no") else ""


def cost(case):
    """(bytes, flops) as the tandem program counts them. A forward alone keeps nothing for a backward here."""
    M, d_in, d = (case.axes[axis] for axis in ("M", "d_in", "d"))
    residual = 2 * M * d if case.residual == "yes" else 0
    rows = sum(2 * M * columns for columns in matrices(case).values()) - residual
    weight = 2 * d_in * d
    small = sum((2 if kind == "same" else 4) * length for kind, length in vectors(case).values())
    normalizes, width = case.output_norm != "none", groups(case)
    statistics = (4 * M if normalizes else 0) + (4 * M if case.output_norm == "layer_norm" else 0)
    statistics += 4 * M * (d_in // width) if width else 0
    kept = statistics + (2 * M * d_in if gates(case) or width else 0)
    total = 2 * M * d if normalizes else 0
    returned = 2 * M * d if case.sum == "yes" else 0
    forward = rows + weight + small + residual + 2 * M * d
    # The gradients of vectors are in o's dtype; d_sum comes with a sum that is returned.
    gradients = rows + weight + sum(2 * length for _, length in vectors(case).values()) + residual
    backward = rows + weight + small + kept + total + 2 * M * d + returned + gradients
    found = {
        "forward": (forward + returned, 2 * M * d_in * d),
        "backward": (backward, 4 * M * d_in * d),
        "forward_backward": (forward + kept + total + backward, 6 * M * d_in * d),
    }
    return found[case.direction]


def make(case, kind, generator, device):
    """The inputs by name as cli/ops/gated_output_make.cpp draws them, and for gradients d_out and d_sum."""
    import torch

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    tensors = {name: normal(case.M, columns).to(kind) for name, columns in matrices(case).items()}
    tensors["weight"] = (case.d_in**-0.5 * normal(case.d, case.d_in)).to(kind)
    for name, (dtype, length) in vectors(case).items():
        drawn = 1 + 0.25 * normal(length) if name.endswith("norm_weight") else normal(length)
        tensors[name] = drawn.to(kind if dtype == "same" else torch.float32)
    if case.direction != "forward":
        tensors |= {f"d_{name}": normal(case.M, case.d).to(kind) for name in outputs(case)}
    return tensors


def call_of(case, tensors):
    """The inputs of a forward call of the library, its outputs, which are made, and its numbers."""
    import torch

    numbers = {}
    if gates(case):
        numbers["gate_activation"] = GATES.index(case.output_gate)
    if groups(case):
        numbers |= {"group_width": groups(case), "norm_behind_gate": int(case.behind_gate == "yes")}
    if case.output_norm != "none":
        numbers |= {"norm": NORMS.index(case.output_norm), "eps": EPS}
    o = tensors["o"]
    made = {name: torch.empty((case.M, case.d), dtype=o.dtype, device=o.device) for name in outputs(case)}
    return {name: tensors[name] for name in wants(case)}, made, numbers


def sample(case):
    """{output: rows that are compared}: the first, the last and some between; of vectors all."""

    def some(count):
        chosen = min(count, ROWS)
        return [i * (count - 1) // max(chosen - 1, 1) for i in range(chosen)]

    of_rows = dict.fromkeys((*outputs(case), *(f"d_{name}" for name in matrices(case))), some(case.M))
    of_vectors = {f"d_{name}": list(range(length)) for name, (_, length) in vectors(case).items()}
    return {**of_rows, "d_weight": some(case.d), **of_vectors}


def define(case, tensors, rows):
    """The outputs of the case's direction by name, in fp64, in those rows; gradients by autograd."""
    import torch

    if case.direction not in ("forward", "forward_backward"):
        raise ValueError(f"{case.name}: no reference of direction {case.direction} of gated_output")
    with_rows = [*matrices(case), *(f"d_{name}" for name in outputs(case) if f"d_{name}" in tensors)]
    shared = {name: tensors[name].double() for name in ("weight", *vectors(case))}

    def results(chosen, leaves):
        """Of some rows, and the gradients by the leaves."""
        some = {**shared, **{name: tensors[name][chosen].double() for name in with_rows}}
        some |= {name: some[name].requires_grad_() for name in leaves}
        found = run(case, some, tensors["o"].dtype)
        if not leaves:
            return found, {}
        d_found = [some[f"d_{name}"] for name in found]
        gradients = torch.autograd.grad(list(found.values()), [some[name] for name in leaves], d_found)
        return found, {f"d_{name}": one for name, one in zip(leaves, gradients, strict=True)}

    if case.direction == "forward":
        return results(rows["out"], [])[0]
    with torch.enable_grad():
        few, of_rows = results(rows["out"], list(matrices(case)))
        summed = {f"d_{name}": torch.zeros_like(x) for name, x in shared.items()}
        for begin in range(0, case.M, BAND):
            shared = {name: x.detach() for name, x in shared.items()}
            _, gradients = results(slice(begin, begin + BAND), list(shared))
            summed = {name: x + gradients[name] for name, x in summed.items()}
    few = {name: x.detach() for name, x in few.items()}
    return {**few, **of_rows, **summed, "d_weight": summed["d_weight"][rows["d_weight"]]}


def run(case, tensors, kind):
    """{out, sum where it is returned} of the tensors by name, in their dtype; a and a sum that is normalised are
    rounded to `kind`, which their gradients do not see."""
    import torch

    def rounded(x):
        return x + (x.to(kind).to(x.dtype) - x).detach()

    total = torch.nn.functional.linear(rounded(gated(case, tensors)), tensors["weight"])
    for name in ("bias", "residual"):
        total = total + tensors[name] if name in tensors else total
    if case.output_norm == "none":
        return {"out": total}
    total = rounded(total)
    return {"out": normalized(case, tensors, total), **({"sum": total} if case.sum == "yes" else {})}


def gated(case, tensors):
    """The input of the product, by torch's functions."""
    y, f = tensors["o"], activate(case, tensors["gate"]) if gates(case) else None
    if f is not None and case.behind_gate == "yes":
        y, f = y * f, None
    if groups(case):
        y = group_norm(case, y, tensors["group_norm_weight"].to(y.dtype))
    return y if f is None else y * f


def group_norm(case, y, weight):
    import torch

    width = groups(case)
    heads = y.unflatten(-1, (-1, width))
    if weight.numel() == width:
        return torch.nn.functional.rms_norm(heads, (width,), weight, GROUP_EPS).flatten(-2)
    return torch.nn.functional.rms_norm(heads, (width,), None, GROUP_EPS).flatten(-2) * weight


def activate(case, gate):
    import torch

    return gate if case.output_gate == "plain" else getattr(torch.nn.functional, case.output_gate)(gate)


def normalized(case, tensors, total):
    import torch

    functions = torch.nn.functional
    weight, bias = (tensors[name].to(total.dtype) if name in tensors else None for name in ("norm_weight", "norm_bias"))
    if case.output_norm == "layer_norm":
        return functions.layer_norm(total, (case.d,), weight, bias, EPS)
    return functions.rms_norm(total, (case.d,), weight, EPS) if case.output_norm == "rms_norm" else total
