#!/usr/bin/env python3
"""Draws what train_gla_lm.py --all wrote, and writes the numbers between the marks of docs/training.md.

python examples/plot_gla_lm.py bench/results/nvidia-h200/training/gla_lm.json             # needs matplotlib
python examples/plot_gla_lm.py --check bench/results/nvidia-h200/training/gla_lm.json     # fails when they differ
"""

import argparse
import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- training:begin -->", "<!-- training:end -->"
TITLES = {"tandem": "Tandem", "fla": "fla", "recurrence": "plain recurrence, fp32"}
# Light and dark, as in the HTML report.
COLORS = {"tandem": ("#1a64c8", "#6aa9ff"), "fla": ("#c2410c", "#fb923c"), "recurrence": ("#5d6671", "#9aa5b1")}
BACK, TEXT, SOFT, GRID = ("#ffffff", "#14171b"), ("#1b1f24", "#e4e8ec"), ("#5c6570", "#9aa5b2"), ("#eceff2", "#242a31")


def smooth(values: list[float], weight: float = 0.9) -> list[float]:
    """An exponential moving average, right from the first value on."""
    means, mean, norm = [], 0.0, 0.0
    for value in values:
        mean, norm = weight * mean + (1 - weight) * value, weight * norm + (1 - weight)
        means.append(mean / norm)
    return means


def by_op(results: dict) -> dict[str, list[dict]]:
    """The runs of each op, by seed."""
    runs = {op: sorted((x for x in results["runs"] if x["op"] == op), key=lambda x: x["seed"]) for op in TITLES}
    return {op: of_op for op, of_op in runs.items() if of_op}


def table(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def losses(results: dict) -> str:
    """The table of losses after the last step, and how far Tandem's are from the recurrence's."""
    runs = by_op(results)
    seeds = [run["seed"] for run in next(iter(runs.values()))]
    of_op = {op: [run["validation_loss"] for run in some] for op, some in runs.items()}
    names = [*(f"seed {seed}" for seed in seeds), "mean", "spread", "tokens per second"]
    rows = [["validation loss, nats per byte", *names]]
    for op, values in of_op.items():
        cells = [*values, statistics.fmean(values), max(values) - min(values)]
        rate = statistics.median(run["tokens_per_second"] for run in runs[op])
        rows.append([TITLES[op], *(f"{x:.4f}" for x in cells), f"{rate:,.0f}"])
    text = table(rows)
    if {"tandem", "recurrence"} <= of_op.keys():
        ours, right = of_op["tandem"], of_op["recurrence"]
        apart = abs(statistics.fmean(ours) - statistics.fmean(right))
        spread = max(max(x) - min(x) for x in (ours, right))
        verdict = "within" if apart <= spread else "**not within**"
        text += (
            f"\n\nThe means of Tandem and of the plain recurrence are {apart:.4f} apart, {verdict} the spread of the "
            f"{len(seeds)} seeds, {spread:.4f}."
        )
    return text


def speeds(results: dict) -> str:
    """The table of tokens per second, by the length of the sequences."""
    rows = results["speed"]
    if not rows:
        return ""
    ops = [op for op in TITLES if any(row["op"] == op for row in rows)]
    rates = {(row["tokens"], row["op"]): row for row in rows}
    lines = [["tokens of a sequence", "sequences", *(f"{TITLES[op]}, tokens per second" for op in ops)]]
    lines[0] += ["Tandem / fla"] if {"tandem", "fla"} <= set(ops) else []
    for tokens in dict.fromkeys(row["tokens"] for row in rows):
        of_ops = [rates.get((tokens, op)) for op in ops]
        batch = next(row["batch"] for row in of_ops if row)
        line = [str(tokens), str(batch), *(f"{row['tokens_per_second']:,}" if row else "" for row in of_ops)]
        if len(lines[0]) > len(line):
            both = all(of_ops)
            line.append(f"{of_ops[0]['tokens_per_second'] / of_ops[1]['tokens_per_second']:.2f}" if both else "")
        lines.append(line)
    graphs = "each step one CUDA graph" if all(row["cuda_graph"] for row in rows) else "without CUDA graphs"
    return f"Tokens per second of the same loop, in turn, {graphs}; medians:\n\n{table(lines)}"


def block(results: dict, picture: str) -> str:
    config, versions = results["config"], results["versions"]
    batch = f"{config['batch']} x {config['tokens']} bytes"
    model = f"{results['parameters']:,} parameters, {config['steps']} steps of {batch}"
    facts = f"{results['device']}, commit {results['commit']}, {results['date']}; " + ", ".join(
        f"{name} {version}" for name, version in versions.items() if name != "tandem"
    )
    text = f"A text of {results['text']['bytes']:,} bytes. {model}."
    parts = [f"![Loss over the steps, and tokens per second]({picture})", text, losses(results), speeds(results)]
    parts += [f"- Not here: {what}: {why.splitlines()[0]}" for what, why in results["missing"].items()]
    parts.append(f"{facts}; `{results['command']}`.")
    return "\n\n".join(part for part in parts if part)


def with_block(text: str, new: str) -> str:
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return f"{text[:begin]}\n{new}\n{text[end:]}"


def style() -> str:
    """What makes a picture in light colors dark, where the reader wants that."""
    pairs = [*COLORS.values(), BACK, TEXT, SOFT, GRID]
    rules = [
        f'[style*="{what}: {light}"] {{ {what}: {dark} !important }}'
        for light, dark in pairs
        for what in ("fill", "stroke")
    ]
    return "<style>@media (prefers-color-scheme: dark) { " + " ".join(rules) + " }</style>"


def draw(results: dict, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "svg.hashsalt": "tandem", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
        "axes.edgecolor": SOFT[0], "axes.labelcolor": TEXT[0], "text.color": TEXT[0], "axes.titlesize": 9,
        "xtick.color": SOFT[0], "ytick.color": SOFT[0], "grid.color": GRID[0], "axes.grid": True,
        "axes.axisbelow": True, "axes.grid.axis": "y", "figure.facecolor": BACK[0], "axes.facecolor": BACK[0],
        "legend.frameon": False,
    })  # fmt: skip
    figure, (curves, bars) = pyplot.subplots(1, 2, figsize=(9, 3.6), width_ratios=(3, 2), layout="constrained")
    runs = by_op(results)
    for op in sorted(runs, key=lambda op: op != "recurrence"):  # the recurrence below, and wider: the others cover it
        width, alpha = (3.5, 0.45) if op == "recurrence" else (1.0, 1.0)
        for i, run in enumerate(runs[op]):
            label = TITLES[op] if i == 0 else None
            line = {"color": COLORS[op][0], "linewidth": width, "alpha": alpha, "label": label}
            curves.plot(smooth(run["losses"]), linestyle="--" if op == "fla" else "-", **line)
    seeds = max(len(some) for some in runs.values())
    curves.set(xlabel="step", ylabel="loss, nats per byte (moving average)", title=f"Training, {seeds} seeds each")
    curves.legend()
    lengths = list(dict.fromkeys(row["tokens"] for row in results["speed"]))
    ops = [op for op in TITLES if any(row["op"] == op for row in results["speed"])]
    for i, op in enumerate(ops):
        rows = [row for row in results["speed"] if row["op"] == op]
        at = [lengths.index(row["tokens"]) + (i - (len(ops) - 1) / 2) * 0.38 for row in rows]
        heights = [row["tokens_per_second"] / 1e6 for row in rows]
        drawn = bars.bar(at, heights, 0.34, color=COLORS[op][0], label=TITLES[op])
        bars.bar_label(drawn, [f"{height:.2f}" for height in heights], fontsize=7, padding=1)
    bars.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    bars.set(xlabel="tokens of a sequence", ylabel="million tokens per second", title=f"Speed, {results['device']}")
    if ops:
        bars.set_ylim(0, bars.get_ylim()[1] * 1.18)
        bars.legend(loc="upper right", ncols=2)
    figure.savefig(path, format="svg", metadata={"Date": None})
    text = path.read_text()
    start = text.index("<defs>")
    path.write_text(text[:start] + style() + "\n " + text[start:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, help="the file that train_gla_lm.py --json wrote")
    parser.add_argument("--docs", type=pathlib.Path, default=ROOT / "docs", help="folder of training.md")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when training.md is not up to date")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text())
    document = arguments.docs / "training.md"
    old = document.read_text()
    new = with_block(old, block(results, "training.svg"))
    if arguments.check:
        if new != old:
            print(f"{document} is not up to date with {arguments.results} (examples/plot_gla_lm.py)")
        return int(new != old)
    draw(results, arguments.docs / "training.svg")
    document.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
