"""Tests of bench/peers' attention on CPU tensors: cases, costs, the fp64 reference, torch's, calls."""

import dataclasses
import itertools
import types
import unittest

import torch
from reference import attention as definition
from test_peers_calls import FakeLibrary, described  # first: it puts the checkout on sys.path

from bench.peers import attention, cases, inputs, library, provider, reference

DIRECTIONS = ("forward", "backward", "forward_backward")


def case_of(**changed):
    axes = {"B": 2, "T": 40, "TK": 40, "H": 4, "HKV": 2, "K": 16, "V": 16}
    named = {"axes": axes | changed.pop("axes", {}), "dtypes": ("bf16",), "directions": DIRECTIONS}
    fields = {"decay_kind": "none", "distribution": "normal", "states": "none", "strides": "contiguous"}
    fields |= {"cu_seqlens": None, "scale": None, "tags": ("bench",), "seed": 0, "op": "attention"}
    return cases.Case("small", **{**named, **fields, **changed})


class Cases(unittest.TestCase):
    def test_the_repositorys_table(self):
        for case in cases.select(cases.load("attention"), tag="bench"):
            self.assertEqual(cases.why_not(case), "", case.name)

    def test_what_cannot_be_compared_is_told(self):
        self.assertEqual(cases.why_not(case_of(values="large")), "values large")
        self.assertEqual(cases.why_not(case_of(lengths_k=(3, 4))), "lengths of keys in memory")
        self.assertEqual(cases.why_not(case_of(strides="odd")), "strides odd")

    def test_costs(self):
        rows, sums = 2 * 40 * 16, 2 * 4 * 40
        forward, backward = 2 * rows * (4 + 2 + 2 + 4), 2 * rows * (2 * (4 + 2 + 2) + 2 * 4) + 4 * sums
        pairs = 2 * 40 * 40 * 4
        self.assertEqual(cases.cost(case_of()), (forward, pairs * 2 * 32))
        self.assertEqual(cases.cost(case_of(direction="backward")), (backward, pairs * 2 * 80))
        both = cases.cost(case_of(direction="forward_backward"))
        self.assertEqual(both, (forward + 4 * sums + backward, pairs * 2 * 112))
        causal = case_of(causal="yes", window_left=3)
        self.assertEqual(attention.pairs(causal), int(sum(attention.seen(causal, 40, 40).sum() for _ in range(2))))


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
        for changed in ({}, {"causal": "yes"}, {"window_left": 5, "window_right": 3}, {"axes": {"HKV": 4}}):
            case = case_of(direction="forward_backward", **changed)

            def call(tensors, case=case):
                leaves = [tensors[name].double().requires_grad_() for name in "qkv"]
                window = (case.window_left, case.window_right)
                with torch.enable_grad():
                    o, _ = definition(*leaves, causal=case.causal == "yes", window=window)
                found = torch.autograd.grad(o, leaves, tensors["d_o"].double())
                return {"o": o.detach(), **dict(zip(("dq", "dk", "dv"), found, strict=True))}

            for name, error in self.errors(case, call).items():
                self.assertLess(error, 1e-12, name)

    def test_torch(self):
        peer = provider.discover("attention")["sdpa_flash"]
        peer.load()
        for direction in DIRECTIONS:
            for changed in ({}, {"causal": "yes"}, {"strides": "transposed"}):
                case = case_of(direction=direction, axes={"HKV": 4}, **changed)
                found = self.errors(case, lambda tensors, case=case: peer.prepare(case, "fp32", tensors, "")())
                self.assertEqual(set(found), {"o", "dq", "dk", "dv"} - ({"o"} if direction == "backward" else set())
                                 if direction != "forward" else {"o"})  # fmt: skip
                for name, error in found.items():
                    self.assertLess(error, 1e-5, (direction, name))

    def test_what_torch_refuses(self):
        peer = provider.discover("attention")["sdpa_cudnn"]
        self.assertEqual(peer.refusal(case_of(), "bf16"), "")
        self.assertEqual(peer.refusal(case_of(window_left=3), "bf16"), "no windows")
        self.assertIn("first key", peer.refusal(case_of(causal="yes", axes={"TK": 50}), "bf16"))

    def test_fa3(self):
        def attend(q, k, v, softmax_scale, causal):
            return definition(q, k, v, scale=softmax_scale, causal=causal)[0].to(q.dtype)

        def packed(q, k, v, starts_q, starts_k, longest_q, longest_k, **named):
            self.assertEqual((starts_q.dtype, longest_q, longest_k), (torch.int32, 33, 33))
            pairs = zip(itertools.pairwise(starts_q), itertools.pairwise(starts_k), strict=True)
            parts = [attend(q[None, a:b], k[None, c:d], v[None, c:d], **named)[0] for (a, b), (c, d) in pairs]
            return torch.cat(parts)

        peer = provider.discover("attention")["fa3"]
        peer._interface = types.SimpleNamespace(flash_attn_func=attend, flash_attn_varlen_func=packed)
        for changed in ({}, {"causal": "yes"}, {"axes": {"B": 1}, "cu_seqlens": (0, 7, 7, 40)}):
            case = case_of(**changed)
            self.assertEqual(peer.refusal(case, "bf16"), "")
            found = self.errors(case, lambda tensors, case=case: peer.prepare(case, "fp32", tensors, "")())
            self.assertLess(found["o"], 1e-5, changed)

    def test_what_fa3s_wheel_is_not_compiled_for(self):
        peer = provider.discover("attention")["fa3"]
        self.assertEqual(peer.directions, ("forward",))
        self.assertIn("bf16 alone", peer.refusal(case_of(), "fp16"))
        self.assertIn("without windows", peer.refusal(case_of(window_left=3), "bf16"))
        self.assertIn("up to 256", peer.refusal(case_of(axes={"K": 264, "V": 264}), "bf16"))
        self.assertIn("some sequence", peer.refusal(case_of(cu_seqlens=(0, 30)), "bf16"))
        self.assertIn("K = 128 with V = 64", peer.refusal(case_of(axes={"K": 128, "V": 64}), "bf16"))
        self.assertEqual(peer.refusal(case_of(axes={"K": 192, "V": 128}), "bf16"), "")

    def test_tandem(self):
        try:
            import tandem
        except ImportError as error:
            raise unittest.SkipTest(str(error)) from error
        peer = provider.discover("attention")["tandem"]
        peer._op = tandem.ops.attention
        packed = {"axes": {"B": 1}, "cu_seqlens": (0, 7, 7, 40)}
        for direction in DIRECTIONS:
            for changed in ({}, {"causal": "yes", "window_left": 9}, {"strides": "transposed"}, packed):
                case = case_of(direction=direction, **changed)
                found = self.errors(case, lambda tensors, case=case: peer.prepare(case, "fp32", tensors, "")())
                for name, error in found.items():
                    self.assertLess(error, 1e-5, (direction, changed, name))


class Calls(unittest.TestCase):
    def test_of_the_baseline(self):
        case = case_of(causal="yes")
        call, outs = library.forward_call(FakeLibrary(), case, inputs.make(case, "bf16", 1, "cpu"), "unfused")
        self.assertEqual(call.description.function, b"unfused.attention_forward")
        found, numbers = described(call)
        self.assertEqual(set(found), {"q", "k", "v", "o"})
        self.assertEqual((outs["o"].shape, numbers), ((2, 40, 4, 16), {"scale": 0.25, "causal": 1}))

    def test_what_the_baseline_refuses(self):
        peer = provider.discover("attention")["unfused"]
        self.assertEqual(peer.refusal(case_of(), "bf16"), "")
        self.assertIn("multiples of 8", peer.refusal(dataclasses.replace(case_of(axes={"TK": 41})), "bf16"))


if __name__ == "__main__":
    unittest.main()
