#!/usr/bin/env python3
"""Tokens per second of whole training steps: forward, backward, AdamW, in bf16, of language models of gated linear
attention with short convolutions and gated MLPs, whose layers are tandem.nn's, fla's, or plain PyTorch, compiled.

    python examples/training_speed.py --size 150M --json speed.json
    python examples/training_speed.py --size 1.3B --layers fla --json speed.json    # beside what the file has
    python examples/training_speed.py --size 1.3B --profile --json speed.json       # and where their time goes
    python examples/training_speed.py --json speed.json other.json --render docs/training.md
    python examples/training_speed.py --tiny                # on a CPU, where nothing is compiled

All have the same parameters, by the same names, and the same text: their losses are printed side by side. The embedding
and the loss are PyTorch's, compiled for all of them. What is not ready to be measured within --patience is left out;
run again, it goes on from what Triton's and PyTorch's caches kept.
"""

import argparse
import dataclasses
import gc
import json
import pathlib
import statistics
import sys
import time

import torch
from gla_lm import commit, versions
from speed_layers import BLOCKS, missing
from step_profile import profiled, table
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from bench.peers import tuning

BEGIN, END = "<!-- speed:begin -->", "<!-- speed:end -->"


@dataclasses.dataclass
class Config:
    width: int
    layers: int
    heads: int
    mlp: int
    vocabulary: int = 32000
    batch: int = 4
    tokens: int = 4096  # of a sequence


SIZES = {
    "150M": Config(width=768, layers=12, heads=6, mlp=2048),
    "1.3B": Config(width=2048, layers=21, heads=16, mlp=5632),
}
TINY = Config(width=64, layers=2, heads=2, mlp=128, vocabulary=256, batch=2, tokens=128)


class LanguageModel(nn.Module):
    def __init__(self, config: Config, layers: str, compiled: bool):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(
            BLOCKS[layers](config.width, config.heads, config.mlp) for _ in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.predict = torch.compile(self.loss) if compiled else self.loss
        if compiled and layers == "compile":
            for block in self.blocks:  # each by itself, so that one is compiled and all take it
                block.compile()

    def loss(self, x: Tensor, text: Tensor) -> Tensor:
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), text.flatten())

    def forward(self, text: Tensor) -> Tensor:
        """The mean loss of predicting text [B,T+1] from its beginning."""
        x = self.embedding(text[:, :-1])
        for block in self.blocks:
            x = block(x)
        return self.predict(x, text[:, 1:])


def make_model(config: Config, layers: str, device: str) -> LanguageModel:
    """With the same parameters, whoever computes the layers; what is drawn next is the same, too."""
    with torch.device(device):
        model = LanguageModel(config, layers, compiled=device == "cuda")
        torch.manual_seed(0)  # behind the layers' own initialization, which draws as each likes
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.3 if "conv1d" in name else 0.02)
    return model.to(torch.bfloat16) if device == "cuda" else model


def measure(config: Config, layers: str, device: str, seconds: float, patience: float, profile: bool) -> dict:
    """Raises TimeoutError where the layers are not ready after `patience` seconds."""

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(text)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())  # waits for the step
        return time.perf_counter() - begin

    losses: list[float] = []
    begin = time.perf_counter()
    with tuning.limited(patience):
        model = make_model(config, layers, device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        text = torch.randint(config.vocabulary, (config.batch, config.tokens + 1), device=device)
        for _ in range(3):  # compile, tune, allocate
            step()
            print(f"{layers:8} a step after {time.perf_counter() - begin:.1f} s", flush=True)
    prepared = time.perf_counter() - begin
    times = [step()]
    while len(times) < 5 or sum(times) < seconds:
        times.append(step())
    rate = config.batch * config.tokens / statistics.median(times)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    parameters = sum(x.numel() for x in model.parameters())
    print(
        f"{layers:8} {parameters / 1e6:7.1f} M parameters, B{config.batch} T{config.tokens}: {rate:9.0f} tokens per "
        f"second, {memory:5.1f} GiB, ready after {prepared:.1f} s; losses {losses[0]:.4f} {losses[3]:.4f}",
        flush=True,
    )
    shape = {"parameters": parameters, "batch": config.batch, "tokens": config.tokens}
    results = {"tokens_per_second": round(rate), "steps": len(times), "gibibytes": round(memory, 2)}
    row = {"layers": layers, **shape, **results, "losses": [round(loss, 4) for loss in losses[:5]]}
    if profile and (where := profiled(step, device, statistics.median(times))):
        row["profile"] = where
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=tuple(SIZES), default="150M")
    parser.add_argument("--layers", choices=tuple(BLOCKS), nargs="+", default=list(BLOCKS))
    parser.add_argument("--seconds", type=float, default=5, help="how long each is measured")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--patience", type=float, default=300, help="seconds for each to compile and tune")
    parser.add_argument("--profile", action="store_true", help="and sum the times of a step's kernels by groups")
    parser.add_argument(
        "--json", type=pathlib.Path, nargs="+", help="merge the results into this file; of --render: its files"
    )
    parser.add_argument("--render", type=pathlib.Path, help="write their tables into this page")
    parser.add_argument("--commit", help="that is measured (default: git's of the checkout)")
    parser.add_argument("--tiny", action="store_true", help="a model small enough for a CPU")
    arguments = parser.parse_args()
    if arguments.render and not arguments.json:
        parser.error("--render: needs the files of --json")
    if not arguments.render and len(arguments.json or ()) > 1:
        parser.error(f"--json: one file is measured into, got {len(arguments.json)}")
    if arguments.render:
        render([row for path in arguments.json for row in json.loads(path.read_text())["rows"]], arguments.render)
        return 0
    config, device = TINY if arguments.tiny else SIZES[arguments.size], arguments.device
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    facts = {"device": name, "commit": arguments.commit or commit(), "versions": versions()}
    facts = {"size": "tiny" if arguments.tiny else arguments.size, **facts}
    if device == "cuda":
        tuning.compile_side_by_side()
    rows = []
    for layers in arguments.layers:
        if why := missing(layers, device):
            print(f"{layers} is not here: {why}", flush=True)
            continue
        seconds = 0 if arguments.tiny else arguments.seconds
        try:
            rows.append(facts | measure(config, layers, device, seconds, arguments.patience, arguments.profile))
        except (TimeoutError, RuntimeError) as error:  # fla refuses some versions of Triton
            print(f"{layers} is left out: {str(error).splitlines()[0]}", flush=True)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        if arguments.json:
            merge(rows, arguments.json[0])
    return 0 if rows else 1


def merge(rows: list[dict], path: pathlib.Path) -> None:
    """A row takes the place, profile and all, of an earlier one of the same layers, size and device."""
    of = {key(row): row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    of |= {key(row): row for row in rows}
    path.write_text(json.dumps({"rows": list(of.values())}, indent=1) + "\n")


def key(row: dict) -> tuple[str, str, str]:
    return row["device"], row["size"], row["layers"]


def render(rows: list[dict], page: pathlib.Path) -> None:
    """Rates beside each other, where time goes, and what each was measured with: in the page between two marks."""
    titles = ["device", "parameters", "layers", "tokens per second", "tandem.nn's over it", "GiB"]
    lines = [f"| {' | '.join(titles)} |", "|---|---|---|---:|---:|---:|"]
    ours = {key(row)[:2]: row["tokens_per_second"] for row in rows if row["layers"] == "tandem"}
    software: dict[str, list[str]] = {}
    rows = sorted(rows, key=lambda row: key(row)[:2])
    for row in rows:
        rate = row["tokens_per_second"]
        ratio = f"{ours[key(row)[:2]] / rate:.2f}" if key(row)[:2] in ours else ""
        cells = [row["device"], row["size"], row["layers"], f"{rate:,}", ratio, f"{row['gibibytes']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
        with_what = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        told = f"{row['device']}, commit {row['commit']}; {with_what}"
        software.setdefault(told, []).append(f"{row['layers']} of {row['size']}")
    if profiles := table(rows):
        lines += ["", *profiles]
    lines += ["", *(f"{', '.join(names)}: {told}." for told, names in software.items())]
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, *lines, END]) + rest.split(END)[1])


if __name__ == "__main__":
    sys.exit(main())
