"""The definition of gla in fp64 on a few (batch, head) pairs: o token by token, gradients chunk by chunk. That of the
scans, on (batch, channel) pairs: scan_reference.py; of products, on rows: projection.py, gemm_swiglu.py,
gated_output.py."""

import itertools

from . import scan_reference
from .cases import PRODUCTS, SCANS

CHUNK = 64  # of the gradients
FORGET = -800.0  # log_decay of a reset: exp() of it is 0 in fp64, and sums of a chunk's stay finite


def sample_heads(case, most=None):
    """The first and the last pair, and some between; of products {output: rows}."""
    if case.op in PRODUCTS:
        return PRODUCTS[case.op].sample(case)
    width, usual = (case.D, 128) if case.op in SCANS else (case.H, 16)
    count = case.B * width
    wanted = min(most or usual, count)
    return [divmod(i * (count - 1) // max(wanted - 1, 1), width) for i in range(wanted)]


def define(case, tensors, heads):
    """The outputs of the case's direction by name, in fp64, pairs first: o [pairs,T,V]."""
    if case.op in SCANS:
        return scan_reference.define(case, tensors, heads)
    if case.op in PRODUCTS:
        return PRODUCTS[case.op].define(case, tensors, heads)
    defined = {
        "forward": (define_forward,),
        "backward": (define_gradients,),
        "forward_backward": (define_forward, define_gradients),
        "step": (define_step,),
    }
    if case.direction not in defined:
        raise ValueError(f"{case.name}: no reference of direction {case.direction}")
    return {name: x for one in defined[case.direction] for name, x in one(case, tensors, heads).items()}


def _rows(tensor, heads, share=1):
    """[pairs,T,...] in fp64."""
    import torch

    return torch.stack([tensor[b, :, h // share] for b, h in heads]).double()


def _decays(case, tensors, heads):
    """log_decay of the pairs, [pairs,T] in fp64; 0 without one."""
    import torch

    decay = tensors.get("log_decay")
    if decay is None:
        return torch.zeros(len(heads), case.T, dtype=torch.float64, device=tensors["q"].device)
    return _rows(decay.expand(case.B, case.T, case.H), heads)


def define_forward(case, tensors, heads):
    import torch

    group = case.H // case.HQ
    q, k, v = (_rows(tensors[name], heads, share) for name, share in (("q", group), ("k", group), ("v", 1)))
    keep = _decays(case, tensors, heads).exp()
    # All sequences a token at a time, the longest first: those that have a token p are the first `live`.
    offsets = case.cu_seqlens or (0, case.T)
    pieces = sorted(((end - begin, begin) for begin, end in itertools.pairwise(offsets)), reverse=True)
    begins = torch.tensor([begin for _, begin in pieces], device=q.device)
    live = len(pieces)
    state = torch.zeros(len(heads), live, case.K, case.V, dtype=torch.float64, device=q.device)
    o = torch.zeros(len(heads), case.T, case.V, dtype=torch.float64, device=q.device)
    for p in range(pieces[0][0] if pieces else 0):
        while pieces[live - 1][0] <= p:
            live -= 1
        t = begins[:live] + p if live > 1 else slice(pieces[0][1] + p, pieces[0][1] + p + 1)
        state = keep[:, t, None, None] * state[:, :live] + k[:, t, :, None] * v[:, t, None, :]
        o[:, t] = (q[:, t, None, :] @ state)[:, :, 0]
    return {"o": case.softmax_scale * o}


def define_gradients(case, tensors, heads):
    """dq, dk, dv and, of a decay per token, d_log_decay: the formulas of docs/ops/gla_backward.md, d_log_decay in the
    form that cancels nothing. A sequence of cu_seqlens begins with a reset."""
    import torch

    q, k, v, d_o = (_rows(tensors[name], heads) for name in ("q", "k", "v", "d_o"))
    g = _decays(case, tensors, heads).clamp(min=FORGET)
    if case.cu_seqlens is not None:
        g[:, [begin for begin in case.cu_seqlens if begin < case.T]] = FORGET
        for x in (q, k, v, d_o):  # tokens of no sequence
            x[:, : case.cu_seqlens[0]] = 0
            x[:, case.cu_seqlens[-1] :] = 0
    scale = case.softmax_scale
    chunks = [slice(begin, min(begin + CHUNK, case.T)) for begin in range(0, case.T, CHUNK)]
    state = torch.zeros(len(heads), case.K, case.V, dtype=torch.float64, device=q.device)
    states = []  # before each chunk
    for at in chunks:
        states.append(state)
        sums = g[:, at].cumsum(1)[..., None]
        to_end = (sums[:, -1:] - sums).exp()
        state = sums[:, -1:].exp() * state + (to_end * k[:, at]).mT @ v[:, at]
    dq, dk, dv, dg = (torch.empty_like(x) for x in (q, k, v, g))
    d_state = torch.zeros_like(state)  # by the state after the chunk
    for at in reversed(chunks):
        Q, K, V, dO, state = q[:, at], k[:, at], v[:, at], scale * d_o[:, at], states.pop()
        sums = g[:, at].cumsum(1)[..., None]
        from_begin, to_end, whole = sums.exp(), (sums[:, -1:] - sums).exp(), sums[:, -1:].exp()
        since = sums.new_ones(sums.size(1), sums.size(1)).tril()  # [i,j]: j <= i
        between = (sums - sums.mT).masked_fill(since == 0, FORGET).exp()
        scores, weights = between * (Q @ K.mT), dO @ V.mT
        dq_state, dk_state = from_begin * (dO @ state.mT), to_end * (V @ d_state.mT)
        dq[:, at] = dq_state + (between * weights) @ K
        dk[:, at] = dk_state + (between * weights).mT @ Q
        dv[:, at] = to_end * (K @ d_state) + scores.mT @ dO
        # What passes token t: from before the chunk to after it, into it from before t, out of it from t on, inside it.
        through = whole * (state * d_state).sum((1, 2), keepdim=True)
        leaving = since.tril(-1) @ (K * dk_state).sum(2, keepdim=True)
        entering = since.mT @ (Q * dq_state).sum(2, keepdim=True)
        inside = ((since.mT @ (scores * weights)) * since.tril(-1)).sum(2, keepdim=True)
        dg[:, at] = (through + leaving + entering + inside)[..., 0]
        d_state = whole * d_state + (from_begin * Q).mT @ dO
    gradients = {"dq": dq, "dk": dk, "dv": dv, "d_log_decay": dg}
    return {name: gradients[name] for name in case.wants.values()}


def define_step(case, tensors, heads):
    """o [pairs,1,V] and the new state [pairs,1,K,V]."""
    import torch

    group = case.H // case.HQ
    outputs = {"o": [], "state": []}
    for b, h in heads:
        q, k, v = (tensors[name][b, 0, h // share].double() for name, share in (("q", group), ("k", group), ("v", 1)))
        state = tensors["state"][b, h].double()
        if "log_decay" in tensors:
            decay = tensors["log_decay"]
            state = (decay[h] if decay.dim() == 1 else decay[b, 0, h]).double().exp() * state
        state = state + torch.outer(k, v)
        outputs["o"].append(case.softmax_scale * (q @ state)[None])
        outputs["state"].append(state[None])
    return {name: torch.stack(pairs) for name, pairs in outputs.items()}


def errors(outputs, expected, heads):
    """Relative RMS of each output [B,T,H,...] by name; infinite where one is missing or holds a NaN, in a sampled head
    or not."""
    import torch

    found = {}
    for name, right in expected.items():
        found[name] = float("inf")
        if outputs.get(name) is not None and torch.isfinite(outputs[name]).all():
            # Where all is 0 only 0 is right.
            got = outputs[name][heads[name]].double() if isinstance(heads, dict) else _rows(outputs[name], heads)
            found[name] = ((got - right).norm() / right.norm().clamp_min(1e-300)).item()
    return found


def relative_rms(outputs, expected, heads):
    """The error of the worst output."""
    return max(errors(outputs, expected, heads).values())
