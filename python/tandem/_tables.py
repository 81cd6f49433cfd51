"""The library's tables: what torch's ops, their fakes, gradients and batching follow from."""

import dataclasses
import json
from typing import Any

from tandem._extension import tables


def as_number(op: str, name: str, value: Any) -> float:
    """The value as a float, or an error that names the argument."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"[{op}] {name} must be a number, got {value!r}") from None


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor or number of a call."""

    name: str
    kind: str  # "tensor" or "number"
    role: str  # "input", "output", "in_place" or "gradient"
    optional: bool
    axes: str  # "B,T,H,V", or "H|B,T,H" for a choice
    # The rule: "fp32", "same" as the call's first tensor, "offsets" (cu_seqlens), "positions"... Beside a first tensor
    # of fp64 all but these two are fp64.
    dtype: str
    instead_of: str | None  # the input that it stands in for
    source: str | None  # of a gradient: its input, of this call or of the forward alone
    made_with: str | None  # of an output: the input with which it is made, without being asked for
    kept_as: str | None  # of a backward's input: the forward's output that it is where the forward was not given it
    dtype_of: str | None  # of an output of "same_or_fp32": the output that says which
    flag: str | None  # the argument that asks for this output
    fp32_flag: str | None  # the argument that asks for fp32

    @property
    def choices(self) -> list[list[str]]:
        return [choice.split(",") for choice in self.axes.split("|")]

    def choice(self, rank: int) -> list[str]:
        """The axes of a tensor of this rank; none where it may not have it."""
        return next((axes for axes in self.choices if len(axes) == rank), [])

    @property
    def batched(self) -> list[str]:
        """The choice with the axis B; none where there is no such choice."""
        return next((axes for axes in self.choices if axes[0] == "B"), [])


class Table:
    """One call of the library: its arguments and results in torch's order, and their rows. Where it `is_packed`, torch
    is passed the tensors, and then the places of the numbers and flags that are given, and their values."""

    def __init__(
        self, name: str, is_packed: bool, arguments: list[str], results: list[str], parameters: list[dict[str, Any]]
    ) -> None:
        self.name, self.is_packed, self.arguments = name, is_packed, arguments
        self.op = name.removesuffix("_forward")  # as users call it
        self.rows = {row["name"]: Row(**row) for row in parameters}
        self.first = parameters[0]["name"]
        self.tensors = [name for name in arguments if name in self.rows and self.rows[name].kind == "tensor"]
        self.numbers = [name for name in arguments if name in self.rows and self.rows[name].kind == "number"]
        # Where there are several, a call has all of them or none, and they list equally many sequences.
        self.offsets = next((row.name for row in self.rows.values() if row.dtype == "offsets"), None)
        self.in_place = next((row.name for row in self.rows.values() if row.role == "in_place"), None)
        self.flags = [name for name in arguments if name not in self.rows]
        axes = {axis for row in self.rows.values() for axis in row.axes.split(",")}
        self.quotients = {axis for axis in axes if "/" in axis}
        self.differences = {axis for axis in axes if "-" in axis}
        # One result may stand for gradients by either of two inputs: those share a flag.
        self.results = [
            [row for row in self.rows.values() if row.name == name or (row.flag and row.flag == self.rows[name].flag)]
            for name in results
        ]

    def as_tuple(self, results: Any) -> tuple[Any, ...]:
        """What a call returned: torch's ops return one result as it is."""
        return (results,) if len(self.results) == 1 else results

    def as_returned(self, results: tuple[Any, ...]) -> Any:
        """What a call of these results returns: None of none."""
        return (results or None) if len(self.results) != 1 else results[0]

    def given(self, arguments: Any) -> dict[str, Any]:
        return dict(zip(self.arguments, arguments, strict=True))

    def pack(self, arguments: Any) -> list[Any]:
        """What torch's op is passed."""
        if not self.is_packed:
            return list(arguments)
        tensors, given, numbers = [], [], []
        for place, (name, value) in enumerate(zip(self.arguments, arguments, strict=True)):
            if name in self.rows and self.rows[name].kind == "tensor":
                tensors.append(value)
            elif value is not None and value is not False:
                given.append(place)
                numbers.append(as_number(self.op, name, value))
        return [*tensors, given, numbers]

    def unpack(self, passed: Any) -> list[Any]:
        """The arguments that torch's op was passed."""
        if not self.is_packed:
            return list(passed)
        *tensors, given, numbers = passed
        values: dict[str, Any] = dict(zip(self.tensors, tensors, strict=True))
        for place, value in zip(given, numbers, strict=True):
            name = self.arguments[place]
            values[name] = value if name in self.rows else value != 0
        return [values.get(name, None if name in self.rows else False) for name in self.arguments]

    def extents(self, given: dict[str, Any]) -> dict[str, Any]:
        """Extents by axis, as the inputs that are given have them; of a choice of axes no axis is new."""
        offsets = given.get(self.offsets) if self.offsets else None
        extents: dict[str, Any] = {}
        for name in self.tensors:
            row = self.rows[name]
            if given[name] is not None and "|" not in row.axes and row.dtype != "offsets":
                for axis, size in zip(row.axes.split(","), given[name].shape, strict=True):
                    extents.setdefault(axis, size)
        if "B" in extents:
            extents["N"] = extents["B"] if offsets is None else offsets.size(0) - 1
        for quotient in self.quotients:
            axis, number = quotient.split("/")
            divisor = number if number.isdigit() else given[number]
            if divisor:
                extents[quotient] = -(-extents[axis] // int(divisor))
        for difference in self.differences:
            axis, number = difference.split("-")
            extents[difference] = extents[axis] - int(number)
        return extents


TABLES = {table["name"]: Table(**table) for table in json.loads(tables())}
