"""Tests of bench/peers that need no GPU; those that need torch run on CPU tensors, or skip without it."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers import __main__ as program  # noqa: E402
from bench.peers import cases, inputs, library, provider, reference, results, side_by_side  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
needs_torch = unittest.skipUnless(HAS_TORCH, "no torch")


def small(**changed):
    axes = {"B": 2, "T": 70, "H": 4, "HQ": 4, "K": 16, "V": 16, **changed.pop("axes", {})}
    base = cases.Case("small", axes, ("bf16",), "per_token", "normal", "none", "contiguous", None, None, ("bench",), 0)
    return dataclasses.replace(base, **changed)


class Cases(unittest.TestCase):
    def test_lists_expand_and_names_are_filled_in(self):
        table = [{"name": "t{T}_d{K}_{distribution}_{states}", "axes": {"B": 2, "T": [0, 63], "H": 8, "HQ": 2, "K": [64, 128], "V": 32},
                  "dtype": ["bf16", "fp32"], "decay": {"kind": "per_token", "distribution": ["normal", "reset"]}, "states": "both",
                  "tags": ["check"]}]  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cases.json"
            path.write_text(json.dumps(table))
            found = cases.load("gla", path)
        self.assertEqual(len(found), 8)
        self.assertIn("t63_d128_reset_both", [case.name for case in found])
        self.assertEqual((found[0].T, found[0].HQ, found[0].V, found[0].dtypes), (0, 2, 32, ("bf16", "fp32")))

    def test_the_repositorys_table(self):
        found = cases.load("gla")
        self.assertEqual(len({case.name for case in found}), len(found))
        self.assertTrue(all("{" not in case.name for case in found))
        for case in cases.select(found, tag="bench"):
            self.assertEqual(cases.why_not(case), "")
        seed = cases.select(found, "seed039_t4096_d64")[0]
        self.assertEqual((seed.B, seed.T, seed.H, seed.HQ, seed.K, seed.V), (4, 4096, 32, 32, 64, 64))
        # DESIGN.md: floors of OPS.md at 4.30 TB/s.
        self.assertAlmostEqual(cases.cost(seed)[0] / 4.30e6, 62.9, delta=1)
        decode = cases.select(found, "decode_b64h32_d128")[0]
        self.assertEqual((decode.direction, decode.T), ("step", 1))
        self.assertAlmostEqual(cases.cost(decode)[0] / 4.30e6, 62.9, delta=1)

    def test_each_direction_in_turn(self):
        both = small(name="both", directions=("backward", "forward"))
        found = cases.in_directions([both, small()])
        self.assertEqual([(case.name, case.direction) for case in found], [("both", "forward"), ("small", "forward"), ("both", "backward")])
        self.assertEqual([case.name for case in cases.in_directions([both, small()], "backward")], ["both"])
        with self.assertRaisesRegex(cases.CaseError, "direction step"):
            cases.in_directions([both], "step")

    def test_what_cannot_be_compared_is_told(self):
        self.assertEqual(cases.why_not(small(states="both")), "states both")
        self.assertEqual(cases.why_not(small(strides="odd")), "strides odd")

    def test_lengths_are_those_of_the_tandem_program(self):
        # tests/cpp/test_cases.cpp holds the program to the same numbers.
        offsets = cases.select(cases.load("gla"), "varlen_mixed_h16_d128")[0].cu_seqlens
        self.assertEqual([b - a for a, b in zip(offsets[:6], offsets[1:7])], [9, 4, 6, 34, 313, 102])
        self.assertEqual((len(offsets), offsets[0], offsets[-1]), (1001, 0, 131072))
        self.assertTrue(all(a < b for a, b in zip(offsets, offsets[1:])))
        equal = cases.select(cases.load("gla"), "varlen_equal_n32_h16_d128")[0].cu_seqlens
        self.assertEqual(equal, tuple(range(0, 131073, 4096)))

    def test_ranges_and_huge_cases(self):
        found = cases.load("gla")
        self.assertEqual(len(cases.select(found, "every_t*_d64")), 130)
        self.assertTrue(all("huge" in case.tags for case in cases.select(found, tag="huge")))
        with self.assertRaises(cases.CaseError):
            cases.select(found, "huge_*")

    def test_nothing_selected_or_readable(self):
        with self.assertRaisesRegex(cases.CaseError, "no case is named nope"):
            cases.select(cases.load("gla"), "nope")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cases.json"
            path.write_text("[{]")
            with self.assertRaisesRegex(cases.CaseError, "cases.json"):
                cases.load("gla", path)


class Results(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "deep" / "gla.json"

    def row(self, **changed):
        return {"op": "gla", "direction": "forward", "case": "a", "dtype": "bf16", "provider": "fla", "median_us": 1.0, **changed}

    def test_rows_merge_by_their_key(self):
        file = results.ResultsFile(self.path, {"commit": "abc"})
        file.add(self.row())
        file.add(self.row(provider="tandem"))
        file.add(self.row(median_us=2.0))
        data = json.loads(self.path.read_text())
        self.assertEqual([(row["provider"], row["median_us"]) for row in data["rows"]], [("fla", 2.0), ("tandem", 1.0)])
        self.assertEqual(list(data["runs"]), [file.run_id])

    def test_each_run_has_its_own_rows_and_leaves_others(self):
        first = results.ResultsFile(self.path, {})
        first.add(self.row())
        second = results.ResultsFile(self.path, {})
        self.assertNotEqual(first.run_id, second.run_id)
        second.add(self.row())
        self.assertEqual(len(json.loads(self.path.read_text())["rows"]), 2)

    def test_a_failure_replaces_a_time(self):
        file = results.ResultsFile(self.path, {}, "20260101-1")
        file.add(self.row())
        failed = self.row(failure="RuntimeError: no")
        del failed["median_us"]
        file.add(failed)
        (row,) = json.loads(self.path.read_text())["rows"]
        self.assertNotIn("median_us", row)
        self.assertEqual(row["run"], "20260101-1")

    def test_counters_stay_with_their_variant(self):
        file = results.ResultsFile(self.path, {}, "r")
        file.add(self.row(variant="x", counters={"run": "r"}))
        file.add(self.row(variant="x"))
        self.assertIn("counters", json.loads(self.path.read_text())["rows"][0])
        file.add(self.row(variant="y"))
        self.assertNotIn("counters", json.loads(self.path.read_text())["rows"][0])

    def test_a_mangled_file_is_refused_and_kept(self):
        self.path.parent.mkdir()
        for text, why in (("{", "not valid JSON"), ('{"schema": 2}', "schema"), ('{"schema": 1, "runs": [], "rows": []}', "runs must")):
            self.path.write_text(text)
            with self.assertRaisesRegex(ValueError, why):
                results.ResultsFile(self.path, {})
            self.assertEqual(self.path.read_text(), text)

    def test_quantiles_and_digits(self):
        self.assertEqual(results.summarize([5, 1, 3, 2, 4]), {"median_us": 3.0, "p10_us": 1.4, "p90_us": 4.6})
        self.assertEqual(results.summarize([7.0]), {"median_us": 7.0, "p10_us": 7.0, "p90_us": 7.0})
        self.assertEqual(results.rounded(123.456), 123.5)


class Registry(unittest.TestCase):
    def test_every_peer_is_discovered_tandem_first(self):
        found = provider.discover("gla")
        self.assertEqual(list(found)[:2], ["tandem", "unfused"])
        self.assertLessEqual({"fla", "fla_fused", "mamba2", "tfla", "sdpa_cudnn"}, set(found))
        self.assertEqual(provider.discover("other"), {})

    def test_what_does_not_load_is_told_not_raised(self):
        class Broken(provider.Provider):
            def load(self):
                raise OSError("no such library")

        ready, missing = provider.available({"broken": Broken(), "plain": provider.Provider()})
        self.assertEqual(list(ready), ["plain"])
        self.assertEqual(missing, {"broken": "OSError: no such library"})


class Program(unittest.TestCase):
    def run_program(self, *argv):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program.main(["gla", *argv])
        return code, out.getvalue(), err.getvalue()

    @unittest.skipIf(HAS_TORCH and torch.cuda.is_available(), "there is a GPU")
    def test_without_a_gpu(self):
        code, _, err = self.run_program()
        self.assertEqual(code, 3)
        self.assertRegex(err, "nothing can be measured: torch")

    def test_wrong_names(self):
        self.assertEqual(self.run_program("--case", "nope")[0], 2)
        self.assertEqual(self.run_program("--case", "varlen_reset", "--direction", "step")[0], 2)
        code, _, err = self.run_program("--providers", "nope")
        self.assertEqual(code, 2)
        self.assertIn("no provider is named nope", err)

    def test_whose_failure_counts(self):
        def counts(provider, failure, tags=("bench",)):
            return program.is_ours_to_mend({"provider": provider, **({"failure": failure} if failure else {})}, small(tags=tags))

        self.assertTrue(counts("tandem", "wrong result"))
        self.assertTrue(counts("tandem", "refused: no"))
        self.assertTrue(counts("unfused", "wrong result"))
        self.assertFalse(counts("unfused", "refused: dense batches only"))
        self.assertFalse(counts("fla", "wrong result"))
        self.assertFalse(counts("tandem", ""))
        self.assertFalse(counts("tandem", "refused: no", ("bench", "later")))

    def test_list(self):
        code, out, _ = self.run_program("--list")
        self.assertEqual(code, 0)
        self.assertIn("mamba2", out)

    def test_rows_print(self):
        row = {"direction": "forward", "case": "a", "dtype": "bf16", "provider": "fla"}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            program.print_row({**row, "failure": "refused: no"}, None)
            program.print_row({**row, "median_us": 3.0, "p10_us": 2.0, "p90_us": 4.0, "floor_us": 1.0, "first_call_s": 9.0, "variant": "v"}, 1.5)
        self.assertIn("refused: no", out.getvalue())
        self.assertIn("2.00x", out.getvalue())


@needs_torch
class Inputs(unittest.TestCase):
    def test_shapes_dtypes_and_seeds(self):
        case = small(axes={"HQ": 2, "V": 8})
        one, same, other = (inputs.make(case, "bf16", seed, "cpu") for seed in (1, 1, 2))
        self.assertEqual([tuple(one[name].shape) for name in ("q", "k", "v", "log_decay")], [(2, 70, 2, 16), (2, 70, 2, 16), (2, 70, 4, 8), (2, 70, 4)])
        self.assertEqual((one["q"].dtype, one["log_decay"].dtype), (torch.bfloat16, torch.float32))
        self.assertTrue(torch.equal(one["q"], same["q"]))
        self.assertFalse(torch.equal(one["q"], other["q"]))

    def test_distributions(self):
        wide = small(axes={"T": 4000})

        def decays(distribution):
            return inputs.make(dataclasses.replace(wide, distribution=distribution), "bf16", 1, "cpu")["log_decay"]

        # E log_sigmoid(N(0,1)) = -0.806, E log_sigmoid(N(0,1) + 2) = -0.178 (numerical integration).
        self.assertAlmostEqual(decays("normal").mean().item() * 16, -0.806, delta=0.02)
        self.assertAlmostEqual(decays("normal_bench").mean().item(), -0.178, delta=0.01)
        self.assertAlmostEqual(torch.isinf(decays("reset")).float().mean().item(), 1 / 16, delta=0.01)
        strong = decays("strong")
        self.assertTrue(-20 <= strong.min() and strong.max() <= -2)
        q = inputs.make(wide, "bf16", 1, "cpu")["q"].float()
        self.assertAlmostEqual(q.mean().item(), 0, delta=0.01)
        self.assertAlmostEqual(q.std().item(), 1, delta=0.01)
        with self.assertRaisesRegex(ValueError, "no decay distribution odd"):
            decays("odd")

    def test_offsets(self):
        self.assertNotIn("cu_seqlens", inputs.make(small(), "bf16", 1, "cpu"))
        offsets = inputs.make(small(axes={"B": 1}, cu_seqlens=(0, 3, 70)), "bf16", 1, "cpu")["cu_seqlens"]
        self.assertEqual((offsets.dtype, offsets.tolist()), (torch.int32, [0, 3, 70]))

    def test_other_kinds_of_decay(self):
        self.assertEqual(tuple(inputs.make(small(decay_kind="constant"), "fp16", 1, "cpu")["log_decay"].shape), (4,))
        self.assertNotIn("log_decay", inputs.make(small(decay_kind="none"), "fp16", 1, "cpu"))


def quadratic(case, tensors):
    """gla as masked attention in fp64, [B,T,H,V]: shares no code with the recurrence."""
    group = case.H // case.HQ
    q, k = (tensors[name].double().repeat_interleave(group, 2).transpose(1, 2) for name in "qk")
    v = tensors["v"].double().transpose(1, 2)
    decay = tensors.get("log_decay", torch.zeros(case.H)).double()
    sums = decay.expand(case.B, case.T, case.H).cumsum(1).transpose(1, 2)
    reach = (sums[..., :, None] - sums[..., None, :]).exp().tril()
    if case.cu_seqlens is not None:  # 0 across a boundary, and outside every sequence
        which = torch.bucketize(torch.arange(case.T), torch.tensor(case.cu_seqlens), right=True)
        inside = (which > 0) & (which < len(case.cu_seqlens))
        reach = reach * ((which[:, None] == which) & inside)
    return (case.softmax_scale * ((q @ k.transpose(2, 3)) * reach) @ v).transpose(1, 2)


@needs_torch
class Reference(unittest.TestCase):
    def test_against_masked_attention(self):
        varlen = [small(axes={"B": 1, "H": 8, "HQ": 8}, cu_seqlens=offsets) for offsets in ((0, 70), (3, 3, 20, 21, 21, 60, 60), (0, 1, 70))]
        for case in (small(), small(axes={"HQ": 2, "K": 8}), small(decay_kind="constant", scale=-0.5), small(decay_kind="none"), *varlen):
            tensors = inputs.make(case, "bf16", 3, "cpu")
            heads = reference.sample_heads(case)
            self.assertEqual(len(heads), 8)
            error = reference.relative_rms({"o": quadratic(case, tensors)}, reference.define(case, tensors, heads), heads)
            self.assertLess(error, 1e-12)

    def test_samples_reach_both_ends(self):
        heads = reference.sample_heads(small(axes={"B": 8, "H": 32}))
        self.assertEqual((len(heads), heads[0], heads[-1]), (16, (0, 0), (7, 31)))
        self.assertEqual(reference.sample_heads(small(axes={"B": 1, "H": 1})), [(0, 0)])

    def test_nan_anywhere_never_passes(self):
        o = torch.zeros(2, 3, 4, 8)
        o[1, 2, 3, 7] = math.nan
        expected = {"o": torch.ones(1, 3, 8, dtype=torch.float64)}
        self.assertEqual(reference.relative_rms({"o": o}, expected, [(0, 0)]), math.inf)
        self.assertEqual(reference.relative_rms({}, expected, [(0, 0)]), math.inf)  # nor does an output that is not there


@needs_torch
class Peers(unittest.TestCase):
    """Each peer's terms translated as its own documentation defines them: its kernel replaced by that definition."""

    def check(self, name, case, call, limit):
        peer = provider.discover("gla")[name]
        peer._call = call
        self.assertEqual(peer.refusal(case, "bf16"), "")
        tensors = inputs.make(case, "bf16", 5, "cpu")
        outputs = peer.prepare(case, "bf16", tensors, peer.settings[0])()
        self.assertEqual(outputs["o"].shape, tensors["v"].shape)
        heads = reference.sample_heads(case)
        self.assertLess(reference.relative_rms(outputs, reference.define(case, tensors, heads), heads), limit)

    def test_fla(self):
        def simple_gla(q, k, v, g=None, g_gamma=None, scale=None, cu_seqlens=None):
            self.assertEqual(cu_seqlens is None or cu_seqlens.tolist(), case.cu_seqlens is None or list(case.cu_seqlens))
            decay = {} if g is None and g_gamma is None else {"log_decay": g if g is not None else g_gamma}
            return quadratic(dataclasses.replace(case, scale=scale), {"q": q, "k": k, "v": v, **decay}), None

        for case in (small(), small(decay_kind="constant"), small(decay_kind="none"), small(axes={"B": 1}, cu_seqlens=(0, 9, 70))):
            self.check("fla", case, simple_gla, 1e-12)
        self.assertIn("grouped", provider.discover("gla")["fla"].refusal(small(axes={"HQ": 2}), "bf16"))

    def test_a_step(self):
        """fla's and Tandem's call, by a recurrence of one token that shares no code with the reference."""
        case = small(axes={"T": 1}, directions=("step",), direction="step")
        tensors = inputs.make(case, "bf16", 5, "cpu")
        heads = reference.sample_heads(case)
        expected = reference.define(case, tensors, heads)

        def token(q, k, v, g, state):
            state = state.double() * g.double().exp()[..., None, None] + torch.einsum("bhk,bhv->bhkv", k.double(), v.double())
            return case.softmax_scale * torch.einsum("bhk,bhkv->bhv", q.double(), state), state

        def recurrent(q, k, v, g, scale, initial_state, output_final_state):
            o, state = token(q[:, 0], k[:, 0], v[:, 0], g[:, 0], initial_state)
            return o[:, None], state

        def in_place(q, k, v, state, log_decay, scale):
            o, new = token(q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], state)
            state.copy_(new)
            return o[:, None]

        fla, ours = (provider.discover("gla")[name] for name in ("fla_recurrent", "tandem"))
        fla._call, ours._step, ours._library = recurrent, in_place, None
        for peer in (fla, ours):
            self.assertEqual((peer.refusal(case, "bf16"), "step" in peer.directions), ("", True))
            call = peer.prepare(case, "bf16", tensors, "")
            self.assertLess(reference.relative_rms(call(), expected, heads), 1e-6)
        self.assertGreater(reference.relative_rms(call(), expected, heads), 0.1)  # the second token
        call.restart()
        self.assertLess(reference.relative_rms(call(), expected, heads), 1e-6)
        self.assertIn("fp32 only", fla.refusal(dataclasses.replace(case, state_dtype="bf16"), "bf16"))

    def test_mamba2(self):
        def ssd(x, dt, A, B, C, chunk_size, seq_idx=None):  # h = exp(dt A) h + dt x B^T, y = h C
            self.assertEqual(chunk_size, 256)
            if case.cu_seqlens is not None:
                self.assertEqual(seq_idx.tolist(), [[0] * 9 + [2] * 61])
            tensors = {"q": C, "k": B, "v": x.double() * dt[..., None], "log_decay": dt * A}
            return quadratic(dataclasses.replace(case, scale=1.0), tensors)

        packed = small(axes={"B": 1}, cu_seqlens=(0, 9, 9, 70))
        for case in (small(axes={"HQ": 2}), small(distribution="normal_bench", scale=-0.5), packed):
            self.check("mamba2", case, ssd, 3e-3)  # x is rounded to bf16
        self.assertTrue(provider.discover("gla")["mamba2"].refusal(small(decay_kind="none"), "bf16"))
        self.assertIn("some sequence", provider.discover("gla")["mamba2"].refusal(dataclasses.replace(packed, cu_seqlens=(0, 9)), "bf16"))

    def test_dense_batches_only(self):
        for name in ("unfused", "tfla", "sdpa_cudnn"):
            self.assertEqual(provider.discover("gla")[name].refusal(small(axes={"B": 1}, cu_seqlens=(0, 70)), "bf16"), "dense batches only")

    def test_tfla(self):
        def mlstm(q, k, v, i, f, normalize, chunk_size, autocast_kernel_dtype):  # C = sigmoid(f) C + sigmoid(i) k v^T
            self.assertFalse(normalize)
            k = k.double() * torch.sigmoid(i.double())[..., None]
            decay = torch.nn.functional.logsigmoid(f.double())
            tensors = {name: x.transpose(1, 2) for name, x in (("q", q), ("k", k), ("v", v), ("log_decay", decay))}
            return quadratic(dataclasses.replace(case, scale=None), tensors).transpose(1, 2)

        for distribution in ("normal", "normal_bench", "strong"):
            case = small(distribution=distribution)
            self.check("tfla", case, mlstm, 1e-5)

    def test_sdpa_is_no_gla(self):
        self.assertFalse(provider.discover("gla")["sdpa_cudnn"].same_function)

    def test_the_c_description(self):
        case = small(axes={"HQ": 2, "K": 8})
        tensors = inputs.make(case, "fp16", 1, "cpu")
        tensors["q"] = tensors["q"].transpose(1, 2).contiguous().transpose(1, 2)
        with unittest.mock.patch.object(torch.Tensor, "device", types.SimpleNamespace(index=0)):
            call = library.gla_call(case, "fp16", tensors, tensors["v"])
        self.assertEqual((call.dtype, call.B, call.T, call.H, call.HQ, call.K, call.V), (1, 2, 70, 4, 2, 8, 16))
        self.assertAlmostEqual(call.scale, 8**-0.5, places=6)
        self.assertEqual((call.q.batch_stride, call.q.time_stride, call.q.head_stride), (2 * 70 * 8, 8, 70 * 8))
        self.assertEqual((call.log_decay.batch_stride, call.log_decay.time_stride, call.log_decay.head_stride), (280, 4, 1))
        self.assertEqual(call.o.data, tensors["v"].data_ptr())
        self.assertEqual((call.N, call.cu_seqlens), (2, None))
        tensors["cu_seqlens"] = torch.tensor([0, 9, 70], dtype=torch.int32)
        with unittest.mock.patch.object(torch.Tensor, "device", types.SimpleNamespace(index=0)):
            call = library.gla_call(case, "fp16", tensors, tensors["v"])
        self.assertEqual((call.N, call.cu_seqlens), (2, tensors["cu_seqlens"].data_ptr()))


class FakeTimer:
    """In place of the CUDA graph: calls once, reports made-up times; `order` tells who was asked when."""

    order = []

    def __init__(self, calls):
        self.outputs = [call() for call in calls]
        self.name = getattr(calls[0], "who", "?")

    def replay(self, warm_up, replays):
        FakeTimer.order.append(self.name)
        return [10.0] * replays

    def restart(self):
        pass

    def close(self):
        self.outputs = []


def fake(name_, **methods):
    def prepare(self, case, dtype, tensors, setting):
        def call():
            return {"o": quadratic(case, tensors)}

        call.who = name_
        return call

    return type(name_, (provider.Provider,), {"name": name_, "prepare": prepare, **methods})()


@needs_torch
class SideBySide(unittest.TestCase):
    def compare(self, *providers, tune=False):
        FakeTimer.order = []
        options = types.SimpleNamespace(seed=1, tune=tune, rounds=3, repeats=4)
        state = types.SimpleNamespace(device_state=lambda index: {"driver": "1", "sm_clock_mhz": 1980, "power_w": 500, "throttle_reasons": "0x0"})
        said = []
        together = side_by_side.SideBySide({one.name: one for one in providers}, state, torch.device("cpu"), 10, options, said.append)
        together.make_timer = FakeTimer
        together.ceilings = {"copy_tbps": 4.0, "bf16_tflops": 700.0}
        return {row["provider"]: row for row in together.run(small(), "bf16")}, said

    def test_rounds_take_turns(self):
        rows, _ = self.compare(fake("a"), fake("b"))
        self.assertEqual(FakeTimer.order, ["a", "b", "a", "b", "a", "b", "a", "b"])  # the first two while preparing
        self.assertEqual(rows["a"]["median_us"], 10.0)
        self.assertLess(rows["a"]["error"]["value"], 1e-12)
        self.assertEqual(rows["a"]["sm_clock_mhz"], 1980)
        self.assertGreater(rows["a"]["floor_us"], 0)
        self.assertGreaterEqual(rows["a"]["first_call_s"], 0)

    def test_failures_are_rows_and_the_others_go_on(self):
        def crash(self, case, dtype, tensors, setting):
            raise RuntimeError("ptxas died:\n  register file full")

        def wrong(self, case, dtype, tensors, setting):
            return lambda: {"o": 1.1 * quadratic(case, tensors)}

        def drifts(self, case, dtype, tensors, setting):  # right at first, then not
            self.calls = getattr(self, "calls", 0) + 1
            factor = 1.0 if self.calls == 1 else math.nan
            return lambda: {"o": factor * quadratic(case, tensors)}

        rows, said = self.compare(
            fake("crashes", prepare=crash), fake("wrong", prepare=wrong), fake("refuses", refusal=lambda self, case, dtype: "too small"), fake("good"),
            fake("drifts", prepare=drifts),
        )  # fmt: skip
        self.assertEqual(rows["crashes"]["failure"], "RuntimeError: ptxas died")
        self.assertIn("wrong result before timing: relative RMS error 0.1", rows["wrong"]["failure"])
        self.assertEqual(rows["refuses"]["failure"], "refused: too small")
        self.assertIn("wrong result after timing", rows["drifts"]["failure"])
        self.assertIsNone(rows["drifts"]["error"]["value"])
        self.assertNotIn("median_us", rows["wrong"])
        self.assertIn("median_us", rows["good"])
        self.assertTrue(any("ptxas died" in text for text in said))
        json.dumps(list(rows.values()), allow_nan=False)

    def test_tuning_keeps_the_fastest_setting(self):
        class Timer(FakeTimer):
            def replay(self, warm_up, replays):
                return [{"slow": 30.0, "fast": 10.0}[self.name]] * replays

        def prepare(self, case, dtype, tensors, setting):
            def call():
                return {"o": quadratic(case, tensors)}

            call.who = setting
            return call

        original, globals()["FakeTimer"] = FakeTimer, Timer
        try:
            rows, _ = self.compare(fake("a", prepare=prepare, settings=("slow", "fast")), tune=True)
            untuned, _ = self.compare(fake("a", prepare=prepare, settings=("slow", "fast")))
        finally:
            globals()["FakeTimer"] = original
        self.assertEqual((rows["a"]["variant"], rows["a"]["median_us"]), ("fast", 10.0))
        self.assertEqual((untuned["a"]["variant"], untuned["a"]["median_us"]), ("slow", 30.0))

    def test_only_providers_of_the_direction_take_part(self):
        rows, _ = self.compare(fake("good"), fake("other", directions=("backward",)))
        self.assertEqual(list(rows), ["good"])
        self.assertEqual(rows["good"]["direction"], "forward")

    def test_a_yardstick_has_no_error(self):
        rows, _ = self.compare(fake("other", same_function=False, prepare=lambda self, case, dtype, tensors, setting: lambda: {"o": tensors["v"]}))
        self.assertNotIn("error", rows["other"])
        self.assertIn("median_us", rows["other"])

    def test_cold_cache(self):
        case = small()
        bytes_ = cases.cost(case)[0]
        self.assertEqual(side_by_side.sets_for(case, 0), 2)
        self.assertEqual(side_by_side.sets_for(case, bytes_), 5)
        self.assertEqual(side_by_side.sets_for(case, bytes_ * 1000), 256)


from bench.peers import timer  # noqa: E402


class FakeCuda:
    """What GraphTimer uses of torch.cuda. wait() is a wait for the device; as in older torch, a
    capture that it ended leaves the capture's stream current and the allocator in its pool."""

    def __init__(self):
        self.mode, self.current, self.captures = 0, "first", 0
        self.capturing = self.spoilt = False
        self.pools = []  # that the allocator is in
        self.released = []

    def wait(self):
        if self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.capturing:
            self.spoilt = True
            raise RuntimeError("operation not permitted when stream is capturing")

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextlib.contextmanager
    def graph(self, graph, pool, stream):
        before, self.current, self.capturing = self.current, stream, True
        self.pools.append(pool)
        self.captures += 1
        try:
            yield
        finally:
            self.capturing = False
            if self.spoilt:
                self.spoilt = False
                raise RuntimeError("operation failed due to a previous error during capture")
            self.current = before
            self.pools.remove(pool)

    def set_mode(self, mode):
        self.mode = mode

    def end_pool(self, device, pool):
        if pool not in self.pools:
            raise RuntimeError("not recording to the pool")
        self.pools.remove(pool)

    @contextlib.contextmanager
    def in_place(self):
        queue = unittest.mock.MagicMock()  # a stream, and what is on it
        event = types.SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 0.5)
        fakes = {
            "Stream": lambda: queue, "current_stream": lambda: queue, "stream": self.stream,
            "CUDAGraph": unittest.mock.MagicMock, "graph": self.graph, "synchronize": lambda: None,
            "get_sync_debug_mode": lambda: self.mode, "set_sync_debug_mode": self.set_mode,
            "graph_pool_handle": lambda: (0, self.captures + 1), "current_device": lambda: 0,
            "Event": lambda enable_timing: event,
        }  # fmt: skip
        ends = {
            "_cuda_endAllocateToPool": self.end_pool,
            "_cuda_releasePool": lambda device, pool: self.released.append(pool),
        }
        replaced = unittest.mock.patch.multiple
        with replaced(torch.cuda, **fakes), replaced(torch._C, create=True, **ends):
            yield


@needs_torch
class Timer(unittest.TestCase):
    def setUp(self):
        self.cuda = FakeCuda()
        patch = self.cuda.in_place()
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)

    def usable(self):
        """Whether the next peer can be timed as if nothing had been."""
        self.assertEqual((self.cuda.mode, self.cuda.current, self.cuda.pools), (0, "first", []))
        plain = timer.GraphTimer([lambda: {"o": 1}, lambda: {"o": 2}])
        self.assertEqual((plain.outputs, plain.replay(2, 3)), ([{"o": 1}, {"o": 2}], [250.0] * 3))
        self.assertEqual(self.cuda.pools, [])

    def test_a_call_that_waits_is_refused_before_any_capture(self):
        told = r"waits for the device .*test_peers.*\.py:\d+\).*500 us per call"
        with self.assertRaisesRegex(timer.CannotCapture, told):
            timer.GraphTimer([self.cuda.wait])
        self.assertEqual(self.cuda.captures, 0)
        self.usable()

    def test_a_call_that_stops_waiting_is_timed(self):
        waited = []

        def first_only():
            if not waited:
                self.cuda.wait()
            waited.append(1)
            return {}

        timer.GraphTimer([first_only])
        self.assertEqual((len(waited), self.cuda.captures), (3, 1))  # warm up, check, capture

    def test_a_failed_capture_is_cleaned_up_and_names_its_cause(self):
        def unseen():
            if self.cuda.capturing:
                self.cuda.wait()

        with self.assertRaisesRegex(timer.CannotCapture, "not permitted when") as caught:
            timer.GraphTimer([unseen])
        self.assertIn("CannotCapture: the capture", side_by_side.describe(caught.exception))
        self.assertEqual(self.cuda.released, [(0, 1)])
        self.usable()

    def test_an_error_of_python_in_a_capture_is_cleaned_up_by_torch(self):
        def raises():
            if self.cuda.capturing:
                raise ValueError("odd shape")

        with self.assertRaisesRegex(timer.CannotCapture, "ValueError: odd shape"):
            timer.GraphTimer([raises])
        self.assertEqual(self.cuda.released, [])  # torch released the pool itself: not twice
        self.usable()

    def test_any_other_error_stays_what_it_is(self):
        with self.assertRaisesRegex(ZeroDivisionError, "zero"):
            timer.GraphTimer([lambda: 1 / 0])
        self.usable()


@needs_torch
class Packed(unittest.TestCase):
    """fla on sequences of several lengths: it asks the device for a number in every call."""

    def test_fla_reads_from_the_device_once(self):
        case = small(axes={"B": 1}, cu_seqlens=(0, 9, 70))
        tensors = inputs.make(case, "bf16", 5, "cpu")
        peer = provider.discover("gla")["fla"]
        chunks, reads, answers = torch.tensor([0, 1, 2]), [], []
        true_item = torch.Tensor.item

        def simple_gla(q, k, v, g, scale, cu_seqlens):
            answers.append((cu_seqlens, chunks[-1].item()))
            return v, None

        def item(tensor):
            reads.append(1)
            return true_item(tensor)

        peer._call = simple_gla
        with unittest.mock.patch.object(torch.Tensor, "item", item):
            for _ in range(3):  # as for several buffer sets
                peer.prepare(case, "bf16", {name: x.clone() for name, x in tensors.items()}, "")()
            self.assertEqual(chunks[0].item(), 0)  # outside the call nothing is remembered
        self.assertEqual((len(reads), [value for _, value in answers]), (2, [2, 2, 2]))
        self.assertTrue(all(offsets is answers[0][0] for offsets, _ in answers))
        other = dataclasses.replace(case, name="other", cu_seqlens=(0, 70))
        chunks.fill_(1)
        peer.prepare(other, "bf16", tensors, "")()
        self.assertEqual(answers[-1][1], 1)  # another case is asked for again

    def test_the_row_tells_of_it(self):
        packed = small(axes={"B": 1}, cu_seqlens=(0, 9, 70))
        found = provider.discover("gla")

        def note(name, case):
            return side_by_side.Entry(found[name], case, "bf16").row.get("note", "")

        self.assertIn("in every call", note("fla", packed))
        for name, case in (("fla", small()), ("fla_fused", packed), ("unfused", small())):
            self.assertEqual(note(name, case), "")
        self.assertIn("dt = -log_decay", note("mamba2", packed))


class Globs(unittest.TestCase):
    def test_several_by_comma(self):
        found = cases.select(cases.load("gla"), "few_*,varlen_*", "bench")
        self.assertEqual({case.name.split("_")[0] for case in found}, {"few", "varlen"})
        self.assertEqual(len(found), 6)
        with self.assertRaisesRegex(cases.CaseError, "no case is named nope,none"):
            cases.select(cases.load("gla"), "nope,none")


@needs_torch
class StepProgram(unittest.TestCase):
    """python -m bench.peers gla --direction step, the GPU and both kernels replaced."""

    def test_rows_of_a_step(self):
        def token(q, k, v, g, state):
            q, k, v = (x.float().unsqueeze(-2) for x in (q, k, v))
            state = state * g.exp()[..., None, None] + k.mT * v
            return (q @ state).squeeze(-2), state

        class Ours(provider.Provider):
            name, directions = "tandem", ("forward", "step")

            def prepare(self, case, dtype, tensors, setting):
                def op(q, k, v, state, log_decay, scale):
                    o, new = token(q[:, 0], k[:, 0], v[:, 0], log_decay[:, 0], state)
                    state.copy_(new)
                    return case.softmax_scale * o[:, None]

                return step_call(op, case, tensors)

        def recurrent(q, k, v, g, scale, initial_state, output_final_state):
            o, state = token(q[:, 0], k[:, 0], v[:, 0], g[:, 0], initial_state)
            return scale * o[:, None], state

        class Timed(FakeTimer):
            def __init__(self, calls):
                self.calls = calls
                super().__init__(calls)

            def restart(self):
                for call in self.calls:
                    getattr(call, "restart", lambda: None)()
                self.outputs = [call() for call in self.calls]

        found = provider.discover("gla")
        step_call = sys.modules[type(found["tandem"]).__module__].step_call
        peer = found["fla_recurrent"]
        peer._call, peer.load, peer.versions = recurrent, lambda: None, dict
        ceilings = {"copy_tbps": 4.0, "bf16_tflops": 700.0}
        built = types.SimpleNamespace(
            commit=lambda: "abc", device_state=lambda index: {}, ceilings=lambda index: ceilings
        )
        properties = types.SimpleNamespace(L2_cache_size=0)
        with contextlib.ExitStack() as stack:
            for target, name, value in (
                (provider, "discover", lambda op: {"tandem": Ours(), "fla_recurrent": peer}),
                (program, "require_gpu", lambda: torch.device("cpu")),
                (library, "Library", lambda name: built),
                (torch.cuda, "get_device_properties", lambda device: properties),
                (torch.cuda, "get_device_name", lambda device: "a GPU"),
                (torch.cuda, "empty_cache", lambda: None),
                (side_by_side.SideBySide, "make_timer", Timed),
            ):
                stack.enter_context(unittest.mock.patch.object(target, name, value))
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            asked = "--direction step --dtype bf16 --case decode_b1h32*,step_v64_state_bf16 --json"
            code = program.main(["gla", *asked.split(), str(folder / "gla.json")])
            rows = json.loads((folder / "gla.json").read_text())["rows"]
        self.addCleanup(torch.set_grad_enabled, True)
        self.assertEqual(code, 0)
        told = {(row["case"], row["provider"]): row for row in rows}
        self.assertEqual({row["direction"] for row in rows}, {"step"})
        for name in ("tandem", "fla_recurrent"):
            row = told["decode_b1h32_d128", name]
            self.assertEqual(row["median_us"], 10.0)
            self.assertEqual(row["bytes"], 2 * 32 * 512 + 4 * 32 + 2 * 32 * 128 * 128 * 4)
            self.assertLess(row["error"]["value"], 5e-3)
        self.assertIn("fp32 only", told["step_v64_state_bf16", "fla_recurrent"]["failure"])
        self.assertIn("median_us", told["step_v64_state_bf16", "tandem"])


if __name__ == "__main__":
    unittest.main()
