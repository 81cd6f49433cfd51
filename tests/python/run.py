#!/usr/bin/env python3
"""tests/python/run.py [module...]: runs the tests of the installed package `tandem`, all of them or these modules.

Needs torch and the package only, no test framework. Exits with 77, "skipped", when every test was skipped. Prints
each reason for skipping once, with how many tests gave it, and last, where a log that is cut off still has it, why
tests failed.
"""

import collections
import pathlib
import sys
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent


def print_once(kind, reasons):
    """The 20 most frequent reasons once each, the first one last, with how many tests gave it."""
    for reason, count in reversed(collections.Counter(reasons).most_common(20)):
        print(f"{kind}: {reason}" if count == 1 else f"{kind}: {reason} ({count} tests)")


def main():
    sys.path.insert(0, str(FOLDER))
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("test_*.py"))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout).run(suite)
    print_once("skipped", (reason for _, reason in result.skipped))
    # Of a subtest the test that it is part of: hundreds of them fail for one reason.
    failures = [(getattr(test, "test_case", test).id(), text) for test, text in result.failures + result.errors]
    print_once("failed", (f"{test}: {text.strip().splitlines()[-1][:300]}" for test, text in failures))
    if not result.wasSuccessful():
        return 1
    if result.testsRun == 0:
        print("no tests found")
        return 1
    return 77 if len(result.skipped) == result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
