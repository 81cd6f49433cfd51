"""The definition of gla in fp64, token by token, on a few (batch, head) pairs."""


def sample_heads(case, most=16):
    """The first and the last pair, and some between."""
    count = case.B * case.H
    wanted = min(most, count)
    return [divmod(i * (count - 1) // max(wanted - 1, 1), case.H) for i in range(wanted)]


def define(case, tensors, heads):
    """The outputs of the case's direction by name, in fp64, pairs first: o [pairs,T,V]."""
    import torch

    if case.direction == "step":
        return define_step(case, tensors, heads)
    if case.direction != "forward":
        raise ValueError(f"{case.name}: no reference of direction {case.direction}")

    group = case.H // case.HQ

    def rows(name, share):
        return torch.stack([tensors[name][b, :, h // share] for b, h in heads]).double()

    q, k, v = rows("q", group), rows("k", group), rows("v", 1)
    decay = tensors.get("log_decay")
    if decay is None:
        keep = torch.ones(len(heads), case.T, dtype=torch.float64, device=q.device)
    elif decay.dim() == 1:
        keep = torch.stack([decay[h].double().exp().expand(case.T) for _, h in heads])
    else:
        keep = torch.stack([decay[b, :, h].double().exp() for b, h in heads])
    # All sequences a token at a time, the longest first: those that have a token p are the first `live`.
    offsets = case.cu_seqlens or (0, case.T)
    pieces = sorted(((end - begin, begin) for begin, end in zip(offsets, offsets[1:])), reverse=True)
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


def relative_rms(outputs, expected, heads):
    """Of the worst output [B,T,H,...]; infinite where one is missing or holds a NaN, in a sampled head or not."""
    import torch

    worst = 0.0
    for name, right in expected.items():
        if name not in outputs or not torch.isfinite(outputs[name]).all():
            return float("inf")
        ours = torch.stack([outputs[name][b, :, h] for b, h in heads]).double()
        worst = max(worst, ((ours - right).norm() / right.norm()).item())
    return worst
