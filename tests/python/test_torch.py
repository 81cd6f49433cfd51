"""The ops as citizens of torch: opcheck, torch.compile, autograd, autocast, fake tensors. On the CPU."""

import shutil
import unittest

import tandem
import torch
from reference import relative_rms
from torch._dynamo.utils import counters

OP = torch.ops.tandem.gla_forward.default


def inputs(B=1, T=70, H=4, K=64, V=32, HQ=None, dtype=torch.bfloat16, device="cpu"):
    """q, k, v, log_decay."""
    q, k = torch.randn(2, B, T, HQ or H, K, device=device).to(dtype).unbind()
    v = torch.randn(B, T, H, V, device=device).to(dtype)
    return q, k, v, torch.nn.functional.logsigmoid(torch.randn(B, T, H, device=device)) / 16


def layer(q, k, v, log_decay):
    """A graph with something on either side of the op."""
    o, state = tandem.ops.gla(torch.nn.functional.silu(q), k, v, log_decay, output_final_state=True)
    return o * 2, state.sum()


class TorchCase(unittest.TestCase):
    device = "cpu"

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()
        counters.clear()

    def inputs(self, **kwargs):
        return inputs(device=self.device, **kwargs)

    def assert_same(self, got, expected):
        for a, b in zip(got, expected, strict=True):
            self.assertLess(relative_rms(a, b.double()), 5e-3)


class Compile(TorchCase):
    def test_opcheck(self):
        q, k, v, g = self.inputs(HQ=2)
        state = torch.randn(1, 4, 64, 32, device=self.device)
        offsets = torch.tensor([0, 30, 70], device=self.device)
        for arguments in (
            (q, k, v, g, None, None, False, None, False),
            (q, k, v, g, 0.5, state, True, None, True),
            (q, k, v, g[0, 0], None, None, True, None, False),
            (q, k, v, None, None, state.repeat(2, 1, 1, 1), True, offsets, False),
            (q, k, v.transpose(1, 2).contiguous().transpose(1, 2), g, None, None, True, offsets.int(), False),
        ):
            torch.library.opcheck(OP, arguments)

    def test_one_graph_for_every_time(self):
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for T in (70, 5, 128, 1000):
            arguments = self.inputs(T=T)
            self.assert_same(compiled(*arguments), layer(*arguments))
        self.assertEqual(counters["stats"]["unique_graphs"], 1)

    def test_cu_seqlens_of_any_length(self):
        def varlen(q, k, v, g, offsets):
            return tandem.ops.gla(q, k, v, g, cu_seqlens=offsets, output_final_state=True)

        compiled = torch.compile(varlen, fullgraph=True, dynamic=True, backend="aot_eager")
        for offsets in ([0, 70], [0, 3, 3, 50, 70]):
            arguments = (*self.inputs(), torch.tensor(offsets, device=self.device))
            got = compiled(*arguments)
            self.assertEqual(got[1].shape[0], len(offsets) - 1)
            self.assert_same(got, varlen(*arguments))

    @unittest.skipUnless(
        shutil.which("c++") or shutil.which("g++") or shutil.which("gcc"), "no C++ compiler here for torch's inductor"
    )
    def test_inductor(self):
        compiled = torch.compile(layer, fullgraph=True, dynamic=True)
        for T in (70, 100):
            arguments = self.inputs(T=T)
            self.assert_same(compiled(*arguments), layer(*arguments))

    def test_under_autocast(self):
        def f(q, k, v, g):
            with torch.autocast(self.device, torch.bfloat16):
                return tandem.ops.gla(q, k, v, g)[0]

        arguments = self.inputs(dtype=torch.float32)
        got = torch.compile(f, fullgraph=True, backend="aot_eager")(*arguments)
        self.assertEqual(got.dtype, torch.bfloat16)
        self.assert_same([got], [f(*arguments)])

    def test_errors_inside_a_graph_keep_their_text(self):
        q, k, v, _ = self.inputs()
        f = torch.compile(lambda q, k, v: tandem.ops.gla(q, k, v)[0], fullgraph=True, backend="aot_eager")
        with self.assertRaisesRegex(RuntimeError, r"ValueError.*\[gla_forward\] k must have shape"):
            f(q, k[:, :69], v)

    def test_fake_results_are_like_the_real_ones(self):
        q, k, v, g = self.inputs(HQ=2)
        v = v.transpose(1, 2).contiguous().transpose(1, 2)
        offsets = torch.tensor([0, 30, 70], device=self.device)
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(x) for x in (q, k, v, g, offsets)]
            fake = tandem.ops.gla(*fakes[:4], cu_seqlens=fakes[4], output_final_state=True)
        real = tandem.ops.gla(q, k, v, g, cu_seqlens=offsets, output_final_state=True)
        for a, b in zip(fake, real, strict=True):
            self.assertEqual((a.shape, a.stride(), a.dtype, a.device), (b.shape, b.stride(), b.dtype, b.device))

    def test_a_fake_of_the_wrong_rank_is_refused_as_the_real_one(self):
        q, k, v, g = inputs(device="meta")
        with self.assertRaises(ValueError) as caught:
            tandem.ops.gla(q[0], k, v, g)
        self.assertEqual(str(caught.exception), "[gla_forward] q must have shape [B,T,HQ,K], got [70,4,64]")

    def test_meta_tensors(self):
        o, state = tandem.ops.gla(*inputs(device="meta"))
        self.assertEqual((o.device.type, o.shape, state), ("meta", (1, 70, 4, 32), None))


class Autograd(TorchCase):
    def test_forward_alone_needs_no_gradient(self):
        arguments = self.inputs()
        expected = tandem.ops.gla(*arguments)[0]
        self.assertFalse(expected.requires_grad)
        arguments[0].requires_grad_()
        with torch.no_grad():
            self.assertTrue(torch.equal(tandem.ops.gla(*arguments)[0], expected))
        with torch.inference_mode():
            self.assertTrue(torch.equal(tandem.ops.gla(*arguments)[0], expected))

    def test_no_tokens_and_no_batches(self):
        # A sum's gradient is one number, expanded: strides of 0. The same may be true of an input.
        for shape in ({"T": 0}, {"B": 0}, {"B": 0, "T": 0}):
            q, k, v, g = self.inputs(**shape)
            constant = torch.zeros(4, device=self.device)
            for log_decay in (g, constant):
                leaves = [x.detach().requires_grad_() for x in (q, k, v, log_decay)]
                o, state = tandem.ops.gla(*leaves, output_final_state=True)
                (o.sum() + state.sum()).backward()
                for x in leaves:
                    self.assertEqual((x.grad.shape, x.grad.abs().sum().item()), (x.shape, 0))
            expanded = torch.zeros(1, 1, 1, 1, dtype=q.dtype, device=self.device).expand(q.shape)
            self.assertEqual(tandem.ops.gla(expanded, k, v, g)[0].shape, v.shape)

    def test_log_decay_is_converted_differentiably(self):
        q, k, v, g = self.inputs()
        o, _ = tandem.ops.gla(q, k, v, g.to(torch.bfloat16).requires_grad_())
        self.assertTrue(o.requires_grad)


class Autocast(TorchCase):
    def test_casts_q_k_v_and_neither_log_decay_nor_the_state(self):
        q, k, v, g = self.inputs(dtype=torch.float32)
        state = torch.randn(1, 4, 64, 32, device=self.device)
        # Decays that bf16 would round: 1 - 2^-10 to 1.
        g = g.clamp(-1e-3)
        expected = tandem.ops.gla(*(x.bfloat16() for x in (q, k, v)), g, initial_state=state, output_final_state=True)
        with torch.autocast(self.device, torch.bfloat16):
            got = tandem.ops.gla(q, k, v, g, initial_state=state, output_final_state=True)
        self.assertEqual((got[0].dtype, got[1].dtype), (torch.bfloat16, torch.float32))
        self.assertTrue(torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1]))


if __name__ == "__main__":
    unittest.main()
