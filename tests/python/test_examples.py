"""examples/: they run on a CPU, learn, and Tandem learns what the plain recurrence learns."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEASURED = ROOT / "bench/results/nvidia-h200/training/gla_lm.json"


def run(script, *arguments):
    # Torch and Tandem each have a pool of threads, which should not spin while the other one's work.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, ROOT / "examples" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


class InFolder(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    @classmethod
    def train(cls, *arguments):
        """The results of tiny runs of examples/train_gla_lm.py."""
        out = cls.folder / "run.json"
        done = run("train_gla_lm.py", "--tiny", "--device", "cpu", "--json", out, *arguments)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return json.loads(out.read_text())


class TrainGlaLm(InFolder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.runs = cls.train("--seeds", "0", "0", "1")["runs"]

    def test_learns(self):
        run = self.runs[0]
        self.assertEqual((run["op"], len(run["losses"])), ("tandem", 60))
        # A model that knows nothing has log(256) = 5.5, one that knows how often each byte comes about 3.4.
        self.assertGreater(run["losses"][0], 5)
        self.assertLess(sum(run["losses"][-10:]) / 10, 3.3)
        self.assertLess(run["validation_loss"], 3.4)
        self.assertGreater(run["tokens_per_second"], 0)

    def test_another_seed_is_another_run(self):
        first, again, other = self.runs
        self.assertEqual(first["losses"], again["losses"])
        self.assertNotEqual(first["losses"], other["losses"])


class EveryOp(InFolder):
    """What --all writes, and what becomes of it in docs/training.md."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.results = cls.train("--all", "--steps", "8")

    def setUp(self):
        self.document = self.folder / "training.md"
        self.document.write_text("before\n<!-- training:begin -->\nold\n<!-- training:end -->\nafter\n")

    def plot(self, *arguments):
        return run("plot_gla_lm.py", "--docs", self.folder, *arguments, self.folder / "run.json")

    def test_every_op_that_is_here_with_three_seeds(self):
        runs = {(one["op"], one["seed"]) for one in self.results["runs"]}
        self.assertEqual(runs, {(op, seed) for op in ("tandem", "recurrence") for seed in range(3)})
        self.assertEqual(self.results["missing"], {"fla": "it needs a GPU"})
        speed = [(row["op"], row["tokens"]) for row in self.results["speed"]]
        self.assertEqual(speed, [("tandem", 64), ("tandem", 128)])
        self.assertTrue({"device", "commit", "date", "command", "versions", "text"} <= self.results.keys())

    def test_tandem_learns_as_the_recurrence_does(self):
        losses = {(one["op"], one["seed"]): one["losses"] for one in self.results["runs"]}
        for seed in range(3):
            for a, b in zip(losses["tandem", seed], losses["recurrence", seed], strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib here")
    def test_the_picture_and_the_numbers(self):
        self.assertEqual(self.plot("--check").returncode, 1)
        done = self.plot()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.plot("--check").returncode, 0)
        text = self.document.read_text()
        self.assertTrue(text.startswith("before\n<!-- training:begin -->\n"))
        self.assertTrue(text.endswith("<!-- training:end -->\nafter\n"))
        for one in self.results["runs"]:
            self.assertIn(f"{one['validation_loss']:.4f}", text)
        self.assertIn("the spread of the 3 seeds", text)
        picture = (self.folder / "training.svg").read_text()
        self.assertIn("prefers-color-scheme: dark", picture)


class Documented(unittest.TestCase):
    @unittest.skipUnless(MEASURED.exists(), "not measured yet")
    def test_docs_training_md_is_what_was_measured(self):
        done = run("plot_gla_lm.py", "--check", MEASURED)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
