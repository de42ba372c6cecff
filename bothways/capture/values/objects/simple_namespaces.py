"""``types.SimpleNamespace``: an object with attributes and nothing else, implemented in C."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from bothways.capture.values.code.attributes import lookup
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.objects.objects import ObjectValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


class SimpleNamespaceValue(ObjectValue):
    """An instance of SimpleNamespace or of a subclass."""

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name != "__init__":
            return super().call_method(tracer, name, args, kwargs)
        if args:
            tracer.stop("call_unknown", "SimpleNamespace is made from a mapping")
        for attribute, value in kwargs.items():
            self.store(tracer, attribute, value)
        return ConstantValue(None)

    def binary(self, tracer: Tracer, op: protocols.Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol not in ("==", "!=") or not isinstance(other, SimpleNamespaceValue):
            return super().binary(tracer, op, other, reflected)
        mine, theirs = (protocols.get_attr(tracer, value, "__dict__") for value in (self, other))
        return protocols.compare(tracer, op.symbol, mine, theirs)

    def text(self, tracer: Tracer, conversion: str) -> str:
        if any(isinstance(lookup(self.cls, name), types.FunctionType) for name in ("__repr__", "__str__")):
            return super().text(tracer, conversion)
        shown = "namespace" if self.cls is types.SimpleNamespace else self.cls.__name__
        if self.printing:
            return f"{shown}(...)"
        self.printing = True
        try:
            items = protocols.call_attr(tracer, protocols.get_attr(tracer, self, "__dict__"), "items")
            pairs = [protocols.unpack(tracer, entry) for entry in protocols.unpack(tracer, items)]
            texts = [f"{protocols.text(tracer, key)}={protocols.text(tracer, value, 'repr')}" for key, value in pairs]
        finally:
            self.printing = False
        return f"{shown}({', '.join(texts)})"
