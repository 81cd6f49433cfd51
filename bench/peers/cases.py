"""cases/<op>.json as lists of single cases. Standard library only."""

import dataclasses
import fnmatch
import itertools
import json
import pathlib
import re

from . import lengths

DIRECTIONS = ("forward", "backward", "forward_backward", "step", "state", "state_backward")
WITH_GRADIENTS = ("backward", "forward_backward")
SCANS = ("gated_scan", "linear_scan")
ROOT = pathlib.Path(__file__).resolve().parents[2]


class CaseError(ValueError):
    """A case that cannot be read, or that does not exist."""


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    axes: dict  # B, T, H, HQ, K, V; of a scan B, T, D and, of linear_scan, d
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
    direction: str = "forward"  # of `directions`: the one that is looked at
    op: str = "gla"
    gate: str = "silu"  # of a scan: silu, none
    decay_dtype: str = "same"  # of a scan: same (as x), fp32

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
        if self.op in SCANS:
            named = {"x": "dx", self.decay_kind: f"d_{self.decay_kind}", "gate": "d_gate"}
            return named if self.gate == "silu" else {name: named[name] for name in ("x", self.decay_kind)}
        named = {"q": "dq", "k": "dk", "v": "dv"}
        return {**named, "log_decay": "d_log_decay"} if self.decay_kind == "per_token" else named


LISTED = ("states", "state_dtype", "scale", "strides", "gate", "decay_dtype")  # fields that may be lists


def spread(value):
    """The list that "1..130" stands for; any other value as it is."""
    if not isinstance(value, str):
        return value
    first, last = value.split("..")
    return list(range(int(first), int(last) + 1))


def _expand(entry):
    """One entry for each combination of the lists (or ranges) in axes, decay and LISTED."""
    entry = {**entry, "axes": {axis: spread(value) for axis, value in entry["axes"].items()}}
    lists = []  # (path, values)
    for field in ("axes", "decay"):
        lists += [((field, key), value) for key, value in entry.get(field, {}).items() if isinstance(value, list)]
    lists += [((key,), entry[key]) for key in LISTED if isinstance(entry.get(key), list)]
    for values in itertools.product(*(values for _, values in lists)):
        one = json.loads(json.dumps(entry))
        for (path, _), value in zip(lists, values, strict=True):
            target = one
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = value
        yield one


def _parse(entry, op):
    axes = dict(entry["axes"])
    directions = tuple(entry.get("directions", ("forward",)))
    if directions == ("step",):
        axes.setdefault("T", 1)
    for axis in ("B", "T", "D", "d")[: 4 if op == "linear_scan" else 3] if op in SCANS else ("B", "T", "H", "K"):
        if axis not in axes:
            raise ValueError(f"{entry['name']}: axes.{axis} is missing")
    if op not in SCANS:
        axes.setdefault("HQ", axes["H"])
        axes.setdefault("V", axes["K"])
    decay = entry["decay"]
    words = {**axes, **{key: entry[key] for key in LISTED if key in entry}, **decay}
    offsets = entry.get("cu_seqlens")
    if "lengths" in entry:
        offsets = lengths.cu_seqlens(entry["lengths"], axes["T"], entry.get("seed", 0))
    dtypes = entry["dtype"] if isinstance(entry["dtype"], list) else [entry["dtype"]]
    return Case(
        name=re.sub(r"\{(\w+)\}", lambda match: str(words[match[1]]), entry["name"]),
        axes=axes,
        dtypes=tuple(dtypes),
        decay_kind=decay["kind"],
        distribution=decay.get("distribution", "normal"),
        states=entry.get("states", "none"),
        state_dtype=entry.get("state_dtype", "fp32"),
        strides=entry.get("strides", "contiguous"),
        cu_seqlens=None if offsets is None else tuple(offsets),
        scale=entry.get("scale"),
        tags=tuple(entry["tags"]),
        seed=entry.get("seed", 0),
        directions=directions,
        direction=directions[0],
        op=op,
        gate=entry.get("gate", "silu"),
        decay_dtype=entry.get("decay_dtype", "same"),
    )


def load(op, path=None):
    path = pathlib.Path(path) if path else ROOT / "cases" / f"{op}.json"
    try:
        entries = json.loads(path.read_text())
        return [_parse(one, op) for entry in entries for one in _expand(entry)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CaseError(f"{path}: {type(error).__name__}: {error}") from error


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
    if case.strides != "contiguous":
        return f"strides {case.strides}"
    if case.op not in SCANS and case.direction in WITH_GRADIENTS and case.H != case.HQ:
        return "gradients of grouped heads"
    return ""


def cost(case):
    """(bytes, flops) as the tandem program counts them: each tensor once, a step's state read and written; the chunked
    algorithm at C = 64, or a step's two products with a vector. Forward and backward cost what the two cost alone."""
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
    if case.direction == "step":
        elements = B * H * K * V
        return 2 * values + 4 * decays + 2 * elements * (4 if case.state_dtype == "fp32" else 2), 4 * elements
    offsets = () if case.cu_seqlens is None else case.cu_seqlens
    tokens = offsets[-1] - offsets[0] if offsets else B * T  # those of some sequence
    if case.direction == "backward":  # q, k, dq, dk; v, d_o, dv
        values = B * T * (4 * HQ * K + 3 * H * V)
        return 2 * values + 8 * decays + 4 * len(offsets), 2 * tokens * H * (3 * 64 * K + 2 * 64 * V + 5 * K * V)
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
