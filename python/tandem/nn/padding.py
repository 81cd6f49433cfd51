"""Padding masks as sequences."""

from typing import NamedTuple

import torch
from torch import Tensor


class Padding(NamedTuple):
    """Which tokens of [B,T] are padding. A row is three neighbouring sequences: what is in front of its tokens, its
    tokens, and what is behind them. So attention and recurrences run on [1,B*T] without moving a token, and without a
    count of tokens, for which the host would have to wait.

    starts: int32 [B], the place of each row's first token.
    lengths: int32 [B], how many tokens each row has.
    cu_seqlens: int32 [3B+1], where the sequences begin; those of tokens are 1, 4, 7 and so on.
    """

    starts: Tensor
    lengths: Tensor
    cu_seqlens: Tensor

    @classmethod
    def of(cls, mask: "Tensor | Padding | None", tokens: int) -> "Padding | None":
        """Of the last `tokens` columns of a mask [B,S]: 1 (True) for a token. A Padding, or None, is returned as it is.

        >>> import torch
        >>> from tandem.nn import Padding
        >>> Padding.of(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]), 4).cu_seqlens.tolist()
        [0, 2, 4, 4, 4, 7, 8]
        """
        if mask is None or isinstance(mask, Padding):
            return mask
        if mask.dim() != 2 or mask.shape[1] < tokens:
            raise ValueError(
                f"[nn] attention_mask must have shape [B,S], S at least T = {tokens}, with 1 for a token and 0 for "
                f"padding, got {list(mask.shape)}"
            )
        mask = mask[:, mask.shape[1] - tokens :].bool()
        lengths = mask.sum(1, dtype=torch.int32)
        starts = mask.int().argmax(1).int() if tokens else torch.zeros_like(lengths)
        begins = tokens * torch.arange(mask.shape[0], device=mask.device, dtype=torch.int32)
        ends = torch.full_like(begins[:1], mask.numel())
        offsets = torch.stack((begins, begins + starts, begins + starts + lengths), 1)
        return cls(starts, lengths, torch.cat((offsets.flatten(), ends)))


def as_one_row(x: Tensor) -> Tensor:
    """[B,T,...] as [1,B*T,...], as the ops take packed sequences."""
    return x.flatten(0, 1).unsqueeze(0)


def checked_sequences(cu_seqlens: Tensor | None, *others: object) -> Tensor | None:
    if cu_seqlens is not None and any(other is not None for other in others):
        raise ValueError("[nn] cu_seqlens must be alone: not beside attention_mask, position_ids or cache")
    return cu_seqlens
