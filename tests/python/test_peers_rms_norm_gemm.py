"""Tests of bench/peers' rms_norm_gemm on CPU tensors: cases, costs, the fp64 reference, torch's chain, calls."""

import dataclasses
import types
import unittest
import unittest.mock

import torch
from test_peers_calls import FakeLibrary, described  # first: it puts the checkout on sys.path

from bench.peers import cases, inputs, library, projection, provider, reference

SEGMENTS = ("40 none bias", "24 none", "16 none fp32", "16 none bias_fp32 fp32")


def case_of(segments=SEGMENTS, **changed):
    named = {"axes": {"M": 70, "d": 72}, "dtypes": ("bf16",), "directions": ("forward", "forward_backward")}
    fields = {"decay_kind": "none", "distribution": "normal", "states": "none", "strides": "contiguous"}
    fields |= {"cu_seqlens": None, "scale": None, "tags": ("bench",), "seed": 0, "op": "rms_norm_gemm", "norm": "same"}
    return cases.Case("small", segments=segments, **{**named, **fields, **changed})


class Cases(unittest.TestCase):
    def test_the_repositorys_table(self):
        found = cases.select(cases.load("rms_norm_gemm"), tag="bench")
        for case in found:
            ends = any(" heads " in one for one in case.segments)
            self.assertEqual(cases.why_not(case), "heads that end in a norm or a rotation" if ends else "")
        found = [case for case in found if not cases.why_not(case)]
        packed = {case.name for case in found if len(case.segments) > 1 and case.strides == "packed"}
        self.assertEqual(len(packed), 6)

    def test_what_cannot_be_compared_is_told(self):
        self.assertEqual(cases.why_not(case_of()), "")
        self.assertEqual(cases.why_not(case_of(strides="packed")), "")
        self.assertEqual(cases.why_not(case_of(strides="odd")), "strides odd")
        self.assertEqual(cases.why_not(case_of(rstd="given")), "a given rstd")
        self.assertEqual(cases.why_not(case_of(rows="extreme")), "rows extreme")
        self.assertEqual(cases.why_not(case_of(("8 none unused",))), "unused segments")

    def test_costs(self):
        M, d, N = 512, 4096, 6144
        plain = case_of(("6144 none",), axes={"M": M, "d": d})
        forward = 2 * M * d + 2 * d + 2 * N * d + 2 * M * N
        self.assertEqual(cases.cost(plain), (forward, 2 * M * d * N))
        backward = 4 * M * d + 4 * d + 4 * M + 4 * N * d + 2 * M * N
        self.assertEqual(cases.cost(dataclasses.replace(plain, direction="backward")), (backward, 4 * M * d * N))
        both = dataclasses.replace(plain, direction="forward_backward")
        self.assertEqual(cases.cost(both), (forward + 4 * M + backward, 6 * M * d * N))


class Peers(unittest.TestCase):
    def errors(self, call, case):
        tensors = inputs.make(case, "bf16", 3, "cpu")
        rows = reference.sample_heads(case)
        expected = reference.define(case, tensors, rows)
        self.assertEqual(set(expected), set(self.outputs(case)))
        with torch.no_grad():  # as the program runs
            return reference.errors(call(case, tensors), expected, rows)

    @staticmethod
    def outputs(case):
        outs = [f"out{i}" for i in range(len(case.segments))]
        return outs + (list(case.wants.values()) if case.direction == "forward_backward" else [])

    def each(self):
        for direction in ("forward", "forward_backward"):
            for strides in ("contiguous", "packed"):
                chosen = SEGMENTS if strides == "contiguous" else ("40 none", "24 none", "8 none")
                yield dataclasses.replace(case_of(chosen, direction=direction, strides=strides, eps=0.5), name=strides)

    def test_torch_in_the_dtype_of_the_reference(self):
        def call(case, tensors):
            peer = provider.discover("rms_norm_gemm")["torch_eager"]
            peer.load()
            wide = {name: x.double() for name, x in tensors.items()}
            if case.strides == "packed":
                stack = torch.cat([wide[f"weight{i}"] for i in range(3)])
                wide |= {f"weight{i}": rows for i, rows in enumerate(stack.split([40, 24, 8]))}
            with unittest.mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
                return peer.prepare(case, "bf16", wide, "")()

        for case in self.each():
            for name, error in self.errors(call, case).items():
                self.assertLess(error, 1e-10, name)

    def test_one_product_of_a_stacked_weight(self):
        case = case_of(("40 none", "24 none"), strides="packed")
        tensors = inputs.make(case, "bf16", 3, "cpu")
        peer = provider.discover("rms_norm_gemm")["torch_eager"]
        call = peer.prepare(case, "bf16", tensors, "")
        with unittest.mock.patch("torch.nn.functional.linear", wraps=torch.nn.functional.linear) as linear:
            call()
        self.assertEqual(linear.call_count, 1)
        self.assertEqual(linear.call_args.args[1].data_ptr(), tensors["weight0"].data_ptr())

    def test_compiled_is_the_same_chain(self):
        peer = provider.discover("rms_norm_gemm")["torch_compile"]
        compiled = []
        peer._torch = types.SimpleNamespace(
            compile=lambda function, **options: compiled.append(options) or function,
            compiler=types.SimpleNamespace(reset=lambda: None),
        )
        for case in self.each():
            tensors = inputs.make(case, "bf16", 3, "cpu")
            self.assertEqual(set(peer.prepare(case, "bf16", tensors, "")()), set(self.outputs(case)))
        self.assertEqual(len(compiled), 4)

    def test_liger(self):
        """With a function of its own in place of the kernel's."""

        class Norm:
            @staticmethod
            def apply(x, weight, eps, offset, casting_mode, in_place):
                self.assertEqual((eps, offset, casting_mode, in_place), (0.5, 0.0, "llama", False))
                return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

        peer = provider.discover("rms_norm_gemm")["liger"]
        module = types.SimpleNamespace(LigerRMSNormFunction=Norm)
        with unittest.mock.patch.dict("sys.modules", {"liger_kernel.ops.rms_norm": module}):
            peer.load()
        for case in self.each():
            call = lambda case, tensors: peer.prepare(case, "bf16", tensors, "")()  # noqa: E731
            for name, error in self.errors(call, case).items():
                self.assertLess(error, 2e-2, name)

    def test_tandem(self):
        def op(x, norm_weight, weights, biases, eps, dtype):
            self.assertEqual(eps, 0.5)
            n = torch.nn.functional.rms_norm(x.float(), (72,), norm_weight.float(), eps)
            found = [
                projection.product(n, weight.float(), None if bias is None else bias.float())
                for weight, bias in zip(weights, biases, strict=True)
            ]
            return tuple(out if kind else out.to(x.dtype) for out, kind in zip(found, dtype, strict=True))

        def call(case, tensors):
            peer = provider.discover("rms_norm_gemm")["tandem"]
            peer._op = op
            return peer.prepare(case, "bf16", tensors, "")()

        for case in self.each():
            for name, error in self.errors(call, case).items():
                self.assertLess(error, 4e-3, name)


class Calls(unittest.TestCase):
    def test_of_the_baseline(self):
        case = case_of(direction="forward_backward", eps=0.5)
        tensors = inputs.make(case, "bf16", 1, "cpu")
        call, outs = library.forward_call(FakeLibrary(), case, tensors, "unfused")
        self.assertEqual(call.description.function, b"unfused.rms_norm_gemm_forward")
        found, numbers = described(call)
        self.assertEqual(set(found), {name for name in tensors if not name.startswith("d_")} | set(outs))
        self.assertEqual((outs["out2"].dtype, outs["out1"].dtype), (torch.float32, torch.bfloat16))
        self.assertEqual(numbers, {"eps": 0.5})

    def test_what_the_baseline_refuses(self):
        peer = provider.discover("rms_norm_gemm")["unfused"]
        self.assertEqual(peer.refusal(case_of(), "bf16"), "")
        self.assertIn("multiples of 8", peer.refusal(case_of(("20 none",)), "bf16"))
        self.assertEqual(peer.variant(case_of(), ""), "unfused.norm_cublaslt")


if __name__ == "__main__":
    unittest.main()
