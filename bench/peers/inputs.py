"""Inputs of a case on a device, drawn as cli/ops/gla_make.cpp draws them (same distributions, not the same numbers)."""

import math

from . import cases

DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def log_decay(distribution, shape, generator, device="cpu"):
    """Logarithms of decays, fp32, drawn from a distribution of cli/cases/cases.h: [B,T,...], or [H], a constant decay
    per head."""
    import torch

    def draw(kind):
        return getattr(torch, kind)(shape, generator=generator, device=device)

    def log_sigmoid(mean=0):
        return torch.nn.functional.logsigmoid(draw("randn") + mean)

    def normal():
        return log_sigmoid() / 16

    def full(value):
        return torch.full(shape, value, device=device)

    def special():  # a constant decay has so few values that chance might leave out the special one
        return torch.arange(*shape, device=device) % 3 == 1 if len(shape) == 1 else draw("rand") < 1 / 16

    def time():
        if len(shape) == 1:
            return torch.zeros(1, device=device)
        return torch.arange(shape[1], device=device).reshape(1, -1, 1)

    def phases():
        at = time() % 1000
        growing = torch.where(at < 850, 0.0, 0.02 * draw("rand"))
        return torch.where(at < 500, log_sigmoid(2), growing)

    return {
        "normal": normal,
        "normal_bench": lambda: log_sigmoid(2),
        "strong": lambda: -2 - 18 * draw("rand"),
        "reset": lambda: normal().masked_fill(special(), -math.inf),
        "reset_half": lambda: normal().masked_fill(draw("rand") < 0.5, -math.inf),
        "reset_edges": lambda: normal().masked_fill((time() % 64 == 0) | (time() % 64 == 63), -math.inf),
        "all_reset": lambda: full(-math.inf),
        "minus20": lambda: full(-20.0),
        "minus100": lambda: full(-100.0),
        "huge": lambda: normal().masked_fill(special(), -1e30),
        "zero": lambda: full(0.0),
        "alternating": lambda: torch.where(time() % 2 == 0, 0.0, -20.0).expand(shape).contiguous(),
        "positive": lambda: 0.02 * draw("rand"),
        "phases": phases,
    }[distribution]()


def make(case, dtype, seed, device):
    """Makes gla's {q, k, v, log_decay, cu_seqlens}, contiguous [B,T,heads,D]; log_decay is absent without a decay,
    cu_seqlens (int32) in a dense batch. For a step also the state before it, [B,H,K,V]; for gradients d_o, like v. Of
    a scan make_scan(), of a product of rows that of its own module."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed + case.seed)
    kind = getattr(torch, DTYPE_NAMES[dtype])
    if case.op in cases.SCANS:
        return make_scan(case, kind, generator, device)
    if case.op in cases.PRODUCTS:
        return cases.PRODUCTS[case.op].make(case, kind, generator, device)

    def normal(heads, width):
        return torch.randn((case.B, case.T, heads, width), generator=generator, device=device).to(kind)

    tensors = {"q": normal(case.HQ, case.K), "k": normal(case.HQ, case.K), "v": normal(case.H, case.V)}
    if case.decay_kind != "none":
        shape = (case.H,) if case.decay_kind == "constant" else (case.B, case.T, case.H)
        tensors["log_decay"] = log_decay(case.distribution, shape, generator, device)
    if case.cu_seqlens is not None:
        tensors["cu_seqlens"] = torch.tensor(case.cu_seqlens, dtype=torch.int32, device=device)
    if case.direction == "step":
        state = torch.randn((case.B, case.H, case.K, case.V), generator=generator, device=device)
        tensors["state"] = state.to(getattr(torch, DTYPE_NAMES[case.state_dtype]))
    if case.direction in cases.WITH_GRADIENTS:
        tensors["d_o"] = normal(case.H, case.V)
    return tensors


def make_scan(case, kind, generator, device):
    """{x, gate, log_decay or decay, cu_seqlens}, contiguous [B,T,D]; u [B,T,d] and weight [D,d] for the x of
    linear_scan; for gradients d_o, like x."""
    import torch

    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device)

    shape = (case.B, case.T, case.D)
    if case.op == "linear_scan":
        scale = case.d**-0.5
        tensors = {"u": normal(case.B, case.T, case.d).to(kind), "weight": (scale * normal(case.D, case.d)).to(kind)}
    else:
        tensors = {"x": normal(*shape).to(kind)}
    logs = log_decay(case.distribution, shape, generator, device)
    values = logs if case.decay_kind == "log_decay" else logs.exp()
    tensors[case.decay_kind] = values if case.decay_dtype == "fp32" else values.to(kind)
    if case.gate == "silu":
        tensors["gate"] = normal(*shape).to(kind)
    if case.cu_seqlens is not None:
        tensors["cu_seqlens"] = torch.tensor(case.cu_seqlens, dtype=torch.int32, device=device)
    if case.direction in cases.WITH_GRADIENTS:
        tensors["d_o"] = normal(*shape).to(kind)
    return tensors
