"""tandem.ops.gated_scan on the CPU: its cases and gradients against fp64, and as a citizen of torch."""

import unittest

import tandem
import torch
from reference import gated_scan, relative_rms
from scans import ScanCase, differentiate
from torch.utils.checkpoint import checkpoint

NAMES = ("x", "decay", "log_decay", "gate", "initial_state")
OP = torch.ops.tandem.gated_scan_forward.default


class GatedScanCase(ScanCase):
    def draw(self, B=2, T=100, D=40, dtype=None):
        """x, log_decay, gate."""
        x, gate = torch.randn(2, B, T, D, device=self.device).to(dtype or self.dtype).unbind()
        return x, torch.nn.functional.logsigmoid(torch.randn(B, T, D, device=self.device) + 2), gate


class Cases(GatedScanCase):
    def test_every_path_of_the_binding(self):
        self.check_paths(self.check_results, tandem.ops.gated_scan, gated_scan, "forward")

    def test_the_gradients_of_every_path(self):
        self.check_paths(self.check_gradients, tandem.ops.gated_scan, gated_scan, "backward")

    def test_the_reference_is_the_formula(self):
        # Written out for T = 2: another hand than reference.gated_scan's.
        x, a, gate = torch.rand(3, 1, 2, 3, dtype=torch.float64)
        s = a[0, 1] * x[0, 0] + x[0, 1]
        out, state = gated_scan(x, decay=a, gate=gate)
        self.assertLess(relative_rms(state[0], s), 1e-12)
        self.assertLess(relative_rms(out[0, 1], gate[0, 1] * torch.sigmoid(gate[0, 1]) * s), 1e-12)


class Arguments(GatedScanCase):
    def refuses(self, error, text, *args, **kwargs):
        with self.assertRaises(error) as caught:
            tandem.ops.gated_scan(*args, **kwargs)
        self.assertEqual(type(caught.exception), error)
        self.assertIn(text, str(caught.exception))

    def test_refusals(self):
        x, g, gate = self.draw(dtype=torch.bfloat16)
        one = "[gated_scan_forward] exactly one of decay and log_decay must be given, got "
        self.refuses(ValueError, one + "neither", x)
        self.refuses(ValueError, one + "both", x, decay=g, log_decay=g)
        self.refuses(ValueError, "x must have shape [B,T,D], got [100,40]", x[0], log_decay=g[0])
        shape = "log_decay must have shape [B,T,D] = [2,100,40], got [2,99,40]"
        self.refuses(ValueError, shape, x, log_decay=g[:, :99])
        self.refuses(ValueError, "gate must have dtype bf16, got fp32", x, log_decay=g, gate=gate.float())
        self.refuses(ValueError, "log_decay must have dtype bf16 or fp32, got int32", x, log_decay=g.int())
        self.refuses(ValueError, "x must have dtype bf16, fp16, fp32 or fp64, got Long", x.long(), log_decay=g)
        self.refuses(ValueError, "cu_seqlens needs B = 1", x, log_decay=g, cu_seqlens=torch.tensor([0, 100]))
        offsets = torch.tensor([0, 101])
        self.refuses(ValueError, "cu_seqlens must lie in [0,T]", x[:1], log_decay=g[:1], cu_seqlens=offsets)
        state = torch.zeros(2, 40, dtype=torch.float16)
        self.refuses(ValueError, "initial_state must have dtype fp32", x, log_decay=g, initial_state=state)

    def test_decays_of_other_dtypes_are_converted_differentiably(self):
        x, g, _ = self.draw(dtype=torch.bfloat16)
        other = g.to(torch.float16).requires_grad_()
        out, _ = tandem.ops.gated_scan(x, log_decay=other)
        self.assertTrue(torch.equal(out, tandem.ops.gated_scan(x, log_decay=other.float())[0]))
        (gradient,) = torch.autograd.grad(out.sum(), other)
        self.assertEqual(gradient.dtype, torch.float16)

    def test_decay_and_its_log_agree(self):
        x, g, gate = self.draw()
        by_log = tandem.ops.gated_scan(x, log_decay=g, gate=gate)[0]
        self.assertLess(relative_rms(tandem.ops.gated_scan(x, decay=g.exp(), gate=gate)[0], by_log.double()), 2e-6)

    def test_layouts_that_the_library_refuses_are_copied(self):
        x, g, gate = self.draw()
        expected = tandem.ops.gated_scan(x, log_decay=g, gate=gate)[0]
        turned = [y.transpose(1, 2).contiguous().transpose(1, 2) for y in (x, g, gate)]
        self.assertNotEqual(turned[0].stride(-1), 1)
        self.assertTrue(torch.equal(tandem.ops.gated_scan(turned[0], log_decay=turned[1], gate=turned[2])[0], expected))

    def test_int64_cu_seqlens(self):
        x, g, _ = self.draw(B=1)
        offsets = torch.tensor([0, 30, 30, 100], device=self.device)
        both = [
            tandem.ops.gated_scan(x, log_decay=g, cu_seqlens=offsets.to(dtype), output_final_state=True)
            for dtype in (torch.int32, torch.int64)
        ]
        self.assertTrue(torch.equal(both[0][0], both[1][0]) and torch.equal(both[0][1], both[1][1]))
        self.assertEqual(both[0][1].shape, (3, 40))


class Autograd(GatedScanCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        x, g, gate = self.draw()
        inputs = {"x": x, "log_decay": g, "gate": gate, "initial_state": torch.randn(2, 40, device=self.device)}
        d_out = torch.randn_like(x)
        everything = differentiate(tandem.ops.gated_scan, NAMES, inputs, d_out, None)
        for name, tensor in inputs.items():
            leaf = tensor.detach().requires_grad_()
            out, _ = tandem.ops.gated_scan(**{**inputs, name: leaf})
            (gradient,) = torch.autograd.grad(out, leaf, d_out)
            with self.subTest(name):
                self.assert_same(gradient, everything[name])

    def test_a_loss_of_the_final_state_alone(self):
        x, g, _ = self.draw()
        x.requires_grad_()
        _, state = tandem.ops.gated_scan(x, log_decay=g, output_final_state=True)
        (got,) = torch.autograd.grad(state.sum(), x)
        wide = x.detach().double().cpu().requires_grad_()
        (expected,) = torch.autograd.grad(gated_scan(wide, log_decay=g.cpu())[1].sum(), wide)
        self.assertLess(relative_rms(got.cpu(), expected), self.near(1e-6))

    def test_no_tokens_and_no_batches(self):
        for shape in ({"T": 0}, {"B": 0}):
            leaves = [x.requires_grad_() for x in self.draw(**shape)]
            x, g, gate = leaves
            out, state = tandem.ops.gated_scan(x, log_decay=g, gate=gate, output_final_state=True)
            (out.sum() + state.sum()).backward()
            self.assertEqual([y.grad.shape for y in leaves], [y.shape for y in leaves])
            expanded = torch.zeros(1, 1, 1, dtype=x.dtype, device=self.device).expand(x.shape)
            self.assertEqual(tandem.ops.gated_scan(expanded, log_decay=g)[0].shape, x.shape)

    def test_second_derivatives_are_refused(self):
        x, g, _ = self.draw()
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(tandem.ops.gated_scan(x, log_decay=g)[0].sum(), x, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no second derivative"):
            gradient.sum().backward()

    def test_checkpointed(self):
        x, g, gate = self.draw()

        def loss(x):
            return tandem.ops.gated_scan(torch.sin(x), log_decay=g, gate=gate)[0].square().sum()

        leaf = x.requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf), leaf)
        (got,) = torch.autograd.grad(checkpoint(loss, leaf, use_reentrant=False), leaf)
        self.assertTrue(torch.equal(got, expected))


class Torch(GatedScanCase):
    def test_opcheck(self):
        x, g, gate = self.draw(B=1, T=70)
        state, offsets = torch.randn(1, 40, device=self.device), torch.tensor([0, 30, 70], device=self.device)
        turned = x.transpose(1, 2).contiguous().transpose(1, 2)
        for arguments in (
            (x, None, g, gate, None, False, None, False),
            (x, g.exp(), None, None, state, True, None, False),
            (turned, None, g.bfloat16().float(), gate, state.repeat(2, 1), True, offsets, False),
        ):
            torch.library.opcheck(OP, arguments)
        # No comparison of values: states are not defined where a sequence begins.
        arguments = (x, None, g, gate, None, False, None, True)
        torch.library.opcheck(OP, arguments, test_utils=("test_schema", "test_faketensor"))
        leaves = [y.detach().requires_grad_() for y in (x, g, gate, state)]
        torch.library.opcheck(OP, (leaves[0], None, *leaves[1:], True, None, False))

    def test_one_graph_for_every_time_with_gradients(self):
        def loss(x, g, gate):
            out, state = tandem.ops.gated_scan(torch.sin(x), log_decay=g, gate=gate, output_final_state=True)
            return (out * 2).square().sum() + state.sum()

        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (70, 5, 128, 300):
            leaves = [x.requires_grad_() for x in self.draw(T=T)]
            got = torch.autograd.grad(compiled(*leaves), leaves)
            for a, b in zip(got, torch.autograd.grad(loss(*leaves), leaves), strict=True):
                self.assertLess(relative_rms(a, b.double()), self.near(1e-5))

    def test_autocast_casts_x_and_gate_and_not_the_decay(self):
        x, g, gate = self.draw()
        g = g.clamp(-1e-3)  # decays that bf16 would round to 1
        expected = tandem.ops.gated_scan(x.bfloat16(), log_decay=g, gate=gate.bfloat16())[0]
        with torch.autocast(self.device, torch.bfloat16):
            got = tandem.ops.gated_scan(x, log_decay=g, gate=gate)[0]
        self.assertEqual(got.dtype, torch.bfloat16)
        self.assertTrue(torch.equal(got, expected))

    def test_meta_tensors(self):
        x, g, gate = (y.to("meta") for y in self.draw())
        out, state = tandem.ops.gated_scan(x, log_decay=g, gate=gate)
        self.assertEqual((out.device.type, out.shape, state), ("meta", (2, 100, 40), None))


if __name__ == "__main__":
    unittest.main()
