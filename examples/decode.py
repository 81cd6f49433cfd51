#!/usr/bin/env python3
"""Greedy decoding behind longer and longer prompts, with each of tandem.nn's kinds of layers, and what a token costs.

    python examples/decode.py --plot decode.svg             # on a GPU where there is one; needs matplotlib
    python examples/decode.py --mixings mamba2 --prompts 1024 65536
    python examples/decode.py --tiny                        # under a minute on a CPU

Attention reads the keys and values of all tokens before; a recurrence has a state of one size. On a GPU a step, from a
token to the next one, is one CUDA graph. The models are random: their text means nothing, what it costs is real.
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable

import tandem.nn
import torch
from gla_lm import commit, versions
from torch import Tensor, nn


@dataclasses.dataclass
class Config:
    width: int = 2048
    layers: int = 4
    head_dim: int = 128
    vocabulary: int = 32768
    batch: int = 8
    prompts: tuple[int, ...] = (1024, 4096, 16384, 65536)
    tokens: int = 64  # that are decoded behind each prompt


TINY = Config(width=64, layers=2, head_dim=16, vocabulary=256, batch=2, prompts=(32, 128), tokens=8)
Mixing = Callable[[Config, tandem.nn.RotaryEmbedding], nn.Module]
MIXINGS: dict[str, Mixing] = {
    "attention": lambda c, rotary: tandem.nn.Attention(
        c.width, c.width // c.head_dim, c.width // c.head_dim // 4, rotary=rotary
    ),
    "gla": lambda c, _: tandem.nn.GatedLinearAttention(c.width, c.width // c.head_dim, conv_size=4),
    "mamba2": lambda c, _: tandem.nn.Mamba2(c.width, 4 * c.width // c.head_dim, c.head_dim // 2, state_size=c.head_dim),
    "hgrn": lambda c, _: tandem.nn.HGRN(c.width),
}


class LanguageModel(nn.Module):
    def __init__(self, config: Config, mixing: str):
        super().__init__()
        rotary = tandem.nn.RotaryEmbedding(config.head_dim, max(config.prompts) + config.tokens)
        layers = range(config.layers)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.mixings = nn.ModuleList(MIXINGS[mixing](config, rotary) for _ in layers)
        self.mlps = nn.ModuleList(tandem.nn.GatedMLP(config.width, 3 * config.width) for _ in layers)
        self.norms = nn.ModuleList(tandem.nn.RMSNorm(config.width) for _ in range(2 * config.layers + 1))
        self.head = tandem.nn.Linear(config.width, config.vocabulary)

    def new_caches(self, batch: int, capacity: int) -> list[tandem.nn.KeyValueCache | tandem.nn.StateCache]:
        attention = tandem.nn.Attention
        return [
            layer.new_cache(batch, capacity) if isinstance(layer, attention) else layer.new_cache(batch)
            for layer in self.mixings
        ]

    def forward(self, tokens: Tensor, caches: list | None = None) -> Tensor:
        """The next token behind tokens [B,T], [B,1]: the likeliest one."""
        x = self.embedding(tokens)
        for i, (mixing, mlp) in enumerate(zip(self.mixings, self.mlps, strict=True)):
            x = mixing(x, norm=self.norms[2 * i], residual=x, cache=caches[i] if caches else None)
            x = mlp(x, norm=self.norms[2 * i + 1], residual=x)
        return self.head(self.norms[-1](x[:, -1:])).argmax(-1)


@torch.no_grad()
def decode(model: LanguageModel, prompt: Tensor, tokens: int) -> tuple[Tensor, float, float]:
    """The tokens [B,tokens] behind the prompt [B,T], the seconds that the prompt took, and those of a token."""
    caches = model.new_caches(prompt.shape[0], prompt.shape[1] + tokens)
    begin = now()
    token = model(prompt, caches)
    prompt_seconds = now() - begin
    out = [token.clone()]

    def step() -> None:
        token.copy_(model(token, caches))

    def timed_steps(step: Callable[[], None], count: int) -> float:
        begin = now()
        for _ in range(count):
            step()
            out.append(token.clone())
        return now() - begin

    first = min(2, tokens - 1)
    timed_steps(step, first)  # not timed: they warm up
    if prompt.is_cuda:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        step = graph.replay
    seconds = timed_steps(step, tokens - 1 - first)
    return torch.cat(out, 1), prompt_seconds, seconds / max(tokens - 1 - first, 1)


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(config: Config, mixing: str, device: str) -> list[dict]:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = LanguageModel(config, mixing).to(dtype)
        prompts = [torch.randint(config.vocabulary, (config.batch, length)) for length in config.prompts]
    decode(model, prompts[0], config.tokens)  # loads kernels
    rows = []
    for prompt in prompts:
        _, prompt_seconds, seconds = decode(model, prompt, config.tokens)
        figures = {"prompt_milliseconds": 1e3 * prompt_seconds, "token_milliseconds": 1e3 * seconds}
        rows.append({"mixing": mixing, "batch": config.batch, "prompt": prompt.shape[1], **figures})
        print(
            f"{mixing:9} B{config.batch} behind {prompt.shape[1]:6} tokens, which took {1e3 * prompt_seconds:8.2f} ms: "
            f"{1e3 * seconds:7.3f} ms a token",
            flush=True,
        )
    return rows


def draw(rows: list[dict], title: str, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for mixing in dict.fromkeys(row["mixing"] for row in rows):
        line = [(row["prompt"], row["token_milliseconds"]) for row in rows if row["mixing"] == mixing]
        axes.plot(*zip(*line, strict=True), marker="o", label=mixing)
    axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt", ylabel="milliseconds per token", title=title)
    axes.set_xticks(prompts := sorted({row["prompt"] for row in rows}), list(map(str, prompts)), minor=False)
    axes.legend(frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixings", choices=tuple(MIXINGS), nargs="+", default=list(MIXINGS))
    parser.add_argument("--prompts", type=int, nargs="+", help="lengths in tokens")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=pathlib.Path, help="write the times to this file")
    parser.add_argument("--plot", type=pathlib.Path, help="draw them, as an SVG")
    parser.add_argument("--commit", help="that is measured (default: git's of the checkout)")
    parser.add_argument("--tiny", action="store_true", help="models small enough for a CPU")
    arguments = parser.parse_args()
    config = TINY if arguments.tiny else Config()
    if arguments.prompts:
        config = dataclasses.replace(config, prompts=tuple(arguments.prompts))
    rows = [row for mixing in arguments.mixings for row in measure(config, mixing, arguments.device)]
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    if arguments.json:
        facts = {"device": device, "commit": arguments.commit or commit(), "versions": versions()}
        results = {**facts, "config": dataclasses.asdict(config), "rows": rows}
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.plot:
        title = f"{config.layers} layers of width {config.width}, {config.batch} rows, {device}"
        draw(rows, title, arguments.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
