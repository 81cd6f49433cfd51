"""tandem.ops.gla_state_backward: cases of cases/gla.json, ranks against the uncut sequence, refusals, torch."""

import itertools
import unittest

import tandem
import test_gla_state
import torch
from reference import TOLERANCE, relative_rms
from test_gla_state import inputs, total_log_decay

from cases import DTYPES, cover, gla_inputs


def definition(q, d_o, log_decay=None, scale=None, cu_seqlens=None):
    """In fp64, one token at a time from the last to the first."""
    B, T, HQ, K = q.shape
    H, V = d_o.shape[2:]
    scale = K**-0.5 if scale is None else scale
    wide = q.double().repeat_interleave(H // HQ, dim=2)
    decay = torch.ones(B, T, H) if log_decay is None else log_decay.double().exp().expand(B, T, H)
    offsets = None if cu_seqlens is None else cu_seqlens.tolist()
    N = B if offsets is None else len(offsets) - 1
    d_state = torch.zeros(N, H, K, V, dtype=torch.float64)
    for n in range(N):
        b, begin, end = (n, 0, T) if offsets is None else (0, offsets[n], offsets[n + 1])
        for t in reversed(range(begin, end)):
            outer = wide[b, t, :, :, None] * d_o[b, t, :, None, :]
            d_state[n] = decay[b, t, :, None, None] * (d_state[n] + scale * outer)
    return d_state, total_log_decay(d_o, log_decay, cu_seqlens)


class Cases(unittest.TestCase):
    device = "cpu"
    dtypes = tuple(DTYPES)

    def check(self, case, dtype):
        # Gradient and definition start from the same numbers; the definition runs on the CPU.
        here, there = (gla_inputs(case, dtype, device) for device in ("cpu", self.device))
        d_o = torch.randn(here["v"].shape, generator=torch.Generator().manual_seed(7)).to(dtype)
        names = ("log_decay", "scale", "cu_seqlens")
        expected_state, expected_total = definition(here["q"], d_o, *(here.get(name) for name in names))
        optional = {name: there.get(name) for name in names}
        d_state, total = tandem.ops.gla_state_backward(there["q"], d_o.to(self.device), **optional)
        self.assertEqual((d_state.dtype, d_state.shape), (torch.float32, expected_state.shape))
        self.assertLess(relative_rms(d_state.cpu(), expected_state), TOLERANCE[dtype], "d_state")
        self.assertEqual((total.dtype, total.shape), (torch.float32, expected_total.shape))
        same = torch.allclose(total.cpu().double(), expected_total, rtol=1e-5, atol=1e-6)
        self.assertTrue(same, "total_log_decay")

    def test_every_path_of_the_binding(self):
        for case, name in cover("gla", "state_backward", self.dtypes):
            with self.subTest(case["name"], dtype=name):
                self.check(case, DTYPES[name])


class Ranks(unittest.TestCase):
    """Ranks with parts of a sequence, and what they exchange; against the gradients of the uncut sequence."""

    device = "cpu"

    def compare(self, inputs, d_o, cuts, dtype):
        leaves = [x.requires_grad_() for x in inputs]
        begin, d_final = torch.randn(2, 2, 4, 64, 32, device=self.device).unbind()

        def differentiate(part, d_o, begin, d_final):
            begin = begin.detach().requires_grad_()
            results = tandem.ops.gla(*part, initial_state=begin, output_final_state=True)
            return torch.autograd.grad(results, [*part, begin], [d_o, d_final])

        *whole, d_begin = differentiate(leaves, d_o, begin, d_final)
        spans = [slice(a, b) for a, b in itertools.pairwise(cuts)]

        def part(tensors, span):  # a constant decay is every part's
            return [x if x.dim() == 1 else x[:, span] for x in tensors]

        with torch.no_grad():
            begins, states_of = [begin], [part(leaves, span) for span in spans]
            for _, k, v, *g in states_of[:-1]:
                state, total = tandem.ops.gla_state(k, v, *g)
                begins.append(total.exp()[..., None, None] * begins[-1] + state)
            gathered = [
                tandem.ops.gla_state_backward(q, d_o[:, span], *g)
                for (q, _, _, *g), span in zip(states_of, spans, strict=True)
            ]
        parts = []
        for span, begin, (d_state, total) in reversed(list(zip(spans, begins, gathered, strict=True))):
            *gradients, d_first = differentiate(part(leaves, span), d_o[:, span], begin, d_final)
            parts.insert(0, gradients)
            d_final = total.exp()[..., None, None] * d_final + d_state
        together = [torch.stack(x).sum(0) if x[0].dim() == 1 else torch.cat(x, dim=1) for x in zip(*parts, strict=True)]
        # The gradient of the first state comes out of the first part's backward, and of the exchange.
        pairs = zip((*together, d_first, d_final), (*whole, d_begin, d_begin), strict=True)
        for i, (got, exact) in enumerate(pairs):
            # A constant decay's gradient is a sum whose terms mostly cancel.
            limit = (20 if got.dim() == 1 else 4) * TOLERANCE[dtype]
            self.assertLess(relative_rms(got, exact.double()), limit, f"tensor {i}")

    def test_ranks_equal_the_uncut_sequence(self):
        torch.manual_seed(0)
        dtypes = (torch.bfloat16, torch.float16) + ((torch.float32,) if self.device == "cpu" else ())
        for dtype in dtypes:
            q, d_o, g = inputs(T=700, HQ=2, dtype=dtype, device=self.device)
            k, v, _ = inputs(T=700, HQ=2, dtype=dtype, device=self.device)
            reset = g.masked_fill(torch.rand_like(g) < 1 / 64, -torch.inf)
            for name, decay in {"none": [], "constant": [g[0, 0].clone()], "per token": [g], "reset": [reset]}.items():
                for cuts in ([0, 700], [0, 0, 1, 70, 70, 71, 690, 700, 700], list(range(0, 701, 100))):
                    with self.subTest(name, dtype=dtype, cuts=cuts):
                        self.compare([x.detach() for x in (q, k, v, *decay)], d_o, cuts, dtype)


class Arguments(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.q, self.d_o, self.g = inputs()

    def refuses(self, error, text, *args, **kwargs):
        with self.assertRaises(error) as caught:
            tandem.ops.gla_state_backward(*args, **kwargs)
        self.assertEqual(type(caught.exception), error)
        self.assertIn("[gla_state_backward] " + text, str(caught.exception))

    def assert_equal(self, got, expected):
        for a, b in zip(got, expected, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_layouts_dtypes_scales_and_offsets(self):
        q, d_o, g = self.q, self.d_o, self.g
        op = tandem.ops.gla_state_backward
        columns = d_o.transpose(-1, -2).contiguous().transpose(-1, -2)
        self.assert_equal(op(q, columns, g), op(q, d_o, g))
        half = g.to(torch.bfloat16)
        self.assert_equal(op(q, d_o, half), op(q, d_o, half.float()))
        self.assert_equal(op(q, d_o, g, scale=64**-0.5), op(q, d_o, g))
        self.assertLess(relative_rms(op(q, d_o, g, scale=1.0)[0], 8 * op(q, d_o, g)[0].double()), 3e-3)
        offsets = torch.tensor([0, 30, 30, 70])
        one = (q[:1], d_o[:1], g[:1])
        got = op(*one, cu_seqlens=offsets)
        self.assertEqual((got[0].shape, got[1].shape), ((3, 4, 64, 32), (3, 4)))
        self.assert_equal(got, op(*one, cu_seqlens=offsets.int()))

    def test_refusals(self):
        q, d_o, g = self.q, self.d_o, self.g
        self.refuses(ValueError, "d_o must have shape [B,T,H,V] = [2,70,4,32], got [2,69,4,32]", q, d_o[:, :69], g)
        self.refuses(ValueError, "q must have shape [B,T,HQ,K], got [70,4,64]", q[0], d_o[0])
        self.refuses(ValueError, "q must have dtype bf16, fp16, fp32 or fp64, got Long", q.long(), d_o)
        self.refuses(ValueError, "log_decay must have dtype fp32 or fp64, got Long", q, d_o, g.long())
        self.refuses(ValueError, "scale must be finite, got inf", q, d_o, g, scale=float("inf"))
        self.refuses(ValueError, "cu_seqlens needs B = 1", q, d_o, cu_seqlens=torch.tensor([0, 70]))
        offsets = torch.tensor([0, 71])
        self.refuses(ValueError, "cu_seqlens must lie in [0,T]", q[:1], d_o[:1], cu_seqlens=offsets)
        self.refuses(ValueError, "d_o must be on cpu, got meta", q, d_o.to("meta"))
        self.refuses(NotImplementedError, "log_decay must have shape [H] or [B,T,H]", q, d_o, q.float())


class Torch(test_gla_state.Torch):
    span = staticmethod(tandem.ops.gla_state_backward)
    op = torch.ops.tandem.gla_state_backward.default

    @staticmethod
    def optional_arguments(g, offsets):
        return (g, None, None), (g[0, 0], 0.5, offsets), (None, None, offsets.int())

    def test_it_has_no_gradient_and_says_so(self):
        for which in range(3):
            arguments = inputs(device=self.device)
            arguments[which].requires_grad_()
            for result in tandem.ops.gla_state_backward(*arguments):
                with self.assertRaisesRegex(NotImplementedError, r"\[gla_state_backward\] it has no gradient"):
                    result.sum().backward(retain_graph=True)


if __name__ == "__main__":
    unittest.main()
