"""The cases of cases/<op>.json, as the tandem program expands them. Standard library only."""

import dataclasses
import fnmatch
import functools
import json
import math
import os
import pathlib
import subprocess

from . import attention, causal_conv1d, gated_output, gemm_swiglu, projection, rms_norm_gemm

DIRECTIONS = (
    "forward",
    "backward",
    "forward_backward",
    "step",
    "state",
    "state_backward",
    "decay",
    "carry",
    "carry_backward",
)
WITH_GRADIENTS = ("backward", "forward_backward")
SCANS = ("gated_scan", "linear_scan")
# Ops with a module of their own.
PRODUCTS = {
    "attention": attention,
    "causal_conv1d": causal_conv1d,
    "gated_output": gated_output,
    "gemm_swiglu": gemm_swiglu,
    "projection": projection,
    "rms_norm_gemm": rms_norm_gemm,
}
NO_DECAY = {"kind": "none"}
ROOT = pathlib.Path(__file__).resolve().parents[2]


class CaseError(ValueError):
    """A case that cannot be read, or that does not exist."""


class NoProgram(RuntimeError):
    """The tandem program is missing."""


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    # B, T, H, HQ, K, V; of attention TK and HKV too; of a scan B, T, D and, of linear_scan, d, of
    # causal_conv1d W; of products M, d, of some F or d_in
    axes: dict
    dtypes: tuple
    decay_kind: str  # none, constant, per_token; of a scan decay, log_decay
    distribution: str
    states: str
    strides: str
    cu_seqlens: tuple | None
    scale: float | None
    tags: tuple
    seed: int
    directions: tuple = ("forward",)
    state_dtype: str = "fp32"  # of a step's state
    saved_states: str = "no"  # of gla: yes, no; nothing to peers
    direction: str = "forward"  # of `directions`: the one that is looked at
    op: str = "gla"
    gate: str = "silu"  # of a scan: silu, none
    decay_dtype: str = "same"  # of a scan: same (as x), fp32
    weight: str = "same"  # of causal_conv1d: same (as x), fp32
    kept: str = "yes"  # of linear_scan and products of rows: yes, training, no
    segments: tuple = ()  # of projection and rms_norm_gemm
    around: float | None = None  # of products of rows, as all below
    gradients: str = "same"
    accumulate: str = "no"
    activation: str = "silu"
    norm: str = "none"
    eps: float | None = None
    rstd: str = "computed"
    rows: str = "normal"
    head_eps: float | None = None  # of rms_norm_gemm, as all with rope
    rope: str = "rows"
    rope_width: int = 0
    rope_layout: str = "rotate_half"
    rope_tables: str = "fp32"
    output_gate: str = "plain"  # of gated_output, as all below
    group_norm: str = "none"
    group_width: int = 0
    group_weight: str = "repeated"
    behind_gate: str = "no"
    bias: str = "none"
    residual: str = "yes"
    output_norm: str = "none"
    sum: str = "no"
    gated: str = "kept"
    causal: str = "no"  # of attention, as all below
    window_left: int | None = None
    window_right: int | None = None
    cu_seqlens_k: tuple | None = None
    lengths_k: tuple | None = None
    log_sum_exp: str = "no"
    values: str = "normal"

    def __getattr__(self, axis):
        try:
            return self.__dict__["axes"][axis]
        except KeyError:
            raise AttributeError(axis) from None

    @property
    def softmax_scale(self):
        return self.K**-0.5 if self.scale is None else self.scale

    @property
    def wants(self):
        """{input: its gradient's name} in a direction with gradients. A constant decay is a number that nobody trains:
        peers have no gradient of it."""
        if self.op in PRODUCTS:
            return PRODUCTS[self.op].wants(self)
        if self.op in SCANS:
            named = {"x": "dx", self.decay_kind: f"d_{self.decay_kind}", "gate": "d_gate"}
            return named if self.gate == "silu" else {name: named[name] for name in ("x", self.decay_kind)}
        named = {"q": "dq", "k": "dk", "v": "dv"}
        return {**named, "log_decay": "d_log_decay"} if self.decay_kind == "per_token" else named


def program():
    """The tandem program: that of TANDEM_PROGRAM, else of the newest build in this checkout."""
    if os.environ.get("TANDEM_PROGRAM"):
        return os.environ["TANDEM_PROGRAM"]
    found = sorted(ROOT.glob("build/*/bin/tandem"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise NoProgram("no build/*/bin/tandem: build it (scripts/build tandem_program), or name it in TANDEM_PROGRAM")
    return str(found[-1])


@functools.cache
def _expanded(op, path):
    # why --file: the table of this checkout, not the one that the program was built with.
    try:
        done = subprocess.run([program(), "cases", op, "--json", "--file", path], capture_output=True, text=True)
    except OSError as error:
        raise NoProgram(f"TANDEM_PROGRAM: {error}") from error
    if done.returncode:
        raise CaseError(done.stderr.strip())
    return done.stdout


def table(op, path=None):
    """cases/<op>.json, or another table, as a list of single cases with the table's fields (cli/cases/cases.h)."""
    return json.loads(_expanded(op, str(path or ROOT / "cases" / f"{op}.json")))


def load(op, path=None):
    return [_case(op, **entry) for entry in table(op, path)]


def _case(op, *, axes, dtype, directions, tags, decay=NO_DECAY, cu_seqlens=None, scale=None, **named):
    return Case(
        axes=axes,
        dtypes=tuple(dtype),
        decay_kind=decay["kind"],
        distribution=decay.get("distribution", "normal"),
        cu_seqlens=None if cu_seqlens is None else tuple(cu_seqlens),
        scale=scale,
        tags=tuple(tags),
        directions=tuple(directions),
        direction=directions[0],
        op=op,
        **{
            "states": "none",
            **{name: tuple(value) if isinstance(value, list) else value for name, value in named.items()},
        },
    )


def select(cases, globs="", tag=""):
    """The cases whose name fits one of `globs` (separated by commas) and that have the tag, where these
    are given; one tagged huge only by that tag."""

    def named(case):
        return not globs or any(fnmatch.fnmatchcase(case.name, glob) for glob in globs.split(","))

    chosen = [case for case in cases if named(case) and (not tag or tag in case.tags)]
    chosen = [case for case in chosen if tag == "huge" or "huge" not in case.tags]
    if not chosen:
        raise CaseError("no case" + (f" is named {globs}" if globs else "") + (f" is tagged {tag}" if tag else ""))
    return chosen


def in_directions(cases, direction=""):
    """Each case in each of its directions (or in `direction` only): all of one direction, then all of the next."""
    found = [
        dataclasses.replace(case, direction=one)
        for one in DIRECTIONS
        for case in cases
        if one in case.directions and direction in ("", one)
    ]
    if not found:
        raise CaseError(f"no such case has direction {direction}")
    return found


def why_not(case):
    """Says why no side by side can be made of the case, or "": peers disagree on everything beyond the plain call."""
    if case.states != "none":
        return f"states {case.states}"
    product = PRODUCTS.get(case.op)
    if case.strides not in (product.STRIDES if product else ("contiguous",)):
        return f"strides {case.strides}"
    if product:
        return product.why_not(case)
    if case.op not in SCANS and case.direction in WITH_GRADIENTS and case.H != case.HQ:
        return "gradients of grouped heads"
    return ""


def cost(case):
    """(bytes, flops) as the tandem program counts them: each tensor once, a step's state read and written; the chunked
    algorithm at C = 64, or a step's two products with a vector. Forward and backward cost what the two cost alone."""
    if case.op in PRODUCTS:
        return PRODUCTS[case.op].cost(case)
    if case.direction == "forward_backward":
        alone = [cost(dataclasses.replace(case, direction=one)) for one in ("forward", "backward")]
        return tuple(map(sum, zip(*alone, strict=True)))
    if case.op in SCANS:
        return _scan_cost(case)
    if case.direction not in ("forward", "backward", "step"):
        raise CaseError(f"{case.name}: no cost is known of direction {case.direction}")
    B, T, H, HQ, K, V = (case.axes[axis] for axis in ("B", "T", "H", "HQ", "K", "V"))
    decays = {"none": 0, "constant": H, "per_token": B * T * H}[case.decay_kind]
    values = B * T * (2 * HQ * K + 2 * H * V)
    elements = B * H * K * V  # of a state
    if case.direction == "step":
        return 2 * values + 4 * decays + 2 * elements * (4 if case.state_dtype == "fp32" else 2), 4 * elements
    offsets = () if case.cu_seqlens is None else case.cu_seqlens
    tokens = offsets[-1] - offsets[0] if offsets else B * T  # those of some sequence
    saved = math.ceil(T / 128) * elements if case.saved_states == "yes" else 0
    if case.direction == "backward":  # q, k, dq, dk; v, d_o, dv
        values = B * T * (4 * HQ * K + 3 * H * V) + saved
        return 2 * values + 8 * decays + 4 * len(offsets), 2 * tokens * H * (3 * 64 * K + 2 * 64 * V + 5 * K * V)
    values += saved
    return 2 * values + 4 * decays + 4 * len(offsets), 2 * tokens * H * (64 * K + 2 * K * V + 64 * V)


def _scan_cost(case):
    """x, decay, gate and out; of a backward d_out for out, and the gradients. linear_scan has u and W for x."""
    if case.direction not in (("forward",) if case.op == "linear_scan" else ("forward", "backward")):
        raise CaseError(f"{case.name}: no cost is known of direction {case.direction} of {case.op}")
    B, T, D = (case.axes[axis] for axis in ("B", "T", "D"))
    decay = 4 if case.decay_dtype == "fp32" else 2
    inputs = B * T * D * (2 + decay + (2 if case.gate == "silu" else 0))
    others = 2 * B * T * D + 4 * len(case.cu_seqlens or ())  # out
    if case.op == "linear_scan":
        d = case.axes["d"]
        return inputs + others - 2 * B * T * D + 2 * (B * T * d + D * d), 2 * B * T * d * D
    return (2 if case.direction == "backward" else 1) * inputs + others, 0
