"""What stands in front of a token mixing: a norm, products, norms of heads and RoPE."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

import tandem.ops
from tandem.nn.norm import RMSNorm
from tandem.nn.rotary import RotaryEmbedding


class Heads(NamedTuple):
    """The product of a layer that makes heads of `width` columns, and what follows it."""

    linear: nn.Linear
    width: int
    norm: RMSNorm | None = None
    rotates: bool = False


def heads_of(
    x: Tensor,
    norm: RMSNorm | None,
    products: Sequence[Heads],
    rotary: RotaryEmbedding | None = None,
    positions: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> list[Tensor]:
    """[B,T,heads,width] of each product of norm(x): with a norm one op does it all."""
    weights = [one.linear.weight for one in products]
    biases = [one.linear.bias for one in products]
    bias = None if all(one is None for one in biases) else biases
    widths = [one.width for one in products]
    if norm is None:
        segments = [tandem.ops.Segment(weight.shape[0]) for weight in weights]
        ys = tandem.ops.projection(x, weights, segments, bias)
        ys = [y.unflatten(-1, (-1, width)) for y, width in zip(ys, widths, strict=True)]
        ys = [y if one.norm is None else one.norm(y) for y, one in zip(ys, products, strict=True)]
        turns = [one.rotates and rotary is not None for one in products]
        return [rotary(y, positions, cu_seqlens) if turn else y for y, turn in zip(ys, turns, strict=True)]
    norms = [one.norm for one in products]
    rotates = [one.rotates and rotary is not None for one in products]
    options = {}
    if any(norms):
        options["head_norm_weight"] = [None if one is None else one.weight for one in norms]
        options["head_eps"] = [None if one is None else one.eps for one in norms]
    if any(norms) or any(rotates):
        with_heads = [one is not None or turns for one, turns in zip(norms, rotates, strict=True)]
        options["head_width"] = [width if has else None for width, has in zip(widths, with_heads, strict=True)]
    if any(rotates):
        options |= {"rotates": rotates, "rope_cos": rotary.cos, "rope_sin": rotary.sin}
        options |= {"rope_positions": positions, "cu_seqlens": cu_seqlens}
    ys = tandem.ops.rms_norm_gemm(x, norm.weight, weights, bias, norm.eps, **options)
    return [y.unflatten(-1, (-1, width)) for y, width in zip(ys, widths, strict=True)]
