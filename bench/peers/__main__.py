"""python -m bench.peers <op>, or host, or blocks: see --help."""

import argparse
import contextlib
import importlib
import importlib.util
import os
import platform
import subprocess
import sys
import time

from . import blocks, cases, host, library, provider, results, tuning
from .side_by_side import SideBySide, progress

NOTHING_TO_MEASURE = 3


class CannotMeasure(RuntimeError):
    """No GPU, torch or library here: nothing can be measured."""


def arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description="Times Tandem and other libraries side by side on one GPU: the same inputs, one CUDA-graph timer, "
        "every result checked against fp64. What a peer needs installed: docs/measuring.md. `python -m "
        "bench.peers host` times the host's share of eager calls instead, `python -m bench.peers blocks` whole layers; "
        "both have a --help of their own.",
        epilog="exit codes: 0 measured; 1 Tandem or a baseline failed; 2 wrong usage; 3 no GPU, torch or library here",
    )
    parser.add_argument("op", choices=sorted(path.stem for path in (cases.ROOT / "cases").glob("*.json")))
    parser.add_argument("--case", default="", help="patterns of names, by comma (default: what is tagged bench)")
    parser.add_argument("--tag", default="", help="only cases with this tag")
    parser.add_argument(
        "--direction",
        default="",
        choices=cases.DIRECTIONS,
        help="default: all that the cases name and a provider can do",
    )
    parser.add_argument("--dtype", choices=("bf16", "fp16"), help="default: both, where the case has both")
    parser.add_argument("--providers", default="", help="only these, by comma (default: all that can be imported)")
    parser.add_argument(
        "--tune", action="store_true", help="try every setting of a peer and keep its fastest (compiles more)"
    )
    parser.add_argument("--repeats", type=int, default=10, help="samples per provider and round (default 10)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over the providers, A B A B (default 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="merge the rows into this results file")
    parser.add_argument("--run", default="", help="id of the run in that file (default: a new one)")
    parser.add_argument("--commit", default="", help="the measured commit (default: as built into the library)")
    parser.add_argument("--once", action="store_true", help="one call each, unchecked and untimed, for profilers")
    parser.add_argument("--list", action="store_true", help="which providers are here, and why others are not")
    options = parser.parse_args(argv)
    if options.repeats < 1 or options.rounds < 1:
        parser.error("--repeats and --rounds must be at least 1")
    return options


def pick(known, names):
    if not names:
        return known
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise cases.CaseError(f"no provider is named {', '.join(unknown)} ({', '.join(known)})")
    return {name: known[name] for name in names.split(",")}


def list_providers(providers):
    ready, missing = provider.available(providers)
    for name, one in ready.items():
        versions = ", ".join(f"{package} {version}" for package, version in one.versions().items())
        print(f"{name:<12} here: {', '.join(one.directions)}  {versions}".rstrip())
    for name, why in missing.items():
        print(f"{name:<12} not here: {why}")


def require_gpu():
    if importlib.util.find_spec("torch") is None:
        raise CannotMeasure("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise CannotMeasure("torch finds no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


def commit(options):
    """The commit of the measured build; else that of the checkout."""
    if options.commit:
        return options.commit
    try:
        return library.Library("libtandem_calls.so").commit()
    except library.LibraryError:
        git = ["git", "-C", str(cases.ROOT), "describe", "--always", "--dirty", "--abbrev=7"]
        return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"


def versions(ready):
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    try:  # the one that is imported: another's metadata may come first on the path
        found["triton"] = importlib.import_module("triton").__version__
    except ImportError:
        pass
    for one in ready.values():
        found.update(one.versions())
    return found


def describe_run(options, argv, bench, device, ready, missing, ceilings):
    import torch

    state = bench.device_state(device.index)
    run = {
        "device": {"name": torch.cuda.get_device_name(device), **state},
        "commit": commit(options),
        "command": results.recorded_command("python -m bench.peers", argv, cases.ROOT),
        "timer": {"method": "cuda-graph", "l2": "cold", "rounds": options.rounds, "repeats": options.repeats},
        "ceilings": {name: results.rounded(value) for name, value in ceilings.items()},
        "versions": versions(ready),
    }
    return {**run, "missing": missing} if missing else run


def print_row(row, ours):
    if "failure" in row:
        print(
            f"{row['direction']:<16} {row['case']:<24} {row['dtype']:<5} {row['provider']:<11} {row['failure']}",
            flush=True,
        )
        return
    error = f"{row['error']['value']:.1e}" if "error" in row else "-"
    ratio = f"{row['median_us'] / ours:.2f}x" if ours else "-"
    print(
        f"{row['direction']:<16} {row['case']:<24} {row['dtype']:<5} {row['provider']:<11} {row['median_us']:>9.1f} "
        f"{row['p10_us']:>9.1f} {row['p90_us']:>9.1f} {row['floor_us']:>8.1f} {ratio:>7} {error:>8} "
        f"{row['first_call_s']:>7.1f}  {row['variant']}",
        flush=True,
    )


def is_ours_to_mend(row, baseline):
    """Whether a row is a failure of Tandem or a baseline. A case that the baseline refuses is told by its row, not by
    the exit code."""
    failure = row.get("failure", "")
    if baseline and failure.startswith("refused: "):
        return False
    return bool(failure) and (baseline or row["provider"] == "tandem")


def measure(options, argv):
    known = pick(provider.discover(options.op), options.providers)
    if options.list:
        list_providers(known)
        return 0
    selected = cases.select(cases.load(options.op), options.case, options.tag or ("" if options.case else "bench"))
    selected = cases.in_directions(selected, options.direction)
    device = require_gpu()
    import torch

    torch.set_grad_enabled(False)
    bench = library.Library("libtandem_bench.so")
    ready, missing = provider.available(known)
    for name, why in missing.items():
        progress(f"{name} is not here: {why}")
    if not ready:
        raise CannotMeasure("none of the providers is here")
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    together = SideBySide(ready, bench, device, l2_bytes, options, progress)
    if not options.once:
        together.ceilings = bench.ceilings(device.index)
        file = None
        if options.json:
            run = describe_run(options, argv, bench, device, ready, missing, together.ceilings)
            file = results.ResultsFile(options.json, run, options.run)
        print(
            f"{torch.cuda.get_device_name(device)}: copy {together.ceilings['copy_tbps']:.3f} TB/s, bf16 products "
            f"{together.ceilings['bf16_tflops']:.0f} TFLOP/s, CUDA graph, cold L2; x: time over Tandem's"
        )
        print(
            f"{'direction':<16} {'case':<24} {'dtype':<5} {'provider':<11} {'median_us':>9} {'p10_us':>9} "
            f"{'p90_us':>9} {'floor_us':>8} {'x':>7} {'error':>8} {'first_s':>7}  variant"
        )
    ours_failed = False
    for case in selected:
        reason = cases.why_not(case)
        if not reason and not any(case.direction in one.directions for one in ready.values()):
            reason = "no provider here can do it"
        if reason:
            progress(f"{case.direction} {case.name}: not compared: {reason}")
            continue
        for dtype in case.dtypes:
            if dtype in ("fp32", "fp64") or options.dtype not in (None, dtype):
                continue
            progress(f"{case.direction} {case.name} {dtype}")
            if options.once:
                together.once(case, dtype)
                continue
            start = time.monotonic()
            rows = together.run(case, dtype)
            progress(f"  {time.monotonic() - start:.1f} s")
            ours = next((row.get("median_us") for row in rows if row["provider"] == "tandem"), None)
            for row in rows:
                print_row(row, ours)
                if file:
                    file.add(row)
                ours_failed |= is_ours_to_mend(row, ready[row["provider"]].baseline)
            torch.cuda.empty_cache()
    return 1 if ours_failed else 0


def describe_other_run(name, timer, options, argv, device, ready, missing):
    """Of what has no floors, and runs on a CPU too."""
    import torch

    state = {"name": platform.processor() or platform.machine()}
    if device.type == "cuda":
        state = {"name": torch.cuda.get_device_name(device)}
        with contextlib.suppress(library.LibraryError):
            state |= library.Library("libtandem_bench.so").device_state(device.index)
    run = {
        "device": state,
        "commit": commit(options),
        "command": results.recorded_command(f"python -m bench.peers {name}", argv, cases.ROOT),
        "timer": {**timer, "rounds": options.rounds},
        "versions": versions(ready),
    }
    return {**run, "missing": missing} if missing else run


def measure_host(options, argv):
    if importlib.util.find_spec("torch") is None:
        raise CannotMeasure("torch is not installed")
    import torch

    device = torch.device("cpu") if options.device == "cpu" else require_gpu()
    ready, missing = provider.available(host.peers())
    for name, why in missing.items():
        progress(f"{name} is not here: {why}")
    calls = host.calls(ready, options.dtype, options.seed, device)
    host.measure(calls, options.rounds, torch.cuda.synchronize if device.type == "cuda" else lambda: None, progress)
    rows = [call.row(options.dtype) for call in calls]
    for line in host.table(rows):
        print(line)
    if options.json:
        timer = {"method": host.TIMER, "l2": "warm"}
        run = describe_other_run("host", timer, options, argv, device, ready, missing)
        file = results.ResultsFile(options.json, run, options.run)
        for row in rows:
            file.add(row)
    return int(any("failure" in row for row in rows if row["provider"].startswith("tandem")))


def measure_blocks(options, argv):
    if options.render:
        blocks.render(options.render[:-1], options.render[-1])
        return 0
    if importlib.util.find_spec("torch") is None:
        raise CannotMeasure("torch is not installed")
    import torch

    device = torch.device("cpu") if options.device == "cpu" else require_gpu()
    ready, missing = {}, {}
    for block, known in blocks.known_providers(options).items():
        ready[block], why = provider.available(known)
        missing |= {f"{name} of {block}": text for name, text in why.items()}
    for name, why in missing.items():
        progress(f"{name} is not here: {why}")
    if not any(ready.values()):
        raise CannotMeasure("none of the providers is here")
    if device.type == "cuda" and (why := tuning.compile_side_by_side()):
        progress(f"Triton tunes one setting after the other: {why}")
    file = None
    if options.json:
        every = {f"{block} {name}": one for block, ones in ready.items() for name, one in ones.items()}
        timer = {"method": blocks.TIMER, "l2": "cold", "repeats": options.repeats}
        run = describe_other_run("blocks", timer, options, argv, device, every, missing)
        file = results.ResultsFile(options.json, run, options.run)
    together, failed = blocks.Blocks(device, options, progress), False
    extra = list(blocks.from_cpp(options.cpp.read_text())) if options.cpp else []
    for case in blocks.selected(options):
        progress(f"{case.block} {case.direction} {case.name}")
        rows = together.run(case, ready[case.block])
        rows += [row for row in extra if all(row[key] == getattr(case, of) for key, of in blocks.OF_CASE.items())]
        for row in rows:
            print(blocks.line_of(row, rows), flush=True)
            if file:
                file.add(row)
            failed |= row["provider"] == "tandem" and "failure" in row
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return int(failed)


OTHERS = {"host": (host.arguments, measure_host), "blocks": (blocks.arguments, measure_blocks)}


def main(argv):
    read, run = OTHERS.get(argv[0] if argv else "", (arguments, measure))
    argv = argv[1:] if run is not measure else argv
    options = read(argv)
    try:
        return run(options, argv)
    except cases.CaseError as error:
        progress(f"bench.peers: {error}")
        return 2
    except (CannotMeasure, cases.NoProgram, library.LibraryError) as error:
        progress(f"bench.peers: nothing can be measured: {error}")
        return NOTHING_TO_MEASURE


if __name__ == "__main__":
    os.chdir(cases.ROOT)
    sys.exit(main(sys.argv[1:]))
