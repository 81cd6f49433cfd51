"""tandem.ops.gated_scan and linear_scan on a Hopper GPU: the cases against fp64, streams, graphs,
gradients, compile."""

import unittest

import tandem
import test_gated_scan
import test_gated_scan_carry
import test_linear_scan
import torch
from reference import relative_rms
from scans import differentiate
from test_cuda import WHY, OnGpu

from cases import DTYPES, load, scan_inputs


class GatedScanCases(OnGpu, test_gated_scan.Cases):
    test_the_reference_is_the_formula = None  # no call of the package


class GatedScanArguments(OnGpu, test_gated_scan.Arguments):
    def test_refusals(self):
        x, g, gate = self.draw(dtype=torch.bfloat16)
        self.refuses(ValueError, "[gated_scan_forward] exactly one of decay and log_decay must be given", x)
        self.refuses(ValueError, "gate must be on cuda:0, got cpu", x, log_decay=g, gate=gate.cpu())
        self.refuses(ValueError, "gate must have dtype bf16, got fp32", x, log_decay=g, gate=gate.float())

    def test_cu_seqlens_are_clamped(self):
        # Values in device memory are not checked: what is outside of [0,T] counts as its end.
        x, g, gate = self.draw(B=1)
        named = {"log_decay": g, "gate": gate, "output_final_state": True}
        ends = [
            torch.tensor(offsets, device="cuda")
            for offsets in ([0, 30, 100], [-5, 30, 1000], [5 - 2**32, 30, 2**32 + 30])
        ]
        expected, *others = (tandem.ops.gated_scan(x, cu_seqlens=offsets, **named) for offsets in ends)
        for got in others:
            self.assertTrue(torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1]))


class GatedScanAutograd(OnGpu, test_gated_scan.Autograd):
    pass


class GatedScanTorch(OnGpu, test_gated_scan.Torch):
    pass


class GatedScanCarry(OnGpu, test_gated_scan_carry.Carry):
    pass


class LinearScanCases(OnGpu, test_linear_scan.Cases):
    dtypes = ("bf16", "fp16")


class LinearScanArguments(OnGpu, test_linear_scan.Arguments):
    dtype = torch.bfloat16

    def test_fp32_is_for_the_cpu(self):
        u, weight, g, gate = self.draw(dtype=torch.float32)
        with self.assertRaisesRegex(ValueError, r"u must have dtype bf16 or fp16 on cuda:0, got fp32"):
            tandem.ops.linear_scan(u, weight, log_decay=g, gate=gate)


class LinearScanTorch(OnGpu, test_linear_scan.Torch):
    dtype = torch.bfloat16


class ScanOnGpu:
    """Streams, graphs and gradients of a scan; a class of it names the op and its tensors."""

    device = "cuda"

    def setUp(self):
        super().setUp()
        self.tensors = self.named()
        self.expected = self.run_op(self.tensors)
        torch.cuda.synchronize()

    def run_op(self, tensors):
        return self.op(**tensors, output_final_state=True)

    def loss(self, leaves):
        out, state = self.run_op(leaves)
        return (out.float() * self.d_out).sum() + (state * self.d_state).sum()

    def gradients(self, tensors):
        leaves = {name: x.detach().requires_grad_() for name, x in tensors.items()}
        return torch.autograd.grad(self.loss(leaves), list(leaves.values()))

    def draw_gradients(self):
        out, state = self.expected
        self.d_out, self.d_state = torch.randn_like(out, dtype=torch.float32), torch.randn_like(state)

    def assert_bitwise(self, got, expected):
        for a, b in zip(got, expected, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_runs_on_the_current_stream(self):
        # The inputs are made on the side stream, behind a long wait: another stream would read them too early.
        stream = torch.cuda.Stream()
        for _ in range(3):
            late = {name: torch.full_like(x, float("nan")) for name, x in self.tensors.items()}
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)
                for name, to in late.items():
                    to.copy_(self.tensors[name])
                got = self.run_op(late)
            stream.synchronize()
            self.assert_bitwise(got, self.expected)

    def test_does_not_wait_for_the_gpu(self):
        self.draw_gradients()
        self.gradients(self.tensors)  # so that torch has the memory at hand
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)
        before = torch.cuda.Event()
        before.record()
        self.run_op(self.tensors)
        self.gradients(self.tensors)
        self.assertFalse(before.query(), "a call waited for the work before it")
        torch.cuda.synchronize()

    def test_in_a_cuda_graph(self):
        static = {name: torch.zeros_like(x) for name, x in self.tensors.items()}
        offsets = torch.tensor([0, 700, 700, 1990], device="cuda")  # int64: converted inside the graph
        one = {name: x[:1] if x.dim() == 3 else x for name, x in static.items() if name != "initial_state"}
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.run_op(static)
            self.op(**one, cu_seqlens=offsets)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = self.run_op(static)
            varlen = self.op(**one, cu_seqlens=offsets)
        for name, to in static.items():
            to.copy_(self.tensors[name])
        for _ in range(3):  # what a replay leaves behind, such as flags, must not disturb the next
            for x in got:
                x.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            self.assert_bitwise(got, self.expected)
        self.assertTrue(torch.equal(varlen[0], self.op(**one, cu_seqlens=offsets)[0]))
        self.assertFalse(torch.equal(varlen[0], got[0][:1]))
        self.assertEqual(varlen[0][:, 1990:].abs().max().item(), 0)

    def test_memory_freed_at_once_is_not_reused_too_early(self):
        for _ in range(20):
            copies = {name: x.clone() for name, x in self.tensors.items()}
            got = self.run_op(copies)
            del copies
            poison = [torch.full_like(x, float("nan")) for x in self.tensors.values()]  # in the memory of the copies
            self.assert_bitwise(got, self.expected)
            del poison

    @unittest.skipIf(not WHY and torch.cuda.device_count() < 2, "one GPU only")
    def test_on_a_device_that_is_not_the_current_one(self):
        got = self.run_op({name: x.to("cuda:1") for name, x in self.tensors.items()})
        self.assertEqual(got[0].device.index, 1)
        self.assertEqual(torch.cuda.current_device(), 0)
        self.assert_bitwise([x.to("cuda:0") for x in got], self.expected)

    def test_the_same_bits_again_gradients_too(self):
        self.draw_gradients()
        expected = self.gradients(self.tensors)
        for _ in range(20):
            self.assert_bitwise(self.run_op(self.tensors), self.expected)
            self.assert_bitwise(self.gradients(self.tensors), expected)

    def test_two_streams_at_once(self):
        streams = [torch.cuda.Stream() for _ in range(3)]
        torch.cuda.synchronize()
        results = []
        for _ in range(5):
            for stream in streams:
                with torch.cuda.stream(stream):
                    results.append(self.run_op(self.tensors))
        torch.cuda.synchronize()
        for got in results:
            self.assert_bitwise(got, self.expected)

    def test_as_the_cpu_computes_it(self):
        self.draw_gradients()
        on_cpu = {name: x.cpu() for name, x in self.tensors.items()}
        out, state = self.run_op(on_cpu)
        limit = 4e-3  # two roundings to bf16
        self.assertLess(relative_rms(self.expected[0].cpu(), out.double()), limit)
        self.assertLess(relative_rms(self.expected[1].cpu(), state.double()), 2e-5)
        d_out = self.d_out.to(out.dtype)
        got = differentiate(self.op, self.tensors, {**self.tensors, "output_final_state": True}, d_out, self.d_state)
        right = differentiate(self.op, on_cpu, {**on_cpu, "output_final_state": True}, d_out.cpu(), self.d_state.cpu())
        for name, gradient in got.items():
            with self.subTest(name):
                self.assertLess(relative_rms(gradient.cpu(), right[name].double()), limit)

    def test_compiled(self):
        self.draw_gradients()
        names = list(self.tensors)

        def loss(*leaves):
            return self.loss(dict(zip(names, leaves, strict=True)))

        leaves = [x.detach().requires_grad_() for x in self.tensors.values()]
        got = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*leaves), leaves)
        for a, b in zip(got, self.gradients(self.tensors), strict=True):
            self.assertLess(relative_rms(a, b.double()), 1e-2)

    def test_a_training_step_in_a_graph(self):
        self.draw_gradients()
        expected = self.gradients(self.tensors)
        leaves = {name: x.detach().requires_grad_() for name, x in self.tensors.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.autograd.grad(self.loss(leaves), list(leaves.values()))
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gradients = torch.autograd.grad(self.loss(leaves), list(leaves.values()))
        for _ in range(3):
            for gradient in gradients:
                gradient.zero_()
            graph.replay()
            torch.cuda.synchronize()
            self.assert_bitwise(gradients, expected)


@unittest.skipIf(WHY, WHY)
class GatedScanOnGpu(ScanOnGpu, test_gated_scan.GatedScanCase):
    dtype = torch.bfloat16

    def op(self, **tensors):
        return tandem.ops.gated_scan(**tensors)

    def named(self):
        x, g, gate = self.draw(B=2, T=2000, D=136)
        state = torch.randn(2, 136, device=self.device)
        return {"x": x, "log_decay": g.to(self.dtype), "gate": gate, "initial_state": state}


@unittest.skipIf(WHY, WHY)
class LinearScanOnGpu(ScanOnGpu, test_linear_scan.LinearScanCase):
    dtype = torch.bfloat16

    def op(self, **tensors):
        return tandem.ops.linear_scan(**tensors)

    def named(self):
        u, weight, g, gate = self.draw(B=2, T=2000, d=192, D=136)
        state = torch.randn(2, 136, device=self.device)
        return {"u": u, "weight": weight, "log_decay": g.to(self.dtype), "gate": gate, "initial_state": state}


@unittest.skipIf(WHY, WHY)
class LargeScans(unittest.TestCase):
    """The shapes that are measured, B cut down, against the CPU."""

    def test_large_cases(self):
        for op in (tandem.ops.gated_scan, tandem.ops.linear_scan):
            for case in load(op.__name__, "bench"):
                case["axes"]["B"] = min(case["axes"]["B"], 2)
                with self.subTest(op.__name__, case=case["name"]):
                    inputs = scan_inputs(case, DTYPES[case["dtype"][0]])
                    expected = op(**inputs)[0]
                    on_gpu = {name: x.to("cuda") if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
                    self.assertLess(relative_rms(op(**on_gpu)[0].cpu(), expected.double()), 4e-3)


if __name__ == "__main__":
    unittest.main()
