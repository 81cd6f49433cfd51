"""Times tandem.distributed: one sequence over the GPUs of a host beside one GPU, in one run.

    python -m bench.scaling --json bench/results/nvidia-h100/scaling/scaling.json     # on 2 GPUs, 4 and all
    python -m bench.scaling --render bench/results/*/scaling/scaling.json docs/distributed.md

T1 is tandem.ops on one GPU of the host, TN tandem.distributed on N of them, each the median of replays of a CUDA graph
that holds the call (with a backward: and the gradients of all inputs), the slowest rank's. The sequences are larger
than the L2. Eager times stand beside. docs/distributed.md says what is compared.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from bench.peers import results

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- scaling:begin -->", "<!-- scaling:end -->"


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    op: str
    shape: dict[str, int]

    def tensors(self, tokens: slice):
        """Inputs of these tokens of the sequence, bf16, decays of gla fp32, as leaves."""
        import torch

        def drawn(*widths, dtype=torch.bfloat16):
            return torch.randn(1, tokens.stop - tokens.start, *widths, device="cuda", dtype=dtype)

        torch.manual_seed(tokens.start)
        if self.op == "gla":
            H, D = self.shape["H"], self.shape["D"]
            g = torch.nn.functional.logsigmoid(drawn(H, dtype=torch.float32) + 2)
            made = {"q": drawn(H, D), "k": drawn(H, D), "v": drawn(H, D), "log_decay": g}
        else:
            D = self.shape["D"]
            made = {"x": drawn(D), "log_decay": torch.nn.functional.logsigmoid(drawn(D) + 2), "gate": drawn(D)}
        return {name: x.requires_grad_() for name, x in made.items()}

    def call(self, module, tensors, backward: bool):
        import torch

        op = getattr(module, self.op)
        named = dict(tensors)
        given = [named.pop(name) for name in (("q", "k", "v") if self.op == "gla" else ("x",))]
        if not backward:

            def forward():
                with torch.no_grad():
                    return op(*given, **named)[0]

            return forward
        d_out = torch.randn_like(given[-1])
        return lambda: torch.autograd.grad(op(*given, **named)[0], list(tensors.values()), d_out)


CASES = (
    Case("b1h16_t131072_d128", "gla", {"H": 16, "T": 131072, "D": 128}),
    Case("b1h32_t65536_d64", "gla", {"H": 32, "T": 65536, "D": 64}),
    Case("b1h8_t262144_d128", "gla", {"H": 8, "T": 262144, "D": 128}),
    Case("b1_t262144_d2048", "gated_scan", {"T": 262144, "D": 2048}),
)


def timed(run, replays: int) -> tuple[float, float]:
    """Microseconds of a call: in a CUDA graph, and eager."""
    import torch

    def median(body, times):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(times)]
        for start, end in events:
            start.record()
            body()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(1e3 * start.elapsed_time(end) for start, end in events)

    for _ in range(3):
        run()
    eager = median(run, max(replays // 2, 5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    for _ in range(3):
        graph.replay()
    captured = median(graph.replay, replays)
    graph.reset()
    return captured, eager


def on_rank(rank: int, ranks: int, folder: str, options: argparse.Namespace) -> None:
    import tandem.distributed
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks)
    rows = []
    for case in CASES:
        for backward in (False, True):
            part = tandem.distributed.part(case.shape["T"])
            one = (0.0, 0.0)
            if rank == 0:
                whole = case.tensors(slice(0, case.shape["T"]))
                one = timed(case.call(tandem.ops, whole, backward), options.replays)
                del whole
            dist.barrier()
            mine = timed(case.call(tandem.distributed, case.tensors(part), backward), options.replays)
            slowest = torch.tensor(mine, device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            rows.append((case, "forward_backward" if backward else "forward", one, slowest.tolist()))
            torch.cuda.empty_cache()
    dist.destroy_process_group()
    if rank == 0:
        (pathlib.Path(folder) / f"{ranks}.json").write_text(
            json.dumps([[case.name, case.op, direction, *one, *all_] for case, direction, one, all_ in rows])
        )


def measure(options: argparse.Namespace, command: str) -> None:
    import torch
    import torch.multiprocessing as mp

    gpus = torch.cuda.device_count()
    if gpus < 2:
        raise SystemExit(f"bench.scaling: needs two GPUs of one host, got {gpus}")
    device = {"name": torch.cuda.get_device_name()}
    versions = {"torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    run = {"device": device, "commit": options.commit, "command": command}
    run |= {"timer": {"method": "cuda-graph", "l2": "cold"}, "versions": versions, "gpus": gpus}
    file = results.ResultsFile(options.json, run) if options.json else None
    for ranks in sorted({2, 4, gpus} & set(range(2, gpus + 1))):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(on_rank, (ranks, folder, options), ranks)
            rows = json.loads((pathlib.Path(folder) / f"{ranks}.json").read_text())
        for name, op, direction, one, one_eager, time, eager in rows:
            print(
                f"{op} {name} {direction}: one GPU {one:.1f} us ({one_eager:.1f} eager), {ranks} GPUs {time:.1f} "
                f"({eager:.1f}), {one / ranks / time:.3f} of perfect scaling",
                flush=True,
            )
            if file is None:
                continue
            key = {"op": op, "direction": direction, "case": name, "dtype": "bf16"}
            for provider, graph, by_host in (("one_gpu", one, one_eager), (f"{ranks}_gpus", time, eager)):
                times = {"median_us": results.rounded(graph), "eager_us": results.rounded(by_host)}
                # One GPU is measured again beside each number of them.
                file.add({**key, "provider": provider if provider != "one_gpu" else f"one_of_{ranks}", **times})


def table(paths: list[pathlib.Path]) -> list[str]:
    """Lines of Markdown: every row of every file's last run."""
    lines = []
    for path in paths:
        data = json.loads(path.read_text())
        name, run = list(data["runs"].items())[-1]
        rows = [row for row in data["rows"] if row["run"] == name]
        of = {(row["op"], row["direction"], row["case"], row["provider"]): row for row in rows}
        lines += [
            f"| {run['device']['name']}, bf16 | | GPUs | T1 (us) | TN (us) | T1 / (N TN) | eager T1, TN (us) |",
            "|---|---|---:|---:|---:|---:|---:|",
        ]
        for row in rows:
            if not row["provider"].endswith("_gpus"):
                continue
            ranks = int(row["provider"].removesuffix("_gpus"))
            one = of[row["op"], row["direction"], row["case"], f"one_of_{ranks}"]
            direction = row["direction"].replace("_", " + ")
            ratio = one["median_us"] / (ranks * row["median_us"])
            lines.append(
                f"| {row['op']} {row['case']} | {direction} | {ranks} | {one['median_us']:.4g} | "
                f"{row['median_us']:.4g} | {ratio:.2f} | {one['eager_us']:.4g}, {row['eager_us']:.4g} |"
            )
        software = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
        lines += ["", f"{run['date']}, commit {run['commit']}, {software}:", f"`{run['command']}`", ""]
    return lines[:-1]


def render(paths: list[pathlib.Path], page: pathlib.Path) -> None:
    before, rest = page.read_text().split(BEGIN)
    page.write_text("\n".join([before + BEGIN, *table(paths), END]) + rest.split(END)[1])


def checked_out() -> str:
    git = ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=pathlib.Path, help="merge the rows into this results file")
    parser.add_argument("--commit", default=checked_out(), help="the measured commit (default: git's of the checkout)")
    parser.add_argument("--replays", type=int, default=30, help="of each graph (default 30)")
    parser.add_argument("--render", type=pathlib.Path, nargs="+", metavar="FILE", help="results files, then the page")
    options = parser.parse_args(argv)
    if options.replays < 1:
        parser.error("--replays must be at least 1")
    if options.render is None:
        measure(options, results.recorded_command("python -m bench.scaling", argv, CHECKOUT))
    elif len(options.render) < 2:
        parser.error("--render takes results files and then the page")
    else:
        render(options.render[:-1], options.render[-1])


if __name__ == "__main__":
    main(sys.argv[1:])
