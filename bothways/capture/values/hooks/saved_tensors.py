"""``saved_tensors_hooks`` and its like inside a compiled function: two nodes, and what lies between runs as captured.

The pack hook runs while the graph does, before the effects of captured code and after everything captured code reads.
It may have effects of its own; where it and the function touch the same objects, the capture stops.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.guards import policy
from bothways.capture.guards.sources import Attr, Item, Source
from bothways.capture.standins.contexts import decorate
from bothways.capture.values.code.cells import CellValue
from bothways.capture.values.code.functions import FunctionValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, LazyValue, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.reach import keeps_apart, uses_of
from bothways.capture.values.objects.builtins import BoundBuiltin
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.writing.emit import resolve
from bothways.errors import Break, Unsupported
from bothways.runtime import hooks as runtime

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# What cannot be changed, or is changed at its own moment: the graph's.
UNCHANGING = (torch.Tensor, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodType)


@handles(torch_compat.push_saved_tensors_hooks)
def _push(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    pack, unpack = args
    state = tracer.torch_state
    if state.hooks_disabled:
        tracer.throw(RuntimeError, state.hooks_disabled[-1])
    roots = list(_roots(tracer, pack))
    named = (("pack", pack), ("unpack", unpack))
    hooks = tuple(tracer.graph.add_object(hook, name, checked=True).node for name, hook in named)
    push = runtime.push_saved_tensors_hooks if _is_library(pack) else runtime.push_users_hooks
    state.push_hooks(tracer.graph.statement(push, hooks))
    where, *stack = tracer.stack() or (tracer.where(),)  # the line of the ``with``, not PyTorch's

    def check() -> None:
        if not _guard_apart(tracer, roots):
            reason = "the pack hook of saved tensors may read or change what the function changes or reads"
            raise Unsupported(Break("hook", reason, where, tuple(stack)))

    tracer.assumptions.check_at_end(check)
    return ConstantValue(None)


@handles(torch_compat.pop_saved_tensors_hooks)
def _pop(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    if not tracer.torch_state.saved_tensors_hooks:
        tracer.stop("hook", "saved-tensor hooks are taken away that the function has not set")
    tracer.graph.statement(runtime.pop_saved_tensors_hooks, (tracer.torch_state.pop_hooks(),))
    return ConstantValue(None)


def _is_library(value: Value) -> bool:
    value = resolve(value)
    return isinstance(value, FunctionValue) and policy.is_library_module(policy.name_of(value.globals))


# What the pack hook leads to.


@dataclass(frozen=True)
class Root:
    """An object a hook starts from, and where a guard finds it; None for one that is the same in every call."""

    obj: object
    source: Source | None


def _roots(tracer: Tracer, hook: Value) -> Iterator[Root]:
    """Where a hook leads: the object itself, or for one that captured code has made, what it is made of."""
    pending, seen, holds_values, codes = [hook], set[int](), False, list[types.CodeType]()
    while pending:
        value = resolve(pending.pop())
        if id(value) in seen or isinstance(value, (ConstantValue, TensorValue)):
            continue
        seen.add(id(value))
        if value.source is not None:
            if value.mutated:
                tracer.stop("hook", "the pack hook of saved tensors refers to an object that the function changes")
            obj = value.obj if isinstance(value, LazyValue) else tracer.object_of(value)
            yield Root(obj, value.source)
            continue
        if isinstance(value, FunctionValue):
            empty = tuple(types.CellType() for _ in value.code.co_freevars)
            yield Root(types.FunctionType(value.code, value.globals, closure=empty), None)
            codes.append(value.code)
            pending += [*value.closure, *value.defaults, *value.keyword_defaults.values()]
            continue
        holds_values = holds_values or not isinstance(value, CellValue)
        pending += value.parts()
    if any(uses_of(code).cells for code in codes):
        tracer.stop("hook", "the pack hook of saved tensors changes a variable of the function")
    if holds_values and any(uses_of(code).changes_containers or uses_of(code).attributes for code in codes):
        tracer.stop("hook", "the pack hook of saved tensors may change an object that the function has made")


def _guard_apart(tracer: Tracer, roots: list[Root]) -> bool:
    """Whether the hook and captured code keep apart, which is guarded."""
    known = [
        (obj, value) for obj, value in tracer.known_objects() if value.source and not isinstance(obj, UNCHANGING)
    ]
    changed = [(obj, value.source) for obj, value in known if value.mutated]
    read = [(obj, value.source) for obj, value in known if not value.mutated]
    assumptions = tracer.assumptions
    guarded = (source for guard in assumptions.guards for source in guard.sources)
    sources = [*assumptions.expected_sources(), *guarded]
    names_read = frozenset(name for source in sources for name in _names_in(source))
    names_changed = frozenset(written.variable for written in tracer.effects.globals())
    objects = [tuple(obj for obj, _ in group) for group in (read, changed)]
    if not keeps_apart(tuple(root.obj for root in roots), objects[0], objects[1], names_read, names_changed):
        return False
    operands: list[Any] = [keeps_apart, names_read, names_changed]
    groups: list[list[Any]] = [
        [root.source or root.obj for root in roots],
        [source for _, source in read],
        [source for _, source in changed],
    ]
    texts = ["".join(_slot(operands, operand) + ", " for operand in group) for group in groups]
    tracer.guard("{{c0}}(({}), ({}), ({}), {{c1}}, {{c2}})".format(*texts), *operands)
    return True


def _slot(operands: list[Any], operand: Any) -> str:
    is_source = isinstance(operand, Source)
    count = sum(isinstance(known, Source) == is_source for known in operands)
    operands.append(operand)
    return f"{{{'s' if is_source else 'c'}{count}}}"


def _names_in(source: Source) -> Iterator[str]:
    step: Source | None = source
    while step is not None:
        if isinstance(step, Attr):
            yield step.attribute
        elif isinstance(step, Item) and isinstance(step.key, str):
            yield step.key
        step = step.base


# Where saved-tensor hooks are forbidden.


class DisabledHooks(Value):
    """``disable_saved_tensors_hooks(message)``."""

    def __init__(self, message: str) -> None:
        self.message = message
        self._entered: list[torch.fx.Node] = []

    def python_type(self) -> type:
        return contextlib._GeneratorContextManager

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        state = tracer.torch_state
        if name == "__enter__":
            if state.saved_tensors_hooks:
                tracer.throw(RuntimeError, self.message)
            self._entered.append(tracer.graph.statement(runtime.disable_saved_tensors_hooks, (self.message,)))
            state.disable_hooks(self.message)
            return ConstantValue(None)
        state.enable_hooks()
        tracer.graph.statement(runtime.restore_saved_tensors_hooks, (self._entered.pop(),))
        return ConstantValue(False)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """Used as a decorator."""
        return tracer.inline(decorate, [self, *args], kwargs)


@handles(torch.autograd.graph.disable_saved_tensors_hooks)
def _disable(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    (message,) = (*args, *kwargs.values())
    return DisabledHooks(str(protocols.as_constant(tracer, message)))
