"""What `python -m bench.peers host` times: eager calls at small shapes, by the host's clock. docs/host.md says which,
and shows what was measured."""

import argparse
import dataclasses
import functools
import importlib
import itertools
import time

from . import cases, inputs, provider, results
from .side_by_side import describe

CALLS = {"forward": 100, "step": 100, "forward_backward": 30}  # of a round
TIMER = "perf_counter around 100 calls, 30 with a backward"
INPUTS = {  # of Tandem's ops: those that are given by place and by name; all have gradients
    "gla": (("q", "k", "v", "log_decay"), ()),
    "gated_scan": (("x",), ("log_decay", "gate")),
    "linear_scan": (("u", "weight"), ("log_decay", "gate")),
}
PEERS = ("fla", "fla_recurrent", "mamba2")  # of gla


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers host",
        description="Times what the host does for an eager call, at the small shapes tagged host: Tandem, torch's own "
        "calls as yardsticks, and peers. Rounds of 100 calls (30 with a backward) take turns in one process.",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="on cpu a call's time is all of it")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--rounds", type=int, default=20, help="of every call, in turn (default 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="merge the rows into this results file")
    parser.add_argument("--run", default="", help="id of the run in that file (default: a new one)")
    parser.add_argument("--commit", default="", help="the measured commit (default: as built into the library)")
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


@dataclasses.dataclass
class Call:
    """What is timed. `make` returns it as a function without arguments; what it raises is why there is no time."""

    op: str
    case: cases.Case
    provider: str
    make: object
    run: object = None
    failure: str = ""
    samples: list = dataclasses.field(default_factory=list)

    def row(self, dtype):
        key = {"op": self.op, "direction": self.case.direction, "case": self.case.name, "dtype": dtype}
        key |= {"provider": self.provider, "variant": ""}
        return {**key, "failure": self.failure} if self.failure else {**key, **results.summarize(self.samples)}


def leaves(op, tensors):
    """The tensors, the op's inputs as leaves of autograd's graph."""
    return {**tensors, **{name: tensors[name].detach().requires_grad_() for name in sum(INPUTS[op], ())}}


def of_case(case, tensors, forward):
    """The call of a case by `forward`, which makes a function without arguments that returns the output."""
    if case.direction != "forward_backward":
        return forward(tensors)
    import torch

    of = leaves(case.op, tensors)
    run, wanted, d_o = forward(of), [of[name] for name in sum(INPUTS[case.op], ())], tensors["d_o"]
    return lambda: torch.autograd.grad(run(), wanted, d_o)


def tandem(case, tensors):
    ops = importlib.import_module("tandem.ops")
    given, named = INPUTS[case.op]
    given, named = [tensors[name] for name in given], {name: tensors[name] for name in named}
    if case.direction == "step":
        state = tensors["state"].clone()
        return lambda: ops.gla_step(*given, state)
    op = getattr(ops, case.op)
    return lambda: op(*given, **named)[0]


def of_peer(peer, case, dtype, tensors):
    if peer.refusal(case, dtype):
        raise ValueError(peer.refusal(case, dtype))
    forward = case if case.direction == "step" else dataclasses.replace(case, direction="forward")
    run = peer.prepare(forward, dtype, tensors, peer.settings[0])
    return lambda: run()["o"]


@functools.cache
def nothing_function():
    """Saves the tensors and makes outputs: what torch itself takes for an autograd.Function."""
    import torch

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, log_decay):
            ctx.save_for_backward(q, k, v, log_decay)
            return torch.empty_like(v)

        @staticmethod
        def backward(ctx, d_o):
            return tuple(map(torch.empty_like, ctx.saved_tensors))

    return Nothing


@functools.cache  # torch takes a name once
def nothing_op():
    import torch

    def nothing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(v)

    return torch.library.custom_op("tandem_bench::nothing", nothing, mutates_args=())


def yardsticks(case, tensors):
    """{name: a function of tensors that makes the call}: the least that torch takes, with gla's tensors."""
    import torch

    def of(call):
        def make(tensors):
            given = [tensors[name] for name in INPUTS["gla"][0]]
            return lambda: call(*given)

        return make

    if case.direction == "forward_backward":
        return {"function": of(nothing_function().apply)}
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    return {
        "add": lambda _: lambda: torch.add(q, k),
        "empty_like": lambda _: lambda: torch.empty_like(v),
        "custom_op": of(nothing_op()),
    }


def selected():
    """The cases tagged host, in the directions that are called from Python, op by op."""
    for op in INPUTS:
        for case in cases.in_directions(cases.select(cases.load(op), tag="host")):
            if case.direction in CALLS:
                yield case


def peers():
    found = provider.discover("gla")
    return {name: found[name] for name in PEERS}


def calls(peers, dtype, seed, device):
    """Everything that is timed, in the order of the rows: torch's, Tandem's, peers'."""
    torchs, ours, theirs = [], [], []

    def add(calls, case, name, tensors, forward, op=""):
        calls.append(Call(op or case.op, case, name, lambda: of_case(case, tensors, forward)))

    for case in selected():
        tensors = inputs.make(case, dtype, seed, device)
        if case.op == "gla" and case.direction != "step":
            for name, forward in yardsticks(case, tensors).items():
                add(torchs, case, name, tensors, forward, "torch")
        add(ours, case, "tandem", tensors, functools.partial(tandem, case))
        if (case.op, case.direction) == ("gla", "forward"):
            add(ours, case, "tandem_requires_grad", leaves("gla", tensors), functools.partial(tandem, case))
        if case.op != "gla":
            continue
        for name, peer in peers.items():
            if case.direction in peer.directions:
                add(theirs, case, name, tensors, functools.partial(of_peer, peer, case, dtype))
    return torchs + ours + theirs


def microseconds(run, count, wait):
    """Per call, of calls that nothing waits for."""
    wait()
    start = time.perf_counter()
    for _ in itertools.repeat(None, count):
        run()
    return (time.perf_counter() - start) * 1e6 / count


def measure(calls, rounds, wait, say):
    """Rounds of all calls in turn, the first one untimed: it warms up, and compiles what compiles. A call that fails
    has a failure, and the others go on."""

    def guarded(call, body):
        if call.failure:
            return
        try:
            body()
        except Exception as error:  # a peer may raise anything
            call.failure = describe(error)
            say(f"{call.op} {call.case.direction} by {call.provider}: {call.failure}")

    def prepare(call):
        call.run = call.make()
        microseconds(call.run, CALLS[call.case.direction], wait)

    for call in calls:
        guarded(call, lambda call=call: prepare(call))
    for _ in range(rounds):
        for call in calls:
            count = CALLS[call.case.direction]
            guarded(call, lambda call=call, count=count: call.samples.append(microseconds(call.run, count, wait)))


def table(rows):
    """Lines to print: times, and ratios to torch.add and, with a backward, to the Function that does nothing."""
    times = {(row["op"], row["provider"]): row.get("median_us") for row in rows if row["op"] == "torch"}
    yield (
        f"{'op':<12} {'direction':<17} {'provider':<21} {'median_us':>9} {'p10_us':>9} {'p90_us':>9} "
        f"{'/ add':>7} {'/ Function':>10}"
    )
    for row in rows:
        head = f"{row['op']:<12} {row['direction']:<17} {row['provider']:<21}"
        if "failure" in row:
            yield f"{head} {row['failure']}"
            continue
        ratios = []
        for yardstick, here in (("add", True), ("function", row["direction"] == "forward_backward")):
            time_of = times.get(("torch", yardstick))
            ratios.append(f"{row['median_us'] / time_of:.2f}" if here and time_of else "-")
        numbers = " ".join(f"{row[name]:>9.2f}" for name in ("median_us", "p10_us", "p90_us"))
        yield f"{head} {numbers} {ratios[0]:>7} {ratios[1]:>10}"
