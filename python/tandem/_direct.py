"""Calls past torch's dispatcher, which takes longer than the rest of a small call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tandem._extension import direct_call
from tandem._tables import Row, Table

_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_function_mode_enabled = torch._C._is_torch_function_mode_enabled
_is_profiler_enabled = torch._C._autograd._profiler_enabled
_tracing_state = torch._C._get_tracing_state


def _is_watched() -> bool:
    return _dispatch_modes() or _is_function_mode_enabled() or _is_profiler_enabled() or _tracing_state() is not None


def _is_like(table: Table, output: Row, given: Row) -> bool:
    """Whether an output has the shape and dtype of an input, where that is given."""
    if given.kind != "tensor" or given.role != "input":
        return False
    if output.source in table.rows:
        return output.source == given.name
    same = given.dtype == output.dtype or (given.name == table.first and output.dtype == "same")
    return same and given.axes == output.axes


def _is_named(table: Table, row: Row) -> bool:
    """Whether inputs that are always given name all axes of an output."""
    required = [one for one in table.rows.values() if one.kind == "tensor" and one.role == "input" and not one.optional]
    return set(row.axes.split(",")) <= {axis for one in required for axis in one.axes.split(",")}


def _maker(table: Table, row: Row) -> Callable[[tuple[Any, ...]], Tensor] | None:
    """A function of a call's arguments that makes an output of a table some of whose outputs come with inputs, one with
    a quotient among its axes, or one whose axes the inputs name: no input need be like it."""
    comes_with_input = any(one.made_with for one in table.rows.values())
    if row.role != "output" or not ("/" in row.axes or comes_with_input or _is_named(table, row)):
        return None
    places = table.arguments.index
    # Of each axis: the tensor that names it first, where, and what divides it: the argument at a place, or a number.
    sources = []
    for axis in row.axes.split(","):
        named, _, divisor = axis.partition("/")
        name = next(name for name in table.tensors if named in table.rows[name].axes.split(","))
        dim = table.rows[name].axes.split(",").index(named)
        by = places(divisor) if divisor and not divisor.isdigit() else None
        sources.append((places(name), dim, by, int(divisor) if divisor.isdigit() else 1))
    first, flag = places(table.first), (table.rows[row.dtype_of] if row.dtype_of else row).fp32_flag
    chosen = None if flag is None else places(flag)

    def make(arguments: tuple[Any, ...]) -> Tensor:
        like: Tensor = arguments[first]
        sizes = [
            -(-arguments[place].shape[dim] // (number if by is None else int(arguments[by])))
            for place, dim, by, number in sources
        ]
        fp32 = row.dtype == "fp32" or (chosen is not None and arguments[chosen])
        return like.new_empty(sizes, dtype=torch.float32 if fp32 and like.dtype != torch.float64 else None)

    return make


def direct(table: Table) -> Callable[[tuple[Any, ...]], Any]:
    """A function of a call's arguments. It returns NotImplemented, with nothing done, where something would look on
    (a mode, a profiler, a tracer), where a tensor is not a plain one as the kernels take it, and for outputs that
    no input is like or names."""
    call = direct_call(table.name)
    places = table.arguments.index
    # Of each result: the argument that asks for it or comes with it, the inputs that it may be like, and its maker.
    plan = []
    for rows in table.results:
        asked = rows[0].flag or rows[0].made_with
        likes = [places(name) for name in table.tensors for row in rows if _is_like(table, row, table.rows[name])]
        plan.append((None if asked is None else places(asked), likes, _maker(table, rows[0])))
    empty, contiguous = torch.empty_like, torch.contiguous_format

    def run(arguments: tuple[Any, ...]) -> Any:
        if _is_watched():
            return NotImplemented
        outputs: list[Tensor | None] = []
        for asked, likes, make in plan:
            if asked is not None and (arguments[asked] is None or arguments[asked] is False):
                outputs.append(None)
                continue
            for place in likes:
                if arguments[place] is not None:
                    outputs.append(empty(arguments[place], memory_format=contiguous))
                    break
            else:
                if make is None:
                    return NotImplemented
                try:
                    outputs.append(make(arguments))
                except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError):  # to be refused
                    return NotImplemented
        if call(*arguments, *outputs) is NotImplemented:
            return NotImplemented
        return table.as_returned(tuple(outputs))

    return run
