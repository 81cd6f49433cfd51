"""Tests of bench/peers' scans on CPU tensors: cases, the fp64 reference, the terms of each peer."""

import dataclasses
import sys
import types
import unittest
import unittest.mock

import reference as definitions
import torch
from test_peers import program  # first: it puts the checkout on sys.path
from test_peers_runs import FakeTimer

from bench.peers import cases, inputs, provider, reference, side_by_side


def scan(op="gated_scan", **changed):
    axes = {"B": 2, "T": 70, "D": 24, **({"d": 16} if op == "linear_scan" else {}), **changed.pop("axes", {})}
    base = cases.Case(
        "small", axes, ("bf16",), "log_decay", "normal", "none", "contiguous", None, None, ("bench",), 0, op=op
    )
    return dataclasses.replace(base, **changed)


def arguments(case, tensors):
    """The arguments of the definitions that the tests of the package trust."""
    named = {name: tensors[name] for name in ("x", "u", "weight", "decay", "log_decay", "gate") if name in tensors}
    if case.cu_seqlens is not None:
        named["cu_seqlens"] = torch.tensor(case.cu_seqlens)
    return named


def defined(case, tensors):
    return getattr(definitions, case.op)(**arguments(case, tensors))[0]


def gradients(case, tensors):
    """out and its gradients in fp64 by autograd of that definition."""
    wide = {name: x.double() for name, x in arguments(case, tensors).items() if name != "cu_seqlens"}
    leaves = {name: wide[name].requires_grad_() for name in case.wants}
    offsets = {"cu_seqlens": torch.tensor(case.cu_seqlens)} if case.cu_seqlens is not None else {}
    with torch.enable_grad():
        out = definitions.gated_scan(**{**wide, **leaves, **offsets})[0]
    found = torch.autograd.grad(out, list(leaves.values()), tensors["d_o"].double())
    return {"o": out.detach(), **dict(zip(case.wants.values(), found, strict=True))}


PACKED = {"axes": {"B": 1}, "cu_seqlens": (3, 3, 20, 21, 60, 60)}


class Cases(unittest.TestCase):
    def test_the_repositorys_tables(self):
        for op in cases.SCANS:
            found = cases.load(op)
            self.assertEqual(len({case.name for case in found}), len(found))
            self.assertTrue(all("{" not in case.name and case.op == op for case in found))
            for case in cases.select(found, tag="bench"):
                self.assertEqual(cases.why_not(case), "")
            self.assertEqual(len(cases.select(found, "sweep_*", "bench")), 16)
            self.assertEqual({case.gate for case in found}, {"silu", "none"})

    def test_costs_are_those_of_the_tandem_program(self):
        # tests/cpp/test_scan_cases.cpp holds the program to the same numbers.
        (one,) = cases.select(cases.load("gated_scan"), "sweep_b4_t512")
        tensor = 4 * 512 * 64 * 2
        for direction, tensors in (("forward", 4), ("backward", 7), ("forward_backward", 11)):
            self.assertEqual(cases.cost(dataclasses.replace(one, direction=direction)), (tensors * tensor, 0))
        (one,) = cases.select(cases.load("linear_scan"), "sweep_b4_t512")
        bytes_ = 3 * tensor + 4 * 512 * 256 * 2 + 256 * 64 * 2
        self.assertEqual(cases.cost(one), (bytes_, 2 * 4 * 512 * 256 * 64))
        with self.assertRaisesRegex(cases.CaseError, "no cost is known of direction backward of linear_scan"):
            cases.cost(dataclasses.replace(one, direction="backward"))
        more = scan(decay_dtype="fp32", gate="none", axes={"B": 1}, cu_seqlens=(0, 70))
        self.assertEqual(cases.cost(more), (70 * 24 * (2 + 4 + 2) + 8, 0))

    def test_no_flops_are_no_infinite_sets(self):
        self.assertEqual(side_by_side.sets_for(scan(), 10**9), 256)
        self.assertEqual(side_by_side.sets_for(scan(direction="forward_backward"), 0), 2)

    def test_inputs(self):
        one = inputs.make(scan(), "bf16", 1, "cpu")
        self.assertEqual(list(one), ["x", "log_decay", "gate"])
        self.assertTrue(all(x.shape == (2, 70, 24) and x.dtype == torch.bfloat16 for x in one.values()))
        more = inputs.make(scan("linear_scan", decay_kind="decay", decay_dtype="fp32", gate="none"), "fp16", 1, "cpu")
        self.assertEqual(
            {name: tuple(x.shape) for name, x in more.items()},
            {"u": (2, 70, 16), "weight": (24, 16), "decay": (2, 70, 24)},
        )
        self.assertEqual((more["decay"].dtype, more["u"].dtype), (torch.float32, torch.float16))
        self.assertTrue(0 < more["decay"].min() and more["decay"].max() < 1)
        packed = inputs.make(scan(direction="forward_backward", **PACKED), "bf16", 1, "cpu")
        self.assertEqual(
            (packed["cu_seqlens"].tolist(), packed["d_o"].shape), (list(PACKED["cu_seqlens"]), (1, 70, 24))
        )


class Reference(unittest.TestCase):
    def test_against_the_definition_of_the_packages_tests(self):
        for op in cases.SCANS:
            for changed in (
                {},
                {"gate": "none"},
                {"decay_kind": "decay"},
                {"distribution": "reset"},
                {"decay_dtype": "fp32"},
                PACKED,
            ):
                case = scan(op, **changed)
                tensors = inputs.make(case, "bf16", 3, "cpu")
                pairs = reference.sample_heads(case)
                found = reference.define(case, tensors, pairs)
                self.assertEqual(list(found), ["o"])
                self.assertLess(reference.relative_rms({"o": defined(case, tensors)}, found, pairs), 1e-13)

    def test_gradients_against_autograd(self):
        for changed in ({}, {"gate": "none"}, {"decay_kind": "decay"}, {"axes": {"T": 1}}, PACKED):
            case = scan(direction="forward_backward", **changed)
            tensors = inputs.make(case, "bf16", 3, "cpu")
            pairs = reference.sample_heads(case)
            found = reference.define(case, tensors, pairs)
            self.assertEqual(set(found), {"o", *case.wants.values()})
            self.assertLess(reference.relative_rms(gradients(case, tensors), found, pairs), 1e-13)
        with self.assertRaisesRegex(ValueError, "no reference of direction backward of gated_scan"):
            reference.define(scan(direction="backward"), tensors, pairs)

    def test_samples_reach_both_ends(self):
        pairs = reference.sample_heads(scan(axes={"B": 8, "D": 1024}))
        self.assertEqual((len(pairs), pairs[0], pairs[-1]), (128, (0, 0), (7, 1023)))
        self.assertEqual(len({d for _, d in pairs}), 128)


class Peers(unittest.TestCase):
    """Each peer's terms: its kernel replaced by what its own documentation defines."""

    def check(self, name, case, call, limit=4e-3):
        peer = provider.discover(case.op)[name]
        peer._call = call
        self.assertEqual(peer.refusal(case, "bf16"), "")
        tensors = inputs.make(case, "bf16", 5, "cpu")
        with torch.no_grad():  # as the program runs
            outputs = peer.prepare(case, "bf16", tensors, peer.settings[0])()
        pairs = reference.sample_heads(case)
        self.assertLess(reference.relative_rms(outputs, reference.define(case, tensors, pairs), pairs), limit)

    def hgrn(self, x, g, cu_seqlens=None):
        """h_t = exp(g_t) h_{t-1} + x_t."""
        return definitions.gated_scan(x, log_decay=g, cu_seqlens=cu_seqlens)[0].to(x.dtype), None

    def test_fla(self):
        for op in cases.SCANS:
            for name in ("fla_chunk_hgrn", "fla_recurrent_hgrn"):
                for changed in ({}, {"gate": "none"}):
                    self.check(name, scan(op, **changed), self.hgrn, 6e-3)
        self.check("fla_recurrent_hgrn", scan(axes={"B": 1}, cu_seqlens=(0, 9, 9, 70)), self.hgrn)
        self.check("fla_chunk_hgrn", scan(direction="forward_backward"), self.hgrn, 1e-2)
        peer = provider.discover("gated_scan")["fla_chunk_hgrn"]
        self.assertEqual(peer.refusal(scan(**PACKED), "bf16"), "dense batches only")
        self.assertIn("logarithm", peer.refusal(scan(decay_kind="decay"), "bf16"))

    def test_how_fla_was_formed_is_told(self):
        found = provider.discover("linear_scan")["fla_chunk_hgrn"]
        row = side_by_side.Entry(found, scan("linear_scan"), "bf16").row
        self.assertEqual((row["variant"], row["op"]), ("matmul, chunk_hgrn, silu * h", "linear_scan"))
        self.assertRegex(row["note"], "torch.matmul.*silu\\(gate\\) \\* h is formed by torch")

    def test_hgrn_alone_is_a_yardstick(self):
        peer = provider.discover("gated_scan")["fla_chunk_hgrn_alone"]
        self.assertFalse(peer.same_function)
        peer._call = lambda x, g: (x + 1, None)
        tensors = inputs.make(scan(), "bf16", 5, "cpu")
        self.assertTrue(torch.equal(peer.prepare(scan(), "bf16", tensors, "")()["o"], tensors["x"] + 1))

    def test_mamba(self):
        def selective_scan(u, delta, A, B, C, D=None, z=None):
            """h = exp(delta A) h + delta B u, y = C h silu(z), tensors [batch,dim,time]."""
            turned = (delta.double() * A.double()).transpose(1, 2)
            x = (delta.double() * u.double() * B.double()).transpose(1, 2)
            gate = None if z is None else z.transpose(1, 2)
            return definitions.gated_scan(x, log_decay=turned, gate=gate)[0].transpose(1, 2) * C.double()

        for changed in ({}, {"gate": "none"}):
            self.check("mamba_selective_scan", scan(**changed), selective_scan)

    def test_mamba_without_its_extension_is_told(self):
        peer = {"mamba_selective_scan": provider.discover("gated_scan")["mamba_selective_scan"]}
        with unittest.mock.patch.dict(sys.modules, selective_scan_cuda=None):
            _, missing = provider.available(peer)
        self.assertIn("selective_scan_cuda", missing["mamba_selective_scan"])

    def test_tandem_by_its_ops(self):
        for op in cases.SCANS:
            for changed in ({}, {"gate": "none"}, {"decay_kind": "decay"}, PACKED):
                case = scan(op, **changed)
                peer = provider.discover(op)["tandem"]
                peer._op = lambda *tensors, op=op, **named: (
                    getattr(definitions, op)(*tensors, **named)[0].bfloat16(),
                    None,
                )
                tensors = inputs.make(case, "bf16", 5, "cpu")
                pairs = reference.sample_heads(case)
                error = reference.relative_rms(
                    peer.prepare(case, "bf16", tensors, "")(), reference.define(case, tensors, pairs), pairs
                )
                self.assertLess(error, side_by_side.limit(peer, "bf16", "o"))
        peer = provider.discover("gated_scan")["tandem"]
        self.assertIn("PyTorch package", peer.refusal(scan(direction="forward_backward"), "bf16"))

    def test_dense_batches_only(self):
        for op, name in (("gated_scan", "unfused"), ("linear_scan", "unfused"), ("linear_scan", "composed")):
            self.assertEqual(provider.discover(op)[name].refusal(scan(op, **PACKED), "bf16"), "dense batches only")


class SideBySide(unittest.TestCase):
    def test_rows_of_a_scan(self):
        def prepare(self, case, dtype, tensors, setting):
            return lambda: {"o": defined(case, tensors)}

        def wrong(self, case, dtype, tensors, setting):
            return lambda: {"o": 1.1 * defined(case, tensors)}

        def peer(name, prepare):
            return type(name, (provider.Provider,), {"name": name, "op": "gated_scan", "prepare": prepare})()

        options = types.SimpleNamespace(seed=1, tune=False, rounds=2, repeats=2)
        state = types.SimpleNamespace(device_state=lambda index: {})
        both = {"good": peer("good", prepare), "wrong": peer("wrong", wrong)}
        together = side_by_side.SideBySide(both, state, torch.device("cpu"), 10, options, lambda text: None)
        together.make_timer, together.ceilings = FakeTimer, {"copy_tbps": 4.0, "bf16_tflops": 700.0}
        rows = {row["provider"]: row for row in together.run(scan(), "bf16")}
        self.assertEqual(
            (rows["good"]["op"], rows["good"]["flops"], rows["good"]["median_us"]), ("gated_scan", 0, 10.0)
        )
        self.assertAlmostEqual(rows["good"]["floor_us"], 4 * 2 * 70 * 24 * 2 / 4e6, places=5)
        self.assertLess(rows["good"]["error"]["value"], 1e-12)
        self.assertIn("wrong result before timing", rows["wrong"]["failure"])

    def test_whose_failure_counts(self):
        row = {"provider": "composed", "failure": "RuntimeError: no"}
        baseline = provider.discover("linear_scan")["composed"].baseline
        self.assertTrue(program.is_ours_to_mend(row, baseline))
        self.assertFalse(program.is_ours_to_mend({**row, "failure": "refused: dense batches only"}, baseline))


if __name__ == "__main__":
    unittest.main()
