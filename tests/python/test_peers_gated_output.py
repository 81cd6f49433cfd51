"""Tests of bench/peers' gated_output on CPU tensors: cases, costs, the fp64 reference, torch's chain, calls."""

import dataclasses
import types
import unittest
import unittest.mock

import torch
from test_peers_calls import FakeLibrary, described  # first: it puts the checkout on sys.path
from test_peers_runs import FakeTimer

from bench.peers import cases, gated_output, inputs, library, provider, reference, side_by_side


def case_of(**changed):
    named = {"axes": {"M": 70, "d_in": 48, "d": 40}, "dtypes": ("bf16",), "directions": ("forward", "forward_backward")}
    fields = {"decay_kind": "none", "distribution": "normal", "states": "none", "strides": "contiguous"}
    fields |= {"cu_seqlens": None, "scale": None, "tags": ("bench",), "seed": 0, "op": "gated_output"}
    return cases.Case("small", **{**named, **fields, **changed})


GLA = {
    "output_gate": "silu",
    "group_norm": "same",
    "group_width": 16,
    "output_norm": "rms_norm",
    "norm": "same",
    "sum": "yes",
}
MAMBA2 = {**GLA, "group_width": 0, "group_weight": "by_column", "behind_gate": "yes"}
LAYER_NORM = {"output_gate": "sigmoid", "bias": "fp32", "output_norm": "layer_norm", "norm": "fp32", "sum": "yes"}
CHAINS = {
    "gla": GLA,
    "mamba2": MAMBA2,
    "layer_norm": LAYER_NORM,
    "product": {"output_gate": "none", "residual": "no"},
    "groups": {"output_gate": "none", "group_norm": "fp32", "group_width": 24, "group_weight": "by_column"},
    "plain": {"output_norm": "rms_norm"},
}


class Cases(unittest.TestCase):
    def test_the_repositorys_table(self):
        found = cases.load("gated_output")
        self.assertEqual(len({case.name for case in found}), len(found))
        for case in cases.select(found, tag="bench"):
            self.assertEqual(cases.why_not(case), "")
        (gla,) = cases.select(found, "gla_1_3b_m2048")
        self.assertEqual((gla.output_gate, gla.group_width, gla.output_norm), ("silu", 512, "rms_norm"))

    def test_what_cannot_be_compared_is_told(self):
        self.assertEqual(cases.why_not(case_of(**GLA)), "")
        self.assertEqual(cases.why_not(case_of(gated="again")), "rows normal, gated again")
        self.assertEqual(cases.why_not(case_of(rows="extreme")), "rows extreme, gated kept")
        self.assertEqual(cases.why_not(case_of(accumulate="yes")), "sums of gradients")
        self.assertEqual(cases.why_not(case_of(strides="odd")), "strides odd")

    def test_what_gradients_are_wanted(self):
        self.assertEqual(
            set(case_of(**LAYER_NORM).wants), {"o", "gate", "residual", "weight", "bias", "norm_weight", "norm_bias"}
        )
        self.assertEqual(set(case_of(**CHAINS["product"]).wants), {"o", "weight"})

    def test_costs(self):
        M, d_in, d = 70, 48, 40
        wide, narrow, weight, flops = 2 * M * d_in, 2 * M * d, 2 * d_in * d, 2 * M * d_in * d
        for name, vectors, gradients, kept in (
            # group_norm_weight and norm_weight; rstd, and a group's; a
            ("gla", 2 * (16 + d), 2 * (16 + d), 4 * M + 4 * M * 3 + wide),
            ("mamba2", 2 * (d_in + d), 2 * (d_in + d), 4 * M + 4 * M + wide),
            # bias, norm_weight and norm_bias; mean and rstd; a
            ("layer_norm", 4 * 3 * d, 2 * 3 * d, 8 * M + wide),
        ):
            case = case_of(**CHAINS[name])
            forward = 2 * wide + weight + vectors + 3 * narrow  # o, gate; residual, out, sum
            backward = 2 * wide + weight + vectors + kept + 3 * narrow  # sum, d_out, d_sum
            backward += 2 * wide + weight + gradients + narrow  # d_o, d_gate; d_residual
            both = dataclasses.replace(case, direction="forward_backward")
            self.assertEqual(cases.cost(case), (forward, flops), name)
            self.assertEqual(cases.cost(dataclasses.replace(case, direction="backward")), (backward, 2 * flops), name)
            self.assertEqual(cases.cost(both), (forward + kept + backward, 3 * flops), name)
        case = case_of(**CHAINS["product"])
        both = dataclasses.replace(case, direction="forward_backward")
        self.assertEqual(cases.cost(case), (wide + weight + narrow, flops))
        self.assertEqual(cases.cost(both), (3 * wide + 3 * weight + 2 * narrow, 3 * flops))
        # A sum that is not returned is kept all the same.
        case = case_of(output_gate="none", output_norm="rms_norm")
        both = dataclasses.replace(case, direction="forward_backward")
        kept = 4 * M + narrow
        self.assertEqual(cases.cost(both), (3 * wide + 3 * weight + 4 * narrow + 2 * kept, 3 * flops))


class Peers(unittest.TestCase):
    def errors(self, call, case):
        tensors = inputs.make(case, "bf16", 3, "cpu")
        rows = reference.sample_heads(case)
        expected = reference.define(case, tensors, rows)
        wanted = list(case.wants.values()) if case.direction == "forward_backward" else []
        self.assertEqual(set(expected), {*gated_output.outputs(case), *wanted})
        with torch.no_grad():  # as the program runs
            return reference.errors(call(case, tensors), expected, rows)

    def torch_in_fp64(self, case, tensors):
        peer = provider.discover("gated_output")["torch_eager"]
        peer.load()
        return peer.prepare(case, "bf16", {name: x.double() for name, x in tensors.items()}, "")()

    def test_torch_in_fp64(self):
        """But for a and the sum, which the definition rounds."""
        for direction in ("forward", "forward_backward"):
            for name, fields in CHAINS.items():
                with self.subTest(name, direction=direction):
                    case = case_of(direction=direction, **fields)
                    for output, error in self.errors(self.torch_in_fp64, case).items():
                        self.assertLess(error, 6e-3, output)

    def test_torch_in_the_dtype_of_the_reference(self):
        """What nothing is rounded of."""
        for direction in ("forward", "forward_backward"):
            case = case_of(direction=direction, bias="same", **CHAINS["product"])
            for name, error in self.errors(self.torch_in_fp64, case).items():
                self.assertLess(error, 1e-12, name)

    def test_bands(self):
        """Sums over rows are those of one band."""
        case = case_of(direction="forward_backward", **GLA)
        tensors = inputs.make(case, "bf16", 3, "cpu")
        rows = reference.sample_heads(case)
        expected = reference.define(case, tensors, rows)
        with unittest.mock.patch.object(gated_output, "BAND", 32):
            for name, x in reference.define(case, tensors, rows).items():
                torch.testing.assert_close(x, expected[name])

    def test_what_is_wrong_is_seen(self):
        def call(case, tensors):
            function = provider.discover("gated_output")["torch_eager"].function(case, "bf16")
            return {name: -x for name, x in function(tensors).items()}

        self.assertGreater(self.errors(call, case_of(**GLA))["out"], 1)

    def test_tandem(self):
        def op(o, weight, **given):
            case = case_of(**fields)
            self.assertEqual(given.pop("gate_activation", "plain"), case.output_gate)
            if "group_width" in given:
                self.assertEqual(given["norm_behind_gate"], case.behind_gate == "yes")
                self.assertEqual(given["group_width"], case.group_width or 48)
            self.assertEqual((given["norm"], given["eps"]), (case.output_norm, 1e-5))
            wide = {name: x.float() for name, x in given.items() if isinstance(x, torch.Tensor)}
            found = gated_output.run(case, {"o": o.float(), "weight": weight.float(), **wide}, o.dtype)
            self.assertEqual(given["return_sum"], len(found) > 1)
            found = tuple(x.to(o.dtype) for x in found.values())
            return found if len(found) > 1 else found[0]

        def call(case, tensors):
            peer = provider.discover("gated_output")["tandem"]
            peer._op = op
            return peer.prepare(case, "bf16", tensors, "")()

        for fields in (GLA, MAMBA2, LAYER_NORM, CHAINS["plain"]):
            for direction in ("forward", "forward_backward"):
                for name, error in self.errors(call, case_of(direction=direction, **fields)).items():
                    self.assertLess(error, 2e-2, name)

    def test_the_package(self):
        try:
            import tandem  # noqa: F401
        except ImportError as error:
            raise unittest.SkipTest(str(error)) from error
        peer = provider.discover("gated_output")["tandem"]
        peer.load()
        for name, fields in CHAINS.items():
            case = case_of(direction="forward_backward", **fields)
            call = lambda case, tensors: peer.prepare(case, "bf16", tensors, "")()  # noqa: E731
            for output, error in self.errors(call, case).items():
                with self.subTest(name, output=output):
                    self.assertLess(error, 6e-3)

    def test_liger(self):
        """With functions of its own in place of the kernels."""

        class SiluMul:
            @staticmethod
            def apply(gate, up):
                return torch.nn.functional.silu(gate) * up

        class AddNorm:
            @staticmethod
            def apply(x, residual, weight, eps):
                total = x + residual
                return torch.nn.functional.rms_norm(total, weight.shape, weight, eps), total

        peer = provider.discover("gated_output")["liger"]
        self.assertEqual(peer.refusal(case_of(**GLA), "bf16"), "")
        self.assertEqual(peer.refusal(case_of(**LAYER_NORM), "bf16"), "no gate sigmoid")
        text = "its kernel is of a residual and an rms_norm with a weight"
        for changed in ({"output_norm": "layer_norm"}, {"norm": "none"}, {"residual": "no"}):
            self.assertEqual(peer.refusal(case_of(**{**GLA, **changed}), "bf16"), text)
        modules = {
            "liger_kernel.ops.swiglu": types.SimpleNamespace(LigerSiLUMulFunction=SiluMul),
            "liger_kernel.ops.fused_add_rms_norm": types.SimpleNamespace(LigerFusedAddRMSNormFunction=AddNorm),
        }
        with unittest.mock.patch.dict("sys.modules", modules):
            peer.load()
        call = lambda case, tensors: peer.prepare(case, "bf16", tensors, "")()  # noqa: E731
        for fields in (GLA, MAMBA2, {**GLA, "output_gate": "none"}):
            for name, error in self.errors(call, case_of(direction="forward_backward", **fields)).items():
                self.assertLess(error, 2e-2, name)

    def test_side_by_side(self):
        known = provider.discover("gated_output")
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
                (row,) = together.run(case_of(direction=direction, **GLA), "bf16")
                self.assertNotIn("failure", row)
                self.assertEqual((row["op"], row["direction"], row["median_us"]), ("gated_output", direction, 10.0))
                self.assertLess(row["error"]["value"], 2e-2)


class Calls(unittest.TestCase):
    def test_of_the_baseline(self):
        case = case_of(direction="forward_backward", **MAMBA2)
        tensors = inputs.make(case, "bf16", 1, "cpu")
        call, outs = library.forward_call(FakeLibrary(), case, tensors, "unfused")
        self.assertEqual(call.description.function, b"unfused.gated_output_forward")
        found, numbers = described(call)
        inputs_ = {"o", "gate", "group_norm_weight", "weight", "residual", "norm_weight"}
        self.assertEqual(set(found), {*inputs_, "out", "sum"})
        self.assertEqual({name: x.shape for name, x in outs.items()}, dict.fromkeys(("out", "sum"), (70, 40)))
        self.assertEqual(
            numbers, {"gate_activation": 1, "group_width": 48, "norm_behind_gate": 1, "norm": 2, "eps": 1e-5}
        )

    def test_what_the_baseline_refuses(self):
        peer = provider.discover("gated_output")["unfused"]
        self.assertEqual(peer.refusal(case_of(**GLA), "bf16"), "")
        for changed in ({"axes": {"M": 70, "d_in": 48, "d": 36}}, {"group_width": 12}):
            self.assertIn("multiples of 8", peer.refusal(case_of(**{**GLA, **changed}), "bf16"))
        wide = {"axes": {"M": 70, "d_in": 48, "d": 8200}}
        self.assertIn("at most 8192", peer.refusal(case_of(**GLA, **wide), "bf16"))
        self.assertEqual(peer.refusal(case_of(**wide), "bf16"), "")

    def test_the_shared_object_on_the_cpu(self):
        try:
            found = library.Library("libtandem_calls.so")
        except library.LibraryError as error:
            raise unittest.SkipTest(str(error)) from error
        for fields in CHAINS.values():
            case = case_of(**fields)
            tensors = inputs.make(case, "bf16", 3, "cpu")
            call, outs = library.forward_call(found, case, tensors)
            call.run()
            rows = reference.sample_heads(case)
            self.assertLess(reference.relative_rms(outs, reference.define(case, tensors, rows), rows), 3.2e-3)


if __name__ == "__main__":
    unittest.main()
