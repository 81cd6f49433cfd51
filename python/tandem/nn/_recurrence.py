"""Gated linear attention of rows with padding, of packed sequences and behind a cache."""

import torch
from torch import Tensor

import tandem.ops
from tandem.nn.caches import StateCache
from tandem.nn.padding import Padding, as_one_row


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
    if cache is not None:
        cache.check(q, k, v)
        cache.advance(q.shape[1], padding)
        if q.shape[1] == 1 and padding is None:
            return tandem.ops.gla_step(q, k, v, log_decay, cache.state, scale=scale)
    state, shape = None if cache is None else cache.state.float(), v.shape
    if padding is not None:
        cu_seqlens = padding.cu_seqlens
        q, k, v = map(as_one_row, (q, k, v))
        log_decay = log_decay if log_decay.dim() == 1 else as_one_row(log_decay)
        # Sequences of padding begin with zeros, and their states are dropped.
        if state is not None:
            nothing = torch.zeros_like(state)
            state = torch.stack((nothing, state, nothing), 1).flatten(0, 1)
    options = {"initial_state": state, "output_final_state": cache is not None, "cu_seqlens": cu_seqlens}
    o, state = tandem.ops.gla(q, k, v, log_decay, scale=scale, **options)
    if cache is not None:
        cache.state.copy_(state if padding is None else state[1::3])
    return o.view(shape)
