"""tandem.ops.causal_conv1d and its step on the CPU: their cases and gradients against fp64 and torch's conv1d, and as
citizens of torch."""

import math
import unittest
import zlib

import tandem
import torch
from reference import causal_conv1d, relative_rms
from tandem._registration import OPS

from cases import DTYPES, cover

OP = torch.ops.tandem.causal_conv1d_forward.default
STEP = torch.ops.tandem.causal_conv1d_step.default
# The rounding of one value, and fp32's sums.
TOLERANCE = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2e-6}


def case_inputs(case, dtype, device):
    """Keyword arguments of the op."""
    B, T, D, W = (case["axes"][axis] for axis in "BTDW")
    generator = torch.Generator().manual_seed(zlib.crc32(case["name"].encode()))

    def normal(*shape, of=dtype):
        return torch.randn(shape, generator=generator).to(of).to(device)

    def laid_out(x):
        if case["strides"] == "packed":
            return torch.cat((x, x), dim=-1)[..., :D]
        if case["strides"] == "transposed":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        if case["strides"] == "broadcast" and B:
            return x[:1].expand(B, T, D)
        return x

    inputs = {
        "x": laid_out(normal(B, T, D)),
        "weight": normal(D, W, of=torch.float32 if case["weight"] == "fp32" else dtype),
        "activation": {"silu": "silu", "none": None}[case["activation"]],
    }
    if case["bias"] != "none":
        inputs["bias"] = normal(D, of=torch.float32 if case["bias"] == "fp32" else dtype)
    N = B
    if "cu_seqlens" in case:
        inputs["cu_seqlens"] = torch.tensor(case["cu_seqlens"], dtype=torch.int32, device=device)
        N = len(case["cu_seqlens"]) - 1
    if case["states"] in ("initial", "both"):
        # As causal-conv1d has it: channels are neighbours.
        inputs["initial_state"] = normal(N, W - 1, D).transpose(1, 2)
    inputs["output_final_state"] = case["states"] in ("final", "both")
    return inputs


class ConvCase(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def draw(self, B=2, T=50, D=40, W=4, dtype=torch.float32):
        """x, weight, bias, initial_state."""
        shapes = ((B, T, D), (D, W), (D,), (B, D, W - 1))
        return [torch.randn(shape, device=self.device).to(dtype) for shape in shapes]


class Cases(ConvCase):
    def test_every_path_of_the_binding(self):
        for case, name in cover("causal_conv1d", "forward"):
            with self.subTest(case["name"], dtype=name):
                inputs = case_inputs(case, DTYPES[name], self.device)
                out, state = tandem.ops.causal_conv1d(**inputs)
                expected, expected_state = causal_conv1d(**inputs)
                self.assertEqual((out.dtype, out.shape), (DTYPES[name], expected.shape))
                self.assertLess(relative_rms(out, expected), TOLERANCE[out.dtype])
                if not inputs["output_final_state"]:
                    self.assertIsNone(state)
                    continue
                self.assertEqual((state.dtype, state.shape), (DTYPES[name], expected_state.shape))
                self.assertTrue(torch.equal(state.double(), expected_state))

    def test_the_gradients_of_every_path(self):
        for case, name in cover("causal_conv1d", "backward"):
            with self.subTest(case["name"], dtype=name):
                inputs = case_inputs(case, DTYPES[name], self.device)
                names = [key for key in ("x", "weight", "bias", "initial_state") if key in inputs]
                outputs = tandem.ops.causal_conv1d(**inputs)
                cotangents = [None if y is None else torch.randn_like(y) for y in outputs]
                wide = {**inputs, **{key: inputs[key].double() for key in names}}
                got = self.gradients(tandem.ops.causal_conv1d, names, inputs, cotangents)
                expected = self.gradients(causal_conv1d, names, wide, cotangents)
                for key, mine, right in zip(names, got, expected, strict=True):
                    self.assertEqual((mine.dtype, mine.shape), (inputs[key].dtype, inputs[key].shape))
                    self.assertLess(relative_rms(mine, right), TOLERANCE[mine.dtype], key)

    def gradients(self, op, names, inputs, cotangents):
        leaves = {name: inputs[name].detach().requires_grad_() for name in names}
        outputs = op(**{**inputs, **leaves})
        loss = sum((y * d.to(y.dtype)).sum() for y, d in zip(outputs, cotangents, strict=True) if d is not None)
        if not loss.requires_grad:  # the reference, of no sequences
            return [torch.zeros_like(leaf) for leaf in leaves.values()]
        return torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)

    def test_as_torchs_conv1d(self):
        x, weight, bias, _ = self.draw()
        conv = torch.nn.Conv1d(40, 40, 4, groups=40, padding=3, device=self.device)
        with torch.no_grad():
            conv.weight.copy_(weight[:, None])
            conv.bias.copy_(bias)
        expected = torch.nn.functional.silu(conv(x.transpose(1, 2))[..., :50].transpose(1, 2))
        got, _ = tandem.ops.causal_conv1d(x, conv.weight.squeeze(1), conv.bias, activation="silu")
        self.assertLess(relative_rms(got, expected.double()), 1e-6)


class Arguments(ConvCase):
    def test_refusals(self):
        x, weight, bias, state = self.draw(dtype=torch.bfloat16)
        op = tandem.ops.causal_conv1d
        for error, text, call in (
            (ValueError, "weight must have W in [2,4], got shape [40,1]", lambda: op(x, weight[:, :1])),
            (ValueError, "weight must have shape [D,W], got [40,1,4]", lambda: op(x, weight[:, None])),
            (ValueError, "weight must have shape [D,W] = [40,4], got [39,4]", lambda: op(x, weight[:39])),
            (ValueError, "x must have shape [B,T,D], got [50,40]", lambda: op(x[0], weight)),
            (ValueError, "bias must have dtype bf16 or fp32, got fp16", lambda: op(x, weight, bias.half())),
            (
                ValueError,
                "initial_state must have shape [B,D,W-1] = [2,40,3], got [2,40,4]",
                lambda: op(x, weight, initial_state=state.repeat(1, 1, 2)[..., :4]),
            ),
            (
                ValueError,
                "initial_state must have dtype bf16, got fp32",
                lambda: op(x, weight, initial_state=state.float()),
            ),
            (
                ValueError,
                "activation must be silu, swish or None, got 'relu'",
                lambda: op(x, weight, activation="relu"),
            ),
            (TypeError, "initial_states: it is initial_state here", lambda: op(x, weight, initial_states=state)),
            (
                TypeError,
                "conv_state: it is state here",
                lambda: tandem.ops.causal_conv1d_step(x[:, 0], state, weight, conv_state=state),
            ),
            (
                ValueError,
                "state must have shape [B,D,W-1] = [2,40,3], got [2,40,2]",
                lambda: tandem.ops.causal_conv1d_step(x[:, 0], state[..., :2], weight),
            ),
        ):
            with self.subTest(text), self.assertRaises(error) as caught:
                call()
            self.assertIn(text, str(caught.exception))

    def test_steps_go_on_from_a_prompt(self):
        x, weight, bias, _ = self.draw(dtype=torch.bfloat16)
        out, final = tandem.ops.causal_conv1d(x, weight, bias, activation="swish", output_final_state=True)
        _, state = tandem.ops.causal_conv1d(x[:, :2], weight, output_final_state=True)
        cache = torch.full((2, 40, 5), 7.0, dtype=x.dtype, device=self.device)
        cache[..., 2:] = state
        for t in range(2, 50):
            token = x[:, t] if t % 2 else x[:, t : t + 1]
            got = tandem.ops.causal_conv1d_step(token, cache[..., 2:], weight, bias, activation="silu")
            self.assertTrue(torch.equal(got.reshape(2, 40), out[:, t]))
        self.assertTrue(torch.equal(cache[..., 2:], final) and (cache[..., :2] == 7).all())

    def test_what_goes_past_the_dispatcher_gives_the_same(self):
        x, weight, bias, state = self.draw(dtype=torch.bfloat16)
        token, two = x[:, :1], x[:, :2]
        for what, is_direct, arguments in (
            ("no time axis", True, (token[:, 0], weight, bias)),
            ("a time axis", True, (token, weight, bias)),
            ("no bias, an fp32 weight", True, (token, weight.float(), None)),
            ("two tokens", False, (two, weight, bias)),
        ):
            with self.subTest(what):
                direct = OPS["causal_conv1d_step"].run_directly(*arguments, 1.0, state.clone())
                self.assertEqual(direct is not NotImplemented, is_direct)
                if not is_direct:
                    continue
                expected = STEP(token[:, 0], *arguments[1:], 1.0, state.clone())
                self.assertEqual(direct.shape, arguments[0].shape)
                self.assertTrue(torch.equal(direct.view_as(expected), expected))
        version = state._version
        tandem.ops.causal_conv1d_step(token, state, weight)
        self.assertEqual(state._version, version + 1)
        with self.assertRaisesRegex(ValueError, r"x must have shape \[B,D\], got \[2,2,40\]"):
            tandem.ops.causal_conv1d_step(two, state, weight)

    def test_a_step_has_no_gradient(self):
        x, weight, _, state = self.draw()
        with self.assertRaisesRegex(
            NotImplementedError, r"\[causal_conv1d_step\] has no gradient.*tandem.ops.causal_conv1d$"
        ):
            tandem.ops.causal_conv1d_step(x[:, 0], state, weight.requires_grad_())

    def test_fla_and_causal_conv1d_caches(self):
        x, weight, _, state = self.draw()
        expected, _ = tandem.ops.causal_conv1d(x, weight, initial_state=state)
        fla = torch.cat((torch.full((2, 40, 1), math.nan, device=self.device), state), -1)
        channels_last = state.transpose(1, 2).contiguous().transpose(1, 2)
        for other in (fla[..., 1:], channels_last):
            self.assertTrue(torch.equal(tandem.ops.causal_conv1d(x, weight, initial_state=other)[0], expected))


class Torch(ConvCase):
    def test_opcheck(self):
        x, weight, bias, state = self.draw(B=1)
        offsets = torch.tensor([0, 20, 50], device=self.device, dtype=torch.int32)
        for arguments in (
            (x, weight, bias, 1.0, None, None, False),
            (x, weight, None, 0.0, state, None, True),
            (x, weight, bias, None, state.repeat(2, 1, 1), offsets, True),
        ):
            torch.library.opcheck(OP, arguments)
        leaves = [y.detach().requires_grad_() for y in (x, weight, bias, state)]
        torch.library.opcheck(OP, (*leaves[:3], 1.0, leaves[3], None, True))
        torch.library.opcheck(STEP, (x[:, 0], weight, bias, 1.0, state))

    def test_one_graph_for_every_time_with_gradients(self):
        def loss(x, weight, bias):
            out, state = tandem.ops.causal_conv1d(
                torch.sin(x), weight, bias, activation="silu", output_final_state=True
            )
            return (out * 2).square().sum() + state.sum()

        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (70, 5, 128):
            leaves = [y.requires_grad_() for y in self.draw(T=T)[:3]]
            got = torch.autograd.grad(compiled(*leaves), leaves)
            for a, b in zip(got, torch.autograd.grad(loss(*leaves), leaves), strict=True):
                self.assertLess(relative_rms(a, b.double()), 1e-5)

    def test_only_what_requires_a_gradient_is_computed(self):
        x, weight, bias, state = self.draw()
        out, _ = tandem.ops.causal_conv1d(x, weight.requires_grad_(), bias, initial_state=state)
        self.assertEqual([y is None for y in torch.autograd.grad(out.sum(), [weight])], [False])

    def test_autocast_casts_tokens_alone(self):
        x, weight, bias, state = self.draw()
        expected, _ = tandem.ops.causal_conv1d(x.bfloat16(), weight, bias, initial_state=state.bfloat16())
        with torch.autocast(self.device, torch.bfloat16):
            got, _ = tandem.ops.causal_conv1d(x, weight, bias, initial_state=state)
        self.assertTrue(torch.equal(got, expected))

    def test_vmap(self):
        x, weight, bias, _ = self.draw(B=6)
        expected, _ = tandem.ops.causal_conv1d(x, weight, bias)
        got = torch.func.vmap(lambda one: tandem.ops.causal_conv1d(one, weight, bias)[0])(x.view(3, 2, 50, 40))
        self.assertTrue(torch.equal(got.flatten(0, 1), expected))

    def test_forward_mode_is_refused(self):
        x, weight, _, _ = self.draw()
        with self.assertRaisesRegex(NotImplementedError, "no forward-mode derivative"):
            torch.func.jvp(lambda y: tandem.ops.causal_conv1d(y, weight)[0], (x,), (x,))

    def test_second_derivatives_are_refused(self):
        x, weight, _, _ = self.draw()
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(tandem.ops.causal_conv1d(x, weight)[0].sum(), x, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no second derivative"):
            gradient.sum().backward()

    def test_meta_tensors(self):
        x, weight, _, _ = (y.to("meta") for y in self.draw())
        out, state = tandem.ops.causal_conv1d(x, weight, output_final_state=True)
        self.assertEqual((out.device.type, out.shape, state.shape), ("meta", (2, 50, 40), (2, 40, 3)))


if __name__ == "__main__":
    unittest.main()
