"""Registers with torch what the calls need beside their kernels, from the library's tables: what they return for fake
tensors, their gradients, and that these have none of their own."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NoReturn

import torch
from torch import Tensor

from tandem._extension import call, tables


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor or number of a call."""

    name: str
    kind: str  # "tensor" or "number"
    role: str  # "input", "output", "in_place" or "gradient"
    optional: bool
    axes: str  # "B,T,H,V", or "H|B,T,H" for a choice
    dtype: str  # the rule: "fp32", "same" as the call's first tensor, "offsets" (cu_seqlens)...
    instead_of: str | None  # the input that it stands in for
    source: str | None  # of a gradient: its input
    flag: str | None  # the argument that asks for this output


class Table:
    """One call of the library: its arguments and results in torch's order, and their rows."""

    def __init__(self, name: str, arguments: list[str], results: list[str], parameters: list[dict[str, Any]]) -> None:
        self.name, self.arguments = name, arguments
        self.rows = {row["name"]: Row(**row) for row in parameters}
        self.first = parameters[0]["name"]
        self.tensors = [name for name in arguments if name in self.rows and self.rows[name].kind == "tensor"]
        self.offsets = next((row.name for row in self.rows.values() if row.dtype == "offsets"), None)
        # One result may stand for gradients by either of two inputs: those share a flag.
        self.results = [
            [row for row in self.rows.values() if row.name == name or (row.flag and row.flag == self.rows[name].flag)]
            for name in results
        ]

    def extents(self, given: dict[str, Any]) -> dict[str, Any]:
        """Extents by axis, as the required inputs give them. Only ranks are checked: a kernel checks the rest."""
        offsets = given.get(self.offsets) if self.offsets else None
        extents: dict[str, Any] = {}
        for name in self.tensors:
            row = self.rows[name]
            if row.optional:
                continue
            axes, shape = row.axes.split(","), given[name].shape
            if len(axes) != len(shape):
                sizes = ",".join(str(size) for size in shape)
                raise ValueError(f"[{self.name}] {name} must have shape [{row.axes}], got [{sizes}]")
            for axis, size in zip(axes, shape, strict=True):
                extents.setdefault(axis, size)
        extents["N"] = extents["B"] if offsets is None else offsets.size(0) - 1
        return extents

    def check_devices(self, given: dict[str, Any]) -> None:
        """For fakes: torch calls them, not the CPU's or CUDA's kernel, as soon as one tensor is on the meta device."""
        device = given[self.first].device
        for name in self.tensors:
            tensor = given[name]
            if tensor is not None and tensor.device != device:
                raise ValueError(f"[{self.name}] {name} must be on {device}, got {tensor.device}")


TABLES = {table["name"]: Table(**table) for table in json.loads(tables())}


def register_fake(table: Table) -> None:
    def result(rows: list[Row], given: dict[str, Any], extents: dict[str, Any]) -> Tensor | None:
        row = rows[0]
        if row.flag is not None and not given[row.flag]:
            return None
        if row.role == "gradient":
            source = next((given[one.source] for one in rows if given[one.source] is not None), None)
            return None if source is None else source.new_empty(source.shape)
        shape = [extents[axis] for axis in row.axes.split(",")]
        return given[table.first].new_empty(shape, dtype=torch.float32 if row.dtype == "fp32" else None)

    def fake(*arguments: Any) -> Any:
        given = dict(zip(table.arguments, arguments, strict=True))
        table.check_devices(given)
        extents = table.extents(given)
        results = tuple(result(rows, given, extents) for rows in table.results)
        return results[0] if len(results) == 1 else results

    torch.library.register_fake(f"tandem::{table.name}", fake)


def pick(names: Iterable[str], values: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that takes the values of these names out of a sequence."""
    places = [values.index(name) for name in names]
    if len(places) > 1:
        return itemgetter(*places)
    return lambda sequence: tuple(sequence[place] for place in places)


def register_autograd(table: Table, backward: Table) -> None:
    """The gradients of a call by its backward call, which takes the same inputs, d_<output> of each output, and a flag
    for each gradient."""
    op = getattr(torch.ops.tandem, backward.name).default
    inputs = [name for name in table.arguments if name in backward.arguments]
    tensors = [name for name in inputs if name in table.tensors]
    numbers = [name for name in inputs if name not in tensors]
    cotangents = ["d_" + rows[0].name for rows in table.results]
    flags = [rows[0].flag for rows in backward.results]
    # Of each flag and each argument: the other side's places.
    sources = [[table.arguments.index(row.source) for row in rows] for rows in backward.results]
    gradient_of = {place: index for index, places in enumerate(sources) for place in places}
    slots = [gradient_of.get(place) for place in range(len(table.arguments))]
    pick_tensors, pick_numbers = pick(tensors, table.arguments), pick(numbers, table.arguments)
    arrange = pick(backward.arguments, [*tensors, *numbers, *cotangents, *flags])

    def zeros(ctx: Any, output: Row) -> Tensor:
        given = dict(zip(tensors, ctx.saved_tensors, strict=True))
        extents = table.extents(given)
        return given[table.first].new_zeros([extents[axis] for axis in output.axes.split(",")])

    required = [(i, rows[0]) for i, rows in enumerate(table.results) if not backward.rows[cotangents[i]].optional]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*pick_tensors(inputs))
        ctx.numbers = pick_numbers(inputs)
        ctx.set_materialize_grads(False)  # an output that the loss does not use costs nothing

    def formula(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        given = list(cotangents)
        for i, output in required:
            if given[i] is None:
                given[i] = zeros(ctx, output)
        needs = ctx.needs_input_grad
        wants = [any([needs[place] for place in places]) for places in sources]
        gradients = call(op, *arrange([*ctx.saved_tensors, *ctx.numbers, *given, *wants]))
        return tuple(
            [gradients[i] if i is not None and needed else None for i, needed in zip(slots, needs, strict=True)]
        )

    torch.library.register_autograd(f"tandem::{table.name}", formula, setup_context=setup_context)


def refuse_second_derivatives(backward: Table) -> None:
    op = backward.name.removesuffix("_backward")

    def refuse(ctx: Any, *gradients: Tensor | None) -> NoReturn:
        raise NotImplementedError(
            f"[{backward.name}] tandem.ops.{op} has no second derivative: do not differentiate through a gradient that "
            "was taken with create_graph=True"
        )

    # why: without it torch would return second derivatives that are cut from the graph.
    torch.library.register_autograd(f"tandem::{backward.name}", refuse)


def register_all() -> None:
    for table in TABLES.values():
        register_fake(table)
        backward = TABLES.get(table.name.removesuffix("_forward") + "_backward")
        # gla_state_backward gives no gradients: it is no derivative of gla_state.
        if backward is not None and any(row.source for row in backward.rows.values()):
            register_autograd(table, backward)
            refuse_second_derivatives(backward)


register_all()
