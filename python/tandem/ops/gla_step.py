"""One token of gated linear attention, for decoding."""

from typing import Any, NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, is_any_autocast_enabled, needs_more_than_a_kernel, refuse

_directly = OPS["gla_step"].run_directly


@closed
def gla_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    state: Tensor | None = None,
    *,
    scale: float | None = None,
    **others: NoReturn,
) -> Tensor:
    """One token of :func:`tandem.ops.gla` per sequence; ``state`` is updated in place::

        state = exp(g) state + k v^T
        o = scale * q^T state

    Axes: B sequences, HQ query and key heads, H value heads (HQ divides H; head h reads query and key head
    h / (H/HQ)), K key dim, V value dim. All tensors are on one device.

    Args:
        q: [B,HQ,K], or [B,1,HQ,K] with the time axis of ``gla``; bf16 or fp16, on the CPU also fp32
            and fp64 (as in ``gla``: then all is).
        k: as q.
        v: [B,H,V] or [B,1,H,V], as q. Strides of q, k and v are free; only an innermost stride other than 1 makes
            a copy.
        log_decay: g, the natural logarithm of the decay, [H] (constant per head) or [B,H] or [B,1,H]; None is no
            decay. Taken as fp32; other floating dtypes are converted. -inf forgets the old state, exactly.
        state: [B,H,K,V], fp32 or bf16, required, overwritten with the new state: the final state of ``gla``, or zeros.
            Arithmetic is fp32 whatever it is stored as; bf16 halves the time and rounds at every token. Innermost
            stride 1, other strides free, so that it may be a slice of a larger cache; at full speed where they are
            multiples of 16 bytes.
        scale: factor of the output, K^-0.5 when None.

    Returns:
        o, of v's shape and dtype, contiguous.

    Under autocast q, k and v are cast to its dtype; log_decay and the state stay as they are.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or stride breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU, a build without CUDA. Also where a
            gradient would be needed, and under torch.func's transforms: there is none.
        RuntimeError: CUDA failed.

    Example, a prompt at once and then token by token::

        >>> import torch
        >>> import tandem
        >>> B, T, H, K, V = 2, 12, 4, 64, 32
        >>> q, k = torch.randn(2, B, T, H, K, dtype=torch.bfloat16).unbind()
        >>> v = torch.randn(B, T, H, V, dtype=torch.bfloat16)
        >>> g = torch.nn.functional.logsigmoid(torch.randn(B, T, H)) / 16
        >>> o, final_state = tandem.ops.gla(q, k, v, g, output_final_state=True)
        >>> _, state = tandem.ops.gla(q[:, :8], k[:, :8], v[:, :8], g[:, :8], output_final_state=True)
        >>> steps = [tandem.ops.gla_step(q[:, t], k[:, t], v[:, t], g[:, t], state) for t in range(8, T)]
        >>> torch.allclose(torch.stack(steps, 1).float(), o[:, 8:].float(), rtol=0.02, atol=0.02)
        True
        >>> torch.allclose(state, final_state, rtol=0.02, atol=0.02)
        True
    """
    if not (others or needs_more_than_a_kernel()):
        o: Any = _directly(q, k, v, log_decay, scale, state)
        if o is not None and o is not NotImplemented:
            return o
    if others:
        refuse("gla_step", others)
    if state is None or (isinstance(log_decay, Tensor) and log_decay.dim() == 4):
        raise TypeError("[gla_step] the order is gla_step(q, k, v, log_decay, state): log_decay before state")
    if is_any_autocast_enabled():
        q, k, v = autocast(q, k, v)
    # A time axis that is not of one token stays, and is refused with the shape that the caller gave.
    with_time = isinstance(v, Tensor) and v.dim() == 4 and v.size(1) == 1
    if with_time:
        q, k, v = (x.squeeze(1) if isinstance(x, Tensor) and x.dim() == 4 else x for x in (q, k, v))
        if isinstance(log_decay, Tensor) and log_decay.dim() == 3:
            log_decay = log_decay.squeeze(1)
    o = OPS["gla_step"](q, k, v, log_decay, scale, state)
    return o.unsqueeze(1) if with_time else o
