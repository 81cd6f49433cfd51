"""The definition of gla in fp64, token by token, on a few (batch, head) pairs."""


def sample_heads(case, most=16):
    """The first and the last pair, and some between."""
    count = case.B * case.H
    wanted = min(most, count)
    return [divmod(i * (count - 1) // max(wanted - 1, 1), case.H) for i in range(wanted)]


def define(case, tensors, heads):
    """The outputs of the case's direction by name, in fp64, pairs first: o [pairs,T,V]."""
    import torch

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
    state = torch.zeros(len(heads), case.K, case.V, dtype=torch.float64, device=q.device)
    o = torch.empty(len(heads), case.T, case.V, dtype=torch.float64, device=q.device)
    for t in range(case.T):
        state = keep[:, t, None, None] * state + k[:, t, :, None] * v[:, t, None, :]
        o[:, t] = (q[:, t, None, :] @ state)[:, 0]
    return {"o": case.softmax_scale * o}


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
