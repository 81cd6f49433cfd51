"""causal_conv1d's cases for peers: costs, inputs, and the definition in fp64 on a few channels."""

import itertools

STRIDES = ("contiguous", "packed")  # packed: x is a slice of rows three times as wide
CHANNELS = 8  # that are compared


def wants(case):
    named = {"x": "dx", "weight": "d_weight"}
    return named if case.bias == "none" else {**named, "bias": "d_bias"}


def why_not(case):
    return "steps are timed by tandem bench" if case.direction == "step" else ""


def cost(case):
    """(bytes, flops) as the tandem program counts them."""
    B, T, D, W = (case.axes[axis] for axis in "BTDW")
    tokens = 2 * B * T * D
    taps = D * W * _size(case.weight) + (D * _size(case.bias) if case.bias != "none" else 0)
    offsets = 0 if case.cu_seqlens is None else 4 * len(case.cu_seqlens)
    forward, backward = 2 * tokens + taps + offsets, 3 * tokens + 2 * taps + offsets
    return {"forward": forward, "backward": backward, "forward_backward": forward + backward}[case.direction], 0


def _size(dtype):
    return 4 if dtype == "fp32" else 2


def make(case, kind, generator, device):
    """{x, weight, bias} as cli/ops/causal_conv1d_make.cpp lays them out, the offsets, and for gradients d_out."""
    import torch

    def normal(*shape, dtype="same"):
        of = torch.float32 if dtype == "fp32" else kind
        return torch.randn(shape, generator=generator, device=device).to(of)

    B, T, D, W = (case.axes[axis] for axis in "BTDW")
    x = normal(B, T, 3 * D)[..., :D] if case.strides == "packed" else normal(B, T, D)
    tensors = {"x": x, "weight": normal(D, W, dtype=case.weight)}
    if case.bias != "none":
        tensors["bias"] = normal(D, dtype=case.bias)
    if case.cu_seqlens is not None:
        tensors["cu_seqlens"] = torch.tensor(case.cu_seqlens, dtype=torch.int32, device=device)
    if case.direction != "forward":
        tensors["d_out"] = normal(B, T, D)
    return tensors


def call_of(case, tensors):
    """The inputs of a forward call of the library, its output, which is made, and its numbers."""
    import torch

    inputs = {name: tensors[name] for name in ("x", "weight", "bias", "cu_seqlens") if name in tensors}
    out = torch.empty(tensors["x"].shape, dtype=tensors["x"].dtype, device=tensors["x"].device)
    return inputs, {"out": out}, {"silu": float(case.activation == "silu")}


def channels(case):
    wanted = min(CHANNELS, case.D)
    return [i * (case.D - 1) // max(wanted - 1, 1) for i in range(wanted)]


def sample(case):
    """{output: index of what is compared}: a few channels."""
    of_tokens, of_taps = (slice(None), slice(None), channels(case)), (channels(case),)
    return {"out": of_tokens, "dx": of_tokens, "d_weight": of_taps, "d_bias": of_taps}


def define(case, tensors, index):
    """The outputs of the case's direction by name, in fp64, of those channels."""
    import torch

    W = case.W
    x = tensors["x"][index["out"]].double().requires_grad_()
    taps = {name: tensors[name][index["d_bias"]].double() for name in ("weight", "bias") if name in tensors}
    leaves = {"x": x, **{name: tap.requires_grad_() for name, tap in taps.items()}}
    spans = [(0, case.T)] if case.cu_seqlens is None else itertools.pairwise(case.cu_seqlens)
    with torch.enable_grad():
        out = torch.zeros_like(x)
        for begin, end in spans:
            tokens = torch.nn.functional.pad(x[:, begin:end], (0, 0, W - 1, 0))
            z = sum(taps["weight"][:, w] * tokens[:, w : w + end - begin] for w in range(W))
            z = z + taps["bias"] if "bias" in taps else z
            out[:, begin:end] = torch.nn.functional.silu(z) if case.activation == "silu" else z
    found = {"out": out.detach()} if case.direction != "backward" else {}
    if case.direction != "forward":
        d_out = tensors["d_out"][index["out"]].double()
        gradients = torch.autograd.grad(out, [leaves[name] for name in case.wants], d_out)
        found |= dict(zip(case.wants.values(), gradients, strict=True))
    return found
