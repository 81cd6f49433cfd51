"""Layers over :mod:`tandem.ops`, as torch modules.

Parameters are named, shaped and initialised as in transformers and fla, whose state dicts load strictly, and the other
way round; neither package is needed. A layer keeps the `torch.nn.Linear` modules that it is called by in these, for
their parameters: their own forward, and hooks on it, are not run, because several are one product here.

Every layer of a token mixing is called ``layer(x, norm=..., residual=..., attention_mask=..., cu_seqlens=...,
cache=...)``:

- x: [B,T,d], the tokens.
- norm: None, or the :class:`RMSNorm` in front of the layer, which then is called with what comes before the norm.
- residual: None, or [B,T,d], which is added to the result: x, in a layer of a residual stream.
- attention_mask: None, or [B,S] as transformers gives it: 1 for a token and 0 for padding, whose last T columns are
  those of x. Tokens of a row are neighbours, padding is on the left, the right, or both; a cache takes it on the left.
  Results at padding are finite where its inputs are, and mean nothing. Or a :class:`Padding`, made of the mask once for
  all layers.
- cu_seqlens: None, or int32 [N+1] for packed sequences, B = 1, as the ops take it. Not beside the others.
- cache: None, or what the layer's ``new_cache`` returned. The tokens are those that follow the cache's, which is
  updated in place, under ``torch.no_grad()``. Nothing waits for the GPU.

They work under ``torch.compile(fullgraph=True)``, activation checkpointing and autocast. Under autocast a residual of
fp32 stays fp32.
"""

from tandem.nn.attention import Attention
from tandem.nn.caches import KeyValueCache, StateCache
from tandem.nn.convolution import ShortConvolution
from tandem.nn.gated_linear_attention import GatedLinearAttention
from tandem.nn.hgrn import HGRN
from tandem.nn.lightning_attention import LightningAttention
from tandem.nn.linear import Linear
from tandem.nn.mamba2 import Mamba2
from tandem.nn.mlp import GatedMLP
from tandem.nn.norm import RMSNorm
from tandem.nn.padding import Padding
from tandem.nn.retention import MultiScaleRetention
from tandem.nn.rotary import RotaryEmbedding
from tandem.nn.transformer import TransformerBlock

__all__ = [
    "HGRN",
    "Attention",
    "GatedLinearAttention",
    "GatedMLP",
    "KeyValueCache",
    "LightningAttention",
    "Linear",
    "Mamba2",
    "MultiScaleRetention",
    "Padding",
    "RMSNorm",
    "RotaryEmbedding",
    "ShortConvolution",
    "StateCache",
    "TransformerBlock",
]
