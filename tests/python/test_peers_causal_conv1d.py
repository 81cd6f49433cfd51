"""Tests of bench/peers' causal_conv1d on CPU tensors: cases, costs, the fp64 reference, torch's conv1d, calls."""

import unittest

import torch
from reference import causal_conv1d as definition
from test_peers_calls import FakeLibrary, described  # first: it puts the checkout on sys.path

from bench.peers import cases, inputs, library, provider, reference

DIRECTIONS = ("forward", "backward", "forward_backward")


def case_of(**changed):
    axes = {"B": 2, "T": 40, "D": 24, "W": 4} | changed.pop("axes", {})
    named = {"axes": axes, "dtypes": ("bf16",), "directions": DIRECTIONS, "bias": "same"}
    fields = {"decay_kind": "none", "distribution": "normal", "states": "none", "strides": "contiguous"}
    fields |= {"cu_seqlens": None, "scale": None, "tags": ("bench",), "seed": 0, "op": "causal_conv1d"}
    return cases.Case("small", **{**named, **fields, **changed})


class Cases(unittest.TestCase):
    def test_the_repositorys_table(self):
        for case in cases.in_directions(cases.select(cases.load("causal_conv1d"), tag="bench")):
            expected = "steps are timed by tandem bench" if case.direction == "step" else ""
            self.assertEqual(cases.why_not(case), expected, case.name)

    def test_costs(self):
        tokens, taps = 2 * 40 * 24 * 2, 24 * 5 * 2
        self.assertEqual(cases.cost(case_of()), (2 * tokens + taps, 0))
        self.assertEqual(cases.cost(case_of(direction="backward")), (3 * tokens + 2 * taps, 0))
        packed = case_of(direction="forward_backward", axes={"B": 1}, cu_seqlens=(0, 3, 40), bias="none", weight="fp32")
        self.assertEqual(cases.cost(packed), (5 * tokens // 2 + 3 * 24 * 4 * 4 + 24, 0))


class Peers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def errors(self, case, call, dtype="fp32"):
        tensors = inputs.make(case, dtype, 3, "cpu")
        index = reference.sample_heads(case)
        expected = reference.define(case, tensors, index)
        with torch.no_grad():  # as the program runs
            return reference.errors(call(tensors), expected, index)

    def test_the_definition(self):
        for changed in ({}, {"activation": "none", "bias": "none"}, {"axes": {"B": 1}, "cu_seqlens": (2, 3, 3, 30)}):
            case = case_of(direction="forward_backward", **changed)

            def call(tensors, case=case):
                leaves = {name: tensors[name].double().requires_grad_() for name in case.wants}
                activation = None if case.activation == "none" else "silu"
                with torch.enable_grad():
                    out, _ = definition(**leaves, activation=activation, cu_seqlens=tensors.get("cu_seqlens"))
                found = torch.autograd.grad(out, list(leaves.values()), tensors["d_out"].double())
                return {"out": out.detach(), **dict(zip(case.wants.values(), found, strict=True))}

            for name, error in self.errors(case, call).items():
                self.assertLess(error, 1e-12, name)

    def test_torch(self):
        peer = provider.discover("causal_conv1d")["torch_conv1d"]
        peer.load()
        for direction in peer.directions:
            for changed in ({}, {"strides": "packed", "activation": "none"}, {"bias": "none"}):
                case = case_of(direction=direction, **changed)
                found = self.errors(case, lambda tensors, case=case: peer.prepare(case, "fp32", tensors, "")())
                for name, error in found.items():
                    self.assertLess(error, 1e-6, name)
        self.assertEqual(peer.refusal(case_of(cu_seqlens=(0, 40)), "bf16"), "dense batches only")

    def test_a_call_of_the_library(self):
        case = case_of(activation="none")
        tensors = inputs.make(case, "bf16", 3, "cpu")
        fake = FakeLibrary()
        call, outputs = library.forward_call(fake, case, tensors)
        self.assertEqual(list(outputs), ["out"])
        named, numbers = described(call)
        self.assertEqual((set(named), numbers), ({"x", "weight", "bias", "out"}, {"silu": 0.0}))
        self.assertEqual(call.description.function, b"causal_conv1d_forward")


if __name__ == "__main__":
    unittest.main()
