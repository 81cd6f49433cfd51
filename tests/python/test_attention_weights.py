"""tandem.ops.attention_weights on the CPU: against fp64, and as a citizen of torch."""

import unittest

import tandem
import torch
from reference import attention, relative_rms
from torch.autograd import gradcheck

OP = torch.ops.tandem.attention_weights_forward.default
OUTPUTS = {torch.bfloat16: 2.5e-3, torch.float16: 3e-4, torch.float32: 1e-5}
GRADIENTS = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5}


def weights(q, k, causal=False, scale=None):
    """The fp64 definition: what attention makes of values that are the rows of the identity."""
    values = torch.eye(k.shape[1], dtype=torch.float64)[None, :, None].expand(*k.shape[:3], k.shape[1])
    return attention(q, k, values, causal=causal, scale=scale)[0].transpose(1, 2)


class AttentionWeights(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def draw(self, B=2, T=70, TK=90, H=4, HKV=2, K=32, dtype=torch.float32):
        """q, k."""
        return torch.randn(B, T, H, K).to(dtype), torch.randn(B, TK, HKV, K).to(dtype)

    def test_results_and_gradients(self):
        for dtype, limit in OUTPUTS.items():
            for options in ({}, {"causal": True}, {"scale": 0.3}):
                for T in (70, 100):
                    with self.subTest(dtype, options=options, T=T):
                        leaves = [x.requires_grad_() for x in self.draw(T=T, dtype=dtype)]
                        w = tandem.ops.attention_weights(*leaves, **options)
                        self.assertEqual((w.dtype, w.shape, w.is_contiguous()), (dtype, (2, 4, T, 90), True))
                        wide = [x.detach().double().requires_grad_() for x in leaves]
                        expected = weights(*wide, **options)
                        self.assertLess(relative_rms(w, expected.detach()), limit)
                        d_w = torch.randn_like(w)
                        got = torch.autograd.grad(w, leaves, d_w)
                        for a, b in zip(got, torch.autograd.grad(expected, wide, d_w.double()), strict=True):
                            self.assertEqual(a.dtype, dtype)
                            self.assertLess(relative_rms(a, b), GRADIENTS[dtype])

    def test_fp64_passes_gradcheck(self):
        q, k = (x.requires_grad_() for x in self.draw(T=5, TK=7, K=3, dtype=torch.float64))
        self.assertTrue(gradcheck(lambda *x: tandem.ops.attention_weights(*x, causal=True), (q, k)))

    def test_refusals(self):
        q, k = self.draw()
        for error, text, arguments in (
            (TypeError, r"\[attention_weights\] unexpected argument attn_mask: which keys", {"attn_mask": None}),
            (TypeError, r"\[attention_weights\] k must be a torch.Tensor, got int", {"k": 1}),
            (ValueError, "k must have a number of heads HKV that divides H = 4", {"k": k.repeat(1, 1, 2, 1)[:, :, :3]}),
        ):
            with self.assertRaisesRegex(error, text):
                tandem.ops.attention_weights(**{"q": q, "k": k, **arguments})

    def test_no_queries_no_keys_and_no_batches(self):
        for shape in ({"T": 0}, {"TK": 0}, {"B": 0}):
            leaves = [x.requires_grad_() for x in self.draw(**shape)]
            tandem.ops.attention_weights(*leaves).sum().backward()
            self.assertEqual([x.grad.shape for x in leaves], [x.shape for x in leaves])

    def test_opcheck(self):
        q, k = self.draw(B=1, T=20, TK=30)
        for arguments in ((q, k, None, None), (q, k, 0.3, 1.0)):
            torch.library.opcheck(OP, arguments)
            torch.library.opcheck(OP, (*(x.detach().requires_grad_() for x in arguments[:2]), *arguments[2:]))

    def test_one_graph_for_every_length_with_gradients(self):
        def loss(q, k):
            return tandem.ops.attention_weights(torch.sin(q), k, causal=True).square().sum()

        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (70, 5):
            leaves = [x.requires_grad_() for x in self.draw(T=T, TK=30 + T)]
            got = torch.autograd.grad(compiled(*leaves), leaves)
            for a, b in zip(got, torch.autograd.grad(loss(*leaves), leaves), strict=True):
                self.assertLess(relative_rms(a, b.double()), 1e-5)

    def test_autocast(self):
        q, k = self.draw()
        expected = tandem.ops.attention_weights(q.bfloat16(), k.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            self.assertTrue(torch.equal(tandem.ops.attention_weights(q, k), expected))

    def test_vmap_is_a_larger_batch(self):
        items = [torch.stack([x, -x, 2 * x]) for x in self.draw()]
        got = torch.vmap(tandem.ops.attention_weights)(*items)
        for i in range(3):
            self.assertTrue(torch.equal(got[i], tandem.ops.attention_weights(*(x[i] for x in items))))

    def test_meta_tensors(self):
        w = tandem.ops.attention_weights(*(x.to("meta") for x in self.draw()))
        self.assertEqual((w.device.type, w.shape), ("meta", (2, 4, 70, 90)))


if __name__ == "__main__":
    unittest.main()
