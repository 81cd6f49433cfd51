"""cases/<op>.json for the Python tests: a choice of it, and the inputs of a case."""

import itertools
import math
import os
import pathlib
import sys
import zlib

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from bench.peers.cases import table  # noqa: E402
from bench.peers.inputs import log_decay  # noqa: E402

# fp64 has its tests in test_gradcheck.py.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# exp of these is 0 or nearly.
RESETS = ("minus20", "minus100", "all_reset", "reset", "reset_half", "reset_edges", "huge")


def load(op, tag, direction="forward"):
    """Cases of the op in this direction with this tag."""
    return [case for case in table(op) if tag in case["tags"] and direction in case["directions"]]


def _elements(case):
    """B*T*H*K*V of a gla, B*T*D(*d or W) of the others: what the definition goes through."""
    return math.prod(size for axis, size in case["axes"].items() if axis not in ("HQ", "HKV", "TK"))


def _can_be_judged(op, case, direction):
    """Whether the fp64 definition, one token at a time, judges the case, and in seconds."""
    # Autograd of the definition keeps the state after every token.
    if _elements(case) > 1 << (24 if direction == "backward" else 27):
        return False
    if op == "gla":
        return True
    if op == "attention":
        # Gradients through one key are 0 but for roundings, and normal values are drawn.
        return case["values"] == "normal" and (direction == "forward" or case["axes"]["TK"] != 1)
    if op == "causal_conv1d":
        return case["axes"]["D"] >= 8  # gradients of the taps are few numbers
    # Fewer numbers are not judged by their roundings. Autograd of a scan's definition multiplies by exp(-inf).
    numbers = case["axes"]["B"] * case["axes"]["T"] * case["axes"]["D"]
    return not 0 < numbers < 2000 and not (direction == "backward" and case["decay"]["distribution"] in RESETS)


def binding_path(case, dtype):
    """What the binding sees of a call: which tensors there are, of which dtypes and layouts, and sizes of 0 and 1."""
    axes = case["axes"]
    offsets = case.get("cu_seqlens", [0, axes["T"]])
    return {
        "dtype": dtype,
        "decay": case["decay"]["kind"] if "decay" in case else None,
        "decay dtype": case.get("decay_dtype"),
        "gate": case.get("gate"),
        "activation": case.get("activation"),
        "bias": case.get("bias"),
        "weight": case.get("weight"),
        "states": case.get("states"),
        "state dtype": case.get("state_dtype"),
        "scale": case.get("scale") is not None,
        "saved states": case.get("saved_states"),
        "strides": case["strides"],
        "packed sequences": "cu_seqlens" in case,
        "grouped": axes.get("HQ", axes.get("HKV")) != axes.get("H"),
        "causal": case.get("causal"),
        "log_sum_exp": case.get("log_sum_exp"),
        "window": "window_left" in case or "window_right" in case,
        "offsets of keys": "cu_seqlens_k" in case,
        "lengths of keys": "lengths_k" in case,
        "B": min(axes["B"], 2),
        "longest sequence": min(max((b - a for a, b in itertools.pairwise(offsets)), default=0), 2),
    }


def cover(op, direction, dtypes=tuple(DTYPES)):
    """(case, dtype) of every binding path of the op in this direction, the smallest case for each. The numbers of
    every case are what the C++ tests check. With TANDEM_TEST_ALL=1 every case that the definition can judge, in every
    dtype."""
    cases = [case for case in load(op, "check", direction) if _can_be_judged(op, case, direction)]
    pairs = [(case, dtype) for case in cases for dtype in case["dtype"] if dtype in dtypes]
    if os.environ.get("TANDEM_TEST_ALL") == "1":
        return pairs
    smallest = {}
    for case, dtype in sorted(pairs, key=lambda pair: _elements(pair[0])):
        smallest.setdefault(tuple(binding_path(case, dtype).values()), (case, dtype))
    return list(smallest.values())


def _with_strides(tensor, kind):
    """Lays values out in another layout. "packed" is made by gla_inputs."""
    B, T, H, D = tensor.shape
    if kind == "transposed":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "misaligned":
        return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)
    if kind == "broadcast":
        return tensor[:, :, :1].expand(B, T, H, D)
    if kind in ("padded", "odd"):
        head, token, first = (-(-D // 8) * 8 + 16, 32, 0) if kind == "padded" else (D + 3, 5, 1)
        row = H * head + token
        memory = torch.empty(B * T * row + first, dtype=tensor.dtype)
        strides = (T * row, row, head, 1)
        return memory[first:].as_strided(tensor.shape, strides, first).copy_(tensor)
    return tensor


def gla_inputs(case, dtype, device="cpu"):
    """Keyword arguments of tandem.ops.gla. Drawn on the CPU, so that every device gets the same."""
    axes = case["axes"]
    B, T, H, HQ, K, V = (axes[name] for name in ("B", "T", "H", "HQ", "K", "V"))
    generator = torch.Generator().manual_seed(zlib.crc32(case["name"].encode()))
    kind = case["strides"]

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    widths = [(HQ, K), (HQ, K), (H, V)]
    if kind == "packed":
        rows = normal(B, T, sum(heads * dim for heads, dim in widths)).to(dtype)
        slices = rows.split([heads * dim for heads, dim in widths], dim=-1)
        q, k, v = (part.unflatten(-1, width) for part, width in zip(slices, widths, strict=True))
    else:
        q, k, v = (_with_strides(normal(B, T, *width).to(dtype), kind) for width in widths)
    inputs = {"q": q, "k": k, "v": v, "scale": case.get("scale"), "save_states": case.get("saved_states") == "yes"}
    decay = case["decay"]
    if decay["kind"] != "none":
        constant = decay["kind"] == "constant"
        logs = log_decay(decay["distribution"], (H,) if constant else (B, T, H), generator)
        if kind == "transposed" and not constant:
            logs = logs.transpose(1, 2).contiguous().transpose(1, 2)
        inputs["log_decay"] = logs
    states = case["states"]
    sequences = B
    if "cu_seqlens" in case:
        inputs["cu_seqlens"] = torch.tensor(case["cu_seqlens"], dtype=torch.int32)
        sequences = len(case["cu_seqlens"]) - 1
    if states in ("initial", "both", "in_place"):
        inputs["initial_state"] = normal(sequences, H, K, V)
    inputs["output_final_state"] = states in ("final", "both", "in_place")
    return {name: _to_device(value, device) for name, value in inputs.items()}


def attention_inputs(case, dtype, device="cpu"):
    """Keyword arguments of tandem.ops.attention. Drawn on the CPU, so that every device gets the same."""
    B, TQ, TK, H, HKV, K, V = (case["axes"][name] for name in ("B", "T", "TK", "H", "HKV", "K", "V"))
    generator = torch.Generator().manual_seed(zlib.crc32(case["name"].encode()))
    kind = case["strides"]

    def drawn(T, heads, dim):
        values = torch.randn(B, T, heads, dim, generator=generator).to(dtype)
        if kind == "packed":
            return torch.cat((values, values), dim=2)[:, :, :heads]
        return _with_strides(values, kind)

    inputs = {"q": drawn(TQ, H, K), "k": drawn(TK, HKV, K), "v": drawn(TK, HKV, V)}
    inputs |= {"causal": case["causal"] == "yes", "scale": case.get("scale")}
    if "window_left" in case or "window_right" in case:
        inputs["window"] = (case.get("window_left"), case.get("window_right"))
    if "cu_seqlens" in case:
        inputs["cu_seqlens_q"] = torch.tensor(case["cu_seqlens"], dtype=torch.int32)
        inputs["cu_seqlens_k"] = torch.tensor(case.get("cu_seqlens_k", case["cu_seqlens"]), dtype=torch.int32)
    if "lengths_k" in case:
        inputs["lengths_k"] = torch.tensor(case["lengths_k"], dtype=torch.int32)
    inputs["return_log_sum_exp"] = case["log_sum_exp"] == "yes"
    return {name: _to_device(value, device) for name, value in inputs.items()}


def scan_inputs(case, dtype, device="cpu"):
    """Keyword arguments of tandem.ops.gated_scan, or of linear_scan where the case has an axis d. Drawn on the CPU,
    so that every device gets the same."""
    B, T, D = (case["axes"][name] for name in ("B", "T", "D"))
    generator = torch.Generator().manual_seed(zlib.crc32(case["name"].encode()))
    kind = case["strides"]

    def laid_out(tensor):
        if kind == "broadcast":
            return tensor[:1].expand(B, T, D)
        if kind == "transposed":
            return tensor.transpose(0, 1).contiguous().transpose(0, 1)
        if kind == "packed":
            return torch.cat((tensor, tensor), dim=-1)[..., :D]
        return _with_strides(tensor.unsqueeze(2), kind).squeeze(2)

    decay = case["decay"]
    logs = log_decay(decay["distribution"], (B, T, D), generator)
    values = logs if decay["kind"] == "log_decay" else logs.exp()
    names = ("x", "gate") if case["gate"] == "silu" else ("x",)
    inputs = {name: laid_out(torch.randn(B, T, D, generator=generator).to(dtype)) for name in names}
    if "d" in case["axes"]:
        d = case["axes"]["d"]
        del inputs["x"]
        inputs["u"] = torch.randn(B, T, d, generator=generator).to(dtype)
        inputs["weight"] = (torch.randn(D, d, generator=generator) / math.sqrt(d)).to(dtype)
    inputs[decay["kind"]] = laid_out(values.to(torch.float32 if case["decay_dtype"] == "fp32" else dtype))
    states = case["states"]
    sequences = B
    if "cu_seqlens" in case:
        inputs["cu_seqlens"] = torch.tensor(case["cu_seqlens"], dtype=torch.int32)
        sequences = len(case["cu_seqlens"]) - 1
    if states in ("initial", "both", "in_place"):
        inputs["initial_state"] = torch.randn(sequences, D, generator=generator)
    inputs["output_final_state"] = states in ("final", "both", "in_place")
    return {name: _to_device(value, device) for name, value in inputs.items()}


def _to_device(value, device):
    """To the device with the strides kept, which Tensor.to() does not promise."""
    if not isinstance(value, torch.Tensor) or device == "cpu":
        return value
    span = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)) + 1
    if value.numel() == 0:
        return value.to(device)
    first = value.storage_offset()
    memory = value.as_strided((first + span,), (1,), 0).to(device)
    return memory.as_strided(value.shape, value.stride(), first)
