"""The library's tables: what torch's ops, their fakes, gradients and batching follow from."""

import dataclasses
import json
from typing import Any

from tandem._extension import tables


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor or number of a call."""

    name: str
    kind: str  # "tensor" or "number"
    role: str  # "input", "output", "in_place" or "gradient"
    optional: bool
    axes: str  # "B,T,H,V", or "H|B,T,H" for a choice
    # The rule: "fp32", "same" as the call's first tensor, "offsets" (cu_seqlens)... Beside a first tensor of fp64 all
    # but the offsets are fp64.
    dtype: str
    instead_of: str | None  # the input that it stands in for
    source: str | None  # of a gradient: its input
    flag: str | None  # the argument that asks for this output

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
    """One call of the library: its arguments and results in torch's order, and their rows."""

    def __init__(self, name: str, arguments: list[str], results: list[str], parameters: list[dict[str, Any]]) -> None:
        self.name, self.arguments = name, arguments
        self.op = name.removesuffix("_forward")  # as users call it
        self.rows = {row["name"]: Row(**row) for row in parameters}
        self.first = parameters[0]["name"]
        self.tensors = [name for name in arguments if name in self.rows and self.rows[name].kind == "tensor"]
        self.numbers = [name for name in arguments if name in self.rows and self.rows[name].kind == "number"]
        self.offsets = next((row.name for row in self.rows.values() if row.dtype == "offsets"), None)
        self.in_place = next((row.name for row in self.rows.values() if row.role == "in_place"), None)
        # One result may stand for gradients by either of two inputs: those share a flag.
        self.results = [
            [row for row in self.rows.values() if row.name == name or (row.flag and row.flag == self.rows[name].flag)]
            for name in results
        ]

    def given(self, arguments: Any) -> dict[str, Any]:
        return dict(zip(self.arguments, arguments, strict=True))

    def extents(self, given: dict[str, Any]) -> dict[str, Any]:
        """Extents by axis, as the required inputs give them."""
        offsets = given.get(self.offsets) if self.offsets else None
        extents: dict[str, Any] = {}
        for name in self.tensors:
            if not self.rows[name].optional:
                for axis, size in zip(self.rows[name].axes.split(","), given[name].shape, strict=True):
                    extents.setdefault(axis, size)
        extents["N"] = extents["B"] if offsets is None else offsets.size(0) - 1
        return extents


TABLES = {table["name"]: Table(**table) for table in json.loads(tables())}
