"""What the calls return for fake tensors, and what they refuse of them: the library's own checks, without data."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tandem._extension import Shape, refusal
from tandem._tables import Row, Table


def register_fake(table: Table) -> None:
    def fake(*passed: Any) -> Any:
        given = table.given(table.unpack(passed))
        check(table, given)
        extents = table.extents(given)
        results = tuple(result(table, rows, given, extents) for rows in table.results)
        return table.as_returned(results)

    torch.library.register_fake(f"tandem::{table.name}", fake)


def result(table: Table, rows: list[Row], given: dict[str, Any], extents: dict[str, Any]) -> Tensor | None:
    row = rows[0]
    asked = row.flag or row.made_with
    if asked is not None and (given[asked] is None or given[asked] is False):
        return None
    if row.role == "gradient" and row.source in given:
        sources = [given[one.source] for one in rows if one.source and given[one.source] is not None]
        return torch.empty_like(sources[0], memory_format=torch.contiguous_format) if sources else None
    first: Tensor = given[table.first]
    shape = [extents[axis] for axis in row.axes.split(",")]
    flag = (table.rows[row.dtype_of] if row.dtype_of else row).fp32_flag
    fp32 = row.dtype == "fp32" or (flag is not None and given[flag])
    return first.new_empty(shape, dtype=torch.float32 if fp32 and first.dtype != torch.float64 else None)


def check(table: Table, given: dict[str, Any]) -> None:
    """Raises the ValueError that a call would. What nothing here can run is left to the call: it may run elsewhere."""
    # Torch calls a fake, not the CPU's or CUDA's kernel, as soon as one tensor is on the meta device.
    device = given[table.first].device
    for name in table.tensors:
        if given[name] is not None and given[name].device != device:
            raise ValueError(f"[{table.name}] {name} must be on {device}, got {given[name].device}")
    error = refusal_of(table, given.values())
    if isinstance(error, ValueError):
        raise error


def refusal_of(table: Table, arguments: Iterable[Any]) -> Exception | None:
    """What a call would raise; None where it would run, or where sizes depend on data."""
    try:
        return refusal(table.name, [described(value) for value in arguments])
    except Unknown:
        return None


class Unknown(Exception):
    """A size depends on data."""


def described(value: Any) -> Any:
    if isinstance(value, Tensor):
        sizes, strides = ([hint(size) for size in sizes] for sizes in (value.shape, value.stride()))
        return Shape(value.dtype, value.device, sizes, strides)
    return value if value is None or isinstance(value, bool) else float(hint(value))


def hint(size: Any) -> Any:
    """The value of a symbolic size that the compiler traces with. Reading it makes no guard, so a graph stays one for
    all sizes; what another call gives is checked by that call."""
    if not isinstance(size, torch.SymInt | torch.SymFloat):
        return size
    if size.node.hint is None:
        raise Unknown
    return size.node.hint
