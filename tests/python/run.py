#!/usr/bin/env python3
"""tests/python/run.py [module...]: runs the tests of the installed package `tandem`, all of them or these modules.

Needs torch and the package only, no test framework. Exits with 77, "skipped", when every test was skipped. Prints
each reason for skipping once, with how many tests gave it.
"""

import collections
import pathlib
import sys
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent


def main():
    sys.path.insert(0, str(FOLDER))
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("test_*.py"))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    for reason, count in collections.Counter(reason for _, reason in result.skipped).items():
        print(f"skipped: {reason}" if count == 1 else f"skipped: {reason} ({count} tests)")
    if not result.wasSuccessful():
        return 1
    if result.testsRun == 0:
        print("no tests found")
        return 1
    return 77 if len(result.skipped) == result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
