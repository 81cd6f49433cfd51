"""tandem.ops.attention on the CPU: its cases and gradients against fp64, and as a citizen of torch."""

import unittest

import tandem
import torch
from reference import attention, relative_rms
from torch.autograd import gradcheck
from torch.nn.functional import scaled_dot_product_attention

from cases import DTYPES, attention_inputs, cover

OP = torch.ops.tandem.attention_forward.default
OUTPUTS = {torch.bfloat16: 2.5e-3, torch.float16: 3e-4, torch.float32: 1e-5, torch.float64: 1e-13}
GRADIENTS = {torch.bfloat16: 4e-3, torch.float16: 6e-4, torch.float32: 1e-5, torch.float64: 1e-13}


class AttentionCase(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def draw(self, B=2, T=70, TK=90, H=4, HKV=2, K=32, V=24, dtype=torch.float32):
        """q, k, v."""
        return (
            torch.randn(B, T, H, K).to(dtype),
            torch.randn(B, TK, HKV, K).to(dtype),
            torch.randn(B, TK, HKV, V).to(dtype),
        )

    def assert_near(self, got, expected, limit, name=""):
        """Where -inf is expected it must be."""
        self.assertEqual(got.shape, expected.shape, name)
        self.assertTrue(torch.equal(got.isinf(), expected.isinf()), name)
        self.assertLess(relative_rms(got[~got.isinf()], expected[~expected.isinf()]), limit, name)


class Cases(AttentionCase):
    def test_every_path_of_the_binding(self):
        for case, name in cover("attention", "forward"):
            with self.subTest(case["name"], dtype=name):
                inputs = attention_inputs(case, DTYPES[name])
                kept = inputs["q"].stride()
                results = tandem.ops.attention(**inputs)
                self.assertEqual(inputs["q"].stride(), kept)
                o, log_sum_exp = results if inputs["return_log_sum_exp"] else (results, None)
                expected, expected_sums = attention(**inputs)
                self.assertEqual(o.dtype, DTYPES[name])
                self.assert_near(o, expected, OUTPUTS[o.dtype], "o")
                if log_sum_exp is not None:
                    self.assertEqual(log_sum_exp.dtype, torch.float32)
                    self.assert_near(log_sum_exp, expected_sums, 1e-5, "log_sum_exp")

    def test_the_gradients_of_every_path(self):
        for case, name in cover("attention", "backward"):
            with self.subTest(case["name"], dtype=name):
                inputs = attention_inputs(case, DTYPES[name]) | {"return_log_sum_exp": True}
                got = self.gradients(tandem.ops.attention, inputs)
                wide = {key: x.double() if key in ("q", "k", "v") else x for key, x in inputs.items()}
                expected = self.gradients(attention, wide)
                for key in ("q", "k", "v"):
                    self.assertEqual((got[key].dtype, got[key].shape), (inputs[key].dtype, inputs[key].shape))
                    self.assert_near(got[key], expected[key], 1.5 * GRADIENTS[got[key].dtype], key)

    def gradients(self, op, inputs):
        leaves = {name: inputs[name].detach().requires_grad_() for name in ("q", "k", "v")}
        o, log_sum_exp = op(**{**inputs, **leaves})
        generator = torch.Generator().manual_seed(1)
        d_o = torch.randn(o.shape, generator=generator).to(inputs["q"].dtype).to(o.dtype)
        d_sums = torch.randn(log_sum_exp.shape, generator=generator)
        loss = (o * d_o).sum() + (log_sum_exp * d_sums).masked_fill(log_sum_exp.isinf(), 0).sum()
        loss = loss + sum(0 * x.sum() for x in leaves.values())  # the definition may read none of them
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    def test_fp64_passes_gradcheck(self):
        options = {"causal": True, "window": (3, None), "return_log_sum_exp": True}
        q, k, v = (x.requires_grad_() for x in self.draw(T=5, TK=7, K=3, V=2, dtype=torch.float64))
        self.assertTrue(gradcheck(lambda *x: tandem.ops.attention(*x, **options), (q, k, v)))

    def test_torchs_own(self):
        q, k, v = self.draw(T=90)
        heads = [x.transpose(1, 2) for x in (q, k, v)]
        expected = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)
        self.assertLess(relative_rms(tandem.ops.attention(q, k, v, causal=True), expected.double()), 1e-5)


class Arguments(AttentionCase):
    def refuses(self, error, text, *args, **kwargs):
        with self.assertRaises(error) as caught:
            tandem.ops.attention(*args, **kwargs)
        self.assertEqual(type(caught.exception), error)
        self.assertIn(text, str(caught.exception))

    def test_what_others_call_or_have(self):
        inputs = self.draw()
        for name, text in (
            ("dropout_p", "[attention] unexpected argument dropout_p: there is no dropout here"),
            ("attn_mask", "attn_mask: which keys a query sees is said by causal, window and lengths alone here"),
            ("bias", "bias: scores have no bias here"),
            ("alibi_slopes", "alibi_slopes: scores have no bias here"),
            ("softcap", "softcap: scores are not capped here"),
            ("softmax_scale", "softmax_scale: it is scale here"),
            ("anything", "[attention] unexpected argument anything"),
        ):
            self.refuses(TypeError, text, *inputs, **{name: 0})

    def test_refusals(self):
        q, k, v = self.draw()
        self.refuses(ValueError, "k must have a number of heads HKV that divides H = 3", q[:, :, :3], k, v)
        self.refuses(ValueError, "window must be None or (left, right), got 5", q, k, v, window=5)
        self.refuses(ValueError, "window_left must be a whole number in [0,2^31), got -2", q, k, v, window=(-2, 0))
        self.refuses(ValueError, "window_right must be absent or 0 beside causal", q, k, v, causal=True, window=(0, 1))
        self.refuses(ValueError, "k must have dtype fp32, got fp16", q, k.half(), v)
        self.refuses(ValueError, "lengths_k must have shape [B] = [2], got [1]", q, k, v, lengths_k=torch.tensor([1]))
        self.refuses(ValueError, "lengths_k must lie in [0,TK]", q, k, v, lengths_k=torch.tensor([1, 91]))
        offsets = torch.tensor([0, 70])
        text = "cu_seqlens_q and cu_seqlens_k must be given together, got only cu_seqlens_q"
        self.refuses(ValueError, text, q[:1], k[:1], v[:1], cu_seqlens_q=offsets)
        self.refuses(ValueError, "needs B = 1", q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets)
        self.refuses(TypeError, "q must be a torch.Tensor, got list", [1], k, v)
        with torch.autocast("cpu", torch.bfloat16):  # which leaves integers as they are
            self.refuses(ValueError, "q must have dtype", q.int(), k, v)

    def test_windows_of_minus_one_have_no_end(self):
        q, k, v = self.draw()
        expected = tandem.ops.attention(q, k, v, window=(5, None))
        self.assertTrue(torch.equal(tandem.ops.attention(q, k, v, window=(5, -1)), expected))
        expected = tandem.ops.attention(q, k, v, causal=True)
        self.assertTrue(torch.equal(tandem.ops.attention(q, k, v, window=(-1, 0)), expected))

    def test_int64_lengths(self):
        q, k, v = self.draw()
        lengths = torch.tensor([0, 80])
        both = [tandem.ops.attention(q, k, v, lengths_k=lengths.to(dtype)) for dtype in (torch.int32, torch.int64)]
        self.assertTrue(torch.equal(*both))
        self.assertEqual(both[0][0].abs().max(), 0)

    def test_layouts_that_the_library_refuses_are_copied(self):
        q, k, v = self.draw()
        turned = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
        self.assertNotEqual(turned[0].stride(-1), 1)
        self.assertTrue(torch.equal(tandem.ops.attention(*turned), tandem.ops.attention(q, k, v)))


class Torch(AttentionCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        inputs = dict(zip("qkv", self.draw(), strict=True))
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        everything = torch.autograd.grad(tandem.ops.attention(**leaves).sum(), list(leaves.values()))
        for name, expected in zip(inputs, everything, strict=True):
            (got,) = torch.autograd.grad(tandem.ops.attention(**{**inputs, name: leaves[name]}).sum(), leaves[name])
            self.assertTrue(torch.equal(got, expected), name)

    def test_a_loss_of_the_log_sum_exp_alone(self):
        inputs = [x.requires_grad_() for x in self.draw()]
        _, log_sum_exp = tandem.ops.attention(*inputs, return_log_sum_exp=True)
        got = torch.autograd.grad(log_sum_exp.sum(), inputs[:2])
        wide = [x.detach().double().requires_grad_() for x in inputs]
        expected = torch.autograd.grad(attention(*wide)[1].sum(), wide[:2])
        for a, b in zip(got, expected, strict=True):
            self.assertLess(relative_rms(a, b), 1e-5)

    def test_no_queries_no_keys_and_no_batches(self):
        for shape in ({"T": 0}, {"TK": 0}, {"B": 0}):
            leaves = [x.requires_grad_() for x in self.draw(**shape)]
            tandem.ops.attention(*leaves).sum().backward()
            self.assertEqual([x.grad.shape for x in leaves], [x.shape for x in leaves])

    def test_second_derivatives_are_refused(self):
        q, k, v = (x.requires_grad_() for x in self.draw())
        (gradient,) = torch.autograd.grad(tandem.ops.attention(q, k, v).sum(), q, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no second derivative"):
            gradient.sum().backward()

    def test_opcheck(self):
        q, k, v = self.draw(B=1, T=20, TK=30)
        offsets_q, offsets_k = torch.tensor([0, 5, 20]), torch.tensor([0, 12, 30])
        turned = k.transpose(1, 2).contiguous().transpose(1, 2)
        for arguments in (
            (q, k, v, None, None, None, None, None, None, None, False),
            (q, turned, v, 0.3, 1.0, 5, None, offsets_q, offsets_k, None, True),
            (q, k, v, None, None, 3, 4, None, None, torch.tensor([17], dtype=torch.int32), True),
        ):
            torch.library.opcheck(OP, arguments)
            leaves = [x.detach().requires_grad_() for x in arguments[:3]]
            torch.library.opcheck(OP, (*leaves, *arguments[3:]))

    def test_one_graph_for_every_length_with_gradients(self):
        def loss(q, k, v):
            o, log_sum_exp = tandem.ops.attention(torch.sin(q), k, v, causal=True, return_log_sum_exp=True)
            return (o * 2).square().sum() + log_sum_exp.sum()

        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (70, 5, 129):
            leaves = [x.requires_grad_() for x in self.draw(T=T, TK=130 + T)]
            got = torch.autograd.grad(compiled(*leaves), leaves)
            for a, b in zip(got, torch.autograd.grad(loss(*leaves), leaves), strict=True):
                self.assertLess(relative_rms(a, b.double()), 1e-5)

    def test_autocast(self):
        q, k, v = self.draw()
        expected = tandem.ops.attention(*(x.bfloat16() for x in (q, k, v)))
        with torch.autocast("cpu", torch.bfloat16):
            got = tandem.ops.attention(q, k, v)
        self.assertEqual(got.dtype, torch.bfloat16)
        self.assertTrue(torch.equal(got, expected))

    def test_vmap_is_a_larger_batch(self):
        items = [torch.stack([x, -x, 2 * x]) for x in self.draw()]
        lengths = torch.tensor([[0, 90], [13, 40], [90, 1]], dtype=torch.int32)

        def call(q, k, v, lengths_k):
            return tandem.ops.attention(q, k, v, causal=True, lengths_k=lengths_k, return_log_sum_exp=True)

        got = torch.vmap(call)(*items, lengths)
        for i in range(3):
            for a, b in zip(got, call(*(x[i] for x in items), lengths[i]), strict=True):
                self.assertTrue(torch.equal(a[i], b))

    def test_torch_func(self):
        q, k, v = self.draw()

        def loss(*inputs):
            return tandem.ops.attention(*inputs, causal=True).square().sum()

        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        expected = torch.autograd.grad(loss(*leaves), leaves)
        for a, b in zip(torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v), expected, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_tangents_of_v(self):
        q, k, v = self.draw()

        def call(v):
            return tandem.ops.attention(q, k, v, return_log_sum_exp=True)

        (_, log_sum_exp), (d_o, d_sums) = torch.func.jvp(call, (v,), (2 * v,))
        self.assertLess(relative_rms(d_o, 2 * call(v)[0].double()), 1e-6)
        self.assertEqual((d_sums.shape, d_sums.abs().max()), (log_sum_exp.shape, 0))
        with self.assertRaisesRegex(NotImplementedError, r"\[attention\] has no forward-mode derivative by q together"):
            torch.func.jvp(lambda q: tandem.ops.attention(q, k, v), (q,), (q,))

    def test_meta_tensors(self):
        o, log_sum_exp = tandem.ops.attention(*(x.to("meta") for x in self.draw()), return_log_sum_exp=True)
        self.assertEqual((o.device.type, o.shape, log_sum_exp.shape), ("meta", (2, 70, 4, 24), (2, 4, 70)))


if __name__ == "__main__":
    unittest.main()
