"""Tests of python -m bench.peers blocks on the CPU: the blocks' maths, peers with fakes of their kernels, what is late,
the table."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import pathlib
import tempfile
import time
import types
import unittest
import unittest.mock

import torch
from reference import gla, relative_rms
from test_peers import program  # first: it puts the checkout on sys.path

from bench.peers import blocks, provider, tuning

HAS_TANDEM = importlib.util.find_spec("tandem") is not None
CPU = torch.device("cpu")
PRINTED = """NVIDIA H200, bf16, B8 T4096 d2048 H16
gla_block forward                              1234.5 us  (p10 1230.0, p90 1240.5)
gla_block forward + backward                   4321.0 us  (p10 4320.0, p90 4330.0)
gla_block one token                              12.5 us  (p10 12.0, p90 13.0)
mamba2_block forward                           2000.0 us  (p10 1990.0, p90 2010.0)
"""


def small(block, direction):
    case = next(one for one in blocks.CASES if one.block == block and direction in one.directions)
    case = dataclasses.replace(case, direction=direction).small()
    return dataclasses.replace(case, B=1, T=128 if case.T > 1 else 1)


def exact(case):
    """The case's tensors in fp32, which an error of a definition cannot hide behind."""
    tensors = {name: x.float() if torch.is_tensor(x) else x for name, x in blocks.make(case, CPU, 1).items()}
    tensors["parameters"] = {name: x.float() for name, x in tensors["parameters"].items()}
    return tensors


class Fake(provider.Provider):
    """Gives what the maths do, or what `change` makes of it."""

    op, directions, settings = "gla_block", ("forward",), ("slow", "default")

    def __init__(self, name, change=lambda x: x, seconds=0.0):
        self.name, self.change, self.seconds, self.asked = name, change, seconds, []

    def prepare(self, case, dtype, tensors, setting):
        from bench.peers import block_maths

        self.asked.append(setting)
        run = block_maths.call_of(case, tensors, lambda p, x: self.change(block_maths.gla_block(p, x, case.H)))

        def call():
            if setting == "slow":
                time.sleep(self.seconds)
            return run()

        return call


@unittest.skipUnless(HAS_TANDEM, "the package is not installed")
class Maths(unittest.TestCase):
    def setUp(self):
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # for tensors as small as these threads cost more than they bring

    def check(self, case, name, dtype_limit=1e-5, one=None):
        from bench.peers import block_maths

        one = one or provider.discover(case.block)[name]
        if name in ("tandem", "torch_compile"):
            one.load()
        tensors = exact(case)
        expected = block_maths.define(case, tensors)
        found = one.prepare(case, "fp32", tensors, "")()
        self.assertEqual(set(found), set(expected))
        for output, x in found.items():
            self.assertLess(relative_rms(x, expected[output]), dtype_limit, (case.block, case.direction, output))

    def test_tandem_and_torch(self):
        for block in blocks.BLOCKS:
            for case in {one.directions: one for one in blocks.CASES if one.block == block}.values():
                for direction in case.directions:
                    with self.subTest(block=block, direction=direction):
                        self.check(small(block, direction), "tandem", 1e-4)
                        if "torch_compile" in provider.discover(block):
                            self.check(small(block, direction), "torch_compile", 1e-4)

    def test_the_chunks_are_the_recurrence(self):
        from bench.peers import block_maths

        case = small("gla_block", "forward")
        tensors = exact(case)
        q, k, v, gate, log_decay = block_maths.gla_inputs(tensors["parameters"], tensors["x"], case.H)
        expected = block_maths.gla_end(tensors["parameters"], tensors["x"], gla(q, k, v, log_decay)[0].float(), gate)
        self.assertLess(relative_rms(block_maths.define(case, tensors)["out"], expected.double()), 1e-5)

    def test_around_flas_op(self):
        from bench.peers.block_maths import chunked

        one = provider.discover("gla_block")["torch_compile_fla"]
        one._mix = lambda q, k, v, g: (chunked(q, k, v, g), None)
        one.compiled = lambda case, setting, *functions: functions
        self.check(small("gla_block", "forward_backward"), one.name, 1e-4, one)

    def test_fla(self):
        try:
            from test_nn_fla import MISSING, plain_definitions
        except ImportError as error:
            raise unittest.SkipTest(str(error)) from error
        if MISSING:
            raise unittest.SkipTest(MISSING)
        one = provider.discover("gla_block")["fla"]
        one.import_layers()
        one._norm = torch.nn.RMSNorm  # fla's own is a kernel
        for direction in blocks.BOTH:
            with plain_definitions():
                self.check(small("gla_block", direction), "fla", 1e-4, one)

    def test_mamba_ssm(self):
        from bench.peers import block_maths

        def ssd(x, dt, A, B, C, chunk, D, dt_bias, dt_softplus):
            self.assertTrue(dt_softplus and chunk == 256)
            return block_maths.plain_ssd(x, dt, (-A).log(), B.squeeze(2), C.squeeze(2), D, dt_bias)

        def norm(x, weight, bias, z, eps, norm_before_gate):
            self.assertEqual((bias, eps, norm_before_gate), (None, 1e-5, False))
            return block_maths.plain_gated_norm(x, weight, z)

        one = provider.discover("mamba2_block")["mamba_ssm"]
        one._call, one._gated_norm = ssd, norm
        one._convolution, one._convolve = "none", block_maths.plain_convolution
        one.settings = ("chunk256",)
        for direction in blocks.BOTH:
            case = small("mamba2_block", direction)
            with unittest.mock.patch.object(one, "prepare", wraps=lambda *a, f=one.prepare: f(*a[:3], "chunk256")):
                self.check(case, "mamba_ssm", 1e-4, one)

    def test_which_convolution(self):
        from bench.peers.providers import mamba_ssm_block

        calls = types.SimpleNamespace(
            causal_conv1d_fn=lambda x, weight, bias, activation: x + 1,
            causal_conv1d=lambda x, weight, bias, activation: (x + 2, None),
        )
        x = torch.zeros(1, 3, 2)
        for present, whose, value in (({"causal_conv1d", "fla"}, "causal-conv1d", 1), ({"fla"}, "fla", 2)):

            def found(name, present=present):
                if name.split(".")[0] in present:
                    return calls
                raise ModuleNotFoundError(name)

            with unittest.mock.patch.object(mamba_ssm_block.importlib, "import_module", found):
                name, convolve = mamba_ssm_block.convolution()
            self.assertEqual((name, convolve(x, None, None).unique().item(), x.shape), (whose, value, (1, 3, 2)))


@unittest.skipUnless(HAS_TANDEM, "the package is not installed")
class Rounds(unittest.TestCase):
    def run_case(self, *providers, asked="", device=CPU):
        options = blocks.arguments(["--rounds", "2", "--repeats", "1", *asked.split()])
        said = []
        together = blocks.Blocks(device, options, said.append)
        rows = together.run(small("gla_block", "forward"), {one.name: one for one in providers})
        return {row["provider"]: row for row in rows}, said

    def test_a_wrong_result_is_not_timed(self):
        rows, _ = self.run_case(Fake("right"), Fake("wrong", lambda x: 1.05 * x), Fake("crashes", lambda x: x.nope))
        self.assertLess(rows["right"]["error"]["value"], 1e-2)
        self.assertGreater(rows["right"]["median_us"], 0)
        self.assertRegex(rows["wrong"]["failure"], "wrong result: .* against fp64 0.05.* of out")
        self.assertIn("AttributeError", rows["crashes"]["failure"])
        for name in ("wrong", "crashes"):
            self.assertNotIn("median_us", rows[name])

    def test_what_is_wrong_at_the_timed_shape_alone_is_found(self):
        one = Fake("wrong")
        one.change = lambda x: x * (1.0 if x.shape[0] == 2 else 1.05)  # small() has two rows, the case one
        rows, _ = self.run_case(Fake("right"), one)
        self.assertRegex(rows["wrong"]["failure"], "against right 0.05.* of out")

    def test_what_is_not_ready_in_time(self):
        with unittest.mock.patch.object(blocks, "as_written", lambda one: "slow"):
            rows, _ = self.run_case(Fake("slow", seconds=600), asked="--patience 0.1")
        self.assertRegex(rows["slow"]["failure"], "TimeoutError: not ready after 0 s")
        rows, said = self.run_case(Fake("one"), asked="--seconds 0")
        self.assertEqual((rows, said), ({}, ["  one: left out, the time is over"]))

    def prepared(self, seconds, settings):
        """The setting that is timed, and those that were asked for."""
        one, cuda = Fake("one", seconds=seconds), types.SimpleNamespace(type="cuda")
        one.settings = settings
        options = blocks.arguments(["--rounds", "1", "--repeats", "1", "--patience", "3"])
        together = blocks.Blocks(cuda, options, lambda text: None)
        together._first = None
        case = small("gla_block", "forward")
        entry = {"row": {"provider": "one"}, "timer": None, "samples": []}
        sets = [blocks.make(case, CPU, i) for i in range(2)]
        check = lambda row, case, one: None  # noqa: E731
        timer = lambda row, calls: blocks.EagerTimer(calls, lambda: None)  # noqa: E731
        wait = lambda: None  # noqa: E731
        with unittest.mock.patch.multiple(together, _check_small=check, _timer=timer, _wait=wait):
            together._prepare(entry, case, one, sets)
        return entry["row"]["variant"], one.asked

    def test_the_quickest_setting_is_kept_that_is_ready(self):
        default, slow = 3 * ["default"], 3 * ["slow"]  # a first call, and one for each set
        for seconds, asked in ((60, ["slow"]), (0.3, slow)):
            self.assertEqual(self.prepared(seconds, ("slow", "default")), ("default", asked + default))
            self.assertEqual(self.prepared(seconds, ("default", "slow")), ("default", default + asked + default))


class Program(unittest.TestCase):
    def run_program(self, asked):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = program.main(["blocks", *asked.split()])
        return code, out.getvalue(), err.getvalue()

    @unittest.skipUnless(HAS_TANDEM, "the package is not installed")
    def test_a_run_on_the_cpu_and_its_table(self):
        with tempfile.TemporaryDirectory() as folder:
            path, page, printed = (pathlib.Path(folder, name) for name in ("peers.json", "page.md", "printed.txt"))
            printed.write_text(PRINTED)
            page.write_text(f"before\n{blocks.BEGIN}\nold\n{blocks.END}\nafter\n")
            few = "--device cpu --tiny --rounds 1 --repeats 1 --commit abc --block transformer_block --direction step"
            code, out, err = self.run_program(f"{few} --cpp {printed} --case b1_cache4096_d4096_h32 --json {path}")
            self.assertEqual(code, 0, err)
            data = json.loads(path.read_text())
            ((name, run),) = data["runs"].items()
            rows = {row["provider"]: row for row in data["rows"]}
            self.assertEqual(set(rows), {"tandem", "torch_compile"})
            self.assertEqual((run["commit"], run["timer"]["l2"]), ("abc", "cold"))
            self.assertIn("no mask", rows["torch_compile"]["note"])
            self.assertRegex(out, r"torch_compile .* us +[\d.]+x")
            self.run_program(f"--render {path} {page}")
            text = page.read_text()
        self.assertTrue(text.startswith(f"before\n{blocks.BEGIN}\n| ") and text.endswith(f"{blocks.END}\nafter\n"))
        self.assertIn("| transformer_block step | b1_cache4096_d4096_h32 | tandem | ", text)
        self.assertIn(" | 1.00 |", text)
        self.assertIn(f"{name}: {run['date']}, commit abc, ", text)

    def test_the_table_has_ratios_within_a_run(self):
        def row(run, name, us=None, **more):
            key = {"op": "gla_block", "direction": "forward_backward", "case": "small", "dtype": "bf16"}
            return {"run": run, **key, "provider": name, **({"median_us": us} if us else {}), **more}

        run = {"device": {"name": "H"}, "date": "d", "commit": "c", "versions": {"torch": "2"}, "command": "go"}
        rows = [row("1", "tandem", 10.0), row("1", "torch_compile", 30.0), row("2", "tandem", 12.0)]
        rows += [row("2", "fla", 15.0), row("2", "mamba_ssm", failure="no"), row("2", "late", 5.0, note="eager")]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "peers.json")
            path.write_text(json.dumps({"schema": 1, "runs": {"1": run, "2": run}, "rows": rows}))
            lines = blocks.table([path])
        head = "| gla_block forward + backward | small |"
        for line in ("tandem | 12 | 1.00 |", "torch_compile | 30 | 3.00 |", "fla | 15 | 1.25 |", "mamba_ssm | n/a | |"):
            self.assertIn(f"{head} {line}", lines)
        self.assertIn("- late of gla_block: eager.", lines)
        self.assertIn("- mamba_ssm of gla_block forward + backward, small: no.", lines)

    def test_what_the_cpp_program_printed(self):
        forward, both = blocks.from_cpp(PRINTED)
        self.assertEqual((forward["case"], forward["direction"], forward["median_us"]),
                         ("b8_t4096_d2048_h16", "forward", 1234.5))  # fmt: skip
        self.assertEqual((both["direction"], both["p90_us"], both["provider"]), (blocks.BOTH[1], 4330.0, "tandem_cpp"))
        (mamba2,) = blocks.from_cpp(PRINTED.replace("d2048 H16", "d2560 H20"))
        self.assertEqual((mamba2["op"], mamba2["case"]), ("mamba2_block", "b8_t4096_d2560_h80"))
        with self.assertRaisesRegex(ValueError, "tandem_block_times"):
            list(blocks.from_cpp("nothing"))

    def test_wrong_usage_and_nothing_to_measure(self):
        for asked in ("--rounds 0", "--block other", "--render one"):
            with self.assertRaises(SystemExit) as ended:
                self.run_program(asked)
            self.assertEqual(ended.exception.code, 2)
        code, _, err = self.run_program("--device cpu --providers nope")
        self.assertEqual((code, "nope" in err), (2, True))
        code, _, err = self.run_program("--device cpu --providers fla")
        self.assertEqual((code, "a GPU" in err), (3, True))


class Tuning(unittest.TestCase):
    def test_a_limit_of_time_is_no_exception_that_a_tuner_swallows(self):
        def tuner():
            while True:
                with contextlib.suppress(Exception):
                    time.sleep(1)

        with self.assertRaisesRegex(TimeoutError, "not ready after 0 s"):
            with tuning.limited(0.05):
                tuner()
        with tuning.limited(0.05):
            pass
        time.sleep(0.1)  # nothing rings any more

    @unittest.skipUnless(importlib.util.find_spec("triton"), "no Triton here")
    def test_settings_are_compiled_before_they_are_tried(self):
        from triton.runtime import _async_compile, autotuner

        compiled = []

        class Kernel:
            def run(self, x, *, grid, warmup, B):
                compiled.append((x, B, warmup, _async_compile.active_mode.get() is not None))
                if B == 3:
                    raise RuntimeError("no such setting")

        settings = [autotuner.Config({"B": B}) for B in (1, 2, 3)]
        for one in settings:
            one.all_kwargs = one.kwargs.copy
        stub = types.SimpleNamespace(nargs={"x": 7}, fn=Kernel())
        with unittest.mock.patch.object(autotuner.Autotuner, "prune_configs", lambda self, kwargs: settings):
            self.assertEqual(tuning.compile_side_by_side(2), "")
            self.assertEqual(tuning.compile_side_by_side(2), "")  # once is enough
            found = autotuner.Autotuner.prune_configs(stub, {"grid": (1,), "warmup": False})
        self.assertEqual((found, compiled), (settings, [(7, B, True, True) for B in (1, 2, 3)]))
        self.assertIsNone(_async_compile.active_mode.get())


if __name__ == "__main__":
    unittest.main()
