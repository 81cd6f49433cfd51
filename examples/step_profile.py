"""Where a training step's time goes: its kernels by groups, as torch.profiler sees them, and when none runs."""

import re
from collections import Counter
from collections.abc import Callable, Sequence

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

STEPS = 5
OTHER = "everything else"

# By a kernel's own name, without its template's arguments; the first that matches has it. On a CPU: of operations.
# Kernels of gla lie in tandem::cuda::gla, hence the bound before what begins a name and not a namespace.
GROUPS = (
    ("recurrence", r"\bgla_|^chunk_"),  # tandem's; fla's
    ("convolutions", r"conv1d|convolution|conv_depthwise|cudnn|[dw]grad|fprop|nchw"),
    ("optimizer", r"multi_tensor_apply|adam"),
    ("loss and embedding", r"cross_entropy|nll_loss|soft_?max"),
    ("loss and embedding", r"embedding|index_?select|gather|segment|compute_grad_weight|sum_and_scatter|\bcub::"),
    # tandem's of projections and gates that are no products, before those that are
    ("norms and element-wise", r"\bprojection_(normalize|finish|gradient|heads_gradient|head_sum|column_sum)_kernel"),
    ("norms and element-wise", r"gate_(gradient_)?kernel|group_weight_gradient|gemm_convert|\bclear_kernel"),
    ("matrix products", r"\b(projection|gated_output)_|gemm|gemv|nvjet|cutlass|cublas|splitk"),
    ("matrix products", r"triton_tem|::(add|b|baddb)?mm$"),
    ("norms and element-wise", r"norm|elementwise|triton_(poi|red|per)|reduce|glu|swish|silu|sigmoid"),
    ("norms and element-wise", r"CatArray|copy|fill|^mem(cpy|set)"),
)


def own_name(kernel: str) -> str:
    """Of a demangled one, with its namespaces and without the arguments, in which other names may stand."""
    return re.split(r"[<(]", kernel.replace("(anonymous namespace)::", ""))[0].removeprefix("void ")


def group_of(kernel: str) -> str:
    name = own_name(kernel)
    return next((group for group, names in GROUPS if re.search(names, name, re.IGNORECASE)), OTHER)


def own_times(spans: Sequence[tuple[float, float]]) -> list[float]:
    """Of each (begin, end) what lies behind all that began before it: a kernel that starts early waits for those."""
    times, reached = [0.0] * len(spans), float("-inf")
    for place in sorted(range(len(spans)), key=spans.__getitem__):
        begin, end = spans[place]
        times[place] = max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return times


def profiled(step: Callable[[], float], device: str, seconds: float) -> dict:
    """Of `step`, which returns its seconds when its work is done, and takes `seconds` with no profiler: tracing slows
    the host, so these are what the time without a kernel is of. {} where the profiler sees no kernel."""
    on_gpu = device == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    for steps in (1, STEPS):  # the first has what the profiler itself prepares
        with profile(activities=[activity]) as trace:
            slowed = sum(step() for _ in range(steps)) / steps
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    events = [event for event in trace.events() if event.device_type == kind and not event.is_user_annotation]
    if not events:
        print("the profiler saw no kernel", flush=True)
        return {}

    groups: dict[str, Counter] = {group: Counter() for group in (*dict(GROUPS), OTHER)}
    own = own_times([(event.time_range.start, event.time_range.end) for event in events])
    for event, kernel in zip(events, own, strict=True):  # operations on a CPU lie in each other
        microseconds = kernel if on_gpu else event.self_cpu_time_total
        groups[group_of(event.name)][own_name(event.name)] += microseconds / STEPS / 1e3
    busy = sum(own) / STEPS / 1e3
    for group, names in groups.items():
        largest = ", ".join(f"{name[:100]} {time:.3f}" for name, time in names.most_common(10 if group == OTHER else 3))
        print(f"  {group:22} {names.total():9.3f} ms: {largest}", flush=True)
    print(f"  a kernel runs in {busy:.3f} of {1e3 * seconds:.3f} ms, {1e3 * slowed:.3f} profiled", flush=True)
    return {
        "steps": STEPS,
        "milliseconds": round(1e3 * seconds, 3),
        "profiled_milliseconds": round(1e3 * slowed, 3),
        "busy_milliseconds": round(busy, 3),
        "kernels": round(sum(not event.name.startswith(("Memcpy", "Memset")) for event in events) / STEPS),
        "groups": {group: round(names.total(), 3) for group, names in groups.items()},
        "largest_else": {name: round(time, 3) for name, time in groups[OTHER].most_common(10)},
    }


def table(rows: list[dict]) -> list[str]:
    """A column per row that has a profile, in Markdown."""
    rows = [row for row in rows if row.get("profile")]
    if not rows:
        return []
    profiles = [row["profile"] for row in rows]

    def title(row: dict) -> str:
        return f"{row['device']}: {row['size']} {row['layers']}"

    def line(name: str, cell: Callable[[dict], str]) -> str:
        return f"| {' | '.join([name, *map(cell, profiles)])} |"

    def share(time: float, one: dict) -> str:
        return f"{time:.1f} ({100 * time / one['milliseconds']:.0f} %)"

    def idle(one: dict) -> str:
        return share(max(0.0, one["milliseconds"] - one["busy_milliseconds"]), one)

    return [
        f"| milliseconds of a step | {' | '.join(title(row) for row in rows)} |",
        f"|---|{'---:|' * len(rows)}",
        *(
            line(group, lambda one, group=group: share(one["groups"].get(group, 0.0), one))
            for group in dict.fromkeys(group for one in profiles for group in one["groups"])
        ),
        line("no kernel runs", idle),
        line("the step", lambda one: f"{one['milliseconds']:.1f}"),
        line("the step, profiled", lambda one: f"{one['profiled_milliseconds']:.1f}"),
        line("kernels", lambda one: f"{one['kernels']:,}"),
    ]
