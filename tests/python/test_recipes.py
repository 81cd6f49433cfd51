"""README.md, docs/recipes.md and docs/nn.md: every block of Python runs as it stands, and those that ask for torchrun
on as many ranks."""

import contextlib
import io
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^## (.+)$")
LAUNCH = re.compile(r"# torchrun --nproc-per-node=(\d+) ")


def blocks(text):
    """(the heading above it, code) of each block of Python."""
    heading, code = "", None
    for line in text.splitlines():
        if code is None:
            heading = match[1] if (match := SECTION.match(line)) else heading
            code = [] if line == "```python" else None
        elif line == "```":
            yield heading, "\n".join(code) + "\n"
            code = None
        else:
            code.append(line)


def run_on_ranks(code, count):
    """The exit status and output of each rank, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "recipe.py")
        script.write_text(code)
        ranks = [
            subprocess.Popen(
                [sys.executable, script],
                env={**os.environ, **world, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(count)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


class Recipes(unittest.TestCase):
    def run_block(self, heading, code):
        if match := LAUNCH.match(code):
            for status, output in run_on_ranks(code, int(match[1])):
                self.assertEqual(status, 0, output)
        else:
            exec(compile(code, heading, "exec"), {"__name__": "recipe"})

    def test_the_readme_can_be_pasted(self):
        ((heading, code),) = blocks((ROOT / "README.md").read_text())
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.run_block(heading, code)
        self.assertIn("torch.Size([2, 1024, 4, 128])", said.getvalue())

    def test_every_recipe_runs(self):
        recipes = list(blocks((ROOT / "docs/recipes.md").read_text()))
        self.assertGreaterEqual(len(recipes), 7)
        for heading, code in recipes:
            with self.subTest(heading):
                self.assertRegex(code, r"\bassert", "a recipe compares itself with a definition")
                self.run_block(heading, code)

    def test_the_model_of_layers_runs(self):
        ((heading, code),) = blocks((ROOT / "docs/nn.md").read_text())
        self.assertIn("assert_close", code)
        self.run_block(heading, code)

    def test_a_block_that_is_wrong_fails(self):
        text = "## A\n```python\nassert 1 == 2\n```\ntext\n```sh\nfalse\n```\n"
        ((heading, code),) = blocks(text)
        self.assertEqual(heading, "A")
        with self.assertRaises(AssertionError):
            self.run_block(heading, code)
        with self.assertRaisesRegex(AssertionError, "1 == 2"):
            self.run_block(heading, "# torchrun --nproc-per-node=1 a.py\n" + code)


if __name__ == "__main__":
    unittest.main()
