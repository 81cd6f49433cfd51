"""tandem.ops.gla_step on the CPU: its cases against the fp64 definition, steps against gla, torch's machinery."""

import unittest

import tandem
import torch
from reference import TOLERANCE, gla, relative_rms
from tandem._registration import OPS

from cases import DTYPES, cover, gla_inputs

OP = torch.ops.tandem.gla_step.default


def inputs(B=3, H=4, HQ=2, K=64, V=40, dtype=torch.bfloat16, state_dtype=torch.float32, device="cpu"):
    """q, k, v, log_decay, state."""
    q, k = torch.randn(2, B, HQ, K, device=device).to(dtype).unbind()
    v = torch.randn(B, H, V, device=device).to(dtype)
    state = torch.randn(B, H, K, V, device=device).to(state_dtype)
    return q, k, v, torch.nn.functional.logsigmoid(torch.randn(B, H, device=device)) / 16, state


class StepCase(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def inputs(self, **kwargs):
        return inputs(device=self.device, **kwargs)

    def check(self, arguments, state, **kwargs):
        """Compares o and the new state with the definition, for gla's arguments with T = 1."""
        kept = state.clone()
        expected_o, expected_state = gla(**arguments, initial_state=kept)
        o = tandem.ops.gla_step(
            arguments["q"], arguments["k"], arguments["v"], arguments.get("log_decay"), state, **kwargs
        )
        self.assertEqual((o.shape, o.dtype, o.is_contiguous()), (arguments["v"].shape, arguments["v"].dtype, True))
        self.assertLess(relative_rms(o, expected_o), TOLERANCE[o.dtype])
        self.assertLess(relative_rms(state, expected_state), TOLERANCE[state.dtype])


class Cases(StepCase):
    dtypes = tuple(DTYPES)

    def test_every_path_of_the_binding(self):
        for case, name in cover("gla", "step", self.dtypes):
            with self.subTest(case["name"], dtype=name):
                arguments = gla_inputs(case, DTYPES[name], self.device)
                arguments.pop("output_final_state")
                H, K, V = (case["axes"][axis] for axis in "HKV")
                state = torch.randn(case["axes"]["B"], H, K, V, device=self.device)
                self.check(arguments, state.to(DTYPES[case["state_dtype"]]), scale=arguments["scale"])


class Arguments(StepCase):
    def test_a_sequence_in_steps(self):
        B, T, H, K, V = 2, 70, 4, 64, 32
        q, k = torch.randn(2, B, T, H, K, device=self.device).to(torch.bfloat16).unbind()
        v = torch.randn(B, T, H, V, device=self.device).to(torch.bfloat16)
        g = torch.nn.functional.logsigmoid(torch.randn(B, T, H, device=self.device)) / 16
        expected_o, expected_state = gla(q, k, v, g)
        state = torch.zeros(B, H, K, V, device=self.device)
        steps = [tandem.ops.gla_step(q[:, t], k[:, t], v[:, t], g[:, t], state) for t in range(T)]
        self.assertLess(relative_rms(torch.stack(steps, 1), expected_o), 3e-3)
        self.assertLess(relative_rms(state, expected_state), 1e-5)

    def test_the_time_axis_may_be_there(self):
        q, k, v, g, state = self.inputs()
        other = state.clone()
        expected = tandem.ops.gla_step(q, k, v, g, state)
        got = tandem.ops.gla_step(q[:, None], k[:, None], v[:, None], g[:, None], other)
        self.assertEqual(got.shape, (3, 1, 4, 40))
        self.assertTrue(torch.equal(got[:, 0], expected) and torch.equal(other, state))

    def test_what_goes_past_the_dispatcher_gives_the_same(self):
        q, k, v, g, state = self.inputs()
        with_time = [x[:, None] for x in (q, k, v)]
        for what, is_direct, decay, arguments in (
            ("no time axis", True, g, (q, k, v, g)),
            ("a time axis", True, g, (*with_time, g[:, None])),
            ("a constant decay", True, g[0], (*with_time, g[0])),
            ("no decay", True, None, (*with_time, None)),
            ("a decay without the axis", False, g, (*with_time, g)),
            ("a k without it", False, g, (with_time[0], k, with_time[2], g)),
            ("a decay to be widened", False, g.bfloat16().float(), (*with_time, g[:, None].bfloat16())),
        ):
            with self.subTest(what):
                expected_state, new_state, third = state.clone(), state.clone(), state.clone()
                expected = OP(q, k, v, decay, None, expected_state)
                got = tandem.ops.gla_step(*arguments, new_state)
                self.assertEqual(got.shape, arguments[2].shape)
                self.assertTrue(torch.equal(got.view_as(expected), expected) and torch.equal(new_state, expected_state))
                self.assertEqual(new_state._version, third._version + 1)
                direct = OPS["gla_step"].run_directly(*arguments, None, third)
                self.assertEqual(direct is not NotImplemented, is_direct)

    def test_a_slice_of_a_cache(self):
        q, k, v, g, state = self.inputs()
        cache = torch.full((3, 5, 4, 64, 48), 7.0, device=self.device)
        cache[:, 2, :, :, :40] = state
        expected = tandem.ops.gla_step(q, k, v, g, state)
        got = tandem.ops.gla_step(q, k, v, g, cache[:, 2, :, :, :40])
        self.assertTrue(torch.equal(got, expected) and torch.equal(cache[:, 2, :, :, :40], state))
        cache[:, 2, :, :, :40] = 7.0
        self.assertTrue((cache == 7.0).all())

    def test_minus_infinity_forgets_nan(self):
        q, k, v, g, state = self.inputs(HQ=4)
        state.fill_(float("nan"))
        o = tandem.ops.gla_step(q, k, v, torch.full_like(g, -torch.inf), state)
        self.assertLess(relative_rms(state, k[..., :, None].double() * v[..., None, :].double()), 1e-6)
        self.assertTrue(o.isfinite().all())

    def test_autocast_casts_q_k_v_only(self):
        q, k, v, g, state = self.inputs(dtype=torch.float32)
        other = state.clone()
        expected = tandem.ops.gla_step(q.bfloat16(), k.bfloat16(), v.bfloat16(), g, state)
        with torch.autocast(self.device, torch.bfloat16):
            got = tandem.ops.gla_step(q, k, v, g, other)
        self.assertTrue(torch.equal(got, expected) and torch.equal(other, state))

    def test_refusals(self):
        q, k, v, g, state = self.inputs()
        kept = state.clone()
        for error, text, arguments in (
            (
                ValueError,
                "[gla_step] k must have shape [B,HQ,K] = [3,2,64], got [3,2,63]",
                (q, k[..., :63], v, g, state),
            ),
            (
                ValueError,
                "q must have shape [B,HQ,K], got [3,2,2,64]",
                (q[:, None].expand(3, 2, 2, 64), k, v, g, state),
            ),
            (
                ValueError,
                "state must have shape [B,H,K,V] = [3,4,64,40], got [3,4,40,64]",
                (q, k, v, g, state.transpose(2, 3)),
            ),
            (ValueError, "state must have dtype fp32 or bf16, got fp16", (q, k, v, g, state.half())),
            (ValueError, "state must have dtype fp32 or bf16, got fp64", (q, k, v, g, state.double())),
            (ValueError, "log_decay must have shape [B,H] = [3,4], got [3,2]", (q, k, v, g[:, :2], state)),
            (ValueError, "state must not overlap itself", (q, k, v, g, state[:1].expand(3, 4, 64, 40))),
            (
                ValueError,
                "[gla_step] k must have shape [B,HQ,K] = [3,2,64], got [3,2,63]",
                (q[:, None], k[:, None, :, :63], v[:, None], g[:, None], state),
            ),
            (ValueError, "q must have shape [B,HQ,K], got [3,1,2,64]", (q[:, None], k[:, None], v, g, state)),
            (TypeError, "[gla_step] the order is gla_step(q, k, v, log_decay, state)", (q, k, v, state, g)),
            (TypeError, "[gla_step] k must be a torch.Tensor, got list", (q, [], v, g, state)),
            (NotImplementedError, "[gla_step] has no gradient", (q, k, v, g.clone().requires_grad_(), state)),
        ):
            with self.subTest(text), self.assertRaises(error) as caught:
                tandem.ops.gla_step(*arguments)
            self.assertIn(text, str(caught.exception))
        self.assertTrue(torch.equal(state, kept))
        with torch.no_grad():
            tandem.ops.gla_step(q, k, v, g.requires_grad_(), state)


class Torch(StepCase):
    def test_opcheck(self):
        q, k, v, g, state = self.inputs()
        for arguments in (
            (q, k, v, g, None, state),
            (q, k, v, g[0], 0.5, state.bfloat16()),
            (q, k, v.transpose(0, 1).contiguous().transpose(0, 1), None, None, state),
        ):
            torch.library.opcheck(OP, arguments)

    def test_compiled_updates_the_state(self):
        def tokens(q, k, v, g, state):
            first = tandem.ops.gla_step(q, k, v, g, state)
            return first + tandem.ops.gla_step(k, q, v, g, state)

        compiled = torch.compile(tokens, fullgraph=True, dynamic=True, backend="aot_eager")
        for B in (3, 5):
            q, k, v, g, state = self.inputs(B=B)
            other = state.clone()
            expected = tokens(q, k, v, g, state)
            self.assertTrue(torch.equal(compiled(q, k, v, g, other), expected))
            self.assertTrue(torch.equal(other, state))

    def test_fake_results_are_like_the_real_ones(self):
        arguments = self.inputs()
        with torch._subclasses.FakeTensorMode() as mode:
            fake = tandem.ops.gla_step(*(mode.from_tensor(x) for x in arguments))
        real = tandem.ops.gla_step(*arguments)
        self.assertEqual(
            (fake.shape, fake.stride(), fake.dtype, fake.device), (real.shape, real.stride(), real.dtype, real.device)
        )


if __name__ == "__main__":
    unittest.main()
