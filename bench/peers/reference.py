"""The definition of gla forward in fp64, token by token, on a few (batch, head) pairs."""


def sample_heads(case, most=16):
    """The first and the last pair, and some between."""
    count = case.B * case.H
    wanted = min(most, count)
    return [divmod(i * (count - 1) // max(wanted - 1, 1), case.H) for i in range(wanted)]


def define(case, tensors, heads):
    """o in fp64 [pairs,T,V]."""
    import torch

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
    return case.softmax_scale * o


def relative_rms(o, expected, heads):
    """Of an output [B,T,H,V]; infinite where it holds a NaN anywhere, in a sampled head or not."""
    import torch

    if not torch.isfinite(o).all():
        return float("inf")
    ours = torch.stack([o[b, :, h] for b, h in heads]).double()
    return ((ours - expected).norm() / expected.norm()).item()
