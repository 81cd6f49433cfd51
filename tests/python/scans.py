"""What the tests of gated_scan and linear_scan share."""

import unittest

import torch
from reference import SCAN_TOLERANCE, relative_rms
from torch._dynamo.utils import counters

from cases import DTYPES, cover, scan_inputs


def tolerance(tensor, dtype):
    """fp32 results of 16-bit inputs are as good as fp32's arithmetic."""
    return max(SCAN_TOLERANCE[tensor.dtype], 1e-6 if dtype == torch.float32 else 1e-5)


def differentiate(op, names, inputs, d_out, d_final_state):
    """The gradients of <out, d_out> + <final_state, d_final_state> by the `inputs` with one of these names."""
    leaves = {name: inputs[name].detach().requires_grad_() for name in names if inputs.get(name) is not None}
    out, final_state = op(**{**inputs, **leaves})
    loss = (out * d_out.to(out.dtype)).sum()
    if d_final_state is not None:
        loss = loss + (final_state * d_final_state).sum()
    results = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, results, strict=True))


def on_cpu(inputs):
    """Moves values to the CPU for the definition, which takes thousands of tiny steps."""
    return {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


class ScanCase(unittest.TestCase):
    """A test of a scan; test_cuda.py runs most of them on a GPU."""

    device = "cpu"
    dtypes = ("bf16", "fp16", "fp32")  # of the cases
    dtype = torch.float32  # of what a test draws itself

    gradient_tolerance = staticmethod(tolerance)

    def near(self, fp32):
        """The relative error of what is the same call but for the order of a few roundings."""
        return fp32 if self.dtype == torch.float32 else 1e-2

    def assert_same(self, got, expected):
        """Expects equal bits; on a GPU what is asked for may choose the kernel."""
        if self.device == "cpu":
            self.assertTrue(torch.equal(got, expected))
        else:
            self.assertLess(relative_rms(got, expected.double()), self.near(1e-6))

    def check_paths(self, check, op, definition, direction):
        """Calls `check` as a subtest for a case of each binding path."""
        for case, name in cover(definition.__name__, direction, self.dtypes):
            with self.subTest(case["name"], dtype=name):
                check(op, definition, scan_inputs(case, DTYPES[name], self.device), DTYPES[name])

    def check_results(self, op, definition, inputs, dtype):
        kept = {name: x.stride() for name, x in inputs.items() if isinstance(x, torch.Tensor)}
        out, state = op(**inputs)
        self.assertEqual({name: inputs[name].stride() for name in kept}, kept)
        expected, expected_state = (x.to(self.device) for x in definition(**on_cpu(inputs)))
        self.assertEqual((out.dtype, out.shape), (dtype, expected.shape))
        self.assertLess(relative_rms(out, expected), tolerance(out, dtype), "out")
        if not inputs["output_final_state"]:
            self.assertIsNone(state)
            return
        self.assertEqual((state.dtype, state.shape), (torch.float32, expected_state.shape))
        self.assertLess(relative_rms(state, expected_state), tolerance(state, dtype), "final_state")

    def check_gradients(self, op, definition, inputs, dtype):
        right = on_cpu(inputs)
        names = [name for name, x in right.items() if isinstance(x, torch.Tensor) and x.is_floating_point()]
        out, state = definition(**right)
        d_out = torch.randn(out.shape).to(dtype)
        d_final_state = torch.randn(state.shape) if inputs["output_final_state"] else None
        d_outputs = (x if x is None else x.to(self.device) for x in (d_out, d_final_state))
        got = differentiate(op, names, inputs, *d_outputs)
        wide = {name: x.double() if name in names else x for name, x in right.items()}
        expected = differentiate(definition, names, wide, d_out, d_final_state)
        for name, gradient in got.items():
            self.assertEqual((gradient.dtype, gradient.shape), (inputs[name].dtype, inputs[name].shape))
            limit = self.gradient_tolerance(gradient, dtype)
            self.assertLess(relative_rms(gradient.cpu(), expected[name]), limit, name)

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()
        counters.clear()
