#!/usr/bin/env python3
"""tests/python/run.py [--jobs N] [module...]: runs the tests of the installed package `tandem`, all or
these modules.

Needs torch and the package only, no test framework. Exits with 77, "skipped", when every test was skipped. Prints
each reason for skipping once, with how many tests gave it, and last, where a log that is cut off still has it, why
tests failed. With --jobs each class runs in a process of its own, N of them at a time.
"""

import argparse
import collections
import concurrent.futures
import importlib
import os
import pathlib
import subprocess
import sys
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
SKIPPED = 77


def print_once(kind, reasons):
    """The 20 most frequent reasons once each, the first one last, with how many tests gave it."""
    for reason, count in reversed(collections.Counter(reasons).most_common(20)):
        print(f"{kind}: {reason}" if count == 1 else f"{kind}: {reason} ({count} tests)")


class TimedResult(unittest.TextTestResult):
    """Adds up the seconds of each class's tests. What setUpClass takes counts for no class."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seconds = collections.Counter()

    def startTest(self, test):
        self.begin = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[f"{type(test).__module__}.{type(test).__name__}"] += time.monotonic() - self.begin


def run_here(names):
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = unittest.TextTestRunner(verbosity=2, stream=sys.stdout, resultclass=TimedResult).run(suite)
    print(", ".join(f"{name} {seconds:.1f} s" for name, seconds in result.seconds.most_common() if seconds >= 0.5))
    print_once("skipped", (reason for _, reason in result.skipped))
    # A subtest counts as the test that it is part of: hundreds of them fail for one reason.
    failures = [(getattr(test, "test_case", test).id(), text) for test, text in result.failures + result.errors]
    print_once("failed", (f"{test}: {text.strip().splitlines()[-1][:300]}" for test, text in failures))
    if not result.wasSuccessful():
        return 1
    if result.testsRun == 0:
        print("no tests found")
        return 1
    return SKIPPED if len(result.skipped) == result.testsRun else 0


def classes(name):
    """The names of a module's test classes; its own name where it adds tests that have none, or where it cannot be
    imported, which its own process then says."""
    try:
        module = importlib.import_module(name)
    except Exception:
        return [name]
    if hasattr(module, "load_tests"):
        return [name]
    suites = unittest.defaultTestLoader.loadTestsFromModule(module)
    return [f"{name}.{type(next(iter(suite))).__name__}" for suite in suites if suite.countTestCases()]


def run_beside(names, jobs):
    """Each class in a process: also, what one leaves behind (a broken CUDA context) is not the next one's."""
    threads = str(max(2 * (os.cpu_count() or 1) // jobs, 2))
    environment = {"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads, **os.environ}

    def run(name):
        command = [sys.executable, str(FOLDER / "run.py"), name]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        return name, done.returncode, done.stdout

    codes, failures = [], []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(run, each) for name in names for each in classes(name)]
        for one in concurrent.futures.as_completed(started):
            name, code, output = one.result()
            print(f"== {name}\n{output}", end="", flush=True)
            codes.append(code)
            if code not in (0, SKIPPED):
                said = [line for line in output.splitlines() if line.startswith("failed: ")]
                failures += said or [f"failed: {name} ended with {code}"]
    print(f"{len(codes)} classes and modules: {len(failures)} failures")
    print("\n".join(failures), end="\n" if failures else "")
    return 1 if failures else SKIPPED if all(code == SKIPPED for code in codes) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="module")
    options = parser.parse_args()
    sys.path.insert(0, str(FOLDER))
    names = options.names or sorted(path.stem for path in FOLDER.glob("test_*.py"))
    return run_beside(names, options.jobs) if options.jobs > 1 else run_here(names)


if __name__ == "__main__":
    sys.exit(main())
