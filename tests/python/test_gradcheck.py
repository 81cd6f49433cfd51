"""fp64 on the CPU: torch.autograd.gradcheck at its defaults, values against the definitions, what is refused."""

import unittest

import tandem
import torch
from reference import gated_scan, gla, linear_scan, relative_rms
from torch.autograd import gradcheck
from torch.autograd.gradcheck import GradcheckError

B, T, H, K, V = 2, 5, 4, 3, 2
D, d = 3, 2
OFFSETS = torch.tensor([0, 2, 2, T - 1], dtype=torch.int32)  # of three sequences, one without tokens
TOLERANCE = 1e-13  # of relative errors: fp32 anywhere on the way leaves 1e-8


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def log_decays(*shape):
    return torch.nn.functional.logsigmoid(normal(*shape))


def check(op, options=None, **tensors):
    """gradcheck by all `tensors` that there are."""
    given = {name: x.requires_grad_() for name, x in tensors.items() if x is not None}

    def function(*values):
        results = op(**dict(zip(given, values, strict=True)), **(options or {}))
        return tuple(x for x in results if x is not None)

    return gradcheck(function, tuple(given.values()))


class Fp64Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def assert_near(self, got, expected, name=""):
        self.assertEqual((got.dtype, got.shape), (torch.float64, expected.shape), name)
        self.assertLess(relative_rms(got, expected), TOLERANCE, name)


class Gla(Fp64Case):
    def inputs(self, batch=B, tokens=T, heads=H):
        q, k = normal(2, batch, tokens, heads, K).unbind()
        return {"q": q, "k": k, "v": normal(batch, tokens, H, V)}

    def test_decays(self):
        for decay in (None, log_decays(B, T, H), log_decays(H)):
            with self.subTest(None if decay is None else decay.dim()):
                self.assertTrue(check(tandem.ops.gla, **self.inputs(), log_decay=decay))

    def test_grouped_heads(self):
        for heads in (1, 2):
            self.assertTrue(check(tandem.ops.gla, **self.inputs(heads=heads), log_decay=log_decays(B, T, H)))

    def test_states(self):
        options = {"output_final_state": True, "scale": 0.3}
        state = normal(B, H, K, V)
        self.assertTrue(check(tandem.ops.gla, options, **self.inputs(), initial_state=state))
        for decay in (log_decays(B, T, H), log_decays(H)):
            self.assertTrue(
                check(tandem.ops.gla, options, **self.inputs(heads=2), log_decay=decay, initial_state=state)
            )

    def test_cu_seqlens(self):
        options = {"output_final_state": True, "cu_seqlens": OFFSETS}
        for decay in (None, log_decays(1, T, H), log_decays(H)):
            tensors = self.inputs(batch=1, heads=2) | {"log_decay": decay, "initial_state": normal(3, H, K, V)}
            self.assertTrue(check(tandem.ops.gla, options, **tensors))

    def test_chunks(self):
        tensors = self.inputs(batch=1, tokens=67, heads=2)
        self.assertTrue(check(tandem.ops.gla, **tensors, log_decay=log_decays(1, 67, H)))

    def test_saved_states(self):
        tensors = self.inputs(heads=2) | {"log_decay": log_decays(B, T, H), "initial_state": normal(B, H, K, V)}
        self.assertTrue(check(tandem.ops.gla, {"save_states": True}, **tensors))

    def test_a_wrong_gradient_is_seen(self):
        with self.assertRaises(GradcheckError):
            check(lambda q, **rest: tandem.ops.gla(q * q.detach(), **rest), **self.inputs())

    def test_fp32_is_not_enough(self):
        def rounded(log_decay, **rest):
            o, _ = tandem.ops.gla(**{name: x.float() for name, x in rest.items()}, log_decay=log_decay.float())
            return (o.double(),)

        with self.assertRaises(GradcheckError):
            check(rounded, **self.inputs(), log_decay=log_decays(B, T, H))

    def test_against_the_definition(self):
        """Many chunks, more than one segment of each call, and resets."""
        for tokens, heads in ((70, 2), (1100, 4)):
            inputs = self.inputs(tokens=tokens, heads=heads)
            g = log_decays(B, tokens, H)
            g[:, 40, 1] = -torch.inf
            inputs |= {"log_decay": g, "initial_state": normal(B, H, K, V), "scale": 0.3}
            leaves = [x.requires_grad_() for x in inputs.values() if isinstance(x, torch.Tensor)]
            results = tandem.ops.gla(**inputs, output_final_state=True)
            expected = gla(**inputs)
            gradients = [normal(*x.shape) for x in expected]
            results += torch.autograd.grad(results, leaves, gradients)
            expected += torch.autograd.grad(expected, leaves, gradients)
            for name, one, other in zip(("o", "final_state", *inputs), results, expected, strict=False):
                self.assert_near(one, other, name)

    def test_what_exp_leaves_in_fp64_alone(self):
        """What is 0 in fp32 is not forgotten in fp64."""
        inputs = self.inputs(tokens=2)
        state = 1e60 * normal(B, H, K, V)
        inputs |= {"log_decay": torch.full((H,), -60.0, dtype=torch.float64), "initial_state": state}
        results = tandem.ops.gla(**inputs, output_final_state=True)
        for name, got, expected in zip(("o", "final_state"), results, gla(**inputs), strict=True):
            self.assert_near(got, expected, name)


class CausalConv1d(Fp64Case):
    def test_gradients(self):
        for W in (2, 3, 4):
            for activation in (None, "silu"):
                options = {"activation": activation, "output_final_state": True}
                tensors = {"x": normal(B, T, D), "weight": normal(D, W), "bias": normal(D)}
                with self.subTest(W=W, activation=activation):
                    self.assertTrue(check(tandem.ops.causal_conv1d, options, **tensors))
                    state = normal(B, D, W - 1)
                    self.assertTrue(check(tandem.ops.causal_conv1d, options, **tensors, initial_state=state))

    def test_cu_seqlens(self):
        options = {"activation": "silu", "output_final_state": True, "cu_seqlens": OFFSETS}
        tensors = {"x": normal(1, T, D), "weight": normal(D, 4), "initial_state": normal(3, D, 3)}
        self.assertTrue(check(tandem.ops.causal_conv1d, options, **tensors))


class GlaState(Fp64Case):
    def test_gradients(self):
        for heads in (2, H):
            for decay in (None, log_decays(B, T, H), log_decays(H)):
                with self.subTest(heads=heads, decay=None if decay is None else decay.dim()):
                    tensors = {"k": normal(B, T, heads, K), "v": normal(B, T, H, V), "log_decay": decay}
                    self.assertTrue(check(tandem.ops.gla_state, **tensors))

    def test_cu_seqlens(self):
        for decay in (None, log_decays(1, T, H), log_decays(H)):
            tensors = {"k": normal(1, T, 2, K), "v": normal(1, T, H, V), "log_decay": decay}
            self.assertTrue(check(tandem.ops.gla_state, {"cu_seqlens": OFFSETS}, **tensors))

    def test_against_the_definition(self):
        for tokens in (T, 1100):
            q, k = normal(2, B, tokens, 2, K).unbind()
            v, d_o = normal(2, B, tokens, H, V).unbind()
            g = log_decays(B, tokens, H) / 100
            state, total = tandem.ops.gla_state(k, v, g)
            self.assert_near(state, gla(k, k, v, g)[1])
            self.assert_near(total, g.sum(1))
            before = torch.zeros(B, H, K, V, dtype=torch.float64, requires_grad=True)
            o, _ = gla(q, k, v, g, initial_state=before)
            d_state, total = tandem.ops.gla_state_backward(q, d_o, g)
            self.assert_near(d_state, torch.autograd.grad(o, before, d_o)[0])
            self.assert_near(total, g.sum(1))


class GlaStep(Fp64Case):
    def test_against_the_definition(self):
        q, k = normal(2, B, 2, K).unbind()
        v, before = normal(B, H, V), normal(B, H, K, V)
        for g in (None, log_decays(B, H), log_decays(H)):
            for scale in (None, 0.3):
                state = before.clone()
                o = tandem.ops.gla_step(q, k, v, g, state, scale=scale)
                tokens = [x[:, None] for x in (q, k, v)]
                decay = g[:, None] if g is not None and g.dim() == 2 else g
                expected_o, expected_state = gla(*tokens, decay, scale=scale, initial_state=before)
                self.assert_near(o, expected_o[:, 0])
                self.assert_near(state, expected_state)


class Scans(Fp64Case):
    """gated_scan; LinearScans has the same tests."""

    op = staticmethod(tandem.ops.gated_scan)
    definition = staticmethod(gated_scan)

    def inputs(self, batch=B, tokens=T):
        return {"x": normal(batch, tokens, D)}

    def decays(self, batch=B, tokens=T):
        log_decay = log_decays(batch, tokens, D)
        return {"log_decay": log_decay}, {"decay": log_decay.exp()}

    def test_decays_and_gates(self):
        for decay in self.decays():
            for gate in (None, normal(B, T, D)):
                with self.subTest(*decay, gate=gate is not None):
                    self.assertTrue(check(self.op, **self.inputs(), **decay, gate=gate))

    def test_states(self):
        for decay in self.decays():
            for gate in (None, normal(B, T, D)):
                tensors = self.inputs() | decay | {"gate": gate, "initial_state": normal(B, D)}
                self.assertTrue(check(self.op, {"output_final_state": True}, **tensors))

    def test_cu_seqlens(self):
        for decay in self.decays(batch=1):
            tensors = self.inputs(batch=1) | decay | {"gate": normal(1, T, D), "initial_state": normal(3, D)}
            self.assertTrue(check(self.op, {"output_final_state": True, "cu_seqlens": OFFSETS}, **tensors))

    def test_chunks(self):
        for decay in self.decays(1, 67):
            self.assertTrue(check(self.op, **self.inputs(1, 67), **decay, gate=normal(1, 67, D)))

    def test_against_the_definition(self):
        for decay in self.decays(tokens=300):
            for x in decay.values():
                x[:, 100] = -torch.inf if "log_decay" in decay else 0
            inputs = self.inputs(tokens=300) | decay
            inputs |= {"gate": normal(B, 300, D), "initial_state": normal(B, D)}
            leaves = [x.requires_grad_() for x in inputs.values()]
            results = self.op(**inputs, output_final_state=True)
            expected = self.definition(**inputs)
            gradients = [normal(*x.shape) for x in expected]
            results += torch.autograd.grad(results, leaves, gradients)
            expected += torch.autograd.grad(expected, leaves, gradients)
            for name, one, other in zip(("out", "final_state", *inputs), results, expected, strict=True):
                self.assert_near(one, other, name)


class LinearScans(Scans):
    op = staticmethod(tandem.ops.linear_scan)
    definition = staticmethod(linear_scan)

    def inputs(self, batch=B, tokens=T):
        return {"u": normal(batch, tokens, d), "weight": normal(D, d)}


class Dtypes(Fp64Case):
    """With fp64 all is fp64; decays become it, as they become fp32 elsewhere."""

    def refuses(self, text, op, *arguments, **options):
        with self.assertRaises(ValueError) as caught:
            op(*arguments, **options)
        self.assertIn(text, str(caught.exception))

    def test_log_decay_of_another_dtype(self):
        q, k = normal(2, B, T, H, K).unbind()
        v, g = normal(B, T, H, V), log_decays(B, T, H).float()
        self.assertTrue(torch.equal(tandem.ops.gla(q, k, v, g)[0], tandem.ops.gla(q, k, v, g.double())[0]))
        x, g = normal(B, T, D), log_decays(B, T, D).float()
        expected = tandem.ops.gated_scan(x, log_decay=g.double())[0]
        self.assertTrue(torch.equal(tandem.ops.gated_scan(x, log_decay=g)[0], expected))
        bf16 = [y.bfloat16() for y in (q, k, v)]
        wide = log_decays(B, T, H)
        self.assertTrue(torch.equal(tandem.ops.gla(*bf16, wide)[0], tandem.ops.gla(*bf16, wide.float())[0]))

    def test_mixtures_are_refused(self):
        q, k = normal(2, B, T, H, K).unbind()
        v, state = normal(B, T, H, V), normal(B, H, K, V)
        self.refuses("k must have dtype fp64, got fp32", tandem.ops.gla, q, k.float(), v)
        self.refuses("k must have dtype bf16, got fp64", tandem.ops.gla, q.bfloat16(), k, v)
        text = "initial_state must have dtype fp64, got fp32"
        self.refuses(text, tandem.ops.gla, q, k, v, initial_state=state.float())
        text = "initial_state must have dtype fp32, got fp64"
        self.refuses(text, tandem.ops.gla, q.float(), k.float(), v.float(), initial_state=state)
        token = [x[:, 0] for x in (q, k, v)]
        self.refuses("state must have dtype fp64, got fp32", tandem.ops.gla_step, *token, None, state.float())
        x = normal(B, T, D)
        self.refuses("gate must have dtype fp64, got fp32", tandem.ops.gated_scan, x, decay=x, gate=x.float())

    def test_cuda_refuses_fp64(self):
        """As a compiler sees it: without a device, and without one being needed."""
        with torch._subclasses.FakeTensorMode():
            q = torch.empty(B, T, H, K, dtype=torch.float64, device="cuda")
            self.refuses("q must have dtype bf16 or fp16 on cuda:0, got fp64", tandem.ops.gla, q, q, q)
            text = "x must have dtype bf16, fp16 or fp32 on cuda:0, got fp64"
            self.refuses(text, tandem.ops.gated_scan, q[..., 0], decay=q[..., 0])

    def test_autocast_leaves_fp64_alone(self):
        q, k = normal(2, B, T, H, K).unbind()
        v = normal(B, T, H, V)
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(tandem.ops.gla(q, k, v)[0].dtype, torch.float64)

    def test_compiled(self):
        q, k = normal(2, B, T, H, K).unbind()
        v, g, state = normal(B, T, H, V), log_decays(B, T, H), normal(B, H, K, V)

        def function(q, k, v, g, state):
            return tandem.ops.gla(q, k, v, g, initial_state=state, output_final_state=True)

        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for got, expected in zip(compiled(q, k, v, g, state), function(q, k, v, g, state), strict=True):
            self.assertTrue(torch.equal(got, expected))


if __name__ == "__main__":
    unittest.main()
