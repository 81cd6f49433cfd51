"""Ops along time, over rows with padding, over packed sequences and behind a cache."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import tandem.ops
from tandem.nn.caches import StateCache
from tandem.nn.padding import Padding, as_one_row


def along_time(
    op: Callable[..., tuple[Tensor, Tensor | None]],
    inputs: tuple[Tensor, ...],
    state: Tensor | None,
    padding: Padding | None,
    cu_seqlens: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """out [B,T,...] of op(*inputs, initial_state=, output_final_state=, cu_seqlens=), inputs [B,T,...]. A state [B,...]
    is that of each row, which the op takes in this dtype; it is overwritten with the final one."""
    B, T = inputs[0].shape[:2]
    initial = None if state is None else state.to(dtype)
    if padding is not None:
        cu_seqlens = padding.cu_seqlens
        inputs = tuple(map(as_one_row, inputs))
        # Sequences of padding begin with zeros, and their states are dropped.
        if initial is not None:
            nothing = torch.zeros_like(initial)
            initial = torch.stack((nothing, initial, nothing), 1).flatten(0, 1)
    options = {"initial_state": initial, "output_final_state": state is not None, "cu_seqlens": cu_seqlens}
    out, final = op(*inputs, **options)
    if state is not None:
        state.copy_(final if padding is None else final[1::3])
    return out.view(B, T, *out.shape[2:])


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    *,
    scale: float | None = None,
    padding: Padding | None = None,
    cu_seqlens: Tensor | None = None,
    cache: StateCache | None = None,
) -> Tensor:
    """o [B,T,H,V] of :func:`tandem.ops.gla`: q and k [B,T,HQ,K], v [B,T,H,V], log_decay [B,T,H] or [H]."""
    state = _state_of(cache, (q, k, v), padding)
    if state is not None and q.shape[1] == 1 and padding is None:
        return tandem.ops.gla_step(q, k, v, log_decay, state, scale=scale)
    constant, of_each_token = ((log_decay,), ()) if log_decay.dim() == 1 else ((), (log_decay,))

    def op(*inputs: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        return tandem.ops.gla(*inputs, *constant, scale=scale, **options)

    return along_time(op, (q, k, v, *of_each_token), state, padding, cu_seqlens)


def scan(
    x: Tensor,
    log_decay: Tensor,
    *,
    padding: Padding | None = None,
    cu_seqlens: Tensor | None = None,
    cache: StateCache | None = None,
) -> Tensor:
    """out [B,T,D] of :func:`tandem.ops.gated_scan`: x and log_decay [B,T,D]."""

    def op(x: Tensor, log_decay: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        return tandem.ops.gated_scan(x, log_decay=log_decay, **options)

    return along_time(op, (x, log_decay), _state_of(cache, (x, log_decay), padding), padding, cu_seqlens)


def _state_of(cache: StateCache | None, inputs: tuple[Tensor, ...], padding: Padding | None) -> Tensor | None:
    """The state behind which the inputs come, which are counted."""
    if cache is None:
        return None
    cache.check(*inputs)
    cache.advance(inputs[0].shape[1], padding)
    return cache.state
