"""What `python -m bench.peers blocks` times: whole layers, forward and with all gradients, in bf16. Each provider's
result is checked against the maths in fp64 at a small shape, then against the first provider's at the timed one.
docs/blocks.md shows what was measured."""

import argparse
import dataclasses
import json
import math
import pathlib
import re
import statistics
import time

from . import cases, provider, results, tuning
from .side_by_side import COLD, describe
from .timer import CannotCapture, GraphTimer

TIMER = "cuda-graph"
OF_CASE = {"op": "block", "case": "name", "direction": "direction"}  # what a row has of its case
BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
# Limits on relative RMS errors, in bf16: they tell a wrong result from a rounded one. A gradient of a vector is few
# numbers, each a sum over all tokens that cancels in part.
WRONG = {"out": 2e-2, "gradient": 5e-2, "vector": 5e-1}
SPREAD = {  # (mean, deviation) of parameters that are no matrices; 1 and 0.1 of the others, which are norms' weights
    "gk_proj.bias": (1, 1),
    "dt_bias": (-3, 1),
    "A_log": (1, 0.5),
    "D": (0, 0.1),
    "conv1d.bias": (0, 0.1),
    "conv1d.weight": (0, 0.5),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """T tokens of width d in B rows, H heads of K columns; N of mamba2's state, F of the MLP, `cached` before."""

    block: str
    name: str
    directions: tuple
    B: int
    T: int
    d: int
    H: int
    K: int
    N: int = 0
    F: int = 0
    cached: int = 0
    direction: str = ""  # of `directions`

    def small(self):
        """A shape of the same kernels for the check in fp64."""
        shape = {"gla_block": (256, 2), "transformer_block": (256, 2), "mamba2_block": (128, 4)}[self.block]
        sizes = {"B": 2, "T": min(self.T, 256), "d": shape[0], "H": shape[1], "F": min(self.F, 512)}
        return dataclasses.replace(self, **sizes, cached=min(self.cached, 127))

    def parameters(self):
        """{name: shape}, as those of tandem.nn, fla's and transformers' layers."""
        d, H, N = self.d, self.H, self.N
        if self.block == "gla_block":
            mixer = {f"{one}_proj.weight": (d, d) for one in "qkvgo"}
            mixer |= {"gk_proj.weight": (H, d), "gk_proj.bias": (H,), "g_norm_swish_gate.weight": (self.K,)}
        elif self.block == "mamba2_block":
            width = H * self.K
            mixer = {
                "in_proj.weight": (2 * width + 2 * N + H, d),
                "out_proj.weight": (d, width),
                "norm.weight": (width,),
            }
            mixer |= {"conv1d.weight": (width + 2 * N, 1, 4), "conv1d.bias": (width + 2 * N,)}
            mixer |= dict.fromkeys(("dt_bias", "A_log", "D"), (H,))
        else:
            found = {f"self_attn.{one}_proj.weight": (d, d) for one in "qkvo"}
            found |= dict.fromkeys(("mlp.gate_proj.weight", "mlp.up_proj.weight"), (self.F, d))
            norms = dict.fromkeys(("input_layernorm.weight", "post_attention_layernorm.weight"), (d,))
            return found | norms | {"mlp.down_proj.weight": (d, self.F)}
        return {"norm.weight": (d,)} | {f"mixer.{name}": shape for name, shape in mixer.items()}


LAYER = {"d": 4096, "H": 32, "K": 128, "F": 14336}
BOTH = ("forward", "forward_backward")
CASES = (
    Case("transformer_block", "b1_s512_d4096_h32", ("forward",), B=1, T=512, **LAYER),
    Case("transformer_block", "b4_s2048_d4096_h32", ("forward",), B=4, T=2048, **LAYER),
    Case("transformer_block", "b1_cache4096_d4096_h32", ("step",), B=1, T=1, cached=4095, **LAYER),
    Case("transformer_block", "b8_cache4096_d4096_h32", ("step",), B=8, T=1, cached=4095, **LAYER),
    Case("gla_block", "b8_t4096_d2048_h16", BOTH, B=8, T=4096, d=2048, H=16, K=128),
    Case("mamba2_block", "b8_t4096_d2560_h80", BOTH, B=8, T=4096, d=2560, H=80, K=64, N=128),
)
BLOCKS = tuple(dict.fromkeys(case.block for case in CASES))


def arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m bench.peers blocks", description=__doc__)
    parser.add_argument("--block", choices=BLOCKS, nargs="+", default=BLOCKS)
    parser.add_argument("--case", default="", help="only the case of this name")
    parser.add_argument("--direction", default="", choices=("", *BOTH, "step"), help="default: all")
    parser.add_argument("--providers", default="", help="only these, by comma (default: all that can be imported)")
    parser.add_argument("--seconds", type=float, default=540, help="nothing new is begun after so long (default 540)")
    parser.add_argument(
        "--patience",
        type=float,
        default=40,
        help="seconds that a setting of a peer may take to compile and tune; twice as long for its last (default 40)",
    )
    parser.add_argument("--repeats", type=int, default=10, help="samples per provider and round (default 10)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over the providers, A B A B (default 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the small shapes alone, which a CPU can do")
    parser.add_argument("--cpp", type=pathlib.Path, help="also take what tandem_block_times printed on this machine")
    parser.add_argument("--json", help="merge the rows into this results file")
    parser.add_argument("--run", default="", help="id of the run in that file (default: a new one)")
    parser.add_argument("--commit", default="", help="the measured commit (default: as built into the library)")
    parser.add_argument("--render", type=pathlib.Path, nargs="+", metavar="FILE", help="results files, then the page")
    options = parser.parse_args(argv)
    if options.repeats < 1 or options.rounds < 1:
        parser.error("--repeats and --rounds must be at least 1")
    if options.render and len(options.render) < 2:
        parser.error("--render takes results files and then the page")
    return options


def selected(options):
    for case in CASES:
        for direction in case.directions:
            if case.block in options.block and options.case in ("", case.name) and options.direction in ("", direction):
                one = dataclasses.replace(case, direction=direction)
                yield one.small() if options.tiny else one


def make(case, device, seed):
    """The tensors of a case, bf16: x, parameters by name, d_out, RoPE's tables, keys and values of a cache."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def drawn(shape, mean=0.0, deviation=1.0):
        return (torch.randn(shape, generator=generator, device=device) * deviation + mean).to(torch.bfloat16)

    def parameter(name, shape):
        if len(shape) == 2:
            return drawn(shape, deviation=shape[1] ** -0.5)
        return drawn(shape, *next((SPREAD[end] for end in SPREAD if name.endswith(f".{end}")), (1, 0.1)))

    tokens = (case.B, case.T, case.d)
    tensors = {"x": drawn(tokens), "parameters": {name: parameter(name, of) for name, of in case.parameters().items()}}
    if case.direction == "forward_backward":
        tensors["d_out"] = drawn(tokens)
    if case.block == "transformer_block":
        places = torch.arange(case.cached, case.cached + case.T, device=device).float()
        angles = places[:, None] * 10000.0 ** (-torch.arange(0, case.K, 2, device=device) / case.K)
        tensors |= {"cos": angles.cos(), "sin": angles.sin()}
    if case.cached:
        tensors |= {name: drawn((case.B, case.cached, case.H, case.K)) for name in ("keys", "values")}
    return tensors


def buffer_sets(case, device, seed):
    """Tensors of as many calls as leave nothing of one in the L2 for the next; at least two."""
    import torch

    first = make(case, device, seed)
    read = [first["x"], *first["parameters"].values(), *(first[name] for name in ("keys", "values") if name in first)]
    l2 = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    count = max(math.ceil(COLD * l2 / sum(x.numel() * x.element_size() for x in read)), 2)
    return [first] + [make(case, device, seed + i) for i in range(1, count)]


def as_written(one):
    """The setting of a provider that compiles nothing of its own by torch."""
    return "" if "default" in one.settings else one.settings[0]


class EagerTimer:
    """GraphTimer's words for calls that no graph can hold: the host's time is in them."""

    def __init__(self, calls, wait):
        self._calls, self._wait, self.outputs = calls, wait, []

    def replay(self, warm_up, replays):
        return [self._round() for _ in range(warm_up + replays)][warm_up:]

    def _round(self):
        self._wait()
        start = time.perf_counter()
        self.outputs = [call() for call in self._calls]
        self._wait()
        return (time.perf_counter() - start) * 1e6 / len(self._calls)

    def close(self):
        self._calls, self.outputs = [], []


def kind_of(name, x):
    """Of an output, in WRONG."""
    return "out" if name == "out" else "gradient" if x.dim() > 1 else "vector"


def relative_rms(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


class Blocks:
    """Times the providers of one case after the other, within the time that there is."""

    def __init__(self, device, options, say):
        self.device, self.options, self.say = device, options, say
        self.end = time.monotonic() + options.seconds

    def run(self, case, providers):
        """The rows of a case."""
        entries, sets, self._first = [], buffer_sets(case, self.device, self.options.seed), None
        for name, one in providers.items():
            if case.direction not in one.directions:
                continue
            if time.monotonic() > self.end:
                self.say(f"  {name}: left out, the time is over")
                continue
            row = {key: getattr(case, of) for key, of in OF_CASE.items()} | {"dtype": "bf16", "provider": name}
            if one.note_on(case):
                row["note"] = one.note_on(case)
            entry = {"row": row, "timer": None, "samples": []}
            entries.append(entry)
            self._guarded(entry, lambda entry=entry, one=one: self._prepare(entry, case, one, sets))
        for _ in range(self.options.rounds):
            for entry in entries:
                if entry["timer"]:
                    self._guarded(entry, lambda entry=entry: self._measure(entry))
        for entry in entries:
            if entry["timer"]:
                self._guarded(entry, lambda entry=entry: self._finish(entry))
        return [entry["row"] for entry in entries]

    def _guarded(self, entry, body):
        try:
            body()
        except Exception as error:  # a peer may raise anything; the others still run
            entry["row"]["failure"] = describe(error)
            self.say(f"  {entry['row']['provider']}: {entry['row']['failure']}")
            if entry["timer"]:
                entry["timer"].close()
            entry["timer"] = None
            self._wait()  # a broken context ends the program here rather than in someone else's numbers

    def _wait(self):
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def _prepare(self, entry, case, one, sets):
        """Leaves the quickest of the settings that are ready in time to be timed."""
        row, about = entry["row"], {}  # by setting, microseconds
        settings = one.settings if self.device.type == "cuda" else (as_written(one),)
        for setting in settings:
            last = setting == settings[-1]
            patience = self.options.patience * (2 if last and not about else 1)
            try:
                with tuning.limited(min(patience, self.end - time.monotonic())):
                    outputs = self._call_first(row, case, one, sets, setting)
            except TimeoutError as error:
                self.say(f"  {row['provider']} {setting}: {error}")
                if last and not about:
                    raise
                continue
            about[setting] = self._open(entry, case, one, sets, setting, outputs)
            del outputs
        quickest = min(about, key=about.get)
        if quickest != setting:  # compiled again: one setting's kernels are kept at a time
            self._open(entry, case, one, sets, quickest, self._call_first(row, case, one, sets, quickest))

    def _call_first(self, row, case, one, sets, setting):
        """The outputs of the first call, which compiles."""
        self._check_small(row, case, one)
        start = time.monotonic()
        outputs = one.prepare(case, "bf16", sets[0], setting)()
        self._wait()
        row["first_call_s"] = results.rounded(time.monotonic() - start)
        return outputs

    def _open(self, entry, case, one, sets, setting, outputs):
        """Makes the timer of a setting, in place of another one's, and says about how long a call takes."""
        row = entry["row"]
        if entry["timer"]:
            entry["timer"].close()
        row["variant"] = one.variant(case, setting)
        self._compare(row, outputs)
        entry["timer"] = self._timer(row, [one.prepare(case, "bf16", tensors, setting) for tensors in sets])
        about = statistics.median(entry["timer"].replay(2, 3))
        self.say(f"  {row['provider']} {row['variant']}: first call {row['first_call_s']} s, about {about:.1f} us")
        return about

    def _timer(self, row, calls):
        if self.device.type == "cpu":
            return EagerTimer(calls, self._wait)
        try:
            return GraphTimer(calls)
        except CannotCapture as error:
            row["note"] = "; ".join(filter(None, (row.get("note"), f"eager: {error}")))
            for call in calls:
                call()
            return EagerTimer(calls, self._wait)

    def _check_small(self, row, case, one):
        """Against the maths in fp64; once, not compiled."""
        if "error" in row:
            return
        from . import block_maths

        small = case.small()
        tensors = make(small, self.device, self.options.seed)
        outputs = one.prepare(small, "bf16", tensors, as_written(one))()
        self._told(row, outputs, block_maths.define(small, tensors), "fp64")

    def _told(self, row, outputs, expected, of):
        errors = {name: relative_rms(x, expected[name]) for name, x in outputs.items()}
        allowed = {name: WRONG[kind_of(name, x)] for name, x in outputs.items()}
        worst = max(errors, key=lambda name: errors[name] / allowed[name])
        value = errors[worst]
        self.say(f"  {row['provider']} against {of}: {errors['out']:.2e} of out, at worst {value:.2e} of {worst}")
        wrong = [name for name, error in errors.items() if not error <= allowed[name]]
        if wrong:
            told = "; ".join(f"{errors[name]:.2g} of {name}" for name in wrong)
            raise ValueError(f"wrong result: relative RMS error against {of} {told}")
        if of == "fp64":
            row["error"] = {"metric": "rel_rms", "value": results.rounded(errors["out"])}

    def _compare(self, row, outputs):
        """At the timed shape, against what the first provider made of the same inputs."""
        if self._first is None:
            self._first = row["provider"], {name: x.clone() for name, x in outputs.items()}
        elif self._first[0] != row["provider"]:
            self._told(row, outputs, self._first[1], self._first[0])

    def _measure(self, entry):
        entry["samples"] += entry["timer"].replay(2, self.options.repeats)

    def _finish(self, entry):
        self._compare(entry["row"], entry["timer"].outputs[0])
        entry["row"].update(results.summarize(entry["samples"]))
        entry["timer"].close()


def from_cpp(text):
    """Rows of tandem_block_times' output, of the cases whose shape it names."""
    shape = re.search(r"bf16, B(\d+) T(\d+) d(\d+) H(\d+)$", text, re.MULTILINE)
    if shape is None:
        raise ValueError("no output of tandem_block_times")
    B, T, d, H = map(int, shape.groups())
    line = re.compile(
        r"^(\w+_block) forward( \+ backward)? +([\d.]+) us +\(p10 ([\d.]+), p90 ([\d.]+)\)$", re.MULTILINE
    )
    for block, backward, *times in line.findall(text):
        # mamba2's heads follow from d there; an MLP is 4 d wide there and not here.
        heads = {"gla_block": H, "mamba2_block": d // 32}.get(block)
        for case in CASES:
            if (case.block, case.B, case.T, case.d, case.H) == (block, B, T, d, heads):
                key = {"op": block, "direction": BOTH[bool(backward)], "case": case.name, "dtype": "bf16"}
                medians = zip(("median_us", "p10_us", "p90_us"), map(float, times), strict=True)
                yield {**key, "provider": "tandem_cpp", "variant": "tandem_block_times", **dict(medians)}


def known_providers(options):
    """{block: its providers that are wanted}."""
    found = {block: provider.discover(block) for block in options.block}
    names = options.providers.split(",") if options.providers else []
    unknown = set(names) - {name for ones in found.values() for name in ones}
    if unknown:
        raise cases.CaseError(f"no provider of these blocks is named {', '.join(sorted(unknown))}")
    return {
        block: {name: one for name, one in ones.items() if not names or name in names} for block, ones in found.items()
    }


def line_of(row, rows):
    """A row to print, with its time over Tandem's."""
    head = f"{row['op']:<18} {row['direction']:<17} {row['case']:<24} {row['provider']:<18}"
    if "failure" in row:
        return f"{head} {row['failure']}"
    ours = next((one.get("median_us") for one in rows if one["provider"] == "tandem"), None)
    ratio = f"{row['median_us'] / ours:.3f}x" if ours else "-"
    return f"{head} {row['median_us']:>10.1f} us {ratio:>8}  {row.get('variant', '')}"


def digits(us):
    """Four of them, and no exponent."""
    return f"{us:.0f}" if us >= 1000 else f"{us:.4g}"


def table(paths):
    """Lines of Markdown: of every case the rows of its latest run, each with its time over Tandem's of that run."""
    lines = []
    for path in paths:
        data = json.loads(path.read_text())
        place = {run: i for i, run in enumerate(data["runs"])}
        latest, notes, used = {}, [], set()
        for row in sorted(data["rows"], key=lambda row: place[row["run"]]):
            latest.setdefault((row["op"], row["case"], row["direction"]), {})[row["provider"]] = row
        device = next(iter(data["runs"].values()))["device"]["name"]
        lines += [f"| {device}, bf16 | case | provider | us | over tandem.nn's |", "|---|---|---|---:|---:|"]
        for (block, case, direction), rows in latest.items():
            named = f"{block} {direction.replace('_', ' + ')}"
            for name, row in rows.items():
                used.add(row["run"])
                if "note" in row and (note := f"{name} of {block}: {row['note']}.") not in notes:
                    notes.append(note)
                if "failure" in row:
                    lines.append(f"| {named} | {case} | {name} | n/a | |")
                    notes.append(f"{name} of {named}, {case}: {row['failure']}.")
                    continue
                of_run = (one for one in data["rows"] if one["run"] == row["run"])
                ours = next((one.get("median_us") for one in of_run if one["provider"] == "tandem" and
                             (one["op"], one["case"], one["direction"]) == (block, case, direction)), None)  # fmt: skip
                ratio = f"{row['median_us'] / ours:.2f}" if ours else ""
                how = f"{name}: {row['variant']}" if row.get("variant") else name
                lines.append(f"| {named} | {case} | {how} | {digits(row['median_us'])} | {ratio} |")
        lines += ["", *(f"- {note}" for note in notes), ""]
        for name in (one for one in data["runs"] if one in used):
            run = data["runs"][name]
            software = ", ".join(f"{package} {version}" for package, version in run["versions"].items())
            lines += [f"{name}: {run['date']}, commit {run['commit']}, {software}:", f"`{run['command']}`", ""]
    return lines[:-1]


def render(paths, page):
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, *table(paths), END]) + rest.split(END)[1])
