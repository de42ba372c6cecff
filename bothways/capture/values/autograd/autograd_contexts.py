"""The ``ctx`` of a custom ``autograd.Function``: while its bodies are looked at, and as an argument of a compiled one.

``ContextValue`` is the object that forward fills and backward reads; nothing of it reaches the program, because the
real function makes its own when it runs. ``RealContext`` is one that exists: the user compiled a body by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from bothways.capture.guards.sources import Source
from bothways.capture.values.code.attributes import is_data_descriptor, lookup
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.objects.builtins import BoundBuiltin
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# What a real ctx has beside what the user stores on it; only some of it means anything to a body that is looked at.
OWN_NAMES = frozenset(dir(torch.autograd.function.BackwardCFunction)) - frozenset(dir(object))


class FunctionContextValue(ObjectValue):
    """The ctx of a function whose bodies are interpreted."""

    def __init__(self, cls: type, needs_input_grad: list[Value]) -> None:
        super().__init__(cls)
        self.needs_input_grad = needs_input_grad
        self.saved: Args = []
        self.dirty: Args = []
        self.fixed: Args = []
        self.materializes = True
        self.in_forward = True
        self.is_unpacked = False  # whether backward asked for what was saved

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in _METHODS:
            return BoundBuiltin(self, name)
        if name in ("saved_tensors", "saved_variables"):
            self.is_unpacked = self.is_unpacked or not self.in_forward
            return TupleValue([] if self.in_forward else list(self.saved))
        if name == "needs_input_grad":
            return TupleValue(list(self.needs_input_grad))
        if name in OWN_NAMES and name not in self.attrs:
            tracer.stop("autograd_function", f"cannot read ctx.{name}")
        return super().get_attr(tracer, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if name in _METHODS or is_data_descriptor(lookup(torch.autograd.function.BackwardCFunction, name)):
            tracer.stop("autograd_function", f"cannot set ctx.{name}")
        super().set_attr(tracer, name, value)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name not in _METHODS:
            return super().call_method(tracer, name, args, kwargs)
        if not self.in_forward:
            tracer.stop("autograd_function", f"ctx.{name} is called outside of forward")
        if kwargs:
            tracer.stop("autograd_function", f"ctx.{name} is called with keywords")
        _METHODS[name](tracer, self, [arg.realize() for arg in args])
        return ConstantValue(None)


def _save(tracer: Tracer, context: FunctionContextValue, args: Args) -> None:
    context.saved = args


def _mark_dirty(tracer: Tracer, context: FunctionContextValue, args: Args) -> None:
    context.dirty = args


def _mark_fixed(tracer: Tracer, context: FunctionContextValue, args: Args) -> None:
    context.fixed = args


def _set_materialize(tracer: Tracer, context: FunctionContextValue, args: Args) -> None:
    context.materializes = protocols.truth(tracer, args[0])


def _nothing(tracer: Tracer, context: FunctionContextValue, args: Args) -> None:
    """What only matters to forward-mode derivatives, which take the real function."""


_METHODS: dict[str, Callable[[Tracer, FunctionContextValue, Args], None]] = {
    "save_for_backward": _save,
    "save_for_forward": _nothing,
    "mark_dirty": _mark_dirty,
    "mark_non_differentiable": _mark_fixed,
    "set_materialize_grads": _set_materialize,
}


def check_marks(tracer: Tracer, context: FunctionContextValue) -> None:
    """Stop where eager complains about what ctx was told, so that the complaint is eager's own."""
    for told in (context.saved, context.dirty, context.fixed):
        for value in told:
            is_none = isinstance(value, ConstantValue) and value.content is None
            if not isinstance(value, TensorValue) and not (told is context.saved and is_none):
                tracer.stop("op_failed", f"ctx is told about {value.describe()} where only tensors may be")


class RealContext(ObjectValue):
    """A ctx that exists, given to a body that was compiled by itself."""

    def __init__(self, cls: type, obj: object, source: Source) -> None:
        super().__init__(cls, obj=obj, source=source)
        self._read: dict[str, Value] = {}

    @classmethod
    def external(cls, tracer: Tracer, obj: object, source: Source) -> RealContext:
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        value = cls(type(obj), obj, source)
        tracer.remember(obj, value)
        return value

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        # Each real read of the saved tensors may unpack them anew; to captured code they are one set of tensors.
        if name not in ("saved_tensors", "saved_variables"):
            return super().get_attr(tracer, name)
        if name not in self._read:
            self._read[name] = super().get_attr(tracer, name)
        return self._read[name]
