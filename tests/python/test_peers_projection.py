"""Tests of bench/peers' projection on CPU tensors: cases, costs, the fp64 reference, torch's chain, calls."""

import dataclasses
import types
import unittest
import unittest.mock

import torch
from test_peers_calls import FakeLibrary, described  # first: it puts the checkout on sys.path
from test_peers_runs import FakeTimer

from bench.peers import cases, inputs, library, projection, provider, reference, side_by_side

SEED = ("2048 none", "2048 l2_normalize 128", "2048 none", "2048 silu", "16 sigmoid fp32")
EVERY = (
    "40 none bias",
    "48 l2_normalize 24 bias_fp32",
    "24 silu",
    "16 sigmoid fp32",
    "16 log_sigmoid 4 bias fp32",
    "16 softplus",
    "16 softplus 0.25 1.5",
)


def case_of(segments=EVERY, **changed):
    named = {"axes": {"M": 70, "d": 72}, "dtypes": ("bf16",), "directions": ("forward", "forward_backward")}
    fields = {"decay_kind": "none", "distribution": "normal", "states": "none", "strides": "contiguous"}
    fields |= {"cu_seqlens": None, "scale": None, "tags": ("bench",), "seed": 0, "op": "projection"}
    return cases.Case("small", segments=segments, **{**named, **fields, **changed})


class Cases(unittest.TestCase):
    def test_the_repositorys_table(self):
        found = cases.load("projection")
        self.assertEqual(len({case.name for case in found}), len(found))
        for case in cases.select(found, tag="bench"):
            self.assertEqual(cases.why_not(case), "")
        self.assertEqual(len(cases.select(found, "plain_*", "bench")), 50)
        self.assertEqual(cases.select(found, "b8_t4096")[0].segments, SEED)

    def test_segments(self):
        one = projection.parse("48 l2_normalize 24 bias_fp32 unused")
        self.assertEqual((one.columns, one.heads, one.constants), (48, 2, {"head_width": 24}))
        self.assertTrue(one.biased and one.flags == {"bias_fp32", "unused"} and one.out_bytes == 2)
        self.assertEqual(projection.parse("16 softplus 0.25 1.5 fp32").constants, {"min": 0.25, "max": 1.5})

    def test_what_cannot_be_compared_is_told(self):
        self.assertEqual(cases.why_not(case_of()), "")
        self.assertEqual(cases.why_not(case_of(("8 none unused",))), "unused segments")
        self.assertEqual(cases.why_not(case_of(around=4)), "pre-activations around a number")
        self.assertEqual(cases.why_not(case_of(accumulate="yes")), "sums of gradients")
        self.assertEqual(cases.why_not(case_of(strides="packed")), "strides packed")

    def test_costs(self):
        seed = case_of(SEED, axes={"M": 512, "d": 2048})
        M, d, N = 512, 2048, 4 * 2048 + 16
        out, norms = M * (4 * 2048 * 2 + 16 * 4), 4 * M * 16
        forward = 2 * M * d + 2 * N * d + out
        self.assertEqual(cases.cost(seed), (forward, 2 * M * d * N))
        kept = M * (2048 * 2 + 16 * 4) + norms
        backward = 4 * M * d + 4 * N * d + out + kept + M * 2048 * 2
        both = dataclasses.replace(seed, direction="forward_backward")
        self.assertEqual(cases.cost(both), (forward + kept + backward, 6 * M * d * N))
        self.assertEqual(cases.cost(dataclasses.replace(seed, direction="backward")), (backward, 4 * M * d * N))


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

    def test_torch_in_the_dtype_of_the_reference(self):
        for direction in ("forward", "forward_backward"):
            case = case_of(direction=direction)

            def call(case, tensors):
                peer = provider.discover("projection")["torch_eager"]
                peer.load()
                wide = {name: x.double() for name, x in tensors.items()}
                with unittest.mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
                    return peer.prepare(case, "bf16", wide, "")()

            for name, error in self.errors(call, case).items():
                self.assertLess(error, 1e-7, name)  # torch's softplus and its clamp are the definition's

    def test_what_is_wrong_is_seen(self):
        def call(case, tensors):
            outputs = provider.discover("projection")["torch_eager"].function(case, "bf16")(tensors)
            outputs["out2"] = -outputs["out2"]
            return outputs

        errors = self.errors(call, case_of())
        self.assertEqual([name for name, error in errors.items() if error > 1e-2], ["out2"])

    def test_compiled_once_for_all_buffer_sets_of_a_case(self):
        peer = provider.discover("projection")["torch_compile"]
        compiled = []

        def compile_(function, **options):
            compiled.append(options)
            return function

        peer._torch = types.SimpleNamespace(compile=compile_, compiler=types.SimpleNamespace(reset=lambda: None))
        for direction in ("forward", "forward", "forward_backward"):
            case = case_of(direction=direction)
            tensors = inputs.make(case, "bf16", 3, "cpu")
            self.assertEqual(list(peer.prepare(case, "bf16", tensors, "")()), self.outputs(case))
        self.assertEqual(compiled, 2 * [{"mode": "max-autotune-no-cudagraphs", "dynamic": False}])

    def test_tandem(self):
        def op(x, weights, segments, biases):
            self.assertEqual(segments[1], (48, "l2_normalize", None, {"head_width": 24}))
            self.assertEqual(segments[3], (16, "sigmoid", torch.float32, {}))
            found = []
            for text, weight, bias in zip(EVERY, weights, biases, strict=True):
                one = projection.parse(text)
                z = projection.product(x.float(), weight.float(), None if bias is None else bias.float())
                found.append(projection.activate(one, z))
            return tuple(found)

        def segment(columns, activation, dtype, **constants):
            return columns, activation, dtype, constants

        ops = types.SimpleNamespace(Segment=segment)

        def call(case, tensors):
            peer = provider.discover("projection")["tandem"]
            peer._op = op
            with unittest.mock.patch.dict("sys.modules", {"tandem.ops": ops}):
                return peer.prepare(case, "bf16", tensors, "")()

        for direction in ("forward", "forward_backward"):
            for name, error in self.errors(call, case_of(direction=direction)).items():
                self.assertLess(error, 4e-3, name)

    def test_side_by_side(self):
        known = provider.discover("projection")
        self.assertEqual(list(known), ["tandem", "unfused", "torch_compile", "torch_eager"])
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
                # Without clamps: which side of one a rounded value is on decides its slope.
                (row,) = together.run(case_of(EVERY[:-1], direction=direction), "bf16")
                self.assertNotIn("failure", row)
                self.assertEqual((row["op"], row["direction"], row["median_us"]), ("projection", direction, 10.0))
                self.assertLess(row["error"]["value"], 2e-2)


class Calls(unittest.TestCase):
    def test_of_the_baseline(self):
        case = case_of(direction="forward_backward")
        tensors = inputs.make(case, "bf16", 1, "cpu")
        call, outs = library.forward_call(FakeLibrary(), case, tensors, "unfused")
        self.assertEqual(call.description.function, b"unfused.projection_forward")
        found, numbers = described(call)
        given = {name for name in tensors if not name.startswith("d_")}
        self.assertEqual(set(found), given | set(outs))
        self.assertEqual((outs["out3"].dtype, outs["out2"].dtype), (torch.float32, torch.bfloat16))
        activations = {f"activation{i}": value for i, value in enumerate((0, 5, 1, 2, 3, 4, 4))}
        constants = {"head_width1": 24, "divisor4": 4, "min6": 0.25, "max6": 1.5}
        self.assertEqual(numbers, {**activations, **constants})

    def test_what_the_baseline_refuses(self):
        peer = provider.discover("projection")["unfused"]
        self.assertEqual(peer.refusal(case_of(), "bf16"), "")
        self.assertIn("multiples of 8", peer.refusal(case_of(("20 none",)), "bf16"))

    def test_the_shared_object_on_the_cpu(self):
        try:
            found = library.Library("libtandem_calls.so")
        except library.LibraryError as error:
            raise unittest.SkipTest(str(error)) from error
        case = case_of()
        tensors = inputs.make(case, "bf16", 3, "cpu")
        call, outs = library.forward_call(found, case, tensors)
        call.run()
        rows = reference.sample_heads(case)
        self.assertLess(reference.relative_rms(outs, reference.define(case, tensors, rows), rows), 3e-3)


if __name__ == "__main__":
    unittest.main()
