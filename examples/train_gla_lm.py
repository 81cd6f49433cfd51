#!/usr/bin/env python3
"""Trains a small byte-level language model on this repository's own documents and sources.

Two layers of width 512, each gated linear attention and a gated MLP of tandem.nn. `--op` says who mixes the tokens:
Tandem, the recurrence in plain PyTorch and fp32 (slow; what the other two must agree with), or flash-linear-attention.

    python examples/train_gla_lm.py                              # 300 steps, on a GPU where there is one
    python examples/train_gla_lm.py --op recurrence --seeds 1
    python examples/train_gla_lm.py --all --json out.json        # every op, three seeds, tokens per second
    python examples/train_gla_lm.py --tiny                       # under two minutes on a CPU
    torchrun --nproc-per-node 4 examples/train_gla_lm.py --context 2    # 2 by batch, 2 by time (gla_lm_distributed.py)

On a GPU a step (forward, backward, clipping, AdamW) is one CUDA graph, whoever computes the attention; bf16 autocast,
parameters, loss and the recurrence in fp32. `--json` is written after every run; plot_gla_lm.py draws it.
"""

import argparse
import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
import shlex
import statistics
import sys
import time

import torch
from gla_lm import OPS, ROOT, TINY, Config, LanguageModel, commit, missing, read_text, versions
from gla_lm_step import Step, free, make_step, synchronize
from torch import Tensor

WARM_UP = 20  # steps that do not count in a run's tokens per second


def pieces(text: Tensor, config: Config, count: int, seed: int) -> list[Tensor]:
    """`count` batches [B,T+1] of random pieces of the text."""
    generator = torch.Generator().manual_seed(seed)  # of the CPU, so that every device draws the same
    starts = torch.randint(len(text) - config.tokens, (count, config.batch, 1), generator=generator).to(text.device)
    return [text[first + torch.arange(config.tokens + 1, device=text.device)].long() for first in starts]


def train(config: Config, op: str, seed: int, device: str, text: Tensor) -> dict:
    begin = time.perf_counter()
    training, validation = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    step = make_step(config, op, seed, device)
    batches = pieces(training, config, config.steps, seed)
    losses = torch.zeros(config.steps, device=device)
    timed_from = min(WARM_UP, config.steps // 2)
    for i, batch in enumerate(batches):
        if i == timed_from:
            synchronize(device)
            timed = time.perf_counter()
        factor = min((i + 1) / config.warmup, 0.5 + 0.5 * math.cos(math.pi * i / config.steps))
        losses[i] = step(batch, config.learning_rate * factor)
        if i % 50 == 0 or i == config.steps - 1:
            print(f"{op} seed {seed} step {i:4d}  loss {losses[i].item():.3f}", flush=True)
    synchronize(device)
    seconds = time.perf_counter() - timed
    held_out = pieces(validation, config, 8, 0)  # the same for every seed
    with torch.no_grad(), step.autocast():
        validation_loss = statistics.fmean(step.model(batch).item() for batch in held_out)
    result = {
        "op": op,
        "seed": seed,
        "losses": [round(loss, 4) for loss in losses.tolist()],
        "validation_loss": round(validation_loss, 4),
        "tokens_per_second": round((config.steps - timed_from) * config.batch * config.tokens / seconds),
        "cuda_graph": step.graph is not None,
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print(
        f"{op} seed {seed}: validation loss {validation_loss:.3f}, {result['tokens_per_second']} tokens per second, "
        f"{result['seconds']} s with everything",
        flush=True,
    )
    return result


def measure(config: Config, ops: list[str], device: str, text: Tensor, rounds: int, steps: int) -> list[dict]:
    """Tokens per second of the same loop with each op, in turn (A B A B); all in CUDA graphs, or none."""
    try:
        loops = {op: Step(config, op, 0, device, device == "cuda") for op in ops}
    except Exception as error:
        print(f"no CUDA graphs: {type(error).__name__}: {error}", flush=True)
        free(device)
        loops = {op: Step(config, op, 0, device, False) for op in ops}
    batches = pieces(text, config, steps, 0)
    samples: dict[str, list[float]] = {op: [] for op in ops}
    for i in range(rounds + 1):  # the first one warms up
        for op, step in loops.items():
            synchronize(device)
            begin = time.perf_counter()
            for batch in batches:
                step(batch, 1e-4)
            synchronize(device)
            if i > 0:
                samples[op].append(steps * config.batch * config.tokens / (time.perf_counter() - begin))
    shape = {"tokens": config.tokens, "batch": config.batch, "cuda_graph": loops[ops[0]].graph is not None}
    results = []
    for op, values in samples.items():
        rates = {"tokens_per_second": round(statistics.median(values)), "samples": [round(value) for value in values]}
        results.append({"op": op, **shape, **rates})
        print(f"{op} B{config.batch} T{config.tokens}: {rates['tokens_per_second']} tokens per second", flush=True)
    return results


def write(path: pathlib.Path | None, results: dict) -> None:
    """A run per line, so that a diff shows what changed."""
    if path is None:
        return
    fields = []
    for name, value in results.items():
        lists = name in ("runs", "speed") and value
        text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if lists else json.dumps(value)
        fields.append(f" {json.dumps(name)}: {text}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(fields) + "\n}\n")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=tuple(OPS), default="tandem")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--all", action="store_true", help="every op that is here, seeds 0 1 2, and tokens per second")
    parser.add_argument("--steps", type=int, help="default 300, with --tiny 60")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=pathlib.Path, help="write the results to this file")
    parser.add_argument("--commit", help="that is measured (default: git's of the checkout)")
    parser.add_argument("--tiny", action="store_true", help="a model and a run small enough for a CPU")
    several = parser.add_argument_group("under torchrun")
    several.add_argument("--context", type=int, default=1, help="ranks along time, the others along the batch")
    several.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp", help="who averages gradients")
    several.add_argument("--checkpoints", type=pathlib.Path, help="folder to write to, and to resume from")
    several.add_argument("--every", type=int, default=0, help="steps between checkpoints")
    several.add_argument("--resume", action="store_true", help="go on behind the last checkpoint")
    arguments = parser.parse_args()
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    if (arguments.every or arguments.resume) and arguments.checkpoints is None:
        parser.error("--every and --resume need --checkpoints")
    if arguments.context < 1 or (arguments.context > 1 and "WORLD_SIZE" not in os.environ):
        parser.error(f"--context must be a number of torchrun's ranks, got {arguments.context}")
    return arguments


def command() -> str:
    """As typed, but no folder of this machine: paths relative to the checkout; of one outside its name only."""

    def recorded(argument: str) -> str:
        path = pathlib.Path(argument).resolve()
        if "/" not in argument:
            return argument
        return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name

    return shlex.join(["python", *map(recorded, sys.argv)])


def train_on_ranks(config: Config, arguments: argparse.Namespace) -> int:
    import gla_lm_distributed as several

    device, seed = arguments.device, arguments.seeds[0]
    several.start(device)
    text = read_text().to(device)
    training, validation = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    fields = {"folder": arguments.checkpoints, "every": arguments.every, "resume": arguments.resume}
    plan = several.Plan(context=arguments.context, parallel=arguments.parallel, **fields)
    batches = pieces(training, config, config.steps, seed)
    result = several.train(config, plan, device, seed, batches, pieces(validation, config, 8, 0))
    if several.dist.get_rank() == 0:
        print(f"validation loss {result['validation_loss']:.3f}", flush=True)
        write(arguments.json, {"ranks": several.dist.get_world_size(), "command": command(), "runs": [result]})
    several.dist.destroy_process_group()
    return 0


def main() -> int:
    arguments = options()
    config, device = TINY if arguments.tiny else Config(), arguments.device
    if arguments.steps is not None:
        config = dataclasses.replace(config, steps=arguments.steps)
    if "WORLD_SIZE" in os.environ:
        return train_on_ranks(config, arguments)
    ops, seeds = ([*OPS], [0, 1, 2]) if arguments.all else ([arguments.op], arguments.seeds)
    left_out = {op: why for op in ops if (why := missing(op, device))}
    for op, why in left_out.items():
        print(f"{op} is not here: {why}", flush=True)
    ops = [op for op in ops if op not in left_out]
    text = read_text().to(device)
    results = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "commit": arguments.commit or commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "command": command(),
        "versions": versions(),
        "text": {"bytes": len(text), "sha256": hashlib.sha256(text.cpu().numpy().tobytes()).hexdigest()},
        "config": dataclasses.asdict(config),
        "parameters": sum(x.numel() for x in LanguageModel(config, OPS["recurrence"]).parameters()),
        "missing": left_out,
        "runs": [],
        "speed": [],
    }
    failed = 0

    def attempt(what: str, call) -> None:  # what is done is kept, and the next one may work
        nonlocal failed
        try:
            call()
        except Exception as error:
            failed += 1
            results["missing"][what] = f"{type(error).__name__}: {error}"
            print(f"{what} failed: {results['missing'][what]}", flush=True)
        free(device)
        write(arguments.json, results)

    def run_all(op: str) -> None:
        for seed in seeds:
            run = lambda seed=seed: results["runs"].append(train(config, op, seed, device, text))  # noqa: E731
            attempt(f"{op} seed {seed}", run)

    for op in ops:
        if op != "recurrence":
            run_all(op)
    if arguments.all:
        per_step, rounds, steps = (512, 2, 2) if arguments.tiny else (32768, 5, 20)
        fast = [op for op in ops if op != "recurrence" and any(run["op"] == op for run in results["runs"])]
        for tokens in (64, 128) if arguments.tiny else (1024, 4096, 16384):
            shape = dataclasses.replace(config, tokens=tokens, batch=per_step // tokens)
            speed = lambda shape=shape: results["speed"].extend(  # noqa: E731
                measure(shape, fast, device, text, rounds, steps)
            )
            if fast:
                attempt(f"tokens per second at T = {tokens}", speed)
    if "recurrence" in ops:  # last, because it takes longest
        run_all("recurrence")
    return 1 if failed or not results["runs"] else 0


if __name__ == "__main__":
    sys.exit(main())
