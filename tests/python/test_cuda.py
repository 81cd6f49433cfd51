"""tandem.ops.gla, gla_state, gla_state_backward, gla_step on a Hopper GPU. The scans: test_cuda_scans.py.

The cases against the fp64 definition, streams, graphs, torch.compile.
"""

import os
import unittest
from unittest import mock

import tandem
import test_batch_invariance
import test_examples
import test_gated_output
import test_gla_backward
import test_gla_state
import test_gla_state_backward
import test_gla_step
import test_torch
import torch
from reference import check_gla, relative_rms

from cases import DTYPES, cover, gla_inputs, load


def no_gpu():
    """Why the GPU tests cannot run here, "" when they can."""
    if not torch.cuda.is_available():
        return "no CUDA device that torch can use"
    if torch.cuda.get_device_capability() != (9, 0):
        return f"no GPU of compute capability 9.0 here ({torch.cuda.get_device_name()})"
    # A package without CUDA is no reason: it must not pass for a tested one, so that the tests run and fail.
    return ""


WHY = no_gpu()


@unittest.skipIf(WHY, WHY)
class Cases(unittest.TestCase):
    def test_the_package_was_built_with_cuda(self):
        self.assertEqual(tandem.cuda_unavailable_reason(), "")

    def test_every_path_of_the_binding(self):
        for case, name in cover("gla", "forward", ("bf16", "fp16")):
            with self.subTest(case["name"], dtype=name):
                inputs = gla_inputs(case, DTYPES[name], "cuda")
                check_gla(self, inputs, *tandem.ops.gla(**inputs))

    def test_large_cases(self):
        for case in load("gla", "large"):
            axes = case["axes"]
            if axes["T"] > 4096:
                continue
            axes["B"], axes["H"], axes["HQ"] = min(axes["B"], 2), min(axes["H"], 8), min(axes["HQ"], 8)
            with self.subTest(case["name"]):
                inputs = gla_inputs(case, torch.bfloat16, "cuda")
                check_gla(self, inputs, *tandem.ops.gla(**inputs))

    def test_refusals(self):
        q, k, v, g = test_torch.inputs(device="cuda")
        with self.assertRaisesRegex(ValueError, r"k must be on cuda:0, got cpu"):
            tandem.ops.gla(q, k.cpu(), v, g)
        with self.assertRaisesRegex(ValueError, r"q must have dtype bf16 or fp16 on cuda:0, got fp32"):
            tandem.ops.gla(q.float(), k.float(), v.float(), g)
        wide = torch.zeros(1, 10, 2, 1024, dtype=torch.bfloat16, device="cuda")
        with self.assertRaisesRegex(NotImplementedError, r"no variant on .* takes these arguments"):
            tandem.ops.gla(wide, wide, wide)

    def test_what_backward_refuses_is_refused_before_the_forward(self):
        q, k, _, g = test_torch.inputs(device="cuda")
        v = torch.randn(*q.shape[:2], g.shape[2], 520, dtype=q.dtype, device="cuda")
        tandem.ops.gla(q, k, v, g)
        with self.assertRaisesRegex(NotImplementedError, r"(?s)\[gla_backward\].*takes V <= 512, got 520"):
            tandem.ops.gla(q.requires_grad_(), k, v, g)


@unittest.skipIf(WHY, WHY)
class Streams(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        self.arguments = test_torch.inputs(B=2, T=2000, H=16, V=64, device="cuda")
        self.expected = tandem.ops.gla(*self.arguments, output_final_state=True)
        torch.cuda.synchronize()

    def assert_bitwise(self, got):
        for a, b in zip(got, self.expected, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_runs_on_the_current_stream(self):
        # The inputs are made on the side stream, behind a long wait: another stream would read them too early.
        stream = torch.cuda.Stream()
        for _ in range(3):
            late = [torch.full_like(x, float("nan")) for x in self.arguments]
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(50_000_000)
                for to, source in zip(late, self.arguments, strict=True):
                    to.copy_(source)
                got = tandem.ops.gla(*late, output_final_state=True)
            stream.synchronize()
            self.assert_bitwise(got)

    def test_does_not_wait_for_the_gpu(self):
        tandem.ops.gla(*self.arguments, output_final_state=True)  # so that torch has the memory at hand
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)
        before = torch.cuda.Event()
        before.record()
        tandem.ops.gla(*self.arguments, output_final_state=True)
        self.assertFalse(before.query(), "the call waited for the work before it")
        torch.cuda.synchronize()

    def test_in_a_cuda_graph(self):
        static = [torch.zeros_like(x) for x in self.arguments]
        offsets = torch.tensor([0, 700, 700, 2000], device="cuda")  # int64: converted inside the graph
        one = [x[:1] for x in static]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tandem.ops.gla(*static, output_final_state=True)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = tandem.ops.gla(*static, output_final_state=True)
            varlen = tandem.ops.gla(*one, cu_seqlens=offsets)
        for to, source in zip(static, self.arguments, strict=True):
            to.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        self.assert_bitwise(got)
        self.assertTrue(torch.equal(varlen[0], tandem.ops.gla(*one, cu_seqlens=offsets)[0]))
        self.assertFalse(torch.equal(varlen[0], got[0][:1]))

    def test_memory_freed_at_once_is_not_reused_too_early(self):
        for _ in range(20):
            copies = [x.clone() for x in self.arguments]
            got = tandem.ops.gla(*copies, output_final_state=True)
            del copies
            poison = [torch.full_like(x, float("nan")) for x in self.arguments]  # in the memory of the copies
            self.assert_bitwise(got)
            del poison

    @unittest.skipIf(not WHY and torch.cuda.device_count() < 2, "one GPU only")
    def test_on_a_device_that_is_not_the_current_one(self):
        got = tandem.ops.gla(*(x.to("cuda:1") for x in self.arguments), output_final_state=True)
        self.assertEqual(got[0].device.index, 1)
        self.assertEqual(torch.cuda.current_device(), 0)
        self.assert_bitwise([x.to("cuda:0") for x in got])

    def test_compiled_gives_the_same(self):
        compiled = torch.compile(tandem.ops.gla, fullgraph=True, backend="aot_eager")
        for a, b in zip(compiled(*self.arguments, output_final_state=True), self.expected, strict=True):
            self.assertLess(relative_rms(a, b.double()), 1e-6)


@unittest.skipIf(WHY, WHY)
class OnGpu:
    """Before a class of tests for the CPU: the same on a GPU."""

    device = "cuda"
    test_meta_tensors = None  # needs no device, and is tested with the CPU


class Compile(OnGpu, test_torch.Compile):
    pass


class Autograd(OnGpu, test_torch.Autograd):
    pass


class Autocast(OnGpu, test_torch.Autocast):
    pass


class BatchInvariance(OnGpu, test_batch_invariance.BatchInvariance):
    pass


class GatedOutputValues(OnGpu, test_gated_output.Values):
    dtypes = (torch.bfloat16, torch.float16)


@unittest.skipIf(WHY, WHY)
class GatedOutput(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        draw = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)  # noqa: E731
        M, d_in, d, width = 300, 512, 256, 128
        self.tensors = {
            "o": draw(M, d_in),
            "weight": draw(d, d_in) / d_in**0.5,
            "gate": draw(M, d_in),
            "group_norm_weight": 1 + draw(width) / 4,
            "residual": draw(M, d),
            "norm_weight": 1 + draw(d) / 4,
        }
        self.cotangents = [draw(M, d), draw(M, d)]

    def results(self, tensors=None):
        """out, sum and all gradients."""
        leaves = {name: x.detach().requires_grad_() for name, x in (tensors or self.tensors).items()}
        got = tandem.ops.gated_output(**leaves, gate_activation="silu", norm="rms_norm", return_sum=True)
        cotangents = [x.to(got[0].device) for x in self.cotangents]
        return [*(x.detach() for x in got), *torch.autograd.grad(got, list(leaves.values()), cotangents)]

    def test_as_on_the_cpu(self):
        on_cpu = self.results({name: x.cpu() for name, x in self.tensors.items()})
        for one, other in zip(self.results(), on_cpu, strict=True):
            self.assertLess(relative_rms(one.cpu(), other.double()), 6e-3)

    def test_same_bits_again(self):
        expected = self.results()
        for _ in range(20):
            for one, other in zip(self.results(), expected, strict=True):
                self.assertTrue(torch.equal(one, other))

    def test_a_training_step_in_a_graph(self):
        expected = self.results()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.results()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = self.results()
        for _ in range(3):
            for one in got:
                one.zero_()
            graph.replay()
            torch.cuda.synchronize()
            for one, other in zip(got, expected, strict=True):
                self.assertTrue(torch.equal(one, other))


class StateCases(OnGpu, test_gla_state.Cases):
    dtypes = ("bf16", "fp16")


class StateRanks(OnGpu, test_gla_state.Ranks):
    pass


class StateTorch(OnGpu, test_gla_state.Torch):
    pass


class StateGradients(OnGpu, test_gla_state.Gradients):
    pass


class StateBackwardCases(OnGpu, test_gla_state_backward.Cases):
    dtypes = ("bf16", "fp16")


class StateBackwardRanks(OnGpu, test_gla_state_backward.Ranks):
    pass


class StateBackwardTorch(OnGpu, test_gla_state_backward.Torch):
    pass


class StepCases(OnGpu, test_gla_step.Cases):
    dtypes = ("bf16", "fp16")


class StepArguments(OnGpu, test_gla_step.Arguments):
    pass


class StepTorch(OnGpu, test_gla_step.Torch):
    def test_in_a_cuda_graph(self):
        q, k, v, g, state = self.inputs()
        expected_state = state.clone()
        for _ in range(3):
            expected = tandem.ops.gla_step(q, k, v, g, expected_state)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # captured, not run
            o = tandem.ops.gla_step(q, k, v, g, state)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(o, expected) and torch.equal(state, expected_state))


class GradientCases(OnGpu, test_gla_backward.AgainstTheDefinition):
    dtypes = ("bf16", "fp16")


class SavedStates(OnGpu, test_gla_backward.SavedStates):
    dtype = torch.bfloat16


@unittest.skipIf(WHY, WHY)
class Gradients(unittest.TestCase):
    @staticmethod
    def leaves(inputs):
        return [x.detach().requires_grad_() for x in inputs]

    def loss(self, leaves):
        o, state = tandem.ops.gla(*leaves, output_final_state=True)
        return (o.float() * self.d_o).sum() + (state * self.d_state).sum()

    def setUp(self):
        torch.manual_seed(1)
        self.inputs = test_torch.inputs(B=2, T=300, H=4, V=64, device="cuda")
        o, state = tandem.ops.gla(*self.inputs, output_final_state=True)
        self.d_o, self.d_state = torch.randn_like(o, dtype=torch.float32), torch.randn_like(state)
        leaves = self.leaves(self.inputs)
        self.expected = torch.autograd.grad(self.loss(leaves), leaves)

    def test_same_bits_again(self):
        for _ in range(20):
            leaves = self.leaves(self.inputs)
            for a, b in zip(torch.autograd.grad(self.loss(leaves), leaves), self.expected, strict=True):
                self.assertTrue(torch.equal(a, b))

    def test_only_what_requires_a_gradient(self):
        q, k, v, g = self.inputs
        v = v.detach().requires_grad_()
        (dv,) = torch.autograd.grad(self.loss([q, k, v, g]), [v])
        # Not the same bits: all gradients at once may be made in another way than one alone.
        self.assertLess(relative_rms(dv, self.expected[2]), 6e-3)  # each has at most half of it

    def test_compiled(self):
        leaves = self.leaves(self.inputs)
        loss = torch.compile(self.loss, fullgraph=True)(leaves)
        for a, b in zip(torch.autograd.grad(loss, leaves), self.expected, strict=True):
            self.assertLess(relative_rms(a, b), 1e-5)

    def test_a_training_step_in_a_graph(self):
        leaves = self.leaves(self.inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.autograd.grad(self.loss(leaves), leaves)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gradients = torch.autograd.grad(self.loss(leaves), leaves)
        for _ in range(3):
            for gradient in gradients:
                gradient.zero_()
            graph.replay()
            torch.cuda.synchronize()
            for a, b in zip(gradients, self.expected, strict=True):
                self.assertTrue(torch.equal(a, b))


@unittest.skipIf(WHY, WHY)
class SlowLayouts(unittest.TestCase):
    """What TMA cannot read is read as a copy, where that pays. TANDEM_VARIANT allows what needs TMA alone."""

    def setUp(self):
        torch.manual_seed(2)
        self.q, self.k, self.v = (torch.randn(2, 1024, 8, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    @staticmethod
    def off_16_bytes(x):
        moved = torch.empty(x.numel() + 1, device=x.device, dtype=x.dtype)[1:].view(x.shape)
        return moved.copy_(x)

    @staticmethod
    def only(variant):
        return mock.patch.dict(os.environ, TANDEM_VARIANT=variant)

    def test_a_base_off_16_bytes(self):
        expected = tandem.ops.gla(self.q, self.k, self.v)[0]
        moved = self.off_16_bytes(self.q)
        with self.only("gla_forward.sm90.bf16.c64_k64_v64"), torch.no_grad():
            self.assertTrue(torch.equal(tandem.ops.gla(moved, self.k, self.v)[0], expected))
            small = self.off_16_bytes(self.q[:, :100])
            with self.assertRaisesRegex(NotImplementedError, "q does not start at a multiple of 16 bytes"):
                tandem.ops.gla(small, self.k[:, :100], self.v[:, :100])

    def test_a_gradient_expanded_along_time(self):
        leaves = [x.requires_grad_() for x in (self.q, self.k, self.v)]
        o = tandem.ops.gla(*leaves)[0]
        d_o = torch.randn(2, 8, 64, device="cuda")
        mean = torch.autograd.grad((o.mean(1).float() * d_o).sum(), leaves, retain_graph=True)
        expanded = (d_o.to(o.dtype)[:, None] / 1024).expand_as(o)
        expected = torch.autograd.grad(o, leaves, expanded.contiguous(), retain_graph=True)
        for variant in ("gla_backward.sm90.bf16.c64", "gla_backward.sm90.bf16.c64.chunks"):
            with self.only(variant):
                got = torch.autograd.grad(o, leaves, expanded, retain_graph=True)
            for a, b, c in zip(got, expected, mean, strict=True):
                self.assertLess(relative_rms(a, b.double()), 6e-3)
                self.assertLess(relative_rms(c, b.double()), 6e-3)


@unittest.skipIf(WHY, WHY)
class ConstantDecay(unittest.TestCase):
    """The gradient by a constant decay is a sum over B and T of gradients that mostly cancel."""

    # Relative RMS over the heads whose sum is at least 0.3 of the root of the sum of squares: what the kernels keep
    # today (5.1e-2 was measured in bf16). They are to reach 5e-3 and 1e-3.
    limits = {torch.bfloat16: 7e-2, torch.float16: 1e-2}

    def test_against_the_sum_of_the_tokens_gradients_in_fp64(self):
        B, T, H, D = 2, 1024, 8, 64
        for dtype, limit in self.limits.items():
            torch.manual_seed(3)
            q, k, v, d_o = (torch.randn(B, T, H, D, dtype=dtype) for _ in range(4))
            g = torch.linspace(-0.05, -1.05, H)
            leaf = g.cuda().requires_grad_()
            (got,) = torch.autograd.grad(tandem.ops.gla(q.cuda(), k.cuda(), v.cuda(), leaf)[0], [leaf], d_o.cuda())
            of_tokens = g.double().expand(B, T, H).contiguous().requires_grad_()
            o = tandem.ops.gla(q.double(), k.double(), v.double(), of_tokens)[0]
            (by_token,) = torch.autograd.grad(o, [of_tokens], d_o.double())
            total, size = by_token.sum((0, 1)), by_token.square().sum((0, 1)).sqrt()
            heads = total.abs() >= 0.3 * size
            self.assertGreaterEqual(int(heads.sum()), 3)
            error = relative_rms(got.cpu()[heads], total[heads])
            with self.subTest(dtype=dtype, error=error):
                self.assertLess(error, limit)


@unittest.skipIf(WHY, WHY)
class Training(test_examples.InFolder):
    """examples/train_gla_lm.py with its steps in CUDA graphs."""

    def test_in_graphs_it_learns_as_the_recurrence_does(self):
        device = ("--device", "cuda")  # the last one counts
        tandem, recurrence = (self.train(*device, "--op", op)["runs"][0] for op in ("tandem", "recurrence"))
        self.assertTrue(tandem["cuda_graph"] and recurrence["cuda_graph"])
        self.assertLess(sum(tandem["losses"][-10:]) / 10, 3.3)
        for a, b in zip(tandem["losses"], recurrence["losses"], strict=True):
            self.assertAlmostEqual(a, b, delta=0.2)

    def test_the_cpu_learns_the_same(self):
        gpu, cpu = (self.train("--device", device, "--steps", "8")["runs"][0] for device in ("cuda", "cpu"))
        for a, b in zip(gpu["losses"], cpu["losses"], strict=True):
            self.assertAlmostEqual(a, b, delta=0.2)


if __name__ == "__main__":
    unittest.main()
