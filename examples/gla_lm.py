"""A small byte-level language model of tandem.nn's gated linear attention, its text, and who mixes its tokens."""

import dataclasses
import importlib
import importlib.metadata
import pathlib
import subprocess
from collections.abc import Callable

import tandem.nn
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUFFIXES = {".md", ".py", ".h", ".cpp", ".cu", ".cuh", ".cmake"}
Op = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, v [B,T,H,D], log_decay [B,T,H] -> o [B,T,H,D]


@dataclasses.dataclass
class Config:
    width: int = 512
    layers: int = 2
    heads: int = 8
    tokens: int = 512  # of a sequence
    batch: int = 16
    steps: int = 300
    learning_rate: float = 2e-3
    warmup: int = 30


TINY = Config(width=64, heads=2, tokens=128, batch=4, steps=60, learning_rate=5e-3, warmup=10)


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """What tandem.ops.gla computes, token by token in fp32."""
    with torch.autocast(q.device.type, enabled=False):
        q, k, v = (q.float() * q.size(-1) ** -0.5)[..., None, :], k.float()[..., None], v.float()[..., None, :]
        decay = log_decay.float().exp()[..., None, None]
        state = torch.zeros(q.size(0), q.size(2), q.size(-1), v.size(-1), device=q.device)
        out = []
        # unbind: the gradient of one stack, and not of an index per token, which would be as long as the sequence.
        for q_t, k_t, v_t, decay_t in zip(q.unbind(1), k.unbind(1), v.unbind(1), decay.unbind(1), strict=True):
            state = torch.addcmul(decay_t * state, k_t, v_t)
            out.append(q_t @ state)
        return torch.stack(out, dim=1).squeeze(-2)


def _tandem(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    return tandem.ops.gla(q, k, v, log_decay)[0]


def _fla(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    from fla.ops.simple_gla import chunk_simple_gla

    q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
    return chunk_simple_gla(q, k, v, g=log_decay)[0]


OPS: dict[str, Op] = {"tandem": _tandem, "recurrence": recurrence, "fla": _fla}


def missing(name: str, device: str) -> str:
    """Why the op cannot run here, "" when it can."""
    if name != "fla":
        return ""
    if device == "cpu":
        return "it needs a GPU"
    try:
        importlib.import_module("fla.ops.simple_gla")
    except Exception as error:  # a package that is broken for this torch or Triton may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def versions() -> dict[str, str]:
    found = {"torch": torch.__version__, "cuda": torch.version.cuda or "none"}
    for name, module in (("tandem", "tandem"), ("triton", "triton"), ("fla", "fla")):
        try:
            found[name] = importlib.import_module(module).__version__
        except Exception:  # as above
            pass
    return found


def commit() -> str:
    """The commit of the checkout, as cmake/write_commit.cmake says it."""

    def git(*arguments: str) -> str:
        try:
            return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True).stdout.strip()
        except OSError:  # no git here
            return ""

    changes = git("status", "--porcelain", "--", ":/", ":!/bench/results", ":!/docs", ":!/README.md")
    return (git("rev-parse", "--short=7", "HEAD") or "unknown") + ("-dirty" if changes else "")


class GatedLinearAttention(tandem.nn.GatedLinearAttention):
    """tandem.nn's, but for who mixes the tokens."""

    def __init__(self, width: int, heads: int, op: Op):
        super().__init__(width, heads)
        self.op = op

    def mix(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, **_: None) -> Tensor:
        return self.op(q, k, v, log_decay).to(v.dtype)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, op: Op):
        super().__init__()
        self.attention_norm, self.mlp_norm = tandem.nn.RMSNorm(width), tandem.nn.RMSNorm(width)
        self.attention = GatedLinearAttention(width, heads, op)
        self.mlp = tandem.nn.GatedMLP(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x, norm=self.attention_norm, residual=x)
        return self.mlp(x, norm=self.mlp_norm, residual=x)


class LanguageModel(nn.Module):
    def __init__(self, config: Config, op: Op):
        super().__init__()
        self.embedding = nn.Embedding(256, config.width)
        self.blocks = nn.Sequential(*(Block(config.width, config.heads, op) for _ in range(config.layers)))
        self.norm = tandem.nn.RMSNorm(config.width)
        self.head = tandem.nn.Linear(config.width, 256)

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
    return torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in files)), dtype=torch.uint8)
