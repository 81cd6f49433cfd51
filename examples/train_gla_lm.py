#!/usr/bin/env python3
"""Trains a small byte-level language model on this repository's own documents and sources.

Two layers of width 512, each gated linear attention and a gated MLP. `--op` picks who computes the attention: Tandem,
the recurrence in plain PyTorch and fp32 (slow; what the other two must agree with), or flash-linear-attention.

    python examples/train_gla_lm.py                                      # 300 steps, on a GPU where there is one
    python examples/train_gla_lm.py --op recurrence --seed 1 --json recurrence_1.json
    python examples/train_gla_lm.py --tiny                               # under two minutes on a CPU

`--json` writes the loss of every step, the validation loss and the tokens per second; plot_gla_lm.py draws them.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUFFIXES = {".md", ".py", ".h", ".cpp", ".cu", ".cuh", ".cmake"}


@dataclasses.dataclass
class Config:
    width: int = 512
    layers: int = 2
    heads: int = 8
    tokens: int = 1024  # of a sequence
    batch: int = 16
    steps: int = 300
    learning_rate: float = 2e-3
    warmup: int = 30


TINY = Config(width=64, heads=2, tokens=128, batch=4, steps=60, learning_rate=5e-3, warmup=10)


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """What tandem.ops.gla computes, token by token in fp32."""
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, decay = q.float() * q.size(-1) ** -0.5, k.float(), v.float(), log_decay.float().exp()
        state = torch.zeros(q.size(0), q.size(2), q.size(3), v.size(3), device=q.device)
        out = []
        for t in range(q.size(1)):
            state = decay[:, t, :, None, None] * state + k[:, t, :, :, None] * v[:, t, :, None, :]
            out.append((q[:, t, :, None, :] @ state).squeeze(-2))
        return torch.stack(out, dim=1)


def find_op(name: str):
    """(q, k, v [B,T,H,D], log_decay [B,T,H]) -> o [B,T,H,D]."""
    if name == "recurrence":
        return recurrence
    if name == "fla":
        from fla.ops.simple_gla import chunk_simple_gla

        return lambda q, k, v, g: chunk_simple_gla(*(x.to(torch.bfloat16) for x in (q, k, v)), g=g)[0]
    import tandem

    return lambda q, k, v, g: tandem.ops.gla(q, k, v, g)[0]


class GatedLinearAttention(nn.Module):
    def __init__(self, width: int, heads: int, op):
        super().__init__()
        self.heads, self.op = heads, op
        self.query, self.key, self.value, self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(5))
        self.decay = nn.Linear(width, heads)
        self.norm = nn.RMSNorm(width // heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        log_decay = F.logsigmoid(self.decay(x).float()) / 16
        o = self.norm(self.op(q, k, v, log_decay).to(x.dtype)).flatten(-2)
        return self.out(o * F.silu(self.gate(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, op):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = GatedLinearAttention(width, heads, op)
        self.up, self.mlp_gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.mlp_norm(x)
        return x + self.down(self.up(y) * F.silu(self.mlp_gate(y)))


class LanguageModel(nn.Module):
    def __init__(self, config: Config, op):
        super().__init__()
        self.embedding = nn.Embedding(256, config.width)
        self.blocks = nn.Sequential(*(Block(config.width, config.heads, op) for _ in range(config.layers)))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, 256, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """The mean loss, in nats per byte, of predicting text [B,T+1] from its beginning."""
        logits = self.head(self.norm(self.blocks(self.embedding(text[:, :-1]))))
        return F.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())


def read_text() -> Tensor:
    """The repository's documents and sources as bytes; what is built or hidden is left out."""
    left_out = {"build", "dist", "results"}
    files = [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.suffix in SUFFIXES
        and path.is_file()
        and not any(part in left_out or part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in files)), dtype=torch.uint8).long()


def draw(text: Tensor, config: Config, generator: torch.Generator, device: str) -> Tensor:
    """A batch of random pieces, [batch, tokens + 1]."""
    starts = torch.randint(len(text) - config.tokens, (config.batch,), generator=generator)
    return torch.stack([text[start : start + config.tokens + 1] for start in starts]).to(device)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def train(config: Config, op: str, seed: int, device: str) -> dict:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    text = read_text()
    training, validation = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    model = LanguageModel(config, find_op(op)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)

    def factor(step: int) -> float:
        return min((step + 1) / config.warmup, 0.5 + 0.5 * math.cos(math.pi * step / config.steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    autocast = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    losses = []
    timed_from = min(10, config.steps // 2)  # the first steps warm up
    for step in range(config.steps):
        if step == timed_from:
            synchronize(device)
            begin = time.perf_counter()
        with autocast:
            loss = model(draw(training, config, generator, device))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % 20 == 0 or step == config.steps - 1:
            print(f"step {step:4d}  loss {loss.item():.3f}", flush=True)
    synchronize(device)
    seconds = time.perf_counter() - begin

    held_out = torch.Generator().manual_seed(0)  # the same pieces for every seed
    with torch.no_grad(), autocast:
        validation_losses = [model(draw(validation, config, held_out, device)).item() for _ in range(8)]
    return {
        "op": op,
        "seed": seed,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "config": dataclasses.asdict(config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "losses": torch.stack(losses).tolist(),
        "validation_loss": sum(validation_losses) / len(validation_losses),
        "tokens_per_second": (config.steps - timed_from) * config.batch * config.tokens / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=("tandem", "recurrence", "fla"), default="tandem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default 300, with --tiny 60")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=pathlib.Path, help="write the results to this file")
    parser.add_argument("--tiny", action="store_true", help="a model and a run small enough for a CPU")
    arguments = parser.parse_args()
    config = TINY if arguments.tiny else Config()
    if arguments.steps is not None:
        if arguments.steps < 1:
            parser.error(f"--steps must be at least 1, got {arguments.steps}")
        config = dataclasses.replace(config, steps=arguments.steps)
    result = train(config, arguments.op, arguments.seed, arguments.device)
    print(f"validation loss {result['validation_loss']:.3f}, {result['tokens_per_second']:.0f} tokens per second")
    if arguments.json:
        arguments.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
