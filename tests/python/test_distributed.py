"""tandem.distributed: on two and three ranks (gloo) against one process. Each rank makes everything from one seed and
checks its own part."""

import itertools
import pathlib
import tempfile
import traceback
import unittest
import unittest.mock

import tandem.distributed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

B, T, HQ, H, K, V, D, WIDTH = 2, 67, 2, 4, 16, 24, 20, 12
CU_SEQLENS = (0, 9, 9, 33, 34, 64, 64)  # tokens behind the last belong to none
CUTS = {2: [(0, 30, T), (0, 0, T), (0, T, T), (0, 33, T)], 3: [(0, 20, 21, T), (0, 0, 40, T), (0, 33, 33, T)]}
DTYPE = torch.float64


def drawn(*shape, dtype=DTYPE, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def leaves(*tensors):
    return [None if x is None else x.detach().clone().requires_grad_(x.is_floating_point()) for x in tensors]


def gradients(loss, *tensors, **options):
    given = [x for x in tensors if x is not None]
    found = torch.autograd.grad(loss, given, allow_unused=True, **options)
    return [torch.zeros_like(x) if d is None else d for x, d in zip(given, found, strict=True)]


class Case:
    """A call on all tokens and its tensors: those with time at axis 1, others, and the initial state."""

    def __init__(self, name, op, timed, others=(), state=None, packed=False):
        self.name, self.op, self.packed = name, op, packed
        self.timed, self.others, self.state = timed, others, state

    def call(self, module, timed, others, state, cu_seqlens=None, **options):
        if cu_seqlens is not None:
            options["cu_seqlens"] = cu_seqlens
        return self.op(module, *timed, *others, initial_state=state, output_final_state=True, **options)


def cases():
    def gla(module, q, k, v, g, **options):
        return module.gla(q, k, v, g, **options)

    def scan(**kind):
        def call(module, x, a, *rest, **options):
            gate = {"gate": rest[0]} if rest else {}
            return module.gated_scan(x, **{kind["decay"]: a}, **gate, **options)

        return call

    def linear(module, u, a, gate, weight, **options):
        return module.linear_scan(u, weight, log_decay=a, gate=gate, **options)

    q, k, v = drawn(B, T, HQ, K, seed=1), drawn(B, T, HQ, K, seed=2), drawn(B, T, H, V, seed=3)
    g = torch.nn.functional.logsigmoid(drawn(B, T, H, seed=4))
    resets = g.clone()
    resets[:, ::11] = -torch.inf
    states = drawn(B, H, K, V, seed=5)
    of_sequences = drawn(len(CU_SEQLENS) - 1, H, K, V, seed=6)
    constant = -drawn(H, seed=7).abs() / 4
    yield Case("gla", gla, (q, k, v, g), state=states)
    yield Case("gla without decay", gla, (q, k, v, None))
    yield Case("gla of a constant decay", lambda m, *x, **o: gla(m, *x, **o), (q, k, v), (constant,), states)
    yield Case("gla with resets", gla, (q, k, v, resets), state=states)
    packed = tuple(x[:1] for x in (q, k, v, g))
    yield Case("gla packed", gla, packed, state=of_sequences, packed=True)
    yield Case("gla packed, from nothing", gla, packed, packed=True)
    yield Case("gla packed, constant", gla, packed[:3], (constant,), of_sequences, packed=True)
    x, gate, u = drawn(B, T, D, seed=8), drawn(B, T, D, seed=9), drawn(B, T, WIDTH, seed=10)
    a = torch.sigmoid(drawn(B, T, D, seed=11) + 1)
    a[:, ::13] = 0
    begin, begins = drawn(B, D, seed=12), drawn(len(CU_SEQLENS) - 1, D, seed=13)
    weight = drawn(D, WIDTH, seed=14)
    yield Case("gated_scan", scan(decay="decay"), (x, a, gate), state=begin)
    yield Case("gated_scan of log_decay", scan(decay="log_decay"), (x, a.log()), state=begin)
    yield Case("gated_scan without decay", scan(decay="decay"), (x, torch.ones_like(a), gate), state=begin)
    yield Case("gated_scan that grows, from nothing", scan(decay="log_decay"), (x, gate.abs() / 20))
    yield Case("gated_scan packed", scan(decay="decay"), (x[:1], a[:1], gate[:1]), state=begins, packed=True)
    yield Case("linear_scan", linear, (u, a.log(), gate), (weight,), begin)
    yield Case("linear_scan packed", linear, (u[:1], a.log()[:1], gate[:1]), (weight,), begins, packed=True)


def whole(case, cut):
    """On one process: out, the states behind each part, and gradients of a loss of them all."""
    timed, others, (state,) = leaves(*case.timed), leaves(*case.others), leaves(case.state)
    if case.packed:
        cu_seqlens = torch.tensor(CU_SEQLENS)
        out, final = case.call(tandem.ops, timed, others, state, cu_seqlens)
        finals = [final] * (len(cut) - 1)
        loss = (out * drawn(*out.shape, seed=20)).sum() + (final * drawn(*final.shape, seed=21)).sum()
    else:
        outs, finals, before = [], [], state
        for begin, end in itertools.pairwise(cut):
            piece = [None if x is None else x[:, begin:end] for x in timed]
            out, before = case.call(tandem.ops, piece, others, before)
            outs.append(out)
            finals.append(before)
        out = torch.cat(outs, dim=1)
        loss = (out * drawn(*out.shape, seed=20)).sum()
        loss = loss + sum((x * drawn(*x.shape, seed=21 + i)).sum() for i, x in enumerate(finals))
    return out, finals, gradients(loss, *timed, *others, state)


def ends_here(begin, end):
    ends = torch.tensor(CU_SEQLENS[1:])
    return (ends > begin) & (ends <= end)


def on_ranks(case, cut, rank):
    begin, end = cut[rank], cut[rank + 1]
    timed = leaves(*[None if x is None else x[:, begin:end] for x in case.timed])
    others, (state,) = leaves(*case.others), leaves(case.state)
    options = {"cu_seqlens": torch.tensor(CU_SEQLENS), "start": begin} if case.packed else {}
    out, final = case.call(tandem.distributed, timed, others, state, **options)
    all_out = drawn(*case.timed[0].shape[:1], T, *out.shape[2:], seed=20)
    weight = drawn(*final.shape, seed=21 + (0 if case.packed else rank))
    if case.packed:
        weight = weight * ends_here(begin, end).view(-1, *[1] * (final.dim() - 1))
    loss = (out * all_out[:, begin:end]).sum() + (final * weight).sum()
    return out, final, gradients(loss, *timed, *others, state)


def check(case, cut, rank):
    begin, end = cut[rank], cut[rank + 1]
    expected, finals, expected_gradients = whole(case, cut)
    out, final, found = on_ranks(case, cut, rank)
    again = on_ranks(case, cut, rank)

    def close(what, got, wanted):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9, msg=lambda text: f"{case.name} {what}: {text}")

    close("out", out, expected[:, begin:end])
    here = ends_here(begin, end) if case.packed else slice(None)
    close("final_state", final[here], finals[rank][here])
    timed = sum(x is not None for x in case.timed)
    for i, (got, wanted) in enumerate(zip(found, expected_gradients, strict=True)):
        if i < timed:
            close(f"gradient {i}", got, wanted[:, begin:end])
        else:  # this rank's share
            total = got.clone()
            dist.all_reduce(total)
            close(f"gradient {i}", total, wanted)
    for got, same in zip((out, final, *found), (*again[:2], *again[2]), strict=True):
        assert torch.equal(got, same), f"{case.name}: other bits the second time"


def check_dtypes(rank, ranks):
    """bf16 under autocast, as the op of one process has it."""
    q, k, v = leaves(*(drawn(B, T, H, K, dtype=torch.float32, seed=i) for i in (1, 2, 3)))
    (g,) = leaves(torch.nn.functional.logsigmoid(drawn(B, T, H, dtype=torch.float32, seed=4)))
    mine = tandem.distributed.part(T)
    assert mine == slice(T * rank // ranks, T * (rank + 1) // ranks)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, _ = tandem.ops.gla(q, k, v, g)
        wanted = gradients(expected.float().square().sum(), q, k, v, g)
        out, _ = tandem.distributed.gla(q[:, mine], k[:, mine], v[:, mine], g[:, mine])
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected[:, mine], rtol=0.02, atol=0.05)
    for got, x in zip(gradients(out.float().square().sum(), q, k, v, g), wanted, strict=True):
        torch.testing.assert_close(got[:, mine], x[:, mine], rtol=0.05, atol=0.2)


def check_compiled(rank, ranks):
    """One graph, with the collectives of both directions, gives the same bits."""
    mine = tandem.distributed.part(T)
    all_cases = {case.name: case for case in cases()}

    def gla(*args):
        return tandem.distributed.gla(*args)[0]

    def gated_scan(x, a, gate):
        return tandem.distributed.gated_scan(x, decay=a, gate=gate)[0]

    for run in (gla, gated_scan):
        args = leaves(*(x[:, mine] for x in all_cases[run.__name__].timed))
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)

        def values(call, args=args):
            out = call(*args)
            return [out, *gradients(out.square().sum(), *args)]

        for got, same in zip(values(compiled), values(run), strict=True):
            assert torch.equal(got, same), run.__name__


def check_refusals(rank, ranks):
    x = drawn(1, 4, 8)
    for options, text in (
        ({"cu_seqlens": torch.tensor([0, 8])}, r"\[gated_scan\] start must be .* got None"),
        ({"initial_state": drawn(2, 8)}, r"\[gated_scan\] initial_state must have shape \[1, 8\], got \[2, 8\]"),
        ({"log_decay": x}, r"\[gated_scan_forward\] exactly one of decay and log_decay"),
    ):
        try:
            tandem.distributed.gated_scan(x, decay=x.sigmoid(), **options)
        except ValueError as error:
            unittest.TestCase().assertRegex(str(error), text)
        else:
            raise AssertionError(text)


def check_nan_stays(rank, ranks):
    """NaN in one packed sequence reaches no other, across borders either."""
    q, k, v, g = (x[:1].clone() for x in next(cases()).timed)
    k[:, 10:33] = torch.nan  # the third sequence
    cut = CUTS[ranks][0]
    begin, end = cut[rank], cut[rank + 1]
    args = leaves(*(x[:, begin:end] for x in (q, k, v, g)))
    out, _ = tandem.distributed.gla(*args, cu_seqlens=torch.tensor(CU_SEQLENS), start=begin)
    tokens = torch.arange(begin, end)
    others = (tokens < 9) | (tokens >= 33)
    assert out[:, others].isfinite().all()
    for x in gradients(out[:, others].sum(), *args):
        assert x[:, others].isfinite().all()


def check_pieces(rank, ranks):
    """gla of parts cut into pieces, as a GPU takes few heads."""

    def pieces(q, k, v, log_decay):
        return next(n for n in (4, 5, 3, 1) if (v.size(1) % n == 0 and v.size(1) >= 8) or n == 1)

    cut = {2: (0, 32, T), 3: (0, 33, 40, T)}[ranks]
    with unittest.mock.patch("tandem.distributed._pieces", pieces):
        for case in itertools.islice(cases(), 4):
            check(case, cut, rank)
        check_compiled(rank, ranks)


def check_scan_dtypes(rank, ranks):
    """gated_scan in other dtypes, over parts of several chunks: within the op's limits where decays die out, and a
    factor of root 2 wider where all outputs are rounded twice."""
    tokens = 500
    mine = tandem.distributed.part(tokens)
    limits = {torch.bfloat16: 2e-3, torch.float16: 3e-4, torch.float32: 1e-6}
    for (dtype, limit), (memory, roundings) in itertools.product(limits.items(), ((3, 1), (1000, 2))):
        x, gate = (drawn(B, tokens, D, dtype=dtype, seed=i) for i in (1, 2))
        log_decay = (-drawn(B, tokens, D, seed=3).abs() / memory).to(dtype)
        begin = drawn(B, D, dtype=torch.float32, seed=4)

        def run(module, part, x=x, gate=gate, log_decay=log_decay, begin=begin):
            timed = [one[:, part] for one in (x, log_decay, gate)]
            options = {"log_decay": timed[1], "gate": timed[2], "initial_state": begin, "output_final_state": True}
            return module.gated_scan(timed[0], **options)

        fp64 = {"x": x.double(), "gate": gate.double(), "log_decay": log_decay.double(), "begin": begin.double()}
        expected, final = run(tandem.ops, slice(None), **fp64)
        out, state = run(tandem.distributed, mine)
        assert (out.dtype, state.dtype) == (dtype, torch.float32)
        error = (out.double() - expected[:, mine]).norm() / expected[:, mine].norm()
        assert error < limit * roundings**0.5, f"{dtype}, memory {memory}: {error}"
        if rank == ranks - 1:
            torch.testing.assert_close(state.double(), final, rtol=1e-4, atol=1e-4)
        d_out = drawn(B, tokens, D, dtype=dtype, seed=5)
        (wide,) = leaves(fp64["x"])
        (wanted,) = gradients((run(tandem.ops, slice(None), **(fp64 | {"x": wide}))[0] * d_out).sum(), wide)
        (narrow,) = leaves(x)
        (dx,) = gradients((run(tandem.distributed, mine, x=narrow)[0] * d_out[:, mine]).sum(), narrow)
        error = (dx.double() - wanted)[:, mine].norm() / wanted[:, mine].norm()
        assert error < limit, f"dx, {dtype}, memory {memory}: {error}"


def check_scan_nan_stays(rank, ranks):
    """NaN in a channel of gated_scan reaches no other, and nothing behind a decay of 0 on any rank."""
    mine = tandem.distributed.part(T)
    x, gate = drawn(1, T, D, seed=1), drawn(1, T, D, seed=2)
    a = torch.full((1, T, D), 0.9, dtype=DTYPE)
    x[:, 5, ::2] = torch.nan
    a[:, T - 10, ::4] = 0
    args = leaves(*(one[:, mine] for one in (x, a, gate)))
    out, _ = tandem.distributed.gated_scan(args[0], decay=args[1], gate=args[2])
    reached = torch.zeros(T, D, dtype=torch.bool)
    reached[5:, ::2] = True
    reached[T - 10 :, ::4] = False
    assert torch.equal(out[0].isnan(), reached[mine])
    for d in gradients(out[..., 1::2].sum(), *args, retain_graph=True):
        assert d[..., 1::2].isfinite().all()
    weight = torch.zeros(T, D, dtype=DTYPE)
    weight[T - 1] = torch.nan
    (dx,) = gradients((out * weight[mine]).sum(), args[0])
    reached[:] = True
    reached[: T - 10, ::4] = False
    assert torch.equal(dx[0].isnan(), reached[mine])


def rank_of(rank, ranks, folder, checks, backend):
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    try:
        checks(rank, ranks)
    except Exception:
        (pathlib.Path(folder) / f"{rank}.txt").write_text(traceback.format_exc())
        raise  # at once: NCCL would have the others come to the end first
    dist.destroy_process_group()


def all_checks(rank, ranks):
    for case in cases():
        for cut in CUTS[ranks]:
            check(case, cut, rank)
    check_pieces(rank, ranks)
    check_dtypes(rank, ranks)
    check_compiled(rank, ranks)
    check_refusals(rank, ranks)
    check_nan_stays(rank, ranks)
    check_scan_dtypes(rank, ranks)
    check_scan_nan_stays(rank, ranks)


def one_raises(rank, ranks):
    x = drawn(1, 4, 8)
    tandem.distributed.gated_scan(x, decay=x.sigmoid(), initial_state=drawn(1, 8 + rank))


class Ranks(unittest.TestCase):
    BACKEND = "gloo"

    def run_ranks(self, ranks, checks):
        """The errors of ranks, by rank."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                mp.spawn(rank_of, (ranks, folder, checks, self.BACKEND), ranks)
            except mp.ProcessRaisedException:
                pass
            return {int(path.stem): path.read_text() for path in pathlib.Path(folder).glob("*.txt")}

    def check_ranks(self, ranks, checks=all_checks):
        errors = self.run_ranks(ranks, checks)
        self.assertFalse(errors, "".join(f"rank {rank}: {text}" for rank, text in errors.items()))

    def test_two(self):
        self.check_ranks(2)

    def test_three(self):
        self.check_ranks(3)

    def test_one_that_raises_ends_the_others(self):
        errors = self.run_ranks(2, one_raises)
        self.assertRegex(errors[1], r"\[gated_scan\] initial_state must have shape \[1, 8\], got \[1, 9\]")

    def test_names_that_other_libraries_have(self):
        x = drawn(1, 4, 8)
        for name, inputs in (("gla", (x, x, x)), ("gated_scan", (x,)), ("linear_scan", (x, x))):
            for unknown, text in (("g", ": it is log_decay here, called g in fla"), ("foo", "")):
                with self.subTest(name, argument=unknown), self.assertRaises(TypeError) as caught:
                    getattr(tandem.distributed, name)(*inputs, **{unknown: x})
                self.assertEqual(str(caught.exception), f"[{name}] unexpected argument {unknown}{text}")


if __name__ == "__main__":
    unittest.main()
