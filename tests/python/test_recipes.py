"""docs/recipes.md: every block of Python runs as it stands, in a process of its own, or as many as its first line asks
torchrun for."""

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


def run(code):
    """The exit status and output of each process."""
    match = LAUNCH.match(code)
    count = int(match[1]) if match else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "recipe.py")
        script.write_text(code)
        processes = []
        for rank in range(count):
            # As torchrun sets them.
            ranks = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment = {**os.environ, **(ranks if match else {})}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            processes.append(subprocess.Popen([sys.executable, script], env=environment, **pipes))
        outputs = [process.communicate()[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


class Recipes(unittest.TestCase):
    def test_a_block_that_is_wrong_fails(self):
        found = list(blocks("## A\n```python\nassert 1 == 2\n```\ntext\n```sh\nfalse\n```\n"))
        self.assertEqual(found, [("A", "assert 1 == 2\n")])
        ((status, output),) = run(found[0][1])
        self.assertEqual(status, 1)
        self.assertIn("AssertionError", output)

    def test_every_block_runs(self):
        recipes = list(blocks((ROOT / "docs/recipes.md").read_text()))
        self.assertGreaterEqual(len(recipes), 7)
        for heading, code in recipes:
            with self.subTest(heading):
                # A recipe compares itself with a definition.
                self.assertRegex(code, "assert")
                for status, output in run(code):
                    self.assertEqual(status, 0, output)


if __name__ == "__main__":
    unittest.main()
