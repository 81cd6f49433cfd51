"""Gated linear attention with a scalar decay per head."""

from typing import NoReturn

from torch import Tensor

from tandem._registration import OPS
from tandem.ops._shared import autocast, closed, is_any_autocast_enabled, refuse, wants_gradient

_call = OPS["gla_forward"].__call__  # by its type's slot it takes 0.2 us longer


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
    save_states: bool = False,
    **others: NoReturn,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention: a linear recurrence over time with a state [K,V] per head::

        S_t = exp(g_t) S_{t-1} + k_t v_t^T      S_0 = initial_state or 0
        o_t = scale * q_t^T S_t

    Simple GLA, RetNet, lightning attention (a constant decay per head) and Mamba-2's SSD (q = C, k = B,
    v = x * dt, log_decay = dt * A) are this op. The arguments mean what they do in fla's ``chunk_simple_gla``.

    Axes: B batch, T time, HQ query and key heads, H value heads (HQ divides H; head h reads query and key head
    h / (H/HQ)), K key dim, V value dim, N sequences. All tensors are on one device.

    Args:
        q: [B,T,HQ,K], bf16 or fp16, on the CPU also fp32 and fp64. With fp64, which is slow and meant for
            ``torch.autograd.gradcheck``, what is fp32 below is fp64, arithmetic included.
        k: [B,T,HQ,K], as q.
        v: [B,T,H,V], as q. Strides of q, k and v are free: they are read where they are, at full speed when
            bases and strides are multiples of 16 bytes. A copy is made for an innermost stride other than 1 and,
            on a GPU, of 1 MB or more whose base or strides are not such multiples, or whose stride is 0.
        log_decay: g, the natural logarithm of the decay, [H] (constant per head) or [B,T,H] (per token);
            None is no decay. Taken as fp32; other floating dtypes are converted. -inf forgets everything before
            the token, exactly; positive values grow the state.
        scale: factor of the output, K^-0.5 when None.
        initial_state: fp32 [B,H,K,V], or [N,H,K,V] with cu_seqlens. None is zero. Not written to.
        output_final_state: whether to return the state after the last token.
        cu_seqlens: int32 or int64 [N+1], needs B = 1: sequence n is the tokens [cu_seqlens[n],
            cu_seqlens[n+1]). Sequences may be empty; tokens outside of all give o = 0. The values are checked on
            the CPU only; on a GPU they are clamped to [0,T], because nothing in a call waits for the GPU.
        save_states: whether to keep the states before every 128th token for ``backward()``, which then does not make
            them again. On a GPU with K, V <= 128 training is faster, for B H K V ceil(T / 128) numbers of q's dtype,
            K / 128 of v's memory, in each layer. Results are the same but for the last bits. Without effect where
            nothing requires a gradient; not with cu_seqlens.

    Returns:
        o [B,T,H,V] in v's dtype, contiguous, and the final state, fp32 [B,H,K,V] (with cu_seqlens [N,H,K,V]), or
        None without output_final_state.

    Differentiable in q, k, v, log_decay and initial_state, once; what does not require a gradient costs none.
    Gradients have their tensor's dtype, that of log_decay is 0 where it is -inf. That of a constant decay is the sum of
    its tokens' gradients, in which errors within a chunk add up: in bf16 at T = 1024 it is 1 to 5 percent off
    (relative RMS). scale has none.

    Forward mode has tangents of q, of k and initial_state, and of v and initial_state.

    Under autocast q, k and v are cast to its dtype; log_decay and the state stay fp32. fp64 stays fp64.

    Raises:
        TypeError: an argument is no tensor, or unknown.
        ValueError: a shape, dtype, device or value breaks the above.
        NotImplementedError: nothing here can run it: no kernel for this GPU or these widths, a build without
            CUDA. From ``backward()`` too (on a GPU it takes V up to 512, the forward more), and for other tangents
            and second derivatives everywhere.
        RuntimeError: CUDA failed.

    Example, one sequence in two pieces::

        >>> import torch
        >>> import tandem
        >>> B, T, H, K, V = 2, 100, 4, 64, 32
        >>> q, k = torch.randn(2, B, T, H, K, dtype=torch.bfloat16).unbind()
        >>> v = torch.randn(B, T, H, V, dtype=torch.bfloat16)
        >>> g = torch.nn.functional.logsigmoid(torch.randn(B, T, H)) / 16
        >>> o, state = tandem.ops.gla(q, k, v, g, output_final_state=True)
        >>> o.shape, o.dtype, state.shape, state.dtype
        (torch.Size([2, 100, 4, 32]), torch.bfloat16, torch.Size([2, 4, 64, 32]), torch.float32)
        >>> a, b = slice(0, 60), slice(60, T)
        >>> _, middle = tandem.ops.gla(q[:, a], k[:, a], v[:, a], g[:, a], output_final_state=True)
        >>> rest, _ = tandem.ops.gla(q[:, b], k[:, b], v[:, b], g[:, b], initial_state=middle)
        >>> torch.allclose(rest.float(), o[:, b].float(), rtol=0.02, atol=0.02)
        True
    """
    if others:
        refuse("gla", others)
    if is_any_autocast_enabled():
        q, k, v = autocast(q, k, v)
    saves = save_states and wants_gradient(q, k, v, log_decay, initial_state)
    o, final_state, _ = _call(q, k, v, log_decay, scale, initial_state, output_final_state, cu_seqlens, saves)
    return o, final_state
