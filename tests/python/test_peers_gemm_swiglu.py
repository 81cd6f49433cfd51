"""Tests of bench/peers' gemm_swiglu on CPU tensors: cases, costs, the fp64 reference, torch's chain, calls."""

import dataclasses
import types
import unittest
import unittest.mock

import torch
from test_peers_calls import FakeLibrary, described  # first: it puts the checkout on sys.path
from test_peers_runs import FakeTimer

from bench.peers import cases, gemm_swiglu, inputs, library, provider, reference, side_by_side


def case_of(**changed):
    named = {"axes": {"M": 70, "d": 72, "F": 40}, "dtypes": ("bf16",), "directions": ("forward", "forward_backward")}
    fields = {"decay_kind": "none", "distribution": "normal", "states": "none", "strides": "packed"}
    fields |= {"cu_seqlens": None, "scale": None, "tags": ("bench",), "seed": 0, "op": "gemm_swiglu"}
    return cases.Case("small", **{**named, **fields, **changed})


class Cases(unittest.TestCase):
    def test_the_repositorys_table(self):
        found = cases.load("gemm_swiglu")
        self.assertEqual(len({case.name for case in found}), len(found))
        for case in cases.select(found, tag="bench"):
            self.assertEqual(cases.why_not(case), "")
            self.assertEqual(case.strides, "packed", "the baseline's one product needs it")
        self.assertEqual(cases.select(found, "norm_m16")[0].norm, "same")

    def test_what_cannot_be_compared_is_told(self):
        self.assertEqual(cases.why_not(case_of()), "")
        self.assertEqual(cases.why_not(case_of(around=4)), "pre-activations around a number")
        self.assertEqual(cases.why_not(case_of(norm="same", rstd="given")), "rstd given, rows normal")
        self.assertEqual(cases.why_not(case_of(accumulate="yes")), "sums of gradients")
        self.assertEqual(cases.why_not(case_of(strides="odd")), "strides odd")

    def test_costs(self):
        M, d, F = 70, 72, 40
        for norm, vectors, kept_rstd in (("none", 0, 0), ("same", 2 * d, 4 * M)):
            case = case_of(norm=norm)
            x, weights, out = 2 * M * d, 4 * d * F, 2 * M * F
            forward, kept = x + weights + vectors + out, 2 * out + kept_rstd
            backward = 2 * (x + weights + vectors) + kept + out
            flops = 4 * M * d * F
            self.assertEqual(cases.cost(case), (forward, flops))
            self.assertEqual(cases.cost(dataclasses.replace(case, direction="backward")), (backward, 2 * flops))
            both = dataclasses.replace(case, direction="forward_backward")
            self.assertEqual(cases.cost(both), (forward + kept + backward, 3 * flops))


class Peers(unittest.TestCase):
    def errors(self, call, case):
        tensors = inputs.make(case, "bf16", 3, "cpu")
        rows = reference.sample_heads(case)
        expected = reference.define(case, tensors, rows)
        wanted = list(case.wants.values()) if case.direction == "forward_backward" else []
        self.assertEqual(set(expected), {"out", *wanted})
        with torch.no_grad():  # as the program runs
            return reference.errors(call(case, tensors), expected, rows)

    def test_torch_in_the_dtype_of_the_reference(self):
        for direction in ("forward", "forward_backward"):
            for activation in gemm_swiglu.ACTIVATIONS:
                case = case_of(direction=direction, activation=activation)

                def call(case, tensors):
                    peer = provider.discover("gemm_swiglu")["torch_eager"]
                    peer.load()
                    return peer.prepare(case, "bf16", {name: x.double() for name, x in tensors.items()}, "")()

                for name, error in self.errors(call, case).items():
                    self.assertLess(error, 1e-12, name)

    def test_a_norm(self):
        """But for n, which the definition rounds."""
        case = case_of(direction="forward_backward", norm="same")

        def call(case, tensors):
            peer = provider.discover("gemm_swiglu")["torch_eager"]
            peer.load()
            return peer.prepare(case, "bf16", {name: x.double() for name, x in tensors.items()}, "")()

        for name, error in self.errors(call, case).items():
            self.assertLess(error, 6e-3, name)

    def test_what_is_wrong_is_seen(self):
        def call(case, tensors):
            return {"out": -provider.discover("gemm_swiglu")["torch_eager"].function(case, "bf16")(tensors)["out"]}

        self.assertGreater(self.errors(call, case_of())["out"], 1)

    def test_tandem(self):
        def op(x, weight, activation, norm_weight=None, eps=None):
            self.assertEqual((activation, eps), ("gelu", 1e-5))
            wide = (one.float() for one in (x, weight, norm_weight))
            return gemm_swiglu.run(case_of(activation=activation), *wide, x.dtype).to(x.dtype)

        def call(case, tensors):
            peer = provider.discover("gemm_swiglu")["tandem"]
            peer._op = op
            return peer.prepare(case, "bf16", tensors, "")()

        for direction in ("forward", "forward_backward"):
            for name, error in self.errors(call, case_of(direction=direction, activation="gelu", norm="fp32")).items():
                self.assertLess(error, 2e-2, name)

    def test_liger(self):
        """With a function of its own in place of the kernel's."""

        class SiluMul:
            @staticmethod
            def apply(gate, up):
                return torch.nn.functional.silu(gate) * up

        peer = provider.discover("gemm_swiglu")["liger"]
        self.assertEqual(peer.refusal(case_of(activation="relu"), "bf16"), "no activation relu")
        modules = {
            "liger_kernel.ops.swiglu": types.SimpleNamespace(LigerSiLUMulFunction=SiluMul),
            "liger_kernel.ops.geglu": types.SimpleNamespace(LigerGELUMulFunction=None),
        }
        with unittest.mock.patch.dict("sys.modules", modules):
            peer.load()
        call = lambda case, tensors: peer.prepare(case, "bf16", tensors, "")()  # noqa: E731
        self.assertLess(self.errors(call, case_of(norm="same"))["out"], 2e-2)

    def test_side_by_side(self):
        known = provider.discover("gemm_swiglu")
        self.assertEqual(list(known), ["tandem", "unfused", "liger", "torch_compile", "torch_eager"])
        eager = known["torch_eager"]
        eager.load()
        options = types.SimpleNamespace(seed=1, tune=False, repeats=2, rounds=2)
        bench = types.SimpleNamespace(device_state=lambda device: {})
        with unittest.mock.patch.object(side_by_side.SideBySide, "make_timer", FakeTimer), torch.no_grad():
            together = side_by_side.SideBySide(
                {"torch_eager": eager}, bench, torch.device("cpu"), 1000, options, lambda text: None
            )
            together.ceilings = {"copy_tbps": 4.0, "bf16_tflops": 800.0}
            for direction in ("forward", "forward_backward"):
                (row,) = together.run(case_of(norm="same", direction=direction), "bf16")
                self.assertNotIn("failure", row)
                self.assertEqual((row["op"], row["direction"], row["median_us"]), ("gemm_swiglu", direction, 10.0))
                self.assertLess(row["error"]["value"], 2e-2)


class Calls(unittest.TestCase):
    def test_of_the_baseline(self):
        case = case_of(direction="forward_backward", norm="same", activation="gelu")
        tensors = inputs.make(case, "bf16", 1, "cpu")
        call, outs = library.forward_call(FakeLibrary(), case, tensors, "unfused")
        self.assertEqual(call.description.function, b"unfused.gemm_swiglu_forward")
        found, numbers = described(call)
        self.assertEqual(set(found), {"x", "gate_weight", "up_weight", "norm_weight", "out"})
        self.assertEqual(found["up_weight"][0] - found["gate_weight"][0], 2 * case.F * case.d)
        self.assertEqual(outs["out"].shape, (case.M, case.F))
        self.assertEqual(numbers, {"activation": 1, "eps": 1e-5})

    def test_what_the_baseline_refuses(self):
        peer = provider.discover("gemm_swiglu")["unfused"]
        self.assertEqual(peer.refusal(case_of(), "bf16"), "")
        self.assertIn("multiples of 8", peer.refusal(case_of(axes={"M": 70, "d": 72, "F": 36}), "bf16"))

    def test_the_shared_object_on_the_cpu(self):
        try:
            found = library.Library("libtandem_calls.so")
        except library.LibraryError as error:
            raise unittest.SkipTest(str(error)) from error
        case = case_of(norm="same")
        tensors = inputs.make(case, "bf16", 3, "cpu")
        call, outs = library.forward_call(found, case, tensors)
        call.run()
        rows = reference.sample_heads(case)
        self.assertLess(reference.relative_rms(outs, reference.define(case, tensors, rows), rows), 3.2e-3)


if __name__ == "__main__":
    unittest.main()
