"""The fp64 definitions, as plain as the formula, and the measure of error."""

import itertools
import math

import torch


def gla(q, k, v, log_decay=None, *, scale=None, initial_state=None, cu_seqlens=None, **_):
    """o and the final state of tandem.ops.gla, in fp64, one token at a time."""
    B, T, HQ, K = q.shape
    H, V = v.shape[2:]
    scale = K**-0.5 if scale is None else scale
    q, k = (x.double().repeat_interleave(H // HQ, dim=2) for x in (q, k))
    v = v.double()
    decay = torch.ones(B, T, H, dtype=torch.float64, device=q.device)
    if log_decay is not None:
        decay = log_decay.double().exp().expand(B, T, H)
    offsets = cu_seqlens.tolist() if cu_seqlens is not None else None
    N = B if offsets is None else len(offsets) - 1
    state = torch.zeros(N, H, K, V, dtype=torch.float64, device=q.device)
    if initial_state is not None:
        state += initial_state
    o = torch.zeros(B, T, H, V, dtype=torch.float64, device=q.device)
    # (first sequence, one past the last, batch rows, first token, one past the last)
    pieces = [(0, B, slice(None), 0, T)]
    if offsets is not None:
        pieces = [(n, n + 1, slice(None), offsets[n], offsets[n + 1]) for n in range(N)]
    for first, last, rows, begin, end in pieces:
        S = state[first:last].clone()  # not a view, so that autograd can differentiate this
        for t in range(begin, end):
            S = decay[rows, t, :, None, None] * S + k[rows, t, :, :, None] * v[rows, t, :, None, :]
            o[rows, t] = scale * (q[rows, t, :, None, :] @ S).squeeze(-2)
        state[first:last] = S
    return o, state


def gated_scan(x, *, decay=None, log_decay=None, gate=None, initial_state=None, cu_seqlens=None, **_):
    """out and the final state of tandem.ops.gated_scan, in fp64, one token at a time."""
    B, T, D = x.shape
    a = (log_decay.double().exp() if decay is None else decay.double()).expand(B, T, D)
    offsets = cu_seqlens.tolist() if cu_seqlens is not None else None
    N = B if offsets is None else len(offsets) - 1
    states = torch.zeros(N, D, dtype=torch.float64) if initial_state is None else initial_state.double().clone()
    # (first sequence, one past the last, first token, one past the last)
    pieces = [(0, B, 0, T)] if offsets is None else [(n, n + 1, offsets[n], offsets[n + 1]) for n in range(N)]
    rows, ends = {}, []
    for first, last, begin, end in pieces:
        s = states[first:last]
        for t in range(begin, end):
            s = a[:, t] * s + x[:, t].double()
            rows[t] = s
        ends.append(s)
    zeros = torch.zeros(B, D, dtype=torch.float64)
    s = torch.stack([rows.get(t, zeros) for t in range(T)], dim=1) if T else zeros.new_zeros(B, 0, D)
    out = s if gate is None else torch.nn.functional.silu(gate.double()) * s
    return out, torch.cat(ends) if ends else states


def linear_scan(u, weight, **kwargs):
    """out and the final state of tandem.ops.linear_scan, in fp64."""
    return gated_scan(u.double() @ weight.double().T, **kwargs)


def causal_conv1d(x, weight, bias=None, *, activation=None, initial_state=None, cu_seqlens=None, **_):
    """out and the final state of tandem.ops.causal_conv1d, in fp64, one sequence at a time."""
    B, T, D = x.shape
    W = weight.size(1)
    # Batch, first token and one past the last of each sequence.
    spans = [(b, 0, T) for b in range(B)]
    if cu_seqlens is not None:
        spans = [(0, begin, end) for begin, end in itertools.pairwise(cu_seqlens.tolist())]
    out = torch.zeros(B, T, D, dtype=torch.float64, device=x.device)
    states = []
    for n, (b, begin, end) in enumerate(spans):
        before = x.new_zeros(W - 1, D) if initial_state is None else initial_state[n].T
        tokens = torch.cat((before.double(), x[b, begin:end].double()))
        states.append(tokens[len(tokens) - (W - 1) :].T)
        z = sum(weight[:, w].double() * tokens[w : w + end - begin] for w in range(W))
        z = z if bias is None else z + bias.double()
        out[b, begin:end] = z if activation is None else torch.nn.functional.silu(z)
    return out, torch.stack(states) if states else out.new_zeros(0, D, W - 1)


def attention(
    q,
    k,
    v,
    *,
    causal=False,
    window=None,
    scale=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    lengths_k=None,
    **_,
):
    """o and the log-sum-exp of tandem.ops.attention, in fp64."""
    B, TQ, H, K = q.shape
    TK, HKV, V = v.shape[1:]
    scale = K**-0.5 if scale is None else scale
    left, right = window or (None, None)
    right = 0 if causal else right
    o = torch.zeros(B, TQ, H, V, dtype=torch.float64)
    log_sum_exp = torch.full((B, H, TQ), -math.inf, dtype=torch.float64)
    # Batch, queries and keys of each sequence.
    pieces = [(b, slice(0, TQ), slice(0, TK if lengths_k is None else int(lengths_k[b]))) for b in range(B)]
    if cu_seqlens_q is not None:
        offsets = [[slice(*pair) for pair in itertools.pairwise(x.tolist())] for x in (cu_seqlens_q, cu_seqlens_k)]
        pieces = [(0, queries, keys) for queries, keys in zip(*offsets, strict=True)]
    for b, queries, keys in pieces:
        one_q = q[b, queries].double()
        one_k, one_v = (x[b, keys].double().repeat_interleave(H // HKV, dim=1) for x in (k, v))
        Tq, Tk = len(one_q), len(one_k)
        if Tq == 0 or Tk == 0:
            continue
        place = torch.arange(Tq)[:, None] + Tk - Tq
        key = torch.arange(Tk)
        seen = torch.ones(Tq, Tk, dtype=torch.bool)
        if left is not None:
            seen &= key >= place - left
        if right is not None:
            seen &= key <= place + right
        s = scale * torch.einsum("ihk,jhk->hij", one_q, one_k)
        s = s.masked_fill(~seen, -math.inf)
        blind = ~seen.any(1)
        # No gradient of a row that sees nothing is NaN so.
        weights = torch.softmax(s.masked_fill(blind[:, None], 0), -1).masked_fill(blind[:, None], 0)
        o[b, queries] = torch.einsum("hij,jhv->ihv", weights, one_v)
        sums = torch.logsumexp(s.masked_fill(blind[:, None], 0), -1)
        log_sum_exp[b, :, queries] = sums.masked_fill(blind, -math.inf)
    return o, log_sum_exp


def relative_rms(got, expected):
    """Relative RMS error; infinite where `got` has a NaN. 0 for tensors without elements."""
    if expected.numel() == 0:
        return 0.0
    error = (got.double() - expected).square().mean().sqrt()
    size = expected.square().mean().sqrt()
    value = (error / size).item() if size > 0 else error.item()
    return math.inf if math.isnan(value) else value


SCAN_TOLERANCE = {torch.bfloat16: 2e-3, torch.float16: 3e-4, torch.float32: 1e-6}
TOLERANCE = {torch.bfloat16: 3e-3, torch.float16: 5e-4, torch.float32: 1e-5}


def check_gla(test, inputs, o, final_state):
    """Fails `test` where the results are further from the fp64 definition than the dtype allows."""
    expected_o, expected_state = gla(**inputs)
    dtype = inputs["q"].dtype
    tolerance = TOLERANCE[dtype]
    test.assertEqual((o.dtype, o.shape), (dtype, expected_o.shape))
    test.assertLess(relative_rms(o, expected_o), tolerance, "o")
    if not inputs.get("output_final_state"):
        test.assertIsNone(final_state)
        return
    test.assertEqual((final_state.dtype, final_state.shape), (torch.float32, expected_state.shape))
    # Without decay the products are exact in fp32, and so nearly is their sum.
    tolerance = tolerance if inputs.get("log_decay") is not None else 1e-5
    test.assertLess(relative_rms(final_state, expected_state), tolerance, "final_state")
