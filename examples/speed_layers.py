"""A layer of gated linear attention with short convolutions and a gated MLP, three times, with the same parameters by
the same names: of tandem.nn, of fla, and of plain PyTorch for torch.compile."""

import importlib
from collections.abc import Callable

import tandem.nn
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHUNK = 128  # tokens, of the plain definition


class TandemBlock(nn.Module):
    def __init__(self, width: int, heads: int, mlp: int):
        super().__init__()
        self.attention_norm, self.mlp_norm = tandem.nn.RMSNorm(width), tandem.nn.RMSNorm(width)
        self.attention = tandem.nn.GatedLinearAttention(width, heads, conv_size=4)
        self.mlp = tandem.nn.GatedMLP(width, mlp)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x, norm=self.attention_norm, residual=x)
        return self.mlp(x, norm=self.mlp_norm, residual=x)


class PlainBlock(TandemBlock):
    """The same maths by torch's own operations."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + plain_attention(self.attention, self.attention_norm(x))
        y, mlp = self.mlp_norm(x), self.mlp
        return x + F.linear(F.silu(mlp.gate_proj(y)) * mlp.up_proj(y), mlp.down_proj.weight)


def fla_block(width: int, heads: int, mlp: int) -> nn.Module:
    from fla.layers.simple_gla import SimpleGatedLinearAttention
    from fla.modules import GatedMLP, RMSNorm

    class FlaBlock(nn.Module):
        """As the blocks of fla's models, with all that they fuse."""

        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.mlp_norm = RMSNorm(width, eps=1e-6), RMSNorm(width, eps=1e-6)
            self.attention = SimpleGatedLinearAttention(hidden_size=width, num_heads=heads)
            self.mlp = GatedMLP(width, intermediate_size=mlp)

        def forward(self, x: Tensor) -> Tensor:
            mixed = self.attention(self.attention_norm(x))[0]
            y, x = self.mlp_norm(mixed, x, True)
            return x + self.mlp(y)

    return FlaBlock()


BLOCKS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "tandem": TandemBlock,
    "fla": fla_block,
    "compile": PlainBlock,
}


def plain_attention(layer: tandem.nn.GatedLinearAttention, x: Tensor) -> Tensor:
    q, k, v = (
        convolved(linear(x), convolution)
        for linear, convolution in zip(
            (layer.q_proj, layer.k_proj, layer.v_proj), (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d), strict=True
        )
    )
    q, k, v = (y.unflatten(-1, (layer.num_heads, -1)) for y in (q, k, v))
    o = chunked(q, k, v, F.logsigmoid(layer.gk_proj(x).float()) / 16)
    norm = layer.g_norm_swish_gate
    o = F.rms_norm(o, norm.weight.shape, norm.weight, norm.eps).flatten(-2)
    return layer.o_proj(o * F.silu(layer.g_proj(x)))


def convolved(x: Tensor, convolution: tandem.nn.ShortConvolution) -> Tensor:
    x = F.pad(x.transpose(1, 2), (convolution.taps - 1, 0))
    return F.silu(F.conv1d(x, convolution.weight, groups=convolution.channels)).transpose(1, 2)


def chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """What tandem.ops.gla computes, without a loop: chunks of tokens, and products of their states with the decays from
    chunk to chunk. T is a multiple of CHUNK."""
    dtype, scale = q.dtype, q.shape[-1] ** -0.5
    q, k, v = (y.unflatten(1, (-1, CHUNK)).transpose(2, 3) for y in (q, k, v))  # [B,N,H,C,K]
    g = log_decay.unflatten(1, (-1, CHUNK)).transpose(2, 3).cumsum(-1)  # [B,N,H,C]
    inside = (g[..., :, None] - g[..., None, :]).masked_fill(behind(CHUNK, 1, g.device), -torch.inf).exp()
    o = ((q @ k.mT) * inside).to(dtype) @ v
    end = g[..., -1]  # [B,N,H]
    states = (k * (end[..., None] - g).exp()[..., None]).to(dtype).mT @ v  # [B,N,H,K,V]
    ends = end.cumsum(1).transpose(1, 2)  # [B,H,N]
    between = (ends - end.transpose(1, 2))[..., :, None] - ends[..., None, :]
    between = between.masked_fill(behind(ends.shape[-1], 0, g.device), -torch.inf).exp()
    before = torch.einsum("bhnm,bmhkv->bnhkv", between.to(dtype), states)
    o = scale * (o + (q * g.exp()[..., None]).to(dtype) @ before)
    return o.transpose(2, 3).flatten(1, 2)


def behind(length: int, diagonal: int, device: torch.device) -> Tensor:
    """Where j >= i + diagonal, [length,length]."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(diagonal)


def missing(layers: str, device: str) -> str:
    """Why these layers cannot run here, "" when they can."""
    if layers != "fla":
        return ""
    if device == "cpu":
        return "it needs a GPU"
    try:
        importlib.import_module("fla.layers.simple_gla")
    except Exception as error:  # a package that is broken for this torch or Triton may raise anything
        return f"{type(error).__name__}: {error}"
    return ""
