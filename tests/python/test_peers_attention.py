"""Tests of bench/peers' attention on CPU tensors: cases, costs, the fp64 reference, torch's, calls."""

import contextlib
import ctypes
import dataclasses
import importlib.metadata
import itertools
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

import torch
from reference import attention as definition
from test_peers_calls import FakeLibrary, described  # first: it puts the checkout on sys.path

from bench.peers import attention, cases, inputs, library, provider, reference
from bench.peers.providers import fa3_backward

DIRECTIONS = ("forward", "backward", "forward_backward")
AXES = ("batch", "row", "head")  # of a stride of fa3's


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


def gradients_of(parameters, stream):
    """What the library's function does, on fp32 tensors in host memory: reads and writes where the struct says."""
    p = parameters._obj  # of ctypes.byref

    def view(name, T, H):
        address, strides = getattr(p, f"{name}_ptr"), [getattr(p, f"{name}_{axis}_stride") for axis in AXES]
        last = sum((n - 1) * stride for n, stride in zip((p.b, T, H, p.d), (*strides, 1), strict=True))
        memory = (ctypes.c_float * (last + 1)).from_address(address)
        return torch.frombuffer(memory, dtype=torch.float32).as_strided((p.b, T, H, p.d), (*strides, 1))

    shapes = {"q": (p.seqlen_q, p.h), "k": (p.seqlen_k, p.h_k), "v": (p.seqlen_k, p.h_k)}
    leaves = [view(name, *shape).detach().clone().requires_grad_() for name, shape in shapes.items()]
    with torch.enable_grad():
        o, sums = definition(*leaves, scale=p.scale_softmax, causal=p.is_causal)
        found = torch.autograd.grad(o, leaves, view("do", *shapes["q"]).to(o.dtype))
    for (name, shape), x in zip(shapes.items(), found, strict=True):
        view(f"d{name}", *shape).copy_(x)
    told = torch.frombuffer((ctypes.c_float * sums.numel()).from_address(p.softmax_lse_ptr), dtype=torch.float32)
    torch.testing.assert_close(view("o", *shapes["q"]), o.detach().float())
    torch.testing.assert_close(told, sums.detach().float().flatten())
    if p.h != p.h_k:
        for name, kind, count in (
            ("accum_ptr", ctypes.c_float, p.seqlen_k_rounded * p.d),
            ("semaphore", ctypes.c_int, 1),
        ):
            buffers = [getattr(p, f"{one}_{name}") for one in ("dk", "dv")]
            assert not any(x for at in buffers for x in (kind * (p.b * p.h_k * count)).from_address(at))
    assert p.deterministic and not p.is_local and stream == 7


class Fa3Backward(unittest.TestCase):
    def setUp(self):
        self.peer = provider.discover("attention")["fa3"]

    def test_the_struct(self):
        # As compiled from the wheel's version of hopper/flash.h.
        offsets = {
            "h": 0x68, "o_ptr": 0x70, "softmax_lse_ptr": 0x98, "b": 0xF0, "d": 0x100, "dv": 0x124,
            "scale_softmax": 0x12C, "cu_seqlens_q": 0x138, "window_size_left": 0x248, "is_bf16": 0x260,
            "is_causal": 0x263, "tile_count_semaphore": 0x270, "arch": 0x2A4, "do_ptr": 0x2B0,
            "dv_head_stride": 0x340, "dq_semaphore": 0x358, "deterministic": 0x370,
        }  # fmt: skip
        found = {name: getattr(fa3_backward.Parameters, name).offset for name in offsets}
        self.assertEqual((found, ctypes.sizeof(fa3_backward.Parameters)), (offsets, 0x380))

    def test_gradients(self):
        def attend(q, k, v, softmax_scale, causal, return_attn_probs):
            o, sums = definition(q, k, v, scale=softmax_scale, causal=causal)
            return o.to(q.dtype), sums.float().contiguous()

        backward = fa3_backward.Backward.__new__(fa3_backward.Backward)
        backward.functions = {(dtype, K): gradients_of for dtype in ("bf16", "fp16") for K in fa3_backward.WIDTHS}
        self.peer._backward, self.peer._interface = backward, types.SimpleNamespace(flash_attn_func=attend)
        wide = {"K": 64, "V": 64}
        on_a_gpu = {"get_device_properties": lambda device: types.SimpleNamespace(multi_processor_count=132),
                    "current_stream": lambda device: types.SimpleNamespace(cuda_stream=7)}  # fmt: skip
        for direction, changed in itertools.product(
            ("backward", "forward_backward"),
            (
                {"causal": "yes"},
                {"axes": {"HKV": 4, "TK": 50}},
                {"strides": "transposed"},
                {"axes": {"K": 128, "V": 128}},
            ),
        ):
            case = case_of(direction=direction, **{**changed, "axes": wide | changed.get("axes", {})})
            self.assertEqual(self.peer.refusal(case, "bf16"), "")
            tensors = inputs.make(case, "fp32", 3, "cpu")
            index = reference.sample_heads(case)
            with torch.no_grad(), unittest.mock.patch.multiple(torch.cuda, **on_a_gpu):
                found = self.peer.prepare(case, "bf16", tensors, "")()
            for name, error in reference.errors(found, reference.define(case, tensors, index), index).items():
                self.assertLess(error, 1e-5, (direction, changed, name))

    def test_what_it_refuses(self):
        def why(dtype="bf16", **changed):
            axes = {"K": 64, "V": 64} | changed.pop("axes", {})
            return self.peer.refusal(case_of(direction="backward", axes=axes, **changed), dtype)

        self.assertEqual((why(), why("fp16"), why(axes={"K": 192, "V": 192})), ("", "", ""))
        self.assertIn("bf16 and fp16", why("fp32"))
        self.assertIn("192 columns", why(axes={"K": 192}))
        self.assertIn("192 columns", why(axes={"K": 256, "V": 256}))
        self.assertIn("windows", why(window_left=3))
        self.assertIn("dense", why(axes={"B": 1}, cu_seqlens=(0, 40)))
        self.assertIn("causal", why(causal="yes", axes={"TK": 50}))
        self.assertIn("nothing", why(axes={"TK": 0}))
        both = case_of(direction="forward_backward", axes={"K": 64, "V": 64})
        self.assertIn("bf16 alone", self.peer.refusal(both, "fp16"))

    def load(self, **modules):
        """What is missing, and the peer's directions."""
        with unittest.mock.patch.dict(sys.modules, fa3_fwd_interface=None, **modules):
            return provider.available({"fa3": self.peer})[1], self.peer.directions

    def test_wheels_that_are_not_here(self):
        none = importlib.metadata.PackageNotFoundError("dew-flash-attn-cu13")
        with contextlib.ExitStack() as stack:
            stack.enter_context(unittest.mock.patch.dict(os.environ))
            os.environ.pop("TANDEM_FA3_LIBRARY", None)
            stack.enter_context(unittest.mock.patch.object(importlib.metadata, "distribution", side_effect=none))
            missing, directions = self.load()
            self.assertEqual((list(missing), directions), (["fa3"], ()))
            self.assertRegex(missing["fa3"], "fa3_fwd_interface.*PackageNotFoundError: .*dew-flash-attn-cu13")
            os.environ["TANDEM_FA3_LIBRARY"] = "/nowhere/libdew_flash_attn3.so"
            self.assertIn("ImportError: TANDEM_FA3_LIBRARY names no file", self.load()[0]["fa3"])

    def test_a_library_alone(self):
        with tempfile.NamedTemporaryFile() as file, contextlib.ExitStack() as stack:
            stack.enter_context(unittest.mock.patch.dict(os.environ, TANDEM_FA3_LIBRARY=file.name))
            opened = stack.enter_context(unittest.mock.patch.object(ctypes, "CDLL"))
            missing, directions = self.load()
            self.assertEqual((list(missing), directions), (["fa3-fwd of fa3"], ("backward",)))
            opened.assert_called_once_with(os.path.realpath(file.name))
            self.assertEqual(self.peer.versions(), {"dew-flash-attn-cu13": "sha256 e3b0c44298fc"})


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
