"""Sequences longer than one device: the recurrences over a group of ranks, each with a contiguous part of time.

A recurrence does one thing to what comes before a part: it multiplies the state by the part's decay and adds the state
that the part leaves by itself. So ranks pass states, however long the parts are::

    C_0 = initial_state or 0            C_{r+1} = A_r C_r + S_r         state before the part of rank r + 1
    dC_n = gradient by the final state  dC_r = A_r dC_{r+1} + D_r       gradient by it

with A_r, the product of the part's decays, S_r, its end state from 0, and D_r, what its outputs add to the gradient by
the state before it. One all-gather in the forward (S and A), one in the backward (D), both in fp32 and combined in the
order of ranks on every rank: the same bits on every run, and no wait for the device beyond the group's own.

Every rank of the group calls, with tensors of the same axes but time, of which it may have none; and every rank calls
``backward()``, or none. Parameters' gradients (weight, a constant decay) are those of the rank's own tokens, to be
summed as DDP and FSDP sum all others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from tandem import ops
from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, refuse, scan_decay

__all__ = ["gated_scan", "gla", "linear_scan", "part"]


def part(tokens: int, group: dist.ProcessGroup | None = None) -> slice:
    """This rank's part of so many tokens: contiguous, in the order of ranks, equal to within one.

    Example::

        q, k, v = (x[:, part] for x in (q, k, v))
        o, _ = tandem.distributed.gla(q, k, v, cu_seqlens=cu_seqlens, start=part.start)
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    return slice(tokens * rank // ranks, tokens * (rank + 1) // ranks)


@closed
def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    start: int | None = None,
    group: dist.ProcessGroup | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor | None]:
    """:func:`tandem.ops.gla` of a sequence over a group, each rank with the next part of it.

    Args:
        q, k, v, log_decay, scale: as in :func:`tandem.ops.gla`, of this rank's tokens; T differs between ranks as it
            likes.
        initial_state: counts on the group's first rank, of packed sequences on the rank that has a sequence's first
            token.
        output_final_state: whether to return the state after this rank's part, which on the last rank is that after
            the sequence; of packed sequences on the rank that has a sequence's last token.
        cu_seqlens: int32 or int64 [N+1], the same on all ranks: boundaries among all ranks' tokens. Needs B = 1.
        start: the number of tokens on the ranks before this one (``part(...).start``), which cu_seqlens needs.
        group: None is the default group.

    Returns:
        o [B,T,H,V] of this rank's tokens, and the state or None, as :func:`tandem.ops.gla` returns them.

    Differentiable in what :func:`tandem.ops.gla` is, once; keeps the state before the part. Raises what
    :func:`tandem.ops.gla` raises; where one rank alone raises, the others wait for it as in any collective.
    """
    if others:
        refuse("gla", others)
    q, k, v = autocast(q, k, v)
    parts = _Parts("gla", v, cu_seqlens, start, group)
    pieces = 1 if parts.ranks == 1 or cu_seqlens is not None else _pieces(q, k, v, log_decay)
    if pieces > 1:
        q, k, v = (_cut(x, pieces) for x in (q, k, v))
        log_decay = log_decay if log_decay is None or log_decay.dim() == 1 else _cut(log_decay, pieces)
    call = partial(ops.gla, q, k, v, log_decay, scale=scale, cu_seqlens=parts.cu_seqlens)

    def end_state() -> tuple[Tensor, Tensor]:
        state, total = ops.gla_state(k, v, log_decay, cu_seqlens=parts.cu_seqlens)
        return state, total.exp()[..., None, None]

    def by_state_before(d_o: Tensor, q: Tensor, log_decay: Tensor | None) -> Tensor:
        return ops.gla_state_backward(q, d_o, log_decay, scale=scale, cu_seqlens=parts.cu_seqlens)[0]

    recurrence = _Recurrence(parts, call, end_state, by_state_before, (q, log_decay), pieces)
    return recurrence.run(initial_state, output_final_state)


@closed
def gated_scan(
    x: Tensor,
    *,
    decay: Tensor | None = None,
    log_decay: Tensor | None = None,
    gate: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    start: int | None = None,
    group: dist.ProcessGroup | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor | None]:
    """:func:`tandem.ops.gated_scan` of a sequence over a group, each rank with the next part of it.

    Args: those of :func:`tandem.ops.gated_scan`, of this rank's tokens; initial_state, output_final_state, cu_seqlens,
    start and group as in :func:`gla`. Where the state before the part still counts, out is rounded twice to its dtype.
    Of packed sequences two scans more find the state that the part leaves and the product of its decays.
    """
    if others:
        refuse("gated_scan", others)
    x, gate = autocast(x, gate)
    parts = _Parts("gated_scan", x, cu_seqlens, start, group)
    if parts.ranks > 1 and parts.cu_seqlens is None:
        if isinstance(x, Tensor):
            parts.check_state(initial_state, [*x.shape[:1], *x.shape[2:]])
        given = (x, scan_decay(x, decay), scan_decay(x, log_decay), gate, initial_state)
        out, final_state = _CarriedScan.apply(parts, *given)
        return out, final_state if output_final_state else None
    return _scan(parts, partial(ops.gated_scan, x), decay, log_decay, gate, initial_state, output_final_state)


@closed
def linear_scan(
    u: Tensor,
    weight: Tensor,
    *,
    decay: Tensor | None = None,
    log_decay: Tensor | None = None,
    gate: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    start: int | None = None,
    group: dist.ProcessGroup | None = None,
    **others: NoReturn,
) -> tuple[Tensor, Tensor | None]:
    """:func:`tandem.ops.linear_scan` of a sequence over a group, each rank with the next part of it.

    Args: those of :func:`tandem.ops.linear_scan`, of this rank's tokens; initial_state, output_final_state, cu_seqlens,
    start and group as in :func:`gla`. Two scans more find the state that the part leaves and the product of its decays.
    """
    if others:
        refuse("linear_scan", others)
    u, weight, gate = autocast(u, weight, gate)
    parts = _Parts("linear_scan", u, cu_seqlens, start, group)
    return _scan(parts, partial(ops.linear_scan, u, weight), decay, log_decay, gate, initial_state, output_final_state)


def _scan(
    parts: "_Parts",
    op: Callable[..., Any],
    decay: Tensor | None,
    log_decay: Tensor | None,
    gate: Tensor | None,
    initial_state: Tensor | None,
    output_final_state: bool,
) -> tuple[Tensor, Tensor | None]:
    decays: dict[str, Any] = {"decay": decay, "log_decay": log_decay, "cu_seqlens": parts.cu_seqlens}

    def end_state() -> tuple[Tensor, Tensor]:
        out, state = op(**decays, output_final_state=True)
        # The product of the decays is what they make of 1.
        ones, nothing = torch.ones_like(state), torch.zeros_like(out)
        _, factor = ops.gated_scan(nothing, **decays, initial_state=ones, output_final_state=True)
        return state, factor

    def by_state_before(d_out: Tensor, decay: Tensor | None, log_decay: Tensor | None, gate: Tensor | None) -> Tensor:
        shape = (d_out.size(0) if parts.cu_seqlens is None else parts.cu_seqlens.numel() - 1, d_out.size(2))
        dtype = torch.float64 if d_out.dtype == torch.float64 else torch.float32
        begin = d_out.new_zeros(shape, dtype=dtype)  # the gradient by it does not depend on it, nor on x
        given = (d_out, scan_decay(d_out, decay), scan_decay(d_out, log_decay), gate, begin, parts.cu_seqlens, d_out)
        *_, d_begin = OPS["gated_scan_backward"](*given, None, None, False, False, False, True)
        return d_begin

    call = partial(op, **decays, gate=gate)
    recurrence = _Recurrence(parts, call, end_state, by_state_before, (decay, log_decay, gate))
    return recurrence.run(initial_state, output_final_state)


class _CarriedScan(torch.autograd.Function):
    """gated_scan without packed sequences. Each rank scans its part once, as if nothing was before it, and adds what
    the state from the ranks in front gives as soon as that is there. Between the ranks it is a scan again, with a part
    for a token."""

    @staticmethod
    def forward(
        ctx: Any,
        parts: "_Parts",
        x: Tensor,
        decay: Tensor | None,
        log_decay: Tensor | None,
        gate: Tensor | None,
        initial_state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        begin = initial_state if parts.rank == 0 else None
        out, state, _ = OPS["gated_scan_forward"](x, decay, log_decay, gate, begin, True, None, False)
        before, factor = OPS["gated_scan_decay"](log_decay if decay is None else decay, float(decay is None))
        states, factors = parts.gathered(torch.stack((state, factor))).transpose(0, 2).unbind(1)  # [B,ranks,D] each
        after, *_ = OPS["gated_scan_forward"](states, factors, None, None, None, False, None, False)
        if parts.rank > 0:
            begin = after[:, parts.rank - 1].contiguous()
            OPS["gated_scan_carry"](out, decay, log_decay, gate, before, begin)
        ctx.parts = parts
        ctx.save_for_backward(x, decay, log_decay, gate, begin, factors, before if parts.rank > 0 else None)
        return out, after[:, parts.rank].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_final_state: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.parts
        *inputs, factors, before = ctx.saved_tensors
        call = partial(OPS["gated_scan_backward"], *inputs, None, d_out)
        if parts.rank > 0:
            _, d_carry = OPS["gated_scan_carry_backward"](d_out, *inputs[1:4], before)
            d_state = _joined(d_carry, factors[:, parts.rank], d_final_state)
        else:  # nobody is in front
            d_state = torch.zeros_like(d_final_state)
        d_states = parts.gathered(d_state).transpose(0, 1)[:, parts.rank + 1 :]
        if d_states.size(1) > 0:
            # A scan's gradient by its x. why these factors: token t's decay is that of the part before it.
            given = (d_states, factors[:, parts.rank : -1], None, None, None, None, d_states, None, None)
            d_behind, *_ = OPS["gated_scan_backward"](*given, True, False, False, False)
            d_final_state = d_final_state + d_behind[:, 0]
        _, by_x, by_decay, by_log_decay, by_gate, by_state = ctx.needs_input_grad
        wants = (by_x, by_decay or by_log_decay, by_gate, by_state and parts.rank == 0)
        states = None  # what a forward keeps does not know of the state in front
        dx, d_decay, d_gate, d_initial_state = call(d_final_state, states, *wants)
        return None, dx, d_decay if by_decay else None, d_decay if by_log_decay else None, d_gate, d_initial_state


class _Parts:
    """Where this rank's tokens lie: among the ranks, and among packed sequences, of which one at most crosses the
    border on either side. Nothing is read on the host."""

    def __init__(
        self, op: str, first: Any, cu_seqlens: Tensor | None, start: int | None, group: dist.ProcessGroup | None
    ) -> None:
        self.op = op
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.cu_seqlens = cu_seqlens
        if cu_seqlens is not None and (not isinstance(start, int) or start < 0):
            raise ValueError(f"[{op}] start must be the number of tokens before this rank's, got {start}")
        if not isinstance(cu_seqlens, Tensor) or not isinstance(first, Tensor) or first.dim() < 2:
            return  # without sequences, or refused by the op
        stop = start + first.size(1)
        begins, ends = cu_seqlens[:-1], cu_seqlens[1:]
        self.cu_seqlens = (cu_seqlens - start).clamp(0, stop - start)
        self.crosses_in = (begins < start) & (start < ends)
        self.crosses_out = (begins < stop) & (stop < ends)
        self.crosses_both = (self.crosses_in & self.crosses_out).any()

    def crossing(self, values: Tensor, crosses: Tensor) -> Tensor:
        """Of packed sequences' values, [N,...], those of the one that crosses a border, [1,...]; 0 without one."""
        one = values.index_select(0, crosses.int().argmax(0, keepdim=True))
        return torch.where(crosses.any(), one, 0)

    def leaving(self, state: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        """What the ranks behind see of the part: its end state, and the factor of what was before it."""
        if self.cu_seqlens is None:
            return state, factor
        through = torch.where(self.crosses_both, self.crossing(factor, self.crosses_out), 0)
        return self.crossing(state, self.crosses_out), through

    def entering(self, d_state: Tensor) -> Tensor:
        """What the ranks in front see of the gradient by the states before the part."""
        return d_state if self.cu_seqlens is None else self.crossing(d_state, self.crosses_in)

    def begin(self, carry: Tensor, initial_state: Tensor | None) -> Tensor:
        """The states that the part begins with: initial_state where a sequence does, else what ranks in front left."""
        if self.cu_seqlens is None:
            return carry if self.rank > 0 or initial_state is None else initial_state
        return torch.where(_like(self.crosses_in, carry), carry, 0 if initial_state is None else initial_state)

    def end(self, d_carry: Tensor) -> Tensor:
        """The gradient by the states that the part ends with, by what it adds to that of the ranks behind."""
        return d_carry if self.cu_seqlens is None else torch.where(_like(self.crosses_out, d_carry), d_carry, 0)

    def gather(self, *tensors: Tensor) -> list[list[Tensor]]:
        """All ranks' tensors: for each given one a list by rank."""
        by_rank = [
            [piece.view_as(x) for piece, x in zip(row.split([x.numel() for x in tensors]), tensors, strict=True)]
            for row in self.gathered(torch.cat([x.flatten() for x in tensors]))
        ]
        return [list(of_ranks) for of_ranks in zip(*by_rank, strict=True)]

    def gathered(self, mine: Tensor) -> Tensor:
        """All ranks' tensors, along an axis in front."""
        everyone = mine.new_empty(self.ranks * mine.numel())
        dist.all_gather_into_tensor(everyone, mine.flatten(), group=self.group)
        return everyone.view(self.ranks, *mine.shape)

    def check_state(self, initial_state: Any, shape: Sequence[int]) -> None:
        if isinstance(initial_state, Tensor) and list(initial_state.shape) != list(shape):
            got = list(initial_state.shape)
            raise ValueError(f"[{self.op}] initial_state must have shape {list(shape)}, got {got}")


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (values.dim() - 1))


def _joined(added: Tensor, factor: Tensor, state: Tensor, forgets: Tensor | None = None) -> Tensor:
    """What a decay leaves of a state, and what is added. why not the product alone: a decay of 0 forgets NaN and
    inf, too. `forgets` is factor == 0."""
    return torch.addcmul(added, factor, torch.where(factor == 0 if forgets is None else forgets, 0, state))


def _combine(states: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor | int:
    """The state behind parts that begin with none."""
    carry: Tensor | int = 0
    for state, factor in zip(states, factors, strict=True):
        carry = state if isinstance(carry, int) else _joined(state, factor, carry)
    return carry


_FEWEST_TOKENS = 512  # of a piece, or what pieces pass takes longer than they do


def _pieces(q: Any, k: Any, v: Any, log_decay: Any) -> int:
    """Into how many pieces a part is cut, so that its few heads fill a GPU. Their states are needed then, and the
    part's follows from them: nothing is read twice for what the ranks exchange."""
    tensors = [x for x in (q, k, v, log_decay) if isinstance(x, Tensor) and x.dim() > 1]
    if len(tensors) < 3 or any(x.dim() < 3 for x in tensors) or v.device.type != "cuda":
        return 1
    B, T, H, V = v.shape
    one_view = all(B == 1 or x.stride(0) == T * x.stride(1) for x in tensors)
    if not one_view or B * T * H == 0 or any(x.shape[:2] != v.shape[:2] for x in tensors):
        return 1  # or refused by the op
    walks = B * H * -(-V // 128)
    multiprocessors = torch.cuda.get_device_properties(v.device).multi_processor_count
    most = min(multiprocessors // walks, T // _FEWEST_TOKENS)
    return next((pieces for pieces in range(most, 1, -1) if T % pieces == 0), 1)


def _cut(x: Tensor, pieces: int) -> Tensor:
    """[B,T,...] as [B * pieces, T / pieces, ...]."""
    return x.unflatten(1, (pieces, x.size(1) // pieces)).flatten(0, 1)


class _Passed(NamedTuple):
    """What pieces one behind the other make of a state: factor * state + added before each and behind the last."""

    factors: Tensor  # [B,pieces,...]
    added: Tensor
    factor: Tensor  # [B,...]
    end: Tensor

    @staticmethod
    def of(states: Tensor, factors: Tensor, pieces: int, reverse: bool = False) -> "_Passed":
        """By what each piece adds and keeps, [B * pieces,...]; in reverse from the last one on."""
        added, kept = (x.unflatten(0, (-1, pieces)) for x in (states, factors))
        if reverse:
            added, kept = added.flip(1), kept.flip(1)
        through = torch.cat([torch.ones_like(kept[:, :1]), kept], 1).cumprod(1)
        before = [torch.zeros_like(added[:, 0])]
        for state, factor, forgets in zip(*(x.unbind(1) for x in (added, kept, kept == 0)), strict=True):
            before.append(_joined(state, factor, before[-1], forgets))
        end, factor = before.pop(), through[:, -1]
        through, all_before = through[:, :-1], torch.stack(before, 1)
        if reverse:
            through, all_before = through.flip(1), all_before.flip(1)
        return _Passed(through, all_before, factor, end)

    def before(self, begin: Tensor) -> Tensor:
        """The states before the pieces, [B * pieces,...], where that before the first is `begin`."""
        if self.factors.size(1) == 1:
            return begin
        return _joined(self.added, self.factors, begin[:, None]).flatten(0, 1)

    def behind(self, begin: Tensor) -> Tensor:
        return _joined(self.end, self.factor, begin)


class _Recurrence(NamedTuple):
    """An op on this rank's part."""

    parts: _Parts
    call: Callable[..., tuple[Tensor, Tensor]]  # takes initial_state and output_final_state
    end_state: Callable[[], tuple[Tensor, Tensor]]  # from 0, and the product of decays; by sequence or piece
    # Of the gradient by the outputs and of `saved`: what it adds to that by the states before.
    by_state_before: Callable[..., Tensor]
    saved: tuple[Tensor | None, ...]
    pieces: int = 1  # that the op takes the part in, as more sequences

    def run(self, initial_state: Tensor | None, output_final_state: bool) -> tuple[Tensor, Tensor | None]:
        parts = self.parts
        if parts.ranks == 1:
            return self.call(initial_state=initial_state, output_final_state=output_final_state)
        with torch.no_grad():
            states, factors = self.end_state()
            shape = (states.size(0) // self.pieces, *states.shape[1:])
            parts.check_state(initial_state, shape)
            nothing = states.new_zeros(shape)
            passed = _Passed.of(states, factors, self.pieces)
            end = passed.behind(parts.begin(nothing, initial_state))
            end_of_rank, factor_of_rank = parts.gather(*parts.leaving(end, passed.factor))
            carry = _combine(end_of_rank[: parts.rank], factor_of_rank[: parts.rank])
        begin = parts.begin(carry + nothing, initial_state)
        before = self.before_pieces(passed, begin)
        out, final_states = self.call(initial_state=before, output_final_state=True)
        out, final_state = _Joined.apply(self, factors, factor_of_rank, out, final_states, *self.saved)
        return out, final_state if output_final_state else None

    def before_pieces(self, passed: _Passed, begin: Tensor) -> Tensor:
        """The states before every piece; the first one's alone has a gradient here, the others' are `_Joined`'s."""
        with torch.no_grad():
            before = passed.before(begin)
        if not begin.requires_grad:
            return before
        rest = before.unflatten(0, (-1, self.pieces))[:, 1:]
        return torch.cat([begin[:, None], rest], 1).flatten(0, 1)


class _Joined(torch.autograd.Function):
    """The outputs as they are, of pieces one behind the other. In the backward the gradients by the states behind
    pieces get what the pieces and ranks behind add."""

    @staticmethod
    def forward(
        ctx: Any,
        recurrence: _Recurrence,
        factors: Tensor,
        factor_of_rank: list[Tensor],
        out: Tensor,
        final_states: Tensor,
        *saved: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.parts, ctx.by_state_before = recurrence.parts, recurrence.by_state_before
        ctx.pieces, ctx.factors, ctx.factor_of_rank = recurrence.pieces, factors, factor_of_rank
        ctx.save_for_backward(*saved)
        if ctx.pieces == 1:
            return out.view_as(out), final_states.view_as(final_states)
        out = out.unflatten(0, (-1, ctx.pieces)).flatten(1, 2)
        return out, final_states.unflatten(0, (-1, ctx.pieces))[:, -1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_final_state: Tensor) -> tuple[Tensor | None, ...]:
        parts, pieces = ctx.parts, ctx.pieces
        d_out = _cut(d_out, pieces) if pieces > 1 else d_out
        d_states = ctx.by_state_before(d_out, *ctx.saved_tensors)
        passed = _Passed.of(d_states, ctx.factors, pieces, reverse=True)
        (d_begins,) = parts.gather(parts.entering(passed.behind(d_final_state)))
        behind = slice(-1, parts.rank, -1)
        d_carry = _combine(d_begins[behind], ctx.factor_of_rank[behind]) + torch.zeros_like(d_begins[0])
        d_final_states = passed.before(d_final_state + parts.end(d_carry))
        return None, None, None, d_out, d_final_states, *[None] * len(ctx.saved_tensors)
