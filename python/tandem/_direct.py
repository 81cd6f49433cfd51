"""Calls past torch's dispatcher, which takes longer than the rest of a small call."""

from collections.abc import Callable
from typing import Any

import torch

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
    if output.source is not None:
        return output.source == given.name
    same = given.dtype == output.dtype or (given.name == table.first and output.dtype == "same")
    return same and given.axes == output.axes


def direct(table: Table) -> Callable[[tuple[Any, ...]], Any]:
    """A function of a call's arguments. It returns NotImplemented, with nothing done, where something would look on
    (a mode, a profiler, a tracer), where a tensor is not a plain one as the kernels take it, and for outputs that are
    like no input."""
    call = direct_call(table.name)
    # Of each result: the flag that asks for it, and the inputs that it may be like.
    places = table.arguments.index
    plan = [
        (
            None if rows[0].flag is None else places(rows[0].flag),
            [places(name) for name in table.tensors for row in rows if _is_like(table, row, table.rows[name])],
        )
        for rows in table.results
    ]
    empty, contiguous = torch.empty_like, torch.contiguous_format

    def run(arguments: tuple[Any, ...]) -> Any:
        if _is_watched():
            return NotImplemented
        outputs = []
        for flag, likes in plan:
            if flag is not None and not arguments[flag]:
                outputs.append(None)
                continue
            for place in likes:
                if arguments[place] is not None:
                    outputs.append(empty(arguments[place], memory_format=contiguous))
                    break
            else:
                return NotImplemented
        if call(*arguments, *outputs) is NotImplemented:
            return NotImplemented
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return run
