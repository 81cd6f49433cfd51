"""The library's calls as ops of torch: what each call does beside its kernel when torch differentiates, maps or
traces it."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import Function, forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.compiler import is_compiling, is_dynamo_compiling

from tandem._batch import vmap
from tandem._extension import direct_call, error_of, increment_version
from tandem._fakes import register_fake
from tandem._gradients import Saved, formula, limit_of_backward, no_formula, refusal_of_backward, tangents_of
from tandem._tables import TABLES, Table

# Torch's own custom ops are made of these.
_any_requires_grad = torch._C._any_requires_grad
_below_autograd = torch._C._AutoDispatchBelowAutograd
_is_transformed = torch._C._are_functorch_transforms_active

_library = torch.library.Library("tandem", "IMPL")


def may_have_tangents() -> bool:
    """Graphs of torch.compile set no level of Python's, but torch.func's is active in them."""
    return forward_ad._current_level >= 0 or _is_transformed()


def widened(first: Tensor, log_decay: Tensor | None) -> Tensor | None:
    """A decay in fp32, beside a first tensor of fp64 in fp64; what is not of a floating dtype is left alone, and
    refused."""
    if not isinstance(log_decay, Tensor):
        return log_decay
    given = log_decay.dtype
    dtype = torch.float64 if isinstance(first, Tensor) and first.dtype == torch.float64 else torch.float32
    return log_decay.to(dtype) if given != dtype and given.is_floating_point else log_decay


class Op:
    """One call. `raw` is what graphs hold; torch finds its gradient through the dispatcher, which takes 10 us in
    Python: without a gradient the kernel is called below it, and past it where nothing looks on."""

    def __init__(self, table: Table) -> None:
        self.table = table
        raw = getattr(torch.ops.tandem, table.name).default
        self.raw = (lambda *arguments: raw(*table.pack(arguments))) if table.is_packed else raw
        self.numbers = [table.arguments.index(name) for name in table.numbers]
        self.in_place = table.arguments.index(table.in_place) if table.in_place else -1
        is_fp32 = "log_decay" in table.rows and table.rows["log_decay"].dtype == "fp32"
        self.log_decay = table.arguments.index("log_decay") if is_fp32 else None
        self.saved = Saved(table)
        # Without results there is nothing that tells a call which was made from one that was not.
        self.run_directly: Callable[..., Any] = lambda *arguments: NotImplemented
        if table.results:
            self.run_directly = direct_call(table.name, *limit_of_backward(table))
        # Raises why a call of these arguments has no gradient.
        self.refuse_gradients: Callable[[tuple[Any, ...]], None] = lambda arguments: None
        if table.in_place:
            self.refuse_gradients = lambda arguments: self.refuse_in_place(needs_gradient=True)
        self.differentiate_by(no_formula(table))
        register_fake(table)
        _library.impl(table.name, self.packed_kernel if table.is_packed else self.autograd_kernel, "Autograd")
        torch.library.register_vmap(f"tandem::{table.name}", self.packed_vmap)

    def __call__(self, *arguments: Any) -> Any:
        if is_dynamo_compiling():  # others that compile pass tensors that no call takes directly
            return self.in_graph(arguments)
        try:
            results = self.run_directly(*arguments) if forward_ad._current_level < 0 else NotImplemented
            if results is None and not _is_transformed():
                return self.differentiated(*arguments)
            if results is not None and results is not NotImplemented:
                return results
            if is_compiling():
                return self.in_graph(arguments)
            arguments = self.widened(arguments)
            return self.transform(arguments) if _is_transformed() else self.autograd_kernel(*arguments)
        except Exception as error:
            raise self.explain(error, arguments) from None

    def in_graph(self, arguments: tuple[Any, ...]) -> Any:
        arguments = self.widened(arguments)
        self.refuse_gradients_by_numbers(arguments)
        return self.raw(*arguments)

    def widened(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        place = self.log_decay
        if place is None:
            return arguments
        return (*arguments[:place], widened(arguments[0], arguments[place]), *arguments[place + 1 :])

    def transform(self, arguments: tuple[Any, ...]) -> Any:
        self.refuse_gradients_by_numbers(arguments)
        if self.table.in_place:
            self.refuse_in_place()
        return self.saved.asked(arguments, self.transformed(*self.saved.keeping(arguments)))

    def refuse_gradients_by_numbers(self, arguments: tuple[Any, ...]) -> None:
        for place in self.numbers:
            if isinstance(arguments[place], Tensor) and arguments[place].requires_grad:
                name = self.table.arguments[place]
                raise NotImplementedError(f"[{self.table.op}] has no gradient by {name}: multiply the output by it")

    def autograd_kernel(self, *arguments: Any) -> Any:
        """What graphs reach through the dispatcher: of torch.func's transforms, it is called for one at a time."""
        needs_gradient = torch.is_grad_enabled() and _any_requires_grad(*arguments)
        if not needs_gradient and not may_have_tangents():
            return self.run(*arguments)
        with enable_single_level_autograd_function() if _is_transformed() else nullcontext():
            self.refuse_gradients_by_numbers(arguments)
            if self.table.in_place:
                self.refuse_in_place(needs_gradient)
            if needs_gradient:
                self.refuse_gradients(arguments)
            return self.differentiated(*arguments)

    def packed_kernel(self, *passed: Any) -> Any:
        return self.autograd_kernel(*self.table.unpack(passed))

    def run(self, *arguments: Any) -> Any:
        results = self.run_directly(*arguments)
        return self.run_below(*arguments) if results is None or results is NotImplemented else results

    def run_below(self, *arguments: Any) -> Any:
        with _below_autograd():
            results = self.raw(*arguments)
        if self.table.in_place:
            increment_version((arguments[self.in_place],))
        return results

    def differentiate_by(self, backward: Callable[..., Any]) -> None:
        """Sets the gradient, torch.autograd.Function.backward; its context is Saved's."""
        saved, directly, tensors, rest = self.saved, self.run_directly, self.saved.tensors, self.saved.rest
        if_asked = saved.if_asked

        def forward(ctx: Any, *arguments: Any) -> Any:
            results = directly(*arguments)
            if results is NotImplemented:
                results = self.run_below(*arguments)
            # Saved.save() by the attributes that torch's methods set: each frame here is a percent of the call.
            ctx.to_save, ctx.rest, ctx.materialize_grads = tensors(arguments), rest(arguments), False
            if if_asked is not None:  # gla's states
                output = results[if_asked]
                ctx.to_save += (output,)
                if output is not None:
                    ctx.mark_non_differentiable(output)
            if forward_ad._current_level >= 0 or _is_transformed():
                ctx.save_for_forward(*ctx.to_save)
            return results

        def keeping_forward(ctx: Any, *arguments: Any) -> Any:
            results = self.run(*saved.keeping(arguments))
            saved.save(ctx, arguments, results, may_have_tangents())
            return saved.asked(arguments, results)

        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            saved.save(ctx, inputs, output, may_have_tangents())

        def function(base: type, op: Callable[..., Any], **methods: Callable[..., Any]) -> Any:
            methods |= {"backward": backward, "jvp": tangents_of(self.table, self.saved, op)}
            made: Any = type(self.table.name, (base,), {name: staticmethod(one) for name, one in methods.items()})
            return made.apply

        # why two: for one with a setup_context, which torch.func wants, torch takes 40 us more per call.
        self.differentiated = function(
            _SingleLevelFunction, self.raw, forward=keeping_forward if saved.decides else forward
        )
        self.transformed = function(
            Function, self, forward=self.run, setup_context=setup_context, vmap=partial(self.vmap, self)
        )

    def packed_vmap(self, info: Any, in_dims: Any, *passed: Any) -> Any:
        arguments = self.table.unpack(passed)
        if self.table.is_packed:
            in_dims = self.table.unpack([*in_dims[:-2], [], []])
            in_dims = [None if dim is False else dim for dim in in_dims]
        return self.vmap(self.raw, info, in_dims, *arguments)

    def vmap(self, op: Callable[..., Any], info: Any, in_dims: Any, *arguments: Any) -> Any:
        if self.table.in_place:
            self.refuse_in_place()
        return vmap(self.table, op, info.batch_size, in_dims, arguments)

    def refuse_in_place(self, needs_gradient: bool = False) -> None:
        whole = f"tandem.ops.{self.table.op.removesuffix('_step').removesuffix('_carry')}"
        raise NotImplementedError(
            f"[{self.table.op}] has no gradient: call it under torch.no_grad(), or train with {whole}"
            if needs_gradient
            else f"[{self.table.op}] updates its {self.table.in_place} in place, which torch.func and forward-mode AD "
            f"cannot follow: let B be the mapped axis, or take {whole}"
        )

    def explain(self, error: Exception, arguments: tuple[Any, ...]) -> Exception:
        """The error in our words: what is no tensor fails in many ways. Checked here, where it costs the others
        nothing."""
        for name, value in self.table.given(arguments).items():
            row = self.table.rows.get(name)
            if row is None or row.kind != "tensor" or isinstance(value, Tensor) or (row.optional and value is None):
                continue
            kind = type(value)
            text = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
            return TypeError(f"[{self.table.op}] {name} must be a torch.Tensor, got {text}")
        return error_of(error) if type(error) in (RuntimeError, ValueError, torch.OutOfMemoryError) else error


OPS = {name: Op(table) for name, table in TABLES.items()}

for op in OPS.values():
    backward = OPS.get(op.table.op + "_backward")
    # gla_state_backward and gated_scan_carry_backward give no gradients by a tensor of the op's.
    if backward is not None and any(row.source for row in backward.table.rows.values()):
        op.saved = Saved(op.table, backward.table)
        op.refuse_gradients = refusal_of_backward(op.table, backward.table)
        op.differentiate_by(formula(op.table, op.saved, backward.table, backward, backward.run_directly))
