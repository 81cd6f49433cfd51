"""Inputs of a case on a device, drawn as cli/ops/gla_make.cpp draws them (same distributions, not the same numbers)."""

import math

from . import cases

DTYPE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def decay(case, shape, generator, device):
    """Logarithms of decays, fp32."""
    import torch

    normal = torch.randn(shape, generator=generator, device=device)
    uniform = torch.rand(shape, generator=generator, device=device)
    mild = torch.nn.functional.logsigmoid(normal) / 16
    make = {
        "normal": lambda: mild,
        "normal_bench": lambda: torch.nn.functional.logsigmoid(normal + 2),
        "strong": lambda: -2 - 18 * uniform,
        "reset": lambda: mild.masked_fill(uniform < 1 / 16, -math.inf),
        "all_reset": lambda: torch.full_like(mild, -math.inf),
        "minus20": lambda: torch.full_like(mild, -20.0),
        "zero": lambda: torch.zeros_like(mild),
        "positive": lambda: 0.02 * uniform,
    }
    if case.distribution not in make:
        raise ValueError(f"{case.name}: no decay distribution {case.distribution} here ({', '.join(make)})")
    return make[case.distribution]()


def make(case, dtype, seed, device):
    """Makes gla's {q, k, v, log_decay, cu_seqlens}, contiguous [B,T,heads,D]; log_decay is absent without a decay,
    cu_seqlens (int32) in a dense batch. For a step also the state before it, [B,H,K,V]; for gradients d_o, like v. Of
    a scan make_scan()."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed + case.seed)
    kind = getattr(torch, DTYPE_NAMES[dtype])
    if case.op in cases.SCANS:
        return make_scan(case, kind, generator, device)

    def normal(heads, width):
        return torch.randn((case.B, case.T, heads, width), generator=generator, device=device).to(kind)

    tensors = {"q": normal(case.HQ, case.K), "k": normal(case.HQ, case.K), "v": normal(case.H, case.V)}
    if case.decay_kind != "none":
        shape = (case.H,) if case.decay_kind == "constant" else (case.B, case.T, case.H)
        tensors["log_decay"] = decay(case, shape, generator, device)
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
    logs = decay(case, shape, generator, device)
    values = logs if case.decay_kind == "log_decay" else logs.exp()
    tensors[case.decay_kind] = values if case.decay_dtype == "fp32" else values.to(kind)
    if case.gate == "silu":
        tensors["gate"] = normal(*shape).to(kind)
    if case.cu_seqlens is not None:
        tensors["cu_seqlens"] = torch.tensor(case.cu_seqlens, dtype=torch.int32, device=device)
    if case.direction in cases.WITH_GRADIENTS:
        tensors["d_o"] = normal(*shape).to(kind)
    return tensors
