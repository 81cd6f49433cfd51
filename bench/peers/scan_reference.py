"""The definitions of gated_scan and linear_scan in fp64 on a few (batch, channel) pairs, a token at a time."""


def define(case, tensors, channels):
    """The outputs of the case's direction by name, in fp64, pairs first: o [pairs,T]."""
    import torch

    gradients = case.direction == "forward_backward" and case.op == "gated_scan"
    if case.direction != "forward" and not gradients:
        raise ValueError(f"{case.name}: no reference of direction {case.direction} of {case.op}")

    def rows(name):
        return torch.stack([tensors[name][b, :, d] for b, d in channels]).double()

    x = project(tensors, channels) if case.op == "linear_scan" else rows("x")
    device = x.device
    # On the CPU: thousands of tiny steps.
    x, decay = x.cpu(), rows(case.decay_kind).cpu()
    a = decay.exp() if case.decay_kind == "log_decay" else decay
    gate = rows("gate").cpu() if case.gate == "silu" else None
    offsets = case.cu_seqlens or (0, case.T)
    inside = torch.zeros(case.T, dtype=torch.float64)
    inside[offsets[0] : offsets[-1]] = 1
    keep = a.clone()  # of the state before: none at the first token of a sequence
    keep[:, [begin for begin in offsets if begin < case.T]] = 0
    states = scan(keep, x * inside)
    silu = torch.ones_like(x) if gate is None else torch.nn.functional.silu(gate)
    found = {"o": inside * silu * states}
    if gradients:
        d_o = rows("d_o").cpu() * inside
        # ds_t = silu(gate_t) d_o_t + a_(t+1) ds_(t+1): the same scan from the end.
        later = torch.cat((keep[:, 1:], torch.zeros_like(keep[:, :1])), dim=1)
        ds = scan(later.flip(1), (silu * d_o).flip(1)).flip(1)
        before = torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), dim=1)
        before[:, [begin for begin in offsets if begin < case.T]] = 0
        found["dx"] = ds
        found[f"d_{case.decay_kind}"] = before * ds * (a if case.decay_kind == "log_decay" else 1)
        if gate is not None:
            sigmoid = torch.sigmoid(gate)
            found["d_gate"] = sigmoid * (1 + gate * (1 - sigmoid)) * states * d_o
    return {name: value.to(device) for name, value in found.items()}


def scan(keep, x):
    """s_t = keep_t s_(t-1) + x_t along the last axis, [pairs,T]. A decay of 0 forgets whatever there was."""
    import torch

    state, states = torch.zeros_like(x[:, :1]).squeeze(1), []
    for a, added in zip(keep.unbind(1), x.unbind(1), strict=True):
        state = torch.where(a == 0, 0.0, a * state) + added
        states.append(state)
    return torch.stack(states, dim=1) if states else x.clone()


def project(tensors, channels):
    """x = u W^T of the pairs, [pairs,T]."""
    import torch

    x, u, of = [], None, None
    for b, d in channels:
        if of != b:
            u, of = tensors["u"][b].double(), b
        x.append(u @ tensors["weight"][d].double())
    return torch.stack(x)
