"""tandem.ops.gla_state: the cases of cases/gla.json, ranks against the uncut sequence, what it refuses, torch."""

import itertools
import unittest

import tandem
import torch
from reference import TOLERANCE, gla, relative_rms

from cases import DTYPES, cover, gla_inputs


def inputs(B=2, T=70, H=4, K=64, V=32, HQ=None, dtype=torch.bfloat16, device="cpu"):
    """k, v, log_decay."""
    k = torch.randn(B, T, HQ or H, K, device=device).to(dtype)
    v = torch.randn(B, T, H, V, device=device).to(dtype)
    return k, v, torch.nn.functional.logsigmoid(torch.randn(B, T, H, device=device)) / 16


def total_log_decay(v, log_decay=None, cu_seqlens=None):
    """The total log-decay of each sequence and head, in fp64. v says how many batches, tokens and heads there are."""
    B, T, H = v.shape[:3]
    decay = torch.zeros(B, T, H, device=v.device) if log_decay is None else log_decay.expand(B, T, H)
    # A decay that leaves nothing of an fp32 number forgets everything, as -inf does.
    decay = decay.double().masked_fill(decay.double().exp().float() == 0, -torch.inf)
    if cu_seqlens is None:
        return decay.sum(dim=1)
    offsets = cu_seqlens.tolist()
    spans = [decay[0, begin:end].sum(dim=0) for begin, end in itertools.pairwise(offsets)]
    return torch.stack(spans) if spans else decay.new_zeros(0, H)


def definition(k, v, log_decay=None, cu_seqlens=None):
    """In fp64."""
    _, state = gla(k, k, v, log_decay, cu_seqlens=cu_seqlens)
    return state, total_log_decay(v, log_decay, cu_seqlens)


class Cases(unittest.TestCase):
    device = "cpu"
    dtypes = tuple(DTYPES)

    def check(self, k, v, log_decay=None, cu_seqlens=None):
        state, total = tandem.ops.gla_state(k, v, log_decay, cu_seqlens=cu_seqlens)
        expected_state, expected_total = definition(k, v, log_decay, cu_seqlens)
        tolerance = TOLERANCE[k.dtype] if log_decay is not None else 1e-5
        self.assertEqual((state.dtype, state.shape), (torch.float32, expected_state.shape))
        self.assertLess(relative_rms(state, expected_state), tolerance, "state")
        self.assertEqual((total.dtype, total.shape), (torch.float32, expected_total.shape))
        self.assertTrue(torch.allclose(total.double(), expected_total, rtol=1e-5, atol=1e-6), "total_log_decay")

    def test_every_path_of_the_binding(self):
        for case, name in cover("gla", "state", self.dtypes):
            with self.subTest(case["name"], dtype=name):
                given = gla_inputs(case, DTYPES[name], self.device)
                self.check(given["k"], given["v"], given.get("log_decay"), given.get("cu_seqlens"))


class Ranks(unittest.TestCase):
    device = "cpu"

    def compare(self, log_decay, cuts, dtype, k, v, q):
        def part(x, p):
            return x if x is None or x.dim() == 1 else x[:, cuts[p] : cuts[p + 1]]

        ranks = range(len(cuts) - 1)
        gathered = [tandem.ops.gla_state(part(k, p), part(v, p), part(log_decay, p)) for p in ranks]
        begin = torch.randn(gathered[0][0].shape, device=self.device)
        expected = tandem.ops.gla(q, k, v, log_decay, initial_state=begin, output_final_state=True)
        outputs = []
        for p, (state, total) in enumerate(gathered):
            arguments = (part(x, p) for x in (q, k, v, log_decay))
            o, final = tandem.ops.gla(*arguments, initial_state=begin, output_final_state=True)
            outputs.append(o)
            begin = total.exp()[..., None, None] * begin + state
        for got, exact in zip((torch.cat(outputs, dim=1), final, begin), (*expected, expected[1]), strict=True):
            self.assertLess(relative_rms(got, exact.double()), 2 * TOLERANCE[dtype])

    def test_ranks_equal_the_uncut_sequence(self):
        torch.manual_seed(0)
        for dtype in (torch.bfloat16, torch.float16):
            q, _, _ = inputs(T=700, HQ=2, dtype=dtype, device=self.device)
            k, v, g = inputs(T=700, HQ=2, dtype=dtype, device=self.device)
            reset = g.masked_fill(torch.rand_like(g) < 1 / 64, -torch.inf)
            for name, log_decay in {"none": None, "constant": g[0, 0], "per token": g, "reset": reset}.items():
                for cuts in ([0, 700], [0, 0, 1, 70, 70, 71, 690, 700, 700], list(range(0, 701, 100))):
                    with self.subTest(name, dtype=dtype, cuts=cuts):
                        self.compare(log_decay, cuts, dtype, k, v, q)


class Arguments(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.k, self.v, self.g = inputs()

    def refuses(self, error, text, *args, **kwargs):
        with self.assertRaises(error) as caught:
            tandem.ops.gla_state(*args, **kwargs)
        self.assertEqual(type(caught.exception), error)
        self.assertIn("[gla_state_forward] " + text, str(caught.exception))

    def assert_equal(self, got, expected):
        for a, b in zip(got, expected, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_layouts_dtypes_and_offsets_that_are_converted(self):
        k, v, g = self.k, self.v, self.g
        columns = v.transpose(-1, -2).contiguous().transpose(-1, -2)
        self.assert_equal(tandem.ops.gla_state(k, columns, g), tandem.ops.gla_state(k, v, g))
        half = g.to(torch.bfloat16)
        self.assert_equal(tandem.ops.gla_state(k, v, half), tandem.ops.gla_state(k, v, half.float()))
        offsets = torch.tensor([0, 30, 30, 70])
        one = (k[:1], v[:1], g[:1])
        got = tandem.ops.gla_state(*one, cu_seqlens=offsets)
        self.assertEqual((got[0].shape, got[1].shape), ((3, 4, 64, 32), (3, 4)))
        self.assert_equal(got, tandem.ops.gla_state(*one, cu_seqlens=offsets.int()))

    def test_refusals(self):
        k, v, g = self.k, self.v, self.g
        self.refuses(ValueError, "v must have shape [B,T,H,V] = [2,70,4,32], got [2,69,4,32]", k, v[:, :69], g)
        self.refuses(ValueError, "k must have shape [B,T,HQ,K], got [70,4,64]", k[0], v[0])
        self.refuses(ValueError, "k must have dtype bf16, fp16, fp32 or fp64, got Long", k.long(), v)
        self.refuses(ValueError, "log_decay must have dtype fp32 or fp64, got Long", k, v, g.long())
        self.refuses(ValueError, "cu_seqlens needs B = 1", k, v, cu_seqlens=torch.tensor([0, 70]))
        offsets = torch.tensor([0, 71])
        self.refuses(ValueError, "cu_seqlens must lie in [0,T]", k[:1], v[:1], cu_seqlens=offsets)
        self.refuses(ValueError, "v must be on cpu, got meta", k, v.to("meta"))
        self.refuses(NotImplementedError, "log_decay must have shape [H] or [B,T,H]", k, v, k.float())


class Torch(unittest.TestCase):
    """Tests of gla_state in torch, and of gla_state_backward, whose tests derive from this."""

    device = "cpu"
    span = staticmethod(tandem.ops.gla_state)
    op = torch.ops.tandem.gla_state_forward.default

    @staticmethod
    def optional_arguments(g, offsets):
        return (g, None), (g[0, 0], offsets), (None, offsets.int())

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def test_opcheck(self):
        k, v, g = inputs(B=1, HQ=2, device=self.device)
        for optional in self.optional_arguments(g, torch.tensor([0, 30, 70], device=self.device)):
            torch.library.opcheck(self.op, (k, v, *optional))

    def test_one_graph_for_every_time(self):
        def function(k, v, g):
            state, total = self.span(torch.nn.functional.silu(k), v, g)
            return state * 2, total.exp()

        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (70, 5, 1000):
            arguments = inputs(T=T, device=self.device)
            for a, b in zip(compiled(*arguments), function(*arguments), strict=True):
                self.assertLess(relative_rms(a, b.double()), 5e-3)

    def test_meta_tensors(self):
        state, total = self.span(*inputs(device="meta"))
        self.assertEqual((state.shape, total.shape), ((2, 4, 64, 32), (2, 4)))

    def test_autocast_leaves_log_decay(self):
        k, v, g = inputs(dtype=torch.float32, device=self.device)
        g = g.clamp(-1e-3)  # bf16 would round its exponential to 1
        expected = self.span(k.bfloat16(), v.bfloat16(), g)
        with torch.autocast(self.device, torch.bfloat16):
            got = self.span(k, v, g)
        for a, b in zip(got, expected, strict=True):
            self.assertTrue(torch.equal(a, b))


class Gradients(unittest.TestCase):
    """Gradients through gla_state: fp32 on the CPU, bf16 on a GPU."""

    device = "cpu"

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def inputs(self, **kwargs):
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        return [x.requires_grad_() for x in inputs(dtype=dtype, device=self.device, **kwargs)]

    def compare(self, arguments, cu_seqlens=None):
        """The gradients of sums of both outputs against fp64 autograd on the CPU."""
        state, total = tandem.ops.gla_state(*arguments, cu_seqlens=cu_seqlens)
        d_state, d_total = torch.randn_like(state), torch.randn_like(total)
        leaves = [x for x in arguments if x is not None]
        wide = [x if x is None else x.detach().double().cpu().requires_grad_() for x in arguments]
        right = definition(*wide, cu_seqlens=None if cu_seqlens is None else cu_seqlens.cpu())
        # A decay of -inf has no influence on a finite total, and none on one that is -inf.
        finite = total.isfinite()
        total = total.masked_fill(~finite, 0)
        for of_state, of_total in ((1, 0), (0, 1), (1, 1)):
            got = torch.autograd.grad(
                [state, total], leaves, [of_state * d_state, of_total * d_total], retain_graph=True
            )
            loss = of_state * (right[0] * d_state.cpu()).sum()
            loss = loss + of_total * torch.where(finite.cpu(), right[1] * d_total.cpu(), 0).sum()
            expected = torch.autograd.grad(
                loss, [x for x in wide if x is not None], retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for a, b, leaf in zip(got, expected, leaves, strict=True):
                self.assertEqual((a.dtype, a.shape, a.device), (leaf.dtype, leaf.shape, leaf.device))
                self.assertLess(relative_rms(a.cpu(), b.nan_to_num()), 4 * TOLERANCE[leaves[0].dtype])

    def test_against_the_definition(self):
        k, v, g = self.inputs(HQ=2)
        reset = g.detach().masked_fill(torch.rand_like(g) < 1 / 64, -torch.inf).requires_grad_()
        constant = g.detach()[0, 0].requires_grad_()
        for name, log_decay in {"none": None, "constant": constant, "per token": g, "reset": reset}.items():
            with self.subTest(name):
                self.compare((k, v, log_decay))
        one = [x.detach()[:1].requires_grad_() for x in (k, v, g)]
        for offsets in ([0, 30, 30, 70], [5, 5, 40, 60], [0, 0]):
            with self.subTest(offsets=offsets):
                self.compare(one, torch.tensor(offsets, device=self.device))
                self.compare((*one[:2], constant), torch.tensor(offsets, device=self.device, dtype=torch.int32))

    def test_at_a_reset_it_is_0(self):
        k, v, g = self.inputs()
        g = g.detach()
        g[:, 40] = -torch.inf
        g.requires_grad_()
        state, total = tandem.ops.gla_state(k, v, g)
        dk, dg = torch.autograd.grad((total.exp()[..., None, None] * torch.randn_like(state) + state).sum(), (k, g))
        self.assertEqual((dk[:, :40].abs().max(), dg[:, :41].abs().max()), (0, 0))
        self.assertTrue((dg[:, 41:] != 0).all())

    def test_ranks_that_autograd_differentiates(self):
        k, v, g = self.inputs(T=200, HQ=2)
        q = torch.randn_like(k).requires_grad_()
        leaves, cuts = [q, k, v, g], [0, 0, 1, 64, 130, 200]
        d_o = torch.randn_like(v)
        whole = torch.autograd.grad(tandem.ops.gla(*leaves)[0], leaves, d_o)
        begin, outputs = torch.zeros(2, 4, 64, 32, device=self.device), []
        for a, b in itertools.pairwise(cuts):
            part = [x[:, a:b] for x in leaves]
            outputs.append(tandem.ops.gla(*part, initial_state=begin)[0])
            state, total = tandem.ops.gla_state(*part[1:])
            begin = total.exp()[..., None, None] * begin + state
        parts = torch.autograd.grad(torch.cat(outputs, dim=1), leaves, d_o)
        for a, b in zip(parts, whole, strict=True):
            self.assertLess(relative_rms(a, b.double()), 4 * TOLERANCE[k.dtype])

    def test_compiled(self):
        def loss(k, v, g, offsets):
            state, total = tandem.ops.gla_state(torch.nn.functional.silu(k), v, g, cu_seqlens=offsets)
            return state.square().sum() + total.exp().sum()

        arguments = [x.detach()[:1].requires_grad_() for x in self.inputs()]
        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for offsets in (None, torch.tensor([0, 30, 70], device=self.device)):
            got, expected = (torch.autograd.grad(f(*arguments, offsets), arguments) for f in (compiled, loss))
            for a, b in zip(got, expected, strict=True):
                self.assertLess(relative_rms(a, b.double()), 1e-5 if self.device == "cpu" else 5e-3)

    def test_a_second_derivative_is_refused(self):
        k, v, g = self.inputs()
        (dk,) = torch.autograd.grad(tandem.ops.gla_state(k, v, g)[0].sum(), k, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "has no second derivative"):
            dk.sum().backward()


if __name__ == "__main__":
    unittest.main()
