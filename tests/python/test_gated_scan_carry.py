"""tandem.ops.gated_scan_decay, gated_scan_carry and its backward: a sequence in two parts, what they refuse, torch."""

import unittest

import tandem
import torch


class Carry(unittest.TestCase):
    device = "cpu"

    def draw(self, dtype=torch.float32, B=2, T=200, D=40):
        torch.manual_seed(0)
        x, gate = torch.randn(2, B, T, D, device=self.device).to(dtype).unbind()
        return x, -torch.rand(B, T, D, device=self.device) / 50, gate, torch.randn(B, D, device=self.device)

    def test_two_parts(self):
        for dtype, decay_dtype in (
            (torch.float32, torch.float32),
            (torch.bfloat16, torch.bfloat16),
            (torch.float16, torch.float32),
        ):
            with self.subTest(dtype=dtype, decay_dtype=decay_dtype):
                x, g, gate, state = self.draw(dtype)
                for decays in ({"log_decay": g.to(decay_dtype)}, {"decay": g.exp().to(decay_dtype)}):
                    expected, final = tandem.ops.gated_scan(
                        x, **decays, gate=gate, initial_state=state, output_final_state=True
                    )
                    out, left = tandem.ops.gated_scan(x, **decays, gate=gate, output_final_state=True)
                    before, total = tandem.ops.gated_scan_decay(**decays)
                    self.assertEqual((before.shape, total.shape), ((2, 4, 40), (2, 40)))
                    self.assertEqual((before.dtype, total.dtype), (torch.float32, torch.float32))
                    version = out._version
                    self.assertIsNone(tandem.ops.gated_scan_carry(out, state, before, **decays, gate=gate))
                    self.assertGreater(out._version, version)
                    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
                    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
                    torch.testing.assert_close(left + total * state, final, rtol=1e-4, atol=1e-4)

    def test_gradient_by_the_state_between(self):
        for dtype, decay_dtype in (
            (torch.float32, torch.float32),
            (torch.bfloat16, torch.bfloat16),
            (torch.float16, torch.float32),
        ):
            x, g, gate, state = self.draw(dtype)
            d_out, d_final = x.flip(1), torch.randn_like(state)
            for decays in ({"log_decay": g.to(decay_dtype)}, {"decay": g.exp().to(decay_dtype)}):
                for gated in ({}, {"gate": gate}):
                    with self.subTest(dtype=dtype, decay_dtype=decay_dtype, **decays, **gated):
                        begin = state.clone().requires_grad_()
                        options = {"initial_state": begin, "output_final_state": True}
                        results = tandem.ops.gated_scan(x, **decays, **gated, **options)
                        (expected,) = torch.autograd.grad(results, begin, [d_out, d_final])
                        before, total = tandem.ops.gated_scan_decay(**decays)
                        found = tandem.ops.gated_scan_carry_backward(d_out, before, **decays, **gated)
                        self.assertEqual((found.shape, found.dtype), ((2, 40), torch.float32))
                        torch.testing.assert_close(found + total * d_final, expected, rtol=1e-4, atol=1e-4)
                        again = tandem.ops.gated_scan_carry_backward(d_out, before, **decays, **gated)
                        self.assertTrue(torch.equal(found, again))

    def test_gradient_behind_a_decay_of_0(self):
        x, g, gate, _ = self.draw()
        g[:, 70] = -torch.inf
        before, _ = tandem.ops.gated_scan_decay(log_decay=g)
        x[:, 70:] = 0
        expected = tandem.ops.gated_scan_carry_backward(x, before, log_decay=g, gate=gate)
        x[:, 70:], gate[:, 70:] = torch.nan, -torch.inf
        found = tandem.ops.gated_scan_carry_backward(x, before, log_decay=g, gate=gate)
        self.assertTrue(torch.equal(found, expected))

    def test_other_strides_and_dtypes_of_decays(self):
        x, g, _, state = self.draw()
        for decays in (g.half(), g.transpose(1, 2).contiguous().transpose(1, 2)):
            got, _ = tandem.ops.gated_scan(x, log_decay=decays)
            wide = torch.zeros(2, 200, 100, device=self.device)
            wide[..., 3:43] = got
            before, _ = tandem.ops.gated_scan_decay(log_decay=decays)
            tandem.ops.gated_scan_carry(got, state, before, log_decay=decays)
            tandem.ops.gated_scan_carry(wide[..., 3:43], state, before, log_decay=decays)
            expected, _ = tandem.ops.gated_scan(x, log_decay=decays, initial_state=state)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(wide[..., 3:43], got, rtol=1e-6, atol=1e-6)
            self.assertFalse(wide[..., 43:].any())
            backward = tandem.ops.gated_scan_carry_backward
            expected = backward(got, before, log_decay=decays)
            torch.testing.assert_close(backward(wide[..., 3:43], before, log_decay=decays), expected)

    def test_refusals(self):
        x, g, _, state = self.draw()
        before, _ = tandem.ops.gated_scan_decay(log_decay=g)
        decay, carry = tandem.ops.gated_scan_decay, tandem.ops.gated_scan_carry
        backward = tandem.ops.gated_scan_carry_backward
        for error, text, call in (
            (ValueError, "exactly one of decay and log_decay must be given, got neither", lambda: decay()),
            (ValueError, "must be given, got both", lambda: decay(decay=g, log_decay=g)),
            (TypeError, "[gated_scan_decay] decay must be a torch.Tensor, got float", lambda: decay(decay=0.5)),
            (TypeError, "unexpected argument g: it is log_decay here", lambda: decay(g=g)),
            (ValueError, "must be given, got neither", lambda: carry(x, state, before)),
            (
                ValueError,
                "before must have shape [B,T/64,D] = [2,4,40], got [2,3,40]",
                lambda: carry(x, state, before[:, :3], log_decay=g),
            ),
            (ValueError, "carry must have dtype fp32", lambda: carry(x, state.half(), before, log_decay=g)),
            (TypeError, "carry must be a torch.Tensor", lambda: carry(x, None, before, log_decay=g)),
            (NotImplementedError, "has no gradient", lambda: carry(x, state.requires_grad_(), before, log_decay=g)),
            (ValueError, "must be given, got both", lambda: backward(x, before, decay=g, log_decay=g)),
            (
                ValueError,
                "before must have shape [B,T/64,D] = [2,4,40], got [2,3,40]",
                lambda: backward(x, before[:, :3], log_decay=g),
            ),
            (ValueError, "gate must have dtype fp32", lambda: backward(x, before, log_decay=g, gate=x.half())),
            (TypeError, "[gated_scan_carry_backward] unexpected argument g", lambda: backward(x, before, g=g)),
            (
                NotImplementedError,
                "gated_scan_carry_backward",
                lambda: backward(x.clone().requires_grad_(), before, log_decay=g).sum().backward(),
            ),
            (
                NotImplementedError,
                "[gated_scan_carry] updates its out in place",
                lambda: torch.vmap(lambda x: carry(x, state.detach(), before, log_decay=g))(x[None]),
            ),
        ):
            with self.subTest(text), self.assertRaises(error) as caught:
                call()
            self.assertIn(text, str(caught.exception))

    def test_compiled(self):
        x, g, gate, state = self.draw()

        def run(x, g, gate, state):
            out, _ = tandem.ops.gated_scan(x, log_decay=g, gate=gate)
            before, total = tandem.ops.gated_scan_decay(log_decay=g)
            tandem.ops.gated_scan_carry(out, state, before, log_decay=g, gate=gate)
            return out, total, tandem.ops.gated_scan_carry_backward(x, before, log_decay=g, gate=gate)

        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        for got, same in zip(compiled(x, g, gate, state), run(x, g, gate, state), strict=True):
            self.assertTrue(torch.equal(got, same))


if __name__ == "__main__":
    unittest.main()
