"""Weak references: calling one gives what it leads to, as long as that lives.

Those that captured code makes lead to objects from outside, which live as long as the call does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Reading, Source
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


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
        return tracer.wrap(self.reference(), Reading(self.source, "{}()"))


class MadeWeakref(Value):
    """A ``weakref.ref`` that captured code made."""

    def __init__(self, target: Value) -> None:
        self.target = target

    def python_type(self) -> type:
        return weakref.ReferenceType

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        return self.target

    def parts(self) -> Iterable[Value]:
        return (self.target,)

    def rebuild(self, emitter: Emitter) -> str:
        return f"{emitter.inject(weakref.ref, 'ref')}({emitter.rebuild(self.target)})"


@handles(weakref.ref)
def _ref(tracer: Tracer, target: Value, callback: Value | None = None) -> Value:
    target = target.realize()
    if callback is not None or target.source is None or isinstance(target, ConstantValue):
        tracer.stop("object_unknown", f"a weak reference is made to {target.describe()}")
    return MadeWeakref(target)
