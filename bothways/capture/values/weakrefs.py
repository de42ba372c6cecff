"""Weak references from outside: calling one gives what it leads to, as long as that lives."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from bothways.capture.sources import Expression, Source
from bothways.capture.values.base import Args, Kwargs, Value

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


class WeakrefValue(Value):
    """A ``weakref.ref``; a dead one gives None, which the guard on its result notices."""

    def __init__(self, reference: weakref.ReferenceType[Any], source: Source) -> None:
        self.reference, self.source = reference, source

    @classmethod
    def external(cls, tracer: Tracer, reference: weakref.ReferenceType[Any], source: Source) -> WeakrefValue:
        tracer.guard("type({s0}) is {c0}", source, weakref.ReferenceType)
        value = cls(reference, source)
        tracer.remember(reference, value)
        return value

    def python_type(self) -> type:
        return weakref.ReferenceType

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        assert self.source is not None
        return tracer.wrap(self.reference(), Expression(self.source, "{}()"))
