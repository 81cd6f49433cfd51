"""Which cases the tests of the ops run."""

import collections
import os
import unittest
from unittest import mock

from cases import DTYPES, binding_path, cover, load

CALLS = (
    *(("gla", direction) for direction in ("forward", "backward", "state", "state_backward", "step")),
    *(
        (op, direction)
        for op in ("gated_scan", "linear_scan", "attention", "causal_conv1d")
        for direction in ("forward", "backward")
    ),
)


def paths(pairs):
    return [binding_path(case, dtype) for case, dtype in pairs]


def values(paths):
    seen = collections.defaultdict(set)
    for path in paths:
        for name, value in path.items():
            seen[name].add(value)
    return seen


class Cover(unittest.TestCase):
    def test_every_path_once(self):
        for op, direction in CALLS:
            with self.subTest(op, direction=direction):
                with mock.patch.dict(os.environ, TANDEM_TEST_ALL="1"):
                    everything = cover(op, direction)
                with mock.patch.dict(os.environ, TANDEM_TEST_ALL=""):
                    chosen = cover(op, direction)
                self.assertCountEqual(map(str, paths(chosen)), {str(path) for path in paths(everything)})
                # What the definition cannot judge is no dtype, layout or optional tensor of its own.
                table = [
                    (case, dtype) for case in load(op, "check", direction) for dtype in case["dtype"] if dtype in DTYPES
                ]
                self.assertEqual(values(paths(chosen)), values(paths(table)))


if __name__ == "__main__":
    unittest.main()
