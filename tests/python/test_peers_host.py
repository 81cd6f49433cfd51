"""Tests of python -m bench.peers host, on the CPU."""

import contextlib
import importlib.util
import io
import json
import pathlib
import tempfile
import time
import unittest
import unittest.mock

import torch
from test_peers import program, small  # first: it puts the checkout on sys.path

from bench.peers import cases, host, inputs, provider

HAS_TANDEM = importlib.util.find_spec("tandem") is not None


def call(make, name="one", **changed):
    return host.Call("gla", small(**changed), name, make)


class Rounds(unittest.TestCase):
    def measure(self, *calls, rounds=3, wait=lambda: None):
        said = []
        host.measure(list(calls), rounds, wait, said.append)
        return [one.row("bf16") for one in calls], said

    def test_calls_take_turns_and_nothing_waits_within_a_round(self):
        order = []

        def make(name):
            return lambda: lambda: order.append(name)

        calls = call(make("a"), "a"), call(make("b"), "b", direction="forward_backward")
        rows, _ = self.measure(*calls, rounds=2, wait=lambda: order.append("wait"))
        once = ["wait", *["a"] * 100, "wait", *["b"] * 30]
        self.assertEqual(order, once * 3)  # the first warms up
        self.assertEqual([len(one.samples) for one in calls], [2, 2])
        self.assertEqual([row["provider"] for row in rows], ["a", "b"])

    def test_times_are_of_one_call(self):
        def sleep():
            time.sleep(1e-3)

        (row,), _ = self.measure(call(lambda: sleep, direction="forward_backward"))
        self.assertGreaterEqual(row["p10_us"], 1000)
        self.assertLess(row["median_us"], 10_000)
        self.assertLessEqual(row["median_us"], row["p90_us"])

    def test_failures_are_rows_and_the_others_go_on(self):
        tries = []

        def crash():
            raise RuntimeError("no\n  such kernel")

        def tires():
            tries.append(1)
            if len(tries) > 150:
                raise ValueError("enough")

        rows, said = self.measure(call(crash, "crash"), call(lambda: tires, "tires"), call(lambda: tries.clear, "good"))
        self.assertEqual(rows[0]["failure"], "RuntimeError: no")
        self.assertNotIn("median_us", rows[0])
        self.assertIn("median_us", rows[2])
        self.assertEqual(len(said), 1)
        rows, _ = self.measure(call(lambda: tires, "tires"))
        self.assertEqual(rows[0]["failure"], "ValueError: enough")

    def test_the_table_has_ratios_within_the_run(self):
        def row(op, direction, name, us):
            return {"op": op, "direction": direction, "provider": name, "median_us": us, "p10_us": us, "p90_us": us}

        lines = list(
            host.table([
                row("torch", "forward", "add", 2.0),
                row("torch", "forward_backward", "function", 20.0),
                row("gla", "forward", "tandem", 9.0),
                row("gla", "forward_backward", "tandem", 50.0),
                {"op": "gla", "direction": "forward", "provider": "fla", "failure": "no Triton"},
            ])
        )  # fmt: skip
        self.assertEqual(lines[3].split()[-2:], ["4.50", "-"])
        self.assertEqual(lines[4].split()[-2:], ["25.00", "2.50"])
        self.assertTrue(lines[5].endswith("no Triton"))


class Calls(unittest.TestCase):
    """What is called does what its name says."""

    def case(self, op, direction):
        return next(case for case in host.selected() if (case.op, case.direction) == (op, direction))

    def test_the_shapes(self):
        case = self.case("gla", "forward")
        self.assertEqual((case.B, case.T, case.H, case.K, case.V), (1, 64, 4, 64, 64))
        for op in ("gated_scan", "linear_scan"):
            self.assertEqual((self.case(op, "forward").T, self.case(op, "forward").D), (64, 256))
        self.assertEqual(
            [(case.op, case.direction) for case in host.selected()],
            [("gla", one) for one in ("forward", "forward_backward", "step")]
            + [(op, one) for op in ("gated_scan", "linear_scan") for one in ("forward", "forward_backward")],
        )

    def test_yardsticks(self):
        case = self.case("gla", "forward")
        tensors = inputs.make(case, "bf16", 1, "cpu")
        forward = {name: make(tensors)() for name, make in host.yardsticks(case, tensors).items()}
        self.assertEqual(list(forward), ["add", "empty_like", "custom_op"])
        self.assertTrue(torch.equal(forward["add"], tensors["q"] + tensors["k"]))
        for name in ("empty_like", "custom_op"):
            self.assertEqual((forward[name].shape, forward[name].dtype), (tensors["v"].shape, torch.bfloat16))
        case = self.case("gla", "forward_backward")
        tensors = inputs.make(case, "bf16", 1, "cpu")
        ((name, make),) = host.yardsticks(case, tensors).items()
        gradients = host.of_case(case, tensors, make)()
        self.assertEqual(name, "function")
        self.assertEqual([x.shape for x in gradients], [tensors[one].shape for one in host.INPUTS["gla"][0]])

    @unittest.skipUnless(HAS_TANDEM, "the package is not installed")
    def test_tandem(self):
        import tandem

        case = self.case("gla", "forward")
        tensors = inputs.make(case, "bf16", 1, "cpu")
        expected = tandem.ops.gla(*(tensors[name] for name in ("q", "k", "v", "log_decay")))[0]
        self.assertTrue(torch.equal(host.tandem(case, tensors)(), expected))
        self.assertIsNone(host.tandem(case, tensors)().grad_fn)
        self.assertIsNotNone(host.tandem(case, host.leaves("gla", tensors))().grad_fn)
        for op in host.INPUTS:
            case = self.case(op, "forward_backward")
            tensors = inputs.make(case, "bf16", 1, "cpu")
            run = host.of_case(case, tensors, lambda given, case=case: host.tandem(case, given))
            for gradient, name in zip(run(), sum(host.INPUTS[op], ()), strict=True):
                self.assertEqual(gradient.shape, tensors[name].shape)
                self.assertGreater(gradient.abs().sum(), 0)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True)))  # nothing adds up
        case = self.case("gla", "step")
        tensors = inputs.make(case, "bf16", 1, "cpu")
        run = host.tandem(case, tensors)
        self.assertFalse(torch.equal(run(), run()))  # the state went on
        self.assertTrue(torch.equal(host.tandem(case, tensors)(), host.tandem(case, tensors)()))  # of the call's own
        self.assertEqual(run().shape, tensors["v"].shape)

    def test_peers(self):
        def chunk(q, k, v, g, scale):
            return (q + k + v) * g.unsqueeze(-1).to(v.dtype), None

        found = provider.discover("gla")
        fla, mamba2 = found["fla"], found["mamba2"]
        fla._call = chunk
        mamba2._call = lambda x, dt, A, k, q, chunk: x
        listed = host.calls({"fla": fla, "mamba2": mamba2}, "bf16", 1, "cpu")
        theirs = {(one.provider, one.case.direction): one for one in listed if one.provider in ("fla", "mamba2")}
        self.assertEqual(list(theirs), [("fla", "forward"), ("mamba2", "forward"), ("fla", "forward_backward")])
        for one in theirs.values():
            one.run = one.make()
        self.assertEqual(theirs["fla", "forward"].run().shape, (1, 64, 4, 64))
        for _ in range(2):
            self.assertEqual(len(theirs["fla", "forward_backward"].run()), 4)
        fla.refusal = lambda case, dtype: "too small"
        with self.assertRaisesRegex(ValueError, "too small"):
            theirs["fla", "forward"].make()


class Program(unittest.TestCase):
    def run_program(self, asked):
        out, err = io.StringIO(), io.StringIO()
        few = dict.fromkeys(host.CALLS, 2)  # beside other programs a call on the CPU takes long
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with unittest.mock.patch.object(host, "CALLS", few):
                code = program.main(["host", *asked.split()])
        return code, out.getvalue(), err.getvalue()

    def test_a_run_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "cpu", "host", "python.json")
            code, out, _ = self.run_program(f"--device cpu --rounds 2 --commit abc --json {path}")
            data = json.loads(path.read_text())
        rows = {(row["op"], row["direction"], row["provider"]): row for row in data["rows"]}
        self.assertEqual(code, 0 if HAS_TANDEM else 1)
        (run,) = data["runs"].values()
        self.assertEqual((run["commit"], run["timer"]["rounds"]), ("abc", 2))
        self.assertEqual(
            run["command"], "python -m bench.peers host --device cpu --rounds 2 --commit abc --json python.json"
        )
        self.assertIn("torch", run["versions"])
        for name in ("add", "empty_like", "custom_op"):
            self.assertGreater(rows["torch", "forward", name]["median_us"], 0)
        self.assertIn(("torch", "forward_backward", "function"), rows)
        for op, direction, name in (
            ("gla", "forward", "tandem"),
            ("gla", "forward", "tandem_requires_grad"),
            ("gla", "forward_backward", "tandem"),
            ("gla", "step", "tandem"),
            ("gated_scan", "forward", "tandem"),
            ("linear_scan", "forward", "tandem"),
        ):
            row = rows[op, direction, name]
            self.assertEqual("median_us" in row, HAS_TANDEM)
            self.assertTrue(row["case"].startswith("host_"))
        self.assertEqual(len(out.splitlines()), len(rows) + 1)

    def test_where_nothing_can_be_measured(self):
        with unittest.mock.patch.object(torch.cuda, "is_available", lambda: False):
            code, _, err = self.run_program("")
        self.assertEqual((code, "no CUDA device" in err), (3, True))
        with unittest.mock.patch.object(cases, "load", lambda op: []):
            code, _, err = self.run_program("--device cpu")
        self.assertEqual((code, "tagged host" in err), (2, True))

    def test_a_tandem_that_fails_is_told_by_the_exit_code(self):
        broken = unittest.mock.Mock(side_effect=OSError("no such library"))
        with unittest.mock.patch.object(host, "tandem", broken):
            code, out, _ = self.run_program("--device cpu --rounds 1")
        self.assertEqual(code, 1)
        self.assertIn("OSError: no such library", out)

    def test_wrong_usage(self):
        for asked in ("--rounds 0", "--once", "--device tpu"):
            with self.assertRaises(SystemExit) as ended:
                self.run_program(asked)
            self.assertEqual(ended.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
