"""attention's cases for peers: costs, inputs, and the definition in fp64 on the heads of a few key heads."""

import itertools

STRIDES = ("contiguous", "transposed")  # as stored: [B,T,H,D], [B,H,T,D]
GROUPS = 2  # key heads whose heads are compared


def wants(case):
    return {"q": "dq", "k": "dk", "v": "dv"}


def why_not(case):
    if case.values != "normal":
        return f"values {case.values}"
    if case.lengths_k is not None:
        return "lengths of keys in memory"
    return "a gradient of the log-sum-exp" if case.log_sum_exp == "yes" else ""


def spans(case):
    """(batch, queries, keys) of each sequence."""
    if case.cu_seqlens is None:
        return [(b, slice(0, case.T), slice(0, case.TK)) for b in range(case.B)]
    of_keys = case.cu_seqlens_k or case.cu_seqlens
    pairs = zip(itertools.pairwise(case.cu_seqlens), itertools.pairwise(of_keys), strict=True)
    return [(0, slice(*queries), slice(*keys)) for queries, keys in pairs]


def seen(case, queries, keys, device="cpu"):
    """[queries,keys]: whether a query sees a key."""
    import torch

    place = torch.arange(queries, device=device)[:, None] + keys - queries
    key = torch.arange(keys, device=device)
    found = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if case.window_left is not None:
        found &= key >= place - case.window_left
    right = 0 if case.causal == "yes" else case.window_right
    return found if right is None else found & (key <= place + right)


def pairs(case):
    """How many pairs of a query and a key that it sees there are, of one head."""

    def of_one(queries, keys):
        right = 0 if case.causal == "yes" else case.window_right
        count = 0
        for place in range(keys - queries, keys):
            first = 0 if case.window_left is None else max(place - case.window_left, 0)
            end = keys if right is None else min(place + right + 1, keys)
            count += max(end - first, 0)
        return count

    return sum(of_one(q.stop - q.start, k.stop - k.start) for _, q, k in spans(case))


def cost(case):
    """(bytes, flops) as the tandem program counts them."""
    B, T, TK, H, HKV, K, V = (case.axes[axis] for axis in ("B", "T", "TK", "H", "HKV", "K", "V"))
    q, k, v, o, sums = B * T * H * K, B * TK * HKV * K, B * TK * HKV * V, B * T * H * V, B * H * T
    offsets = 0 if case.cu_seqlens is None else 8 * len(case.cu_seqlens)
    found = pairs(case) * H * 2
    forward = 2 * (q + k + v + o) + offsets
    backward = 2 * (2 * (q + k + v) + 2 * o) + 4 * sums + offsets
    costs = {
        "forward": (forward, found * (K + V)),
        "backward": (backward, found * (3 * K + 2 * V)),
        "forward_backward": (forward + 4 * sums + backward, found * (4 * K + 3 * V)),
    }
    return costs[case.direction]


def make(case, kind, generator, device):
    """{q, k, v} as cli/ops/attention_make.cpp lays them out, the offsets, and for gradients d_o."""
    import torch

    def normal(T, heads, dim):
        if case.strides == "transposed":
            stored = torch.randn((case.B, heads, T, dim), generator=generator, device=device).to(kind)
            return stored.transpose(1, 2)
        return torch.randn((case.B, T, heads, dim), generator=generator, device=device).to(kind)

    tensors = {
        "q": normal(case.T, case.H, case.K),
        "k": normal(case.TK, case.HKV, case.K),
        "v": normal(case.TK, case.HKV, case.V),
    }
    if case.cu_seqlens is not None:
        for name, offsets in (
            ("cu_seqlens_q", case.cu_seqlens),
            ("cu_seqlens_k", case.cu_seqlens_k or case.cu_seqlens),
        ):
            tensors[name] = torch.tensor(offsets, dtype=torch.int32, device=device)
    if case.direction != "forward":
        tensors["d_o"] = normal(case.T, case.H, case.V)
    if case.direction == "backward":
        tensors["o"], tensors["log_sum_exp"] = whole_forward(case, tensors)
    return tensors


def whole_forward(case, tensors):
    """o and the log-sum-exp of all heads, by torch's plain operations in fp32, head by head: what a backward takes."""
    import torch

    q, k, v = (tensors[name] for name in "qkv")
    o = torch.zeros_like(q[..., :1].expand(*q.shape[:3], case.V)).contiguous()
    sums = torch.full((case.B, case.H, case.T), -torch.inf, dtype=torch.float32, device=q.device)
    share = case.H // case.HKV
    for b, queries, keys in spans(case):
        mask = seen(case, queries.stop - queries.start, keys.stop - keys.start, q.device)
        for h in range(case.H):
            weights, found = softmax(case, q[b, queries, h].float(), k[b, keys, h // share].float(), mask)
            o[b, queries, h] = (weights @ v[b, keys, h // share].float()).to(o.dtype)
            sums[b, h, queries] = found
    return o, sums


def softmax(case, q, k, mask):
    """The weights and the log-sum-exp of one head; 0 and -inf where a query sees nothing."""
    import torch

    scores = (case.softmax_scale * (q @ k.T)).masked_fill_(~mask, -torch.inf)
    sums = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - sums[:, None]).nan_to_num_(0.0)
    return weights, sums


def call_of(case, tensors):
    """The inputs of a forward call of the library, its output, which is made, and its numbers."""
    import torch

    q = tensors["q"]
    inputs = {name: tensors[name] for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k") if name in tensors}
    numbers = {"scale": case.softmax_scale, "causal": float(case.causal == "yes")}
    for name in ("window_left", "window_right"):
        if getattr(case, name) is not None:
            numbers[name] = getattr(case, name)
    o = torch.empty((case.B, case.T, case.H, case.V), dtype=q.dtype, device=q.device)
    if case.strides == "transposed":
        o = torch.empty((case.B, case.H, case.T, case.V), dtype=q.dtype, device=q.device).transpose(1, 2)
    return inputs, {"o": o}, numbers


def groups(case):
    """(batch, key head) of those that are compared: the first and the last."""
    count = case.B * case.HKV
    wanted = min(GROUPS, count)
    return [divmod(i * (count - 1) // max(wanted - 1, 1), case.HKV) for i in range(wanted)]


def sample(case):
    """{output: index of what is compared}: whole heads, of each key head the first and the last that read it."""
    share = case.H // case.HKV
    heads = [(b, head) for b, hkv in groups(case) for head in (hkv * share, hkv * share + share - 1)]
    of_queries = ([b for b, _ in heads], slice(None), [head for _, head in heads])
    of_keys = ([b for b, _ in groups(case)], slice(None), [hkv for _, hkv in groups(case)])
    return {"o": of_queries, "dq": of_queries, "dk": of_keys, "dv": of_keys}


def define(case, tensors, index):
    """The outputs of the case's direction by name, in fp64, of those heads."""
    import torch

    share = case.H // case.HKV
    found = {"o": [], "dq": [], "dk": [], "dv": []}
    for b, hkv in groups(case):
        k, v = (tensors[name][b, :, hkv].double() for name in "kv")
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(hkv * share, (hkv + 1) * share):
            q = tensors["q"][b, :, h].double()
            d_o = tensors["d_o"][b, :, h].double() if case.direction != "forward" else None
            o, dq = q.new_zeros(case.T, case.V), torch.zeros_like(q)
            for batch, queries, keys in spans(case):
                if batch != b:
                    continue
                mask = seen(case, queries.stop - queries.start, keys.stop - keys.start, q.device)
                weights, _ = softmax(case, q[queries], k[keys], mask)
                o[queries] = weights @ v[keys]
                if d_o is None:
                    continue
                dv[keys] += weights.T @ d_o[queries]
                means = (d_o[queries] * o[queries]).sum(-1, keepdim=True)
                d_scores = case.softmax_scale * weights * (d_o[queries] @ v[keys].T - means)
                dq[queries] = d_scores @ k[keys]
                dk[keys] += d_scores.T @ q[queries]
            if h in (hkv * share, (hkv + 1) * share - 1):
                # A group of one head is compared twice, as `sample` has it.
                for _ in range(2 if share == 1 else 1):
                    found["o"].append(o)
                    found["dq"].append(dq)
        found["dk"].append(dk)
        found["dv"].append(dv)
    names = {"forward": ("o",), "backward": ("dq", "dk", "dv"), "forward_backward": ("o", "dq", "dk", "dv")}
    return {name: torch.stack(found[name]) for name in names[case.direction]}
