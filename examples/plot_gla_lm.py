#!/usr/bin/env python3
"""Draws what train_gla_lm.py wrote: the loss over the steps, and the tokens per second. Needs matplotlib.

python examples/plot_gla_lm.py --out docs/train_gla_lm.svg tandem_*.json recurrence_*.json fla_*.json
"""

import argparse
import json
import pathlib

from matplotlib import pyplot

COLORS = {"tandem": "#1f6feb", "recurrence": "#57606a", "fla": "#bf8700"}


def smooth(values, weight=0.9):
    """An exponential moving average, right from the first value on."""
    mean, norm = 0.0, 0.0
    for value in values:
        mean, norm = weight * mean + (1 - weight) * value, weight * norm + (1 - weight)
        yield mean / norm


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the picture, of any kind that matplotlib writes")
    parser.add_argument("runs", nargs="+", type=pathlib.Path, help="files that train_gla_lm.py --json wrote")
    arguments = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in arguments.runs]
    figure, (curves, speeds) = pyplot.subplots(1, 2, figsize=(10, 4), width_ratios=(3, 1), layout="constrained")
    ops = [op for op in COLORS if any(run["op"] == op for run in runs)]
    for op in ops:
        of_op = [run for run in runs if run["op"] == op]
        for i, run in enumerate(of_op):
            label = f"{op}, validation {run['validation_loss']:.3f}" if i == 0 else None
            curves.plot(list(smooth(run["losses"])), color=COLORS[op], linewidth=1, label=label)
        speeds.bar(op, max(run["tokens_per_second"] for run in of_op), color=COLORS[op])
    curves.set(xlabel="step", ylabel="loss, nats per byte", title=f"{runs[0]['device']}, a line per seed")
    curves.legend()
    speeds.set(ylabel="tokens per second", yscale="log")
    figure.savefig(arguments.out)


if __name__ == "__main__":
    main()
