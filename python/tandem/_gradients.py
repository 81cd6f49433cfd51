"""Gradients and tangents of the calls, from their tables, as torch.autograd.Function wants them."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NoReturn

from torch import Tensor
from torch.autograd import forward_ad

from tandem._fakes import refusal_of
from tandem._tables import Row, Table

Op = Callable[..., Any]
Ways = tuple[tuple[set[str], set[str]], ...]

# Of a call that takes wider tensors than its backward: the argument, the cotangent of its shape, and the last extent
# that is always taken.
WIDEST = {"gla_forward": ("v", "d_o", 512)}

# Of each call, inputs that outputs are linear in together, and these outputs; others do not depend on them. Tangents
# of such inputs are one more call, in which they stand for the inputs.
LINEAR: dict[str, Ways] = {
    "gla_forward": (
        ({"q"}, {"o"}),
        ({"k", "initial_state"}, {"o", "final_state"}),
        ({"v", "initial_state"}, {"o", "final_state"}),
    ),
    "gla_state_forward": (({"k"}, {"state"}), ({"v"}, {"state"})),
    "gated_scan_forward": (({"x", "initial_state"}, {"out", "final_state"}),),
    "linear_scan_forward": (
        ({"u", "initial_state"}, {"out", "final_state"}),
        ({"weight", "initial_state"}, {"out", "final_state"}),
    ),
    "gemm_swiglu_forward": (({"up_weight"}, {"out"}),),
    "attention_forward": (({"v"}, {"o"}),),
}


def linear(table: Table, given: dict[str, Any]) -> Ways:
    """LINEAR of a call. gated_output's depends on what else is given: a norm of the sum is linear in nothing in front
    of it, and one of groups not in o."""
    if table.name != "gated_output_forward":
        return LINEAR.get(table.name, ())
    ways: Ways = (({"weight", "bias", "residual"}, {"out"}), ({"o", "bias", "residual"}, {"out"}))
    return () if given["norm"] else ways[: 2 if given["group_norm_weight"] is None else 1]


def kept_of_scan(*names: str) -> Callable[[dict[str, Any]], set[str]]:
    """What a scan keeps where it needs it: of all gradients, only those by the decay and the gate depend on states."""
    by = ("decay", "log_decay", "gate")
    return lambda given: set(names) if any(given[x] is not None and given[x].requires_grad for x in by) else set()


# Of a call whose outputs its backward takes: those that it takes of this call. A call that is not here has one output
# that its backward takes where the caller asked for it.
KEEPS: dict[str, Callable[[dict[str, Any]], set[str]]] = {
    # By the activation's number: none keeps nothing, l2_normalize is 5, the others keep their slope.
    "projection_forward": lambda given: {
        f"{name}{i}"
        for i in range(8)
        for name in {0: (), 5: ("out", "inverse_norm")}.get(given[f"activation{i}"] or 0, ("slope",))
    },
    "rms_norm_gemm_forward": lambda given: (
        ({"kept_rstd"} if given["rstd"] is None else set())
        | {
            f"{name}{i}"
            for i in range(8)
            if given[f"head_norm_weight{i}"] is not None
            for name in ("pre_norm", "head_rstd")
        }
    ),
    # Slopes say what the activation was; an rstd that is given is saved with the other inputs.
    "gemm_swiglu_forward": lambda given: (
        {"gate_slope", "up_slope"}
        | ({"kept_rstd"} if given["norm_weight"] is not None and given["rstd"] is None else set())
    ),
    # The weight's gradient is a product with what the gate made, which is o without a gate and a norm of groups.
    "gated_output_forward": lambda given: (
        ({"sum", "rstd"} if given["norm"] else set())
        | ({"mean"} if given["norm"] == 1 else set())
        | ({"group_rstd"} if given["group_norm_weight"] is not None else set())
        | (
            {"gated"}
            if given["weight"].requires_grad and (given["gate"] is not None or given["group_norm_weight"] is not None)
            else set()
        )
    ),
    "attention_forward": lambda given: {"o", "log_sum_exp"},
    "attention_weights_forward": lambda given: {"w"},
    "gated_scan_forward": kept_of_scan("states"),
    "linear_scan_forward": kept_of_scan("x", "states"),
}


# Of a call, an input whose gradient is a cotangent as it stands, without a copy, and the number that must not be given
# for that.
HANDED_ON = {"gated_output_forward": ("residual", "d_out", "norm")}


def pick(names: Iterable[str], values: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the values of these names out of a sequence."""
    places = [values.index(name) for name in names]
    if len(places) > 1:
        return itemgetter(*places)
    return lambda sequence: tuple(sequence[place] for place in places)


class Saved:
    """What a call's gradients and tangents read: its arguments, and outputs that `backward` takes."""

    def __init__(self, table: Table, backward: Table | None = None) -> None:
        self.table = table
        rest = [name for name in table.arguments if name not in table.tensors]
        results = [rows[0].name for rows in table.results]
        taken = {*backward.tensors, *(row.kept_as for row in backward.rows.values())} if backward else set()
        self.outputs = [name for name in results if name in taken]
        self.names = [*table.tensors, *self.outputs, *rest]
        self._places = [results.index(name) for name in self.outputs]
        self.decides = bool(self.outputs) and table.name in KEEPS  # on outputs that nobody asked for
        self.if_asked = self._places[0] if self.outputs and not self.decides else None
        cotangents = backward.tensors if backward else []
        self.constants = [name for name in self.outputs if f"d_{name}" not in cotangents]
        self._constant = [results.index(name) for name in self.constants]
        self._flags = {self.table.arguments.index(row.flag): row.name for row in table.rows.values() if row.flag}
        self.tensors, self.rest = pick(table.tensors, table.arguments), pick(rest, table.arguments)

    def kept(self, arguments: Sequence[Any]) -> set[str]:
        """The names of the outputs that the backward takes of this call."""
        return KEEPS[self.table.name](self.table.given(arguments)) if self.decides else set(self.outputs)

    def keeping(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments that ask for these outputs, too."""
        if not self.decides:
            return arguments
        kept = self.kept(arguments)
        return tuple([True if self._flags.get(place) in kept else x for place, x in enumerate(arguments)])

    def asked(self, arguments: tuple[Any, ...], results: Any) -> Any:
        """The results without what only the backward takes."""
        if not self.decides:
            return results
        flags = [rows[0].flag for rows in self.table.results]
        given = self.table.given(arguments)
        results = self.table.as_tuple(results)
        asked = [x if flag is None or given[flag] else None for x, flag in zip(results, flags, strict=True)]
        return self.table.as_returned(tuple(asked))

    def save(self, ctx: Any, arguments: tuple[Any, ...], results: Any, has_tangents: bool) -> None:
        tensors = self.tensors(arguments)
        if self.outputs:
            results = self.table.as_tuple(results)
            kept = self.kept(arguments)
            outputs = zip(self.outputs, self._places, strict=True)
            tensors += tuple([results[place] if name in kept else None for name, place in outputs])
            constants = [results[place] for place in self._constant]
            ctx.mark_non_differentiable(*[x for x in constants if x is not None])
        ctx.save_for_backward(*tensors)
        if has_tangents:
            ctx.save_for_forward(*tensors)
        ctx.rest = self.rest(arguments)
        ctx.set_materialize_grads(False)  # an output that the loss does not use costs nothing

    def values(self, ctx: Any) -> list[Any]:
        """In the order of `names`."""
        return [*ctx.saved_tensors, *ctx.rest]


def formula(
    table: Table, saved: Saved, backward: Table, op: Op, directly: Op
) -> Callable[..., tuple[Tensor | None, ...]]:
    """The gradients of a call by its backward call, which takes the same inputs, d_<output> of each output, and then a
    flag for each gradient: past the op's frame in Python where it goes directly."""
    cotangents = ["d_" + rows[0].name for rows in table.results]
    # Of each flag and each argument: the other side's places.
    sources = [[table.arguments.index(row.source or "") for row in rows] for rows in backward.results]
    gradient_of = {place: index for index, places in enumerate(sources) for place in places}
    slots = [gradient_of.get(place) for place in range(len(table.arguments))]
    inputs = [name for name in backward.arguments if name not in backward.flags]
    arrange = pick(inputs, [*saved.names, *cotangents])
    place_of = saved.names.index
    stand_ins = [(place_of(row.name), place_of(row.kept_as)) for row in backward.rows.values() if row.kept_as]
    nothing = (None,) * len(slots)
    # The place of the input among the arguments, and those of the cotangent and the number among a call's values.
    handed_on = None
    if table.name in HANDED_ON:
        name, cotangent, unless = HANDED_ON[table.name]
        handed_on = table.arguments.index(name), len(saved.names) + cotangents.index(cotangent), place_of(unless)
    required = [
        (len(saved.names) + i, rows[0])
        for i, rows in enumerate(table.results)
        if cotangents[i] in backward.rows and not backward.rows[cotangents[i]].optional
    ]

    def zeros(values: list[Any], output: Row) -> Tensor:
        given = dict(zip(saved.names, values, strict=False))
        extents = table.extents(given)
        made: Tensor = given[table.first].new_zeros([extents[axis] for axis in output.axes.split(",")])
        return made

    @cache
    def wanted(needs: tuple[bool, ...]) -> tuple[list[bool], Callable[..., tuple[Tensor | None, ...]]]:
        """By the arguments that need a gradient: the flags, and what takes the gradients out of the results and a None
        behind them."""
        wants = [any([needs[place] for place in places]) for places in sources]
        none = len(wants)
        places = [i if i is not None and needed else none for i, needed in zip(slots, needs, strict=True)]
        return wants, itemgetter(*places)

    def gradients(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if cotangents[0] is None and not required and all([x is None for x in cotangents]):
            return nothing
        needs = ctx.needs_input_grad
        values = [*ctx.saved_tensors, *ctx.rest, *cotangents]
        for place, output in required:
            if values[place] is None:
                values[place] = zeros(values, output)
        for place, kept in stand_ins:
            if values[place] is None:
                values[place] = values[kept]
        place, as_it_stands, unless = handed_on or (0, 0, 0)
        hands_on = handed_on is not None and needs[place] and values[unless] is None
        if hands_on:
            needs = (*needs[:place], False, *needs[place + 1 :])
        wants, gradients_of = wanted(needs)
        results: Any = (None,) * len(wants)
        if not hands_on or any(wants):
            given = arrange(values)
            results = directly(*given, *wants) if forward_ad._current_level < 0 else NotImplemented
            if results is None or results is NotImplemented:
                results = op(*given, *wants)
        made = gradients_of((*results, None))
        return (*made[:place], values[as_it_stands], *made[place + 1 :]) if hands_on else made

    return gradients


def limit_of_backward(table: Table) -> tuple[int, int]:
    """By WIDEST the place of the argument, -1 for none, and the last extent."""
    name, _, widest = WIDEST.get(table.name, ("", "", 0))
    return table.arguments.index(name) if name else -1, widest


def refusal_of_backward(table: Table, backward: Table) -> Callable[[tuple[Any, ...]], None]:
    """A function of the call's arguments that raises what the backward call would, before anything runs. It asks for
    tensors wider than WIDEST alone: asking takes longer than a small call."""
    if table.name not in WIDEST:
        return lambda arguments: None
    _, cotangent, _ = WIDEST[table.name]
    place, widest = limit_of_backward(table)

    def refuse(arguments: tuple[Any, ...]) -> None:
        wide = arguments[place]
        if not isinstance(wide, Tensor) or wide.shape[-1] <= widest:
            return
        given = {**table.given(arguments), cotangent: wide}
        given |= {row.flag: True for row in backward.rows.values() if row.flag and given[row.source] is not None}
        error = refusal_of(backward, [given.get(name) for name in backward.arguments])
        if error is not None:
            raise error

    return refuse


def no_formula(table: Table) -> Callable[..., NoReturn]:
    """Refuses: of a call that gives gradients, and of one that has none."""
    derives = any(row.source for row in table.rows.values())
    op = table.op.removesuffix("_backward")

    def refuse(ctx: Any, *gradients: Tensor | None) -> NoReturn:
        if derives:
            raise NotImplementedError(
                f"[{table.name}] tandem.ops.{op} has no second derivative: do not differentiate through a gradient "
                "that was taken with create_graph=True"
            )
        raise NotImplementedError(
            f"[{table.op}] it has no gradient: call it under torch.no_grad(), or on tensors that do not require one"
        )

    return refuse


def tangents_of(table: Table, saved: Saved, op: Op) -> Callable[..., tuple[Tensor | None, ...]]:
    """Forward-mode AD: the outputs' tangents by one call, where they are linear in all inputs that have tangents. What
    only the backward takes has none."""
    unasked = {table.rows[name].flag: False for name in saved.constants if table.rows[name].flag}

    def tangents(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        moved: dict[str, Any] = {name: x for name, x in zip(table.arguments, given, strict=True) if x is not None}
        values = {**dict(zip(saved.names, saved.values(ctx), strict=True)), **unasked}
        linear_ways = linear(table, values)
        for inputs, outputs in linear_ways:
            if moved.keys() <= inputs:
                for name in inputs - moved.keys():
                    moved[name] = None if table.rows[name].optional else values[name].new_zeros(values[name].shape)
                results = op(*({**values, **moved}[name] for name in table.arguments))
                # torch.func wants zeros, not None, for an output that does not depend on them.
                return tuple(
                    [
                        x if x is None or rows[0].name in outputs else x.new_zeros(x.shape)
                        for x, rows in zip(results, table.results, strict=True)
                    ]
                )
        ways = "; ".join(", ".join(sorted(inputs)) for inputs, _ in linear_ways)
        raise NotImplementedError(
            f"[{table.op}] has no forward-mode derivative by {', '.join(moved)} together"
            + (f", only by some of: {ways}" if ways else "")
            + ". Reverse mode is backward(), torch.func.grad or vjp"
        )

    return tangents
