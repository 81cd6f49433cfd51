"""One case: every provider prepared, checked against fp64, timed in turn, checked again."""

import dataclasses
import math
import sys
import time

from . import cases, inputs, reference, results
from .timer import GraphTimer

# Peers answer for their own numerics: this only tells a wrong result from a rounded one.
WRONG = {"bf16": 2e-2, "fp16": 1e-2}
COLD = 5  # times the L2: the least that the buffer sets of a graph hold together


def sets_for(case, l2_bytes):
    """How many buffer sets keep the L2 cold; at least two."""
    if case.direction == "forward_backward":  # its cost has some tensors twice; nearly all are the backward's
        case = dataclasses.replace(case, direction="backward")
    return min(max(math.ceil(COLD * l2_bytes / cases.cost(case)[0]), 2), 256)


def limit(provider, dtype, output):
    """Limit on the relative RMS error. A decay's gradient is a sum that cancels in part: twice the others'."""
    usual = WRONG[dtype] * (2 if output == "d_log_decay" else 1)
    return provider.limits.get(dtype, {}).get(output, usual)


def describe(error):
    """The first line of an exception: what follows lists details."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:400].rstrip(':') if lines else ''}"


class Entry:
    """A provider at one case: its row grows as it gets further, or holds why it got no further."""

    def __init__(self, provider, case, dtype):
        self.provider = provider
        bytes_, flops = cases.cost(case)
        self.row = {
            "op": provider.op,
            "direction": case.direction,
            "case": case.name,
            "dtype": dtype,
            "provider": provider.name,
            "variant": provider.variant(case, provider.settings[0]),
            "bytes": bytes_,
            "flops": flops,
        }
        if provider.note_on(case):
            self.row["note"] = provider.note_on(case)
        self.timer = None
        self.samples = []

    @property
    def failed(self):
        return "failure" in self.row

    def fail(self, text):
        self.row["failure"] = text
        for field in ("median_us", "p10_us", "p90_us"):
            self.row.pop(field, None)
        if self.timer:
            self.timer.close()
        self.timer = None


class SideBySide:
    make_timer = GraphTimer

    def __init__(self, providers, library, device, l2_bytes, options, say):
        self.providers, self.library, self.device = providers, library, device
        self.l2_bytes, self.options, self.say = l2_bytes, options, say
        self.ceilings = None

    def run(self, case, dtype):
        """Rows of all providers; what fails is a row with a failure."""
        tensors = inputs.make(case, dtype, self.options.seed, self.device)
        heads = reference.sample_heads(case)
        expected = reference.define(case, tensors, heads)
        count = sets_for(case, self.l2_bytes)
        sets = [tensors] + [{name: x.clone() for name, x in tensors.items()} for _ in range(count - 1)]
        entries = [Entry(provider, case, dtype) for provider in self._able(case)]
        for entry in entries:
            self._guarded(entry, lambda entry=entry: self._prepare(entry, case, dtype, sets, expected, heads))
        for _ in range(self.options.rounds):
            for entry in entries:
                if not entry.failed:
                    self._guarded(entry, lambda entry=entry: self._measure(entry))
        for entry in entries:
            if not entry.failed:
                self._guarded(entry, lambda entry=entry: self._finish(entry, dtype, expected, heads))
            if entry.timer:
                entry.timer.close()
        return [entry.row for entry in entries]

    def _able(self, case):
        return [one for one in self.providers.values() if case.direction in one.directions]

    def once(self, case, dtype):
        """One call of each provider, unchecked and untimed, for profilers."""
        tensors = inputs.make(case, dtype, self.options.seed, self.device)
        for provider in self._able(case):
            refusal = provider.refusal(case, dtype)
            if not refusal:
                provider.prepare(case, dtype, tensors, provider.settings[0])()
                self._synchronize()
            self.say(f"{case.direction} {case.name} {dtype} {provider.name}: {refusal or 'ran once'}")

    def _guarded(self, entry, body):
        try:
            body()
        except Exception as error:  # a peer may raise anything; the others still run
            entry.fail(describe(error))
            self.say(f"  {entry.row['provider']}: {entry.row['failure']}")
            self._synchronize()  # a broken context ends the program here rather than in someone else's numbers

    def _synchronize(self):
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self.device)

    def _check(self, entry, outputs, dtype, expected, heads, when):
        if not entry.provider.same_function:
            return True
        errors = reference.errors(outputs, expected, heads)
        worst = max(errors.values())
        entry.row["error"] = {"metric": "rel_rms", "value": results.rounded(worst) if math.isfinite(worst) else None}
        allowed = {name: limit(entry.provider, dtype, name) for name in errors}
        wrong = [f"{error:.2g} of {name} against fp64, at most {allowed[name]:g} allowed"
                 for name, error in errors.items() if not error <= allowed[name]]  # fmt: skip
        if not wrong:
            return True
        entry.fail(f"wrong result {when}: relative RMS error {'; '.join(wrong)}")
        self.say(f"  {entry.row['provider']}: {entry.row['failure']}")
        return False

    def _prepare(self, entry, case, dtype, sets, expected, heads):
        provider = entry.provider
        refusal = provider.refusal(case, dtype)
        if refusal:
            entry.fail(f"refused: {refusal}")
            return
        best = None
        for setting in provider.settings if self.options.tune else provider.settings[:1]:
            start = time.monotonic()
            outputs = provider.prepare(case, dtype, sets[0], setting)()
            self._synchronize()
            seconds = time.monotonic() - start
            entry.row.setdefault("first_call_s", results.rounded(seconds))
            if not self._check(entry, outputs, dtype, expected, heads, "before timing"):
                return
            timer = self.make_timer([provider.prepare(case, dtype, one, setting) for one in sets])
            median = results.summarize(timer.replay(2, 5))["median_us"]
            name = f"{provider.name} {provider.variant(case, setting)}"
            self.say(f"  {name}: first call {seconds:.1f} s, about {median:.1f} us")
            if best is None or median < best:
                best = median
                if entry.timer:
                    entry.timer.close()
                entry.timer = timer
                entry.row["variant"] = provider.variant(case, setting)
            else:
                timer.close()

    def _measure(self, entry):
        entry.samples += entry.timer.replay(2, self.options.repeats)
        state = self.library.device_state(self.device.index)
        entry.row.update({key: state[key] for key in ("sm_clock_mhz", "power_w", "throttle_reasons") if key in state})

    def _finish(self, entry, dtype, expected, heads):
        # What the timed graph itself left behind, in its first and its last buffer set.
        entry.timer.restart()
        for outputs in (entry.timer.outputs[0], entry.timer.outputs[-1]):
            if not self._check(entry, outputs, dtype, expected, heads, "after timing"):
                return
        entry.row.update(results.summarize(entry.samples))
        bytes_, flops = entry.row["bytes"], entry.row["flops"]
        floor = max(bytes_ / self.ceilings["copy_tbps"], flops / self.ceilings["bf16_tflops"]) * 1e-6
        entry.row["floor_us"] = results.rounded(floor)


def progress(text):
    print(text, file=sys.stderr, flush=True)
