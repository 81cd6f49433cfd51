"""Tests of bench/peers' calls of libtandem_calls.so: their descriptions and, on CPU tensors, the calls themselves."""

import types
import unittest
import unittest.mock

import torch
from test_peers import small  # first: it puts the checkout on sys.path
from test_peers_scans import gradients, scan

from bench.peers import cases, inputs, library, provider, reference


class FakeLibrary:
    """In place of a shared object: what was called, and the size of scratch memory that it asks for."""

    def __init__(self, size=0):
        self.size, self.calls = size, []

    def call(self, function, description, *arguments):
        if function.endswith("_workspace_bytes"):
            arguments[0]._obj.value = self.size
        self.calls.append((function, description._obj.function.decode(), *arguments))


def described(call):
    """{name: (data, dtype, shape, strides)}, {number: value}."""
    told = call.description
    tensors = (told.tensors[i] for i in range(told.tensor_count))
    numbers = (told.numbers[i] for i in range(told.number_count))
    return (
        {x.name.decode(): (x.data, x.dtype, (*x.shape[: x.rank],), (*x.strides[: x.rank],)) for x in tensors},
        {x.name.decode(): x.value for x in numbers},
    )


class Descriptions(unittest.TestCase):
    def setUp(self):
        stream = types.SimpleNamespace(cuda_stream=7)
        patch = unittest.mock.patch.object(torch.cuda, "current_stream", lambda device: stream)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(library.PreparedCall._workspaces.clear)

    def check(self, case, dtype, tensors, function, output):
        call, out = library.forward_call(FakeLibrary(), case, tensors)
        self.assertEqual((call.description.function.decode(), call.description.device), (function, library.HOST))
        found, numbers = described(call)
        self.assertEqual(
            found,
            {
                name: (x.data_ptr(), library.DTYPES[str(x.dtype)], tuple(x.shape), x.stride())
                for name, x in {**tensors, output: out}.items()
            },
        )
        self.assertEqual(out.dtype, getattr(torch, inputs.DTYPE_NAMES[dtype]))
        return numbers

    def test_of_gla(self):
        case = small(axes={"B": 1, "HQ": 2, "K": 8}, cu_seqlens=(0, 9, 70))
        tensors = inputs.make(case, "fp16", 1, "cpu")
        tensors["q"] = tensors["q"].transpose(1, 2).contiguous().transpose(1, 2)
        self.assertEqual(self.check(case, "fp16", tensors, "gla_forward", "o"), {"scale": 8**-0.5})

    def test_of_the_scans(self):
        for op in cases.SCANS:
            for changed in ({"decay_kind": "decay", "decay_dtype": "fp32"}, {"gate": "none"}):
                case = scan(op, **changed)
                tensors = inputs.make(case, "bf16", 1, "cpu")
                self.assertEqual(self.check(case, "bf16", tensors, f"{op}_forward", "out"), {})

    def test_baselines_share_a_workspace(self):
        for case, name, variant in (
            (small(), "unfused", "unfused.cublaslt"),
            (scan(), "unfused", "unfused.scan_gate"),
            (scan("linear_scan"), "unfused", "unfused.gemm_scan_gate"),
            (scan("linear_scan"), "composed", "composed.gemm_gated_scan"),
        ):
            peer = provider.discover(case.op)[name]
            peer._library = FakeLibrary(1000)
            tensors = inputs.make(case, "bf16", 1, "cpu")
            first, second = (peer.prepare(case, "bf16", tensors, "") for _ in range(2))
            self.assertIs(first.workspace, second.workspace)
            self.assertEqual((first.workspace.numel(), peer.variant(case, "")), (1000, variant))
            peer._library.calls.clear()
            self.assertIs(first()["o"], first.output)
            ((entry, function, workspace, size, stream, chosen),) = peer._library.calls
            self.assertEqual((entry, function), ("tandem_bench_call_run", f"{name}.{case.op}_forward"))
            self.assertEqual((workspace.value, size.value), (first.workspace.data_ptr(), 1000))
            self.assertEqual((stream.value, chosen), (7, None))


class Calls(unittest.TestCase):
    """The shared object itself, on the CPU."""

    @classmethod
    def setUpClass(cls):
        try:
            cls.library = library.Library("libtandem_calls.so")
        except library.LibraryError as error:
            raise unittest.SkipTest(str(error)) from error

    def refusal(self, function, tensors, **numbers):
        with self.assertRaises(library.LibraryError) as caught:
            library.Call(self.library, function, tensors, **numbers).run()
        return str(caught.exception)

    def test_forward(self):
        for case in (
            small(),
            small(decay_kind="constant", scale=0.5),
            small(axes={"B": 1}, cu_seqlens=(0, 9, 70)),
            scan(),
            scan("linear_scan", decay_kind="decay", gate="none"),
        ):
            tensors = inputs.make(case, "bf16", 3, "cpu")
            call, output = library.forward_call(self.library, case, tensors)
            self.assertEqual(call.workspace_bytes(), 0)
            self.assertEqual(call.variant(), "")  # of the CUDA backend only
            pairs = reference.sample_heads(case)
            error = reference.relative_rms({"o": output}, reference.define(case, tensors, pairs), pairs)
            self.assertLess(error, 3e-3)

    def test_backward(self):
        case = scan(direction="forward_backward")
        tensors = inputs.make(case, "fp32", 3, "cpu")
        expected = gradients(case, tensors)
        wanted = {gradient: torch.empty_like(tensors[name]) for name, gradient in case.wants.items()}
        d_out = tensors.pop("d_o")
        library.Call(self.library, "gated_scan_backward", {**tensors, "d_out": d_out, **wanted}).run()
        for name, found in wanted.items():
            self.assertLess((found - expected[name]).norm(), 1e-5 * expected[name].norm(), name)

    def test_unknown_names_are_told_the_known_ones(self):
        tensors = inputs.make(small(), "bf16", 3, "cpu")
        every = self.refusal("gla", tensors)
        self.assertRegex(every, r"no call gla \(known: gla_forward, .*linear_scan_backward, .*unfused\.gla_forward, ")
        self.assertIn(
            "unfused.linear_scan_forward, composed.linear_scan_forward, composed.linear_scan_backward, ", every
        )
        self.assertIn("unfused.projection_forward, unfused.projection_backward, ", every)
        self.assertIn("[gla_forward] tensor o is missing", self.refusal("gla_forward", tensors))
        out = torch.empty_like(tensors["v"])
        self.assertRegex(
            self.refusal("gla_forward", {**tensors, "out": out}), r"\[gla_forward\] .*no tensor out \(known: q, k, v, "
        )
        self.assertIn(
            "[gla_forward] there is no number q (known: scale)",
            self.refusal("gla_forward", {**tensors, "o": out}, q=1.0),
        )
        self.assertRegex(self.refusal("gla_forward", {**tensors, "o": out[:1]}), r"\[gla_forward\] o must have shape")

    def test_wrong_descriptions(self):
        tensors = inputs.make(small(), "bf16", 3, "cpu")
        for field, value, told in (("dtype", 9, "a dtype in [0,4), got 9"), ("rank", 6, "a rank in [0,6), got 6")):
            call = library.Call(self.library, "gla_forward", tensors)
            setattr(call.description.tensors[0], field, value)
            with self.assertRaises(library.LibraryError) as caught:
                call.run()
            self.assertIn(f"[gla_forward] q must have {told}", str(caught.exception))

    def test_what_baselines_refuse(self):
        """No device is asked: they know by the description."""
        for case, name, told in (
            (small(axes={"K": 12}), "unfused", "multiples of 8"),
            (small(axes={"B": 1}, cu_seqlens=(0, 70)), "unfused", "cu_seqlens"),
            (scan(axes={"B": 1}, cu_seqlens=(0, 70)), "unfused", "cu_seqlens"),
            (scan("linear_scan"), "composed", "no gaps"),
        ):
            tensors = inputs.make(case, "bf16", 3, "cpu")
            if "u" in tensors:
                tensors["u"] = torch.cat([tensors["u"]] * 2, dim=2)[:, :, : case.d]
            call, _ = library.forward_call(self.library, case, tensors, name)
            with self.assertRaisesRegex(library.LibraryError, "not for the CPU"):
                call.run()
            call.description.device = 0
            with self.assertRaisesRegex(library.LibraryError, told):
                call.workspace_bytes()

    def test_the_baselines_workspace(self):
        case = small()
        call, _ = library.forward_call(self.library, case, inputs.make(case, "bf16", 3, "cpu"), "unfused")
        call.description.device = 0
        chunks = 2 * 4 * 2  # B H, and 70 tokens
        tensors = 8 * 64 + 2 * (4 * 64 * 16 + 2 * 64 * 16 + 64 * 64 + 16 * 16)
        self.assertEqual(call.workspace_bytes(), chunks * tensors + (32 << 20))


if __name__ == "__main__":
    unittest.main()
