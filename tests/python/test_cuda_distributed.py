"""tandem.distributed over several GPUs (NCCL), on two of them and on all, against one. test_distributed.py has the
algebra in fp64, on CPUs."""

import itertools
import unittest

import tandem.distributed
import test_distributed
import torch
import torch.distributed as dist
from reference import relative_rms
from test_cuda import no_gpu
from test_distributed import Case, gradients, leaves

GPUS = 0 if no_gpu() else torch.cuda.device_count()
WHY = no_gpu() or ("" if GPUS > 1 else "one GPU: ranks need one each")
T, H, D = 8192, 8, 256
LIMIT = 6e-3  # of bf16, twice: both sides are rounded


def drawn(*shape, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator("cuda").manual_seed(1000 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def cases():
    def gla(module, q, k, v, g, **options):
        return module.gla(q, k, v, g, **options)

    def scan(module, x, a, gate, **options):
        return module.gated_scan(x, log_decay=a, gate=gate, **options)

    def linear(module, u, a, gate, weight, **options):
        return module.linear_scan(u, weight, log_decay=a, gate=gate, **options)

    def state(*shape, seed):
        return drawn(*shape, dtype=torch.float32, seed=seed)

    for heads, key, value in ((H, 128, 128), (H, 64, 64), (2, 64, 128)):
        q, k = (drawn(1, T, heads, key, seed=i) for i in (1, 2))
        v = drawn(1, T, H, value, seed=3)
        g = torch.nn.functional.logsigmoid(drawn(1, T, H, dtype=torch.float32, seed=4)) / 16
        yield Case(f"gla HQ{heads} K{key} V{value}", gla, (q, k, v, g), state=state(1, H, key, value, seed=5))
        if heads == H:
            constant = -drawn(H, dtype=torch.float32, seed=6).abs() / 64
            yield Case(f"gla constant K{key}", gla, (q, k, v), (constant,))
            yield Case(f"gla packed K{key}", gla, (q, k, v, g), state=state(4, H, key, value, seed=7), packed=True)
    x, gate, u = drawn(2, T, D, seed=8), drawn(2, T, D, seed=9), drawn(2, T, 128, seed=10)
    a = torch.nn.functional.logsigmoid(drawn(2, T, D, seed=11) + 3)
    yield Case("gated_scan", scan, (x, a, gate), state=state(2, D, seed=12))
    yield Case("gated_scan that forgets nothing", scan, (x / 64, torch.zeros_like(a), gate))
    yield Case("linear_scan", linear, (u, a, gate), (drawn(D, 128, seed=13) / 12,), state(2, D, seed=14))


CU_SEQLENS = (0, 1000, 1000, 5003, T)


def cuts(ranks):
    yield [T * rank // ranks for rank in range(ranks + 1)]
    yield [0, *sorted(T * 3 // (4 * rank + 4) - 1 for rank in range(ranks - 1)), T]
    yield [0] * ranks + [T]  # all on the last one


def cut(tensors, begin, end):
    return [None if x is None else x[:, begin:end] for x in tensors]


def on_ranks(case, begin, end, weight):
    timed, others, (state,) = leaves(*cut(case.timed, begin, end)), leaves(*case.others), leaves(case.state)
    options = {"cu_seqlens": torch.tensor(CU_SEQLENS, device="cuda"), "start": begin} if case.packed else {}
    out, final = case.call(tandem.distributed, timed, others, state, **options)
    return out, final, gradients((out.float() * weight[:, begin:end]).sum(), *timed, *others, state)


def check(case, bounds, rank):
    timed, others, (state,) = leaves(*case.timed), leaves(*case.others), leaves(case.state)
    options = {"cu_seqlens": torch.tensor(CU_SEQLENS, device="cuda")} if case.packed else {}
    expected, final = case.call(tandem.ops, timed, others, state, **options)
    weight = drawn(*expected.shape, seed=20)
    wanted = gradients((expected.float() * weight).sum(), *timed, *others, state)
    begin, end = bounds[rank], bounds[rank + 1]
    out, final_here, found = on_ranks(case, begin, end, weight)
    again = on_ranks(case, begin, end, weight)

    def close(what, got, right):
        error = relative_rms(got, right) if right.numel() else 0
        assert error <= LIMIT, f"{case.name} of {bounds} {what}: {error}"

    close("out", out, expected[:, begin:end])
    if rank == len(bounds) - 2:
        close("final_state", final_here[-1:], final[-1:])
    for i, (got, right) in enumerate(zip(found, wanted, strict=True)):
        if i < sum(x is not None for x in case.timed):
            close(f"gradient {i}", got, right[:, begin:end])
        else:  # this rank's share
            total = got.float().clone()  # float() alone is the tensor itself where that is fp32
            dist.all_reduce(total)
            close(f"gradient {i}", total, right)
    for got, same in zip((out, final_here, *found), (*again[:2], *again[2]), strict=True):
        assert torch.equal(got, same), f"{case.name}: other bits the second time"


def check_graph(rank, ranks):
    """Forward and backward in one CUDA graph, collectives and all, and nothing waits for the device."""
    mine = tandem.distributed.part(T)
    args = leaves(*cut(next(cases()).timed, mine.start, mine.stop))

    def run():
        out, _ = tandem.distributed.gla(*args)
        # why: a graph of autograd that outlives its call keeps the leaves at that call's stream, and torch then waits
        # for it in the capture.
        return [out.detach(), *torch.autograd.grad(out, args, torch.ones_like(out))]

    for _ in range(3):
        run()
    torch.cuda.set_sync_debug_mode("error")
    wanted = run()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = run()
    for x in found:
        x.data.fill_(torch.nan)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    for got, same in zip(found, wanted, strict=True):
        assert torch.equal(got, same)
    graph.reset()


def check_compiled(rank, ranks):
    mine = tandem.distributed.part(T)
    args = leaves(*cut(next(cases()).timed, mine.start, mine.stop))

    def values(call):
        out = call(*args)[0]
        return [out, *gradients(out.float().square().sum(), *args)]

    compiled = torch.compile(tandem.distributed.gla, backend="aot_eager", fullgraph=True)
    for got, same in zip(values(compiled), values(tandem.distributed.gla), strict=True):
        assert torch.equal(got, same)


def all_checks(rank, ranks):
    for case, bounds in itertools.product(cases(), cuts(ranks)):
        check(case, bounds, rank)
    check_compiled(rank, ranks)
    check_graph(rank, ranks)


@unittest.skipIf(WHY, WHY)
class Ranks(test_distributed.Ranks):
    BACKEND = "nccl"

    def check_ranks(self, ranks, checks=all_checks):
        super().check_ranks(ranks, checks)

    def test_two(self):
        self.check_ranks(2)

    @unittest.skipIf(GPUS < 3, "two GPUs")
    def test_all(self):
        self.check_ranks(GPUS)

    test_three = test_one_that_raises_ends_the_others = test_names_that_other_libraries_have = None


if __name__ == "__main__":
    unittest.main()
