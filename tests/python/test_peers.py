"""Tests of bench/peers that need neither a GPU nor torch: cases, the results file, the registry, the program."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers import __main__ as program  # noqa: E402
from bench.peers import cases, provider, results  # noqa: E402

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch


def small(**changed):
    axes = {"B": 2, "T": 70, "H": 4, "HQ": 4, "K": 16, "V": 16, **changed.pop("axes", {})}
    base = cases.Case("small", axes, ("bf16",), "per_token", "normal", "none", "contiguous", None, None, ("bench",), 0)
    return dataclasses.replace(base, **changed)


class Cases(unittest.TestCase):
    def test_what_the_program_expands(self):
        table = [
            {
                "name": "t{T}",
                "directions": ["forward", "state"],
                "axes": {"B": 1, "T": [5, 63], "H": 8, "K": 64},
                "dtype": ["bf16", "fp32"],
                "decay": {"kind": "per_token", "distribution": "reset"},
                "states": "both",
                "lengths": {"distribution": "equal", "sequences": 2},
                "tags": ["check"],
            }
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cases.json"
            path.write_text(json.dumps(table))
            one, other = cases.load("gla", path)
        self.assertEqual((one.name, one.T, one.HQ, one.V, one.dtypes), ("t5", 5, 8, 64, ("bf16", "fp32")))
        self.assertEqual((one.decay_kind, one.distribution, one.states), ("per_token", "reset", "both"))
        self.assertEqual((one.strides, one.scale, one.state_dtype, one.seed), ("contiguous", None, "fp32", 0))
        self.assertEqual((one.direction, one.directions, one.tags), ("forward", ("forward", "state"), ("check",)))
        self.assertEqual((one.cu_seqlens, other.cu_seqlens), ((0, 2, 5), (0, 31, 63)))

    def test_which_program(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(cases, "ROOT", pathlib.Path(folder)):
            with unittest.mock.patch.dict("os.environ", TANDEM_PROGRAM="/none/tandem"):
                self.assertEqual(cases.program(), "/none/tandem")
                with self.assertRaisesRegex(cases.NoProgram, "TANDEM_PROGRAM: .*/none/tandem"):
                    cases.load("gla")
            with unittest.mock.patch.dict("os.environ", TANDEM_PROGRAM=""):
                with self.assertRaisesRegex(cases.NoProgram, "scripts/build tandem_program"):
                    cases.program()
                for preset, time in (("cpu", 2), ("cuda", 1)):
                    built = pathlib.Path(folder, "build", preset, "bin", "tandem")
                    built.parent.mkdir(parents=True)
                    built.touch()
                    os.utime(built, (time, time))
                self.assertEqual(cases.program(), str(pathlib.Path(folder, "build/cpu/bin/tandem")))

    def test_the_repositorys_table(self):
        found = cases.load("gla")
        self.assertEqual(len({case.name for case in found}), len(found))
        self.assertTrue(all("{" not in case.name for case in found))
        for case in cases.select(found, tag="bench"):
            if case.direction not in cases.WITH_GRADIENTS:
                self.assertEqual(cases.why_not(case), "")
        seed = cases.select(found, "b4h32_t4096_d64")[0]
        self.assertEqual((seed.B, seed.T, seed.H, seed.HQ, seed.K, seed.V), (4, 4096, 32, 32, 64, 64))
        # In microseconds at 4.30 TB/s, the rate of a copy on an H200.
        self.assertAlmostEqual(cases.cost(seed)[0] / 4.30e6, 62.9, delta=1)
        decode = cases.select(found, "decode_b64h32_d128")[0]
        self.assertEqual((decode.direction, decode.T), ("step", 1))
        self.assertAlmostEqual(cases.cost(decode)[0] / 4.30e6, 62.9, delta=1)
        # What `tandem bench` wrote into bench/results for these.
        wide = cases.select(found, "b4h32_t4096_d128")[0]
        told = {"backward": (943718400, 128849018880), "forward_backward": (1482686464, 180388626432)}
        for direction, cost in told.items():
            self.assertEqual(cases.cost(dataclasses.replace(wide, direction=direction)), cost)
        saved = dataclasses.replace(wide, direction="forward_backward", saved_states="yes")
        states = 2 * 4 * 32 * 32 * 128 * 128  # bytes, written once and read once
        self.assertEqual(cases.cost(saved)[0], told["forward_backward"][0] + 2 * states)
        with self.assertRaisesRegex(cases.CaseError, "no cost is known of direction state"):
            cases.cost(dataclasses.replace(wide, direction="state"))

    def test_whose_gradients_are_wanted(self):
        self.assertEqual(list(small().wants.values()), ["dq", "dk", "dv", "d_log_decay"])
        self.assertEqual(list(small(decay_kind="constant").wants), ["q", "k", "v"])

    def test_each_direction_in_turn(self):
        both = small(name="both", directions=("backward", "forward"))
        found = cases.in_directions([both, small()])
        self.assertEqual(
            [(case.name, case.direction) for case in found],
            [("both", "forward"), ("small", "forward"), ("both", "backward")],
        )
        self.assertEqual([case.name for case in cases.in_directions([both, small()], "backward")], ["both"])
        with self.assertRaisesRegex(cases.CaseError, "direction step"):
            cases.in_directions([both], "step")

    def test_what_cannot_be_compared_is_told(self):
        self.assertEqual(cases.why_not(small(states="both")), "states both")
        self.assertEqual(cases.why_not(small(strides="odd")), "strides odd")
        self.assertEqual(cases.why_not(small(axes={"HQ": 2})), "")
        self.assertIn("grouped", cases.why_not(small(axes={"HQ": 2}, direction="backward")))

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
        return {
            "op": "gla",
            "direction": "forward",
            "case": "a",
            "dtype": "bf16",
            "provider": "fla",
            "median_us": 1.0,
            **changed,
        }

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

    def test_an_id_is_used_by_one_file_of_the_folder(self):
        first = results.ResultsFile(self.path, {})
        first.add(self.row())
        self.path.with_name("foreign.json").write_text("[1, 2")
        second = results.ResultsFile(self.path.with_name("gated_scan.json"), {})
        second.add(self.row())
        third = results.ResultsFile(self.path, {})
        self.assertEqual([one.run_id.split("-")[1] for one in (first, second, third)], ["1", "2", "3"])

    def test_commands_name_no_folder_of_the_machine(self):
        root = self.path.parent.resolve()
        for typed, recorded in [
            (["--json", f"{root}/bench/x.json"], "--json bench/x.json"),
            ([f"--json={root}/bench/x.json"], "--json=bench/x.json"),
            (["--json", "bench/../x.json"], "--json x.json"),
            (["--json", "/elsewhere/a b.json"], "--json 'a b.json'"),
            (["--case", "b4h32_*,few_*", "--json", "x.json"], "--case 'b4h32_*,few_*' --json x.json"),
        ]:
            with self.subTest(recorded):
                self.assertEqual(results.recorded_command("run", typed, root), f"run {recorded}")

    def test_a_run_that_goes_on_names_all_commands_and_versions(self):
        results.ResultsFile(
            self.path, {"commit": "a", "command": "one", "ceilings": {"copy_tbps": 4}, "versions": {"fla": "1"}}, "r"
        ).add(self.row())
        for _ in range(2):
            file = results.ResultsFile(
                self.path,
                {"commit": "a", "command": "two", "ceilings": {"copy_tbps": 5}, "versions": {"torch": "2"}},
                "r",
            )
            file.add(self.row(dtype="fp16"))
            file.add(self.row(dtype="fp16", provider="tandem"))
        run = json.loads(self.path.read_text())["runs"]["r"]
        self.assertEqual(run["command"], "one; two")
        self.assertEqual(run["versions"], {"fla": "1", "torch": "2"})
        self.assertEqual((run["commit"], run["ceilings"]), ("a", {"copy_tbps": 4}))

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
        for text, why in (
            ("{", "not valid JSON"),
            ('{"schema": 2}', "schema"),
            ('{"schema": 1, "runs": [], "rows": []}', "runs must"),
        ):
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
        partly = provider.Provider()
        partly.lacking = {"wheel": "ImportError: no"}
        self.assertEqual(
            provider.available({"partly": partly}), ({"partly": partly}, {"wheel of partly": "ImportError: no"})
        )


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

    @unittest.skipUnless(HAS_TORCH, "torch is not installed")
    def test_the_triton_that_is_imported(self):
        class Triton:
            __version__ = "0.0.test"

        with unittest.mock.patch.dict(sys.modules, triton=Triton):
            self.assertEqual(program.versions({})["triton"], "0.0.test")
        with unittest.mock.patch.dict(sys.modules, triton=None):  # not installed
            self.assertNotIn("triton", program.versions({}))

    def test_whose_failure_counts(self):
        def counts(name, failure):
            row = {"provider": name, **({"failure": failure} if failure else {})}
            return program.is_ours_to_mend(row, provider.discover("gla")[name].baseline)

        self.assertTrue(counts("tandem", "wrong result"))
        self.assertTrue(counts("tandem", "refused: no"))
        self.assertTrue(counts("unfused", "wrong result"))
        self.assertFalse(counts("unfused", "refused: dense batches only"))
        self.assertFalse(counts("fla", "wrong result"))
        self.assertFalse(counts("tandem", ""))

    def test_list(self):
        code, out, _ = self.run_program("--list")
        self.assertEqual(code, 0)
        self.assertIn("mamba2", out)

    def test_rows_print(self):
        row = {"direction": "forward", "case": "a", "dtype": "bf16", "provider": "fla"}
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            program.print_row({**row, "failure": "refused: no"}, None)
            program.print_row(
                {
                    **row,
                    "median_us": 3.0,
                    "p10_us": 2.0,
                    "p90_us": 4.0,
                    "floor_us": 1.0,
                    "first_call_s": 9.0,
                    "variant": "v",
                },
                1.5,
            )
        self.assertIn("refused: no", out.getvalue())
        self.assertIn("2.00x", out.getvalue())


class Globs(unittest.TestCase):
    def test_several_by_comma(self):
        found = cases.select(cases.load("gla"), "few_*,varlen_*", "bench")
        self.assertEqual({case.name.split("_")[0] for case in found}, {"few", "varlen"})
        self.assertEqual(len(found), 7)
        with self.assertRaisesRegex(cases.CaseError, "no case is named nope,none"):
            cases.select(cases.load("gla"), "nope,none")


if __name__ == "__main__":
    unittest.main()
