"""examples/: they run on a CPU, learn, and Tandem learns what the plain recurrence learns."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def train(*arguments):
    """The results of a tiny run of examples/train_gla_lm.py."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "run.json"
        command = [sys.executable, ROOT / "examples" / "train_gla_lm.py", "--tiny", "--device", "cpu", "--json", out]
        subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text())


class TrainGlaLm(unittest.TestCase):
    def test_learns(self):
        run = train()
        self.assertEqual((run["op"], len(run["losses"])), ("tandem", 60))
        # A model that knows nothing has log(256) = 5.5, one that knows how often each byte comes about 3.4.
        self.assertGreater(run["losses"][0], 5)
        self.assertLess(sum(run["losses"][-10:]) / 10, 3.3)
        self.assertLess(run["validation_loss"], 3.4)
        self.assertGreater(run["tokens_per_second"], 0)

    def test_learns_as_the_recurrence_does(self):
        tandem, recurrence = (train("--op", op, "--steps", "8") for op in ("tandem", "recurrence"))
        for a, b in zip(tandem["losses"], recurrence["losses"], strict=True):
            self.assertAlmostEqual(a, b, delta=1e-3)

    def test_another_seed_is_another_run(self):
        runs = [train("--steps", "2", "--seed", str(seed)) for seed in (0, 0, 1)]
        self.assertEqual(runs[0]["losses"], runs[1]["losses"])
        self.assertNotEqual(runs[0]["losses"], runs[2]["losses"])


if __name__ == "__main__":
    unittest.main()
