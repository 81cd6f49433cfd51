"""What a state before a gated scan's first token adds to its outputs, once they are there: for sequences in parts, each
of which is scanned without waiting for the one in front."""

from typing import NoReturn

import torch
from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import closed, refuse, scan_decay, widened


@closed
def gated_scan_decay(
    *, decay: Tensor | None = None, log_decay: Tensor | None = None, **others: NoReturn
) -> tuple[Tensor, Tensor]:
    """The products of a gated scan's decays over time, which a state before its first token is multiplied by::

        before_c = a_1 a_2 ... a_{64 c}     before each chunk of 64 tokens
        total = a_1 a_2 ... a_T             the final state is total * (the state before) + what tokens leave

    Args:
        decay: a, [B,T,D], bf16, fp16 or fp32, on the CPU also fp64. 0 makes a product 0, whatever was before it.
            Exactly one of decay and log_decay must be given.
        log_decay: the natural logarithm of a instead, likewise.

    Returns:
        before [B,ceil(T/64),D] and total [B,D], fp32 (of fp64 fp64). They have no gradient.

    Raises what :func:`tandem.ops.gated_scan` raises. For an example see :func:`gated_scan_carry`.
    """
    if others:
        refuse("gated_scan_decay", others)
    if (decay is None) == (log_decay is None):
        got = "neither" if decay is None else "both"
        raise ValueError(f"[gated_scan_decay] exactly one of decay and log_decay must be given, got {got}")
    given = log_decay if decay is None else decay
    half = isinstance(given, Tensor) and given.dtype in (torch.bfloat16, torch.float16)
    before, total = OPS["gated_scan_decay"](given if half else widened(given, given), float(decay is None))
    return before, total


@closed
def gated_scan_carry(
    out: Tensor,
    carry: Tensor,
    before: Tensor,
    *,
    decay: Tensor | None = None,
    log_decay: Tensor | None = None,
    gate: Tensor | None = None,
    **others: NoReturn,
) -> None:
    """Adds to the outputs of :func:`tandem.ops.gated_scan` without an initial state what one gives, in place::

        out_t += silu(gate_t) (a_1 a_2 ... a_t) carry

    Costs next to nothing where decays die out: only chunks that something of the carry reaches are read and written.
    ``out`` is rounded once more there.

    Args:
        out: [B,T,D], bf16, fp16 or fp32, on the CPU also fp64; innermost stride 1.
        carry: fp32 [B,D], the state before the first token; of fp64 fp64, as before.
        before: what :func:`gated_scan_decay` returned of the same decays.
        decay, log_decay, gate: as in :func:`tandem.ops.gated_scan`, the same as there.

    Raises what :func:`tandem.ops.gated_scan` raises. Also NotImplementedError where a gradient would be needed, and
    under torch.func's transforms: there is none.

    Example, a sequence in two parts that are scanned at the same time::

        >>> import torch
        >>> import tandem
        >>> x, gate = torch.randn(2, 1, 500, 64).unbind()
        >>> g = -torch.rand(1, 500, 64)
        >>> a, b = slice(0, 200), slice(200, 500)
        >>> _, carry = tandem.ops.gated_scan(x[:, a], log_decay=g[:, a], output_final_state=True)
        >>> out, state = tandem.ops.gated_scan(x[:, b], log_decay=g[:, b], gate=gate[:, b], output_final_state=True)
        >>> before, total = tandem.ops.gated_scan_decay(log_decay=g[:, b])
        >>> tandem.ops.gated_scan_carry(out, carry, before, log_decay=g[:, b], gate=gate[:, b])
        >>> whole, final_state = tandem.ops.gated_scan(x, log_decay=g, gate=gate, output_final_state=True)
        >>> torch.allclose(out, whole[:, b], atol=1e-5), torch.allclose(total * carry + state, final_state, atol=1e-5)
        (True, True)
    """
    if others:
        refuse("gated_scan_carry", others)
    OPS["gated_scan_carry"](out, scan_decay(out, decay), scan_decay(out, log_decay), gate, before, carry)


@closed
def gated_scan_carry_backward(
    d_out: Tensor,
    before: Tensor,
    *,
    decay: Tensor | None = None,
    log_decay: Tensor | None = None,
    gate: Tensor | None = None,
    **others: NoReturn,
) -> Tensor:
    """What outputs of a gated scan add to the gradient by the state before their first token::

        d_carry = sum_t (a_1 a_2 ... a_t) silu(gate_t) d_out_t

    The counterpart of :func:`gated_scan_carry` in the backward pass: the gradient by the state before a part is
    total * (the gradient by the state behind it) + d_carry. Costs next to nothing where decays die out, likewise.

    Args:
        d_out: [B,T,D], the loss's gradient by out; bf16, fp16 or fp32, on the CPU also fp64.
        before: what :func:`gated_scan_decay` returned of the same decays.
        decay, log_decay, gate: as in :func:`tandem.ops.gated_scan`, the same as there.

    Returns:
        d_carry [B,D], fp32 (of fp64 fp64). Behind a decay of 0 nothing adds to it, whatever d_out is.

    Raises what :func:`tandem.ops.gated_scan` raises. Also NotImplementedError from ``backward()``: it has no gradient.

    Example::

        >>> import torch
        >>> import tandem
        >>> x, gate, d_out = torch.randn(3, 1, 300, 64).unbind()
        >>> g, state = -torch.rand(1, 300, 64), torch.zeros(1, 64, requires_grad=True)
        >>> before, total = tandem.ops.gated_scan_decay(log_decay=g)
        >>> d_carry = tandem.ops.gated_scan_carry_backward(d_out, before, log_decay=g, gate=gate)
        >>> out, final_state = tandem.ops.gated_scan(
        ...     x, log_decay=g, gate=gate, initial_state=state, output_final_state=True
        ... )
        >>> (d_state,) = torch.autograd.grad([out, final_state], state, [d_out, torch.ones_like(state)])
        >>> torch.allclose(d_carry + total, d_state, atol=1e-5)
        True
    """
    if others:
        refuse("gated_scan_carry_backward", others)
    decays = scan_decay(d_out, decay), scan_decay(d_out, log_decay)
    _, d_carry = OPS["gated_scan_carry_backward"](d_out, *decays, gate, before)
    return d_carry
