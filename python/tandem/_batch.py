"""torch.vmap of a call: the mapped axis becomes a part of the batch axis B, or of the rows M."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tandem._tables import Row, Table

Op = Callable[..., Any]


def vmap(table: Table, op: Op, size: int, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
    """What torch.autograd.Function.vmap returns: of one call where B can take the mapped axis, else of one per item."""
    front = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(arguments, in_dims, strict=True)]
    mapped = {name for name, dim in zip(table.arguments, in_dims, strict=True) if dim is not None}
    results = together(table, op, size, table.given(front), mapped)
    if results is None:
        items = [[x if dim is None else x[i] for x, dim in zip(front, in_dims, strict=True)] for i in range(size)]
        called = [table.as_tuple(op(*x)) for x in items]
        results = [None if one[0] is None else torch.stack(one) for one in zip(*called, strict=True)]
    return table.as_returned(tuple(results)), table.as_returned(tuple(None if x is None else 0 for x in results))


def together(table: Table, op: Op, size: int, given: dict[str, Any], mapped: set[str]) -> list[Tensor | None] | None:
    """The results with the mapped axis in front, of one call; None where one cannot do it."""
    if not mapped <= set(table.tensors) or (table.offsets and given[table.offsets] is not None):
        return None
    # An item's gradient by a tensor that all share takes a tensor per item: only B keeps them apart.
    wanted = {row.source for rows in table.results for row in rows if row.source and row.flag and given[row.flag]}
    folded, spread = dict(given), {}
    for name in table.tensors:
        row, x = table.rows[name], given[name]
        axes = [] if x is None else row.choice(x.dim() - (name in mapped))
        if axes[:1] in (["B"], ["N"], ["M"]):
            folded[name] = (x if name in mapped else x.expand(size, *x.shape)).flatten(0, 1)
        elif x is not None and (name in mapped or name in wanted):
            if not axes or not row.batched:
                return None
            spread[name] = axes
    extents = table.extents(folded)
    for name, axes in spread.items():
        row, x = table.rows[name], given[name]
        alone = [extents[axis] if axis in axes else 1 for axis in row.batched]
        full = [extents[axis] for axis in row.batched]
        full[0] //= size
        x = x.reshape(size, *alone) if name in mapped else x.reshape(alone)
        folded[name] = x.expand(size, *full).flatten(0, 1)

    def apart(rows: list[Row], result: Tensor | None) -> Tensor | None:
        if result is None:
            return None
        result = result.view(size, result.size(0) // size, *result.shape[1:])
        summed = [
            i
            for row in rows
            if row.source in spread
            for i, axis in enumerate(row.batched, 1)
            if axis not in spread[row.source]
        ]
        return result.sum(summed) if summed else result

    results = table.as_tuple(op(*folded.values()))
    return [apart(rows, result) for rows, result in zip(table.results, results, strict=True)]
