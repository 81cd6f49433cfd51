"""gemm_swiglu's cases for peers: costs, inputs, and the definition in fp64 on a few rows."""

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")  # their numbers in a call
STRIDES = ("contiguous", "packed")  # packed: the weights are rows of one matrix, as they are here
EPS = 1e-5  # of cli/ops/gemm_swiglu.h
ROWS = 64  # of x that are compared
COLUMNS = 8  # of each weight whose gradients are compared
BAND = 512  # rows of the definition at a time


def wants(case):
    named = {"x": "dx", "weight": "d_weight"}
    return named if case.norm == "none" else {**named, "norm_weight": "d_norm_weight"}


def why_not(case):
    if case.around is not None:
        return "pre-activations around a number"
    if (case.rstd, case.rows) != ("computed", "normal"):
        return f"rstd {case.rstd}, rows {case.rows}"
    return "sums of gradients" if (case.gradients, case.accumulate) != ("same", "no") else ""


def cost(case):
    """(bytes, flops) as the tandem program counts them. A forward alone keeps nothing for a backward here."""
    M, d, F = (case.axes[axis] for axis in ("M", "d", "F"))
    products = 4 * M * d * F
    norm = {"none": 0, "same": 2 * d, "fp32": 4 * d}[case.norm]
    weights = 4 * d * F
    kept = 4 * M * F + (0 if case.norm == "none" else 4 * M)
    forward = 2 * M * d + weights + norm + 2 * M * F
    # x, dx; d_out; the gradients beside the weights, in x's dtype.
    backward = 4 * M * d + 2 * weights + norm + (2 * d if norm else 0) + kept + 2 * M * F
    found = {
        "forward": (forward, products),
        "backward": (backward, 2 * products),
        "forward_backward": (forward + kept + backward, 3 * products),
    }
    return found[case.direction]


def make(case, kind, generator, device):
    """{x, weight [2F,d], norm_weight} as cli/ops/gemm_swiglu_make.cpp draws them, and for gradients d_out."""
    import torch

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    tensors = {
        "x": normal(case.M, case.d).to(kind),
        "weight": (case.d**-0.5 * normal(2 * case.F, case.d)).to(kind),
    }
    if case.norm != "none":
        tensors["norm_weight"] = (1 + 0.25 * normal(case.d)).to(kind if case.norm == "same" else torch.float32)
    if case.direction != "forward":
        tensors["d_out"] = normal(case.M, case.F).to(kind)
    return tensors


def call_of(case, tensors):
    """The inputs of a forward call of the library, its outputs, which are made, and its numbers."""
    import torch

    x, weight = tensors["x"], tensors["weight"]
    inputs = {"x": x, "gate_weight": weight[: case.F], "up_weight": weight[case.F :]}
    numbers = {"activation": ACTIVATIONS.index(case.activation)}
    if case.norm != "none":
        inputs["norm_weight"] = tensors["norm_weight"]
        numbers["eps"] = EPS
    return inputs, {"out": torch.empty((case.M, case.F), dtype=x.dtype, device=x.device)}, numbers


def sample(case):
    """{output: rows that are compared}: the first, the last and some between; of the weights' gradient the last
    columns of each half."""
    count = min(case.M, ROWS)
    rows = [i * (case.M - 1) // max(count - 1, 1) for i in range(count)]
    last = list(range(max(case.F - COLUMNS, 0), case.F))
    halves = [*last, *(case.F + column for column in last)]
    return {"out": rows, "dx": rows, "d_weight": halves, "d_norm_weight": list(range(case.d))}


def define(case, tensors, rows):
    """The outputs of the case's direction by name, in fp64, in those rows; gradients by autograd."""
    import torch

    if case.direction not in ("forward", "forward_backward"):
        raise ValueError(f"{case.name}: no reference of direction {case.direction} of gemm_swiglu")
    kind = tensors["x"].dtype
    wide = {name: x.double() for name, x in tensors.items()}
    x, weight, norm_weight = (wide.get(name) for name in ("x", "weight", "norm_weight"))
    if case.direction == "forward":
        return {"out": run(case, x[rows["out"]], weight, norm_weight, kind)}
    found = {}
    with torch.enable_grad():
        few = x[rows["out"]].requires_grad_()
        out = run(case, few, weight, norm_weight, kind)
        (found["dx"],) = torch.autograd.grad(out, few, wide["d_out"][rows["out"]])
        found["out"] = out.detach()
        chosen = weight[rows["d_weight"]].requires_grad_()
        columns = rows["d_weight"][: len(chosen) // 2]
        out = run(case, x, chosen, norm_weight, kind)
        (found["d_weight"],) = torch.autograd.grad(out, chosen, wide["d_out"][:, columns])
        if norm_weight is None:
            return found
        found["d_norm_weight"] = torch.zeros_like(norm_weight)
        leaf = norm_weight.requires_grad_()
        for begin in range(0, case.M, BAND):
            band = slice(begin, begin + BAND)
            out = run(case, x[band], weight, leaf, kind)
            found["d_norm_weight"] += torch.autograd.grad(out, leaf, wide["d_out"][band])[0]
    return found


def run(case, x, weight, norm_weight, kind):
    """The result in x's dtype, of a stacked weight; n is rounded to `kind`, which its gradient does not see."""
    n = x
    if norm_weight is not None:
        n = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * norm_weight
        n = n + (n.to(kind).to(n.dtype) - n).detach()
    gate, up = (n @ weight.T).chunk(2, -1)
    return activate(case, gate) * up


def activate(case, z):
    import torch

    if case.activation == "gelu_tanh":
        return torch.nn.functional.gelu(z, approximate="tanh")
    return getattr(torch.nn.functional, case.activation)(z)
