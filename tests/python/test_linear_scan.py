"""tandem.ops.linear_scan on the CPU: its cases and gradients against fp64, and as a citizen of torch."""

import unittest

import tandem
import torch
from reference import linear_scan, relative_rms
from scans import ScanCase, differentiate, tolerance

NAMES = ("u", "weight", "decay", "log_decay", "gate", "initial_state")
OP = torch.ops.tandem.linear_scan_forward.default


class LinearScanCase(ScanCase):
    @staticmethod
    def gradient_tolerance(tensor, dtype):
        """x, and on a GPU dx, are rounded to 16 bits."""
        return {torch.bfloat16: 4e-3, torch.float16: 6e-4}.get(dtype) or tolerance(tensor, dtype)

    def draw(self, B=2, T=100, d=24, D=40, dtype=None):
        """u, weight, log_decay, gate."""

        def normal(*shape):
            return torch.randn(shape, device=self.device)

        g = torch.nn.functional.logsigmoid(normal(B, T, D) + 2)
        u, weight, gate = (x.to(dtype or self.dtype) for x in (normal(B, T, d), normal(D, d) / d**0.5, normal(B, T, D)))
        return u, weight, g, gate


class Cases(LinearScanCase):
    def test_every_path_of_the_binding(self):
        self.check_paths(self.check_results, tandem.ops.linear_scan, linear_scan, "forward")

    def test_the_gradients_of_every_path(self):
        self.check_paths(self.check_gradients, tandem.ops.linear_scan, linear_scan, "backward")


class Arguments(LinearScanCase):
    def test_refusals(self):
        u, weight, g, gate = self.draw(dtype=torch.bfloat16)
        for arguments, text in (
            ((u[0], weight), "u must have shape [B,T,d], got [100,24]"),
            ((u, weight[0]), "weight must have shape [D,d], got [24]"),
            ((u, weight[:, :20]), "weight must have shape [D,d] = [40,24], got [40,20]"),
            ((u, weight.float()), "weight must have dtype bf16, got fp32"),
            ((u, weight[:30]), "log_decay must have shape [B,T,D] = [2,100,30], got [2,100,40]"),
        ):
            with self.assertRaises(ValueError) as caught:
                tandem.ops.linear_scan(*arguments, log_decay=g, gate=gate)
            self.assertEqual(str(caught.exception), "[linear_scan_forward] " + text)

    def test_a_turned_weight_is_copied(self):
        u, weight, g, gate = self.draw()
        expected = tandem.ops.linear_scan(u, weight, log_decay=g, gate=gate)[0]
        turned = weight.T.contiguous().T
        self.assertTrue(torch.equal(tandem.ops.linear_scan(u, turned, log_decay=g, gate=gate)[0], expected))


class Torch(LinearScanCase):
    def test_only_what_requires_a_gradient_is_computed(self):
        inputs = dict(zip(("u", "weight", "log_decay", "gate"), self.draw(), strict=True))
        d_out = torch.randn(2, 100, 40, device=self.device).to(self.dtype)
        everything = differentiate(tandem.ops.linear_scan, NAMES, inputs, d_out, None)
        for name, tensor in inputs.items():
            leaf = tensor.detach().requires_grad_()
            out, _ = tandem.ops.linear_scan(**{**inputs, name: leaf})
            (gradient,) = torch.autograd.grad(out, leaf, d_out)
            with self.subTest(name):
                self.assert_same(gradient, everything[name])

    def test_what_is_kept(self):
        """x and states, where a gradient depends on them."""
        u, weight, g, gate = self.draw(T=300)
        inputs = {"u": u, "weight": weight, "log_decay": g, "gate": gate, "initial_state": torch.randn_like(g[:, 0])}
        expected = [(u.dtype, (2, 300, 40)), (torch.float32, (2, 3, 40))]
        given = {x.data_ptr() for x in inputs.values()}
        for name in inputs:
            saved = []
            pack = lambda x, saved=saved: (saved.append(x), x)[1]  # noqa: E731
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                tandem.ops.linear_scan(**{**inputs, name: inputs[name].detach().requires_grad_()})
            kept = [(x.dtype, tuple(x.shape)) for x in saved if x.data_ptr() not in given]
            self.assertEqual(kept, expected if name in ("log_decay", "gate") else [], name)

    def test_gradients_with_and_without_what_is_kept(self):
        u, weight, g, gate = self.draw(T=300)
        *_, x, states = OP(u, weight, None, g, gate, None, False, None, True, True)
        self.assertLess(relative_rms(x, torch.nn.functional.linear(u, weight).double()), self.near(1e-6))
        state, step = torch.zeros_like(g[:, 0]), g.exp()
        for t in range(257):
            if t in (128, 256):
                self.assertLess(relative_rms(states[:, t // 128], state.double()), self.near(1e-5))
            state = step[:, t] * state + x[:, t]
        d_out = torch.randn_like(gate)
        backward = torch.ops.tandem.linear_scan_backward.default
        call = lambda *kept: backward(u, weight, None, g, gate, None, None, d_out, None, *kept, *[True] * 4, False)  # noqa: E731
        again = call(None, None)
        for kept in ((x, None), (x, states)):
            for got, expected in zip(call(*kept)[:4], again[:4], strict=True):
                self.assertLess(relative_rms(got, expected.double()), self.near(1e-5))
        with self.assertRaisesRegex(ValueError, "states needs x"):
            call(None, states)

    def test_tangents_beside_what_is_kept(self):
        u, weight, g, _ = self.draw()
        tangent = torch.randn_like(u)
        g.requires_grad_()
        run = lambda u: tandem.ops.linear_scan(u, weight, log_decay=g)[0]  # noqa: E731
        self.assert_same(torch.func.jvp(run, (u,), (tangent,))[1], run(tangent))

    def test_a_loss_of_the_final_state_alone(self):
        u, weight, g, _ = self.draw()
        weight.requires_grad_()
        _, state = tandem.ops.linear_scan(u, weight, log_decay=g, output_final_state=True)
        (got,) = torch.autograd.grad(state.sum(), weight)
        wide = weight.detach().double().cpu().requires_grad_()
        (expected,) = torch.autograd.grad(linear_scan(u.cpu(), wide, log_decay=g.cpu())[1].sum(), wide)
        self.assertLess(relative_rms(got.cpu(), expected), self.near(1e-6))

    def test_no_tokens_and_no_batches(self):
        for shape in ({"T": 0}, {"B": 0}):
            leaves = [x.requires_grad_() for x in self.draw(**shape)]
            u, weight, g, gate = leaves
            out, state = tandem.ops.linear_scan(u, weight, log_decay=g, gate=gate, output_final_state=True)
            (out.sum() + state.sum()).backward()
            self.assertEqual([x.grad.shape for x in leaves], [x.shape for x in leaves])
            self.assertEqual(weight.grad.abs().sum().item(), 0)
            expanded = torch.zeros(1, 1, 1, dtype=u.dtype, device=self.device).expand(u.shape)
            self.assertEqual(tandem.ops.linear_scan(expanded, weight, log_decay=g)[0].shape, gate.shape)

    def test_second_derivatives_are_refused(self):
        u, weight, g, _ = self.draw()
        u.requires_grad_()
        out, _ = tandem.ops.linear_scan(u, weight, log_decay=g)
        (gradient,) = torch.autograd.grad(out.sum(), u, create_graph=True)
        with self.assertRaisesRegex(NotImplementedError, "no second derivative"):
            gradient.sum().backward()

    def test_opcheck(self):
        u, weight, g, gate = self.draw(B=1, T=70)
        state, offsets = torch.randn(1, 40, device=self.device), torch.tensor([0, 30, 70], device=self.device)
        for arguments in (
            (u, weight, None, g, gate, None, False, None, False, False),
            (u, weight, g.exp(), None, None, state, True, None, True, False),
            (u, weight, None, g, gate, state.repeat(2, 1), True, offsets, True, False),
        ):
            torch.library.opcheck(OP, arguments)
        # No comparison of values: states are not defined where a sequence begins.
        arguments = (u, weight, None, g, gate, None, False, None, True, True)
        torch.library.opcheck(OP, arguments, test_utils=("test_schema", "test_faketensor"))
        leaves = [x.detach().requires_grad_() for x in (u, weight, g, gate, state)]
        torch.library.opcheck(OP, (*leaves[:2], None, *leaves[2:], True, None, False, False))

    def test_one_graph_for_every_time_with_gradients(self):
        def loss(u, weight, g, gate):
            out, state = tandem.ops.linear_scan(torch.sin(u), weight, log_decay=g, gate=gate, output_final_state=True)
            return (out * 2).square().sum() + state.sum()

        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (70, 5, 128, 300):
            leaves = [x.requires_grad_() for x in self.draw(T=T)]
            got = torch.autograd.grad(compiled(*leaves), leaves)
            for a, b in zip(got, torch.autograd.grad(loss(*leaves), leaves), strict=True):
                self.assertLess(relative_rms(a, b.double()), self.near(1e-5))

    def test_autocast_casts_u_weight_and_gate_and_not_the_decay(self):
        u, weight, g, gate = self.draw(dtype=torch.float32)
        g = g.clamp(-1e-3)  # decays that bf16 would round to 1
        expected = tandem.ops.linear_scan(u.bfloat16(), weight.bfloat16(), log_decay=g, gate=gate.bfloat16())[0]
        with torch.autocast(self.device, torch.bfloat16):
            got = tandem.ops.linear_scan(u, weight, log_decay=g, gate=gate)[0]
        self.assertTrue(torch.equal(got, expected))


if __name__ == "__main__":
    unittest.main()
