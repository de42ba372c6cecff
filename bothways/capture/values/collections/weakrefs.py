"""Weak references: calling one gives what it leads to, as long as that lives.

Those that captured code makes lead to objects from outside, which live as long as the call does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Reading, Source
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.handlers import handles

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
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

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        return _compared(tracer, self, op, other)

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

    def identity(self) -> object:
        """References to one object are one, unless they have a callback."""
        return MadeWeakref, self.target.realize().identity()

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        return _compared(tracer, self, op, other)

    def parts(self) -> Iterable[Value]:
        return (self.target,)

    def rebuild(self, emitter: Emitter) -> str:
        return f"{emitter.inject(weakref.ref, 'ref')}({emitter.rebuild(self.target)})"


def _compared(tracer: Tracer, one: Value, op: Operator, other: Value) -> Value | None:
    """References are equal where what they lead to is, as long as that lives."""
    if op.symbol not in ("==", "!=") or not isinstance(other, (WeakrefValue, MadeWeakref)):
        return None
    if one is other or one.identity() == other.identity():
        return ConstantValue(op.symbol == "==")
    left, right = (each.call(tracer, [], {}).realize() for each in (one, other))
    if any(isinstance(target, ConstantValue) for target in (left, right)):
        tracer.stop("operator_unknown", "weak references are compared, one of which leads nowhere")
    return protocols.compare(tracer, op.symbol, left, right)


@handles(weakref.ref)
def _ref(tracer: Tracer, target: Value, callback: Value | None = None) -> Value:
    target = target.realize()
    if callback is not None or target.source is None or isinstance(target, ConstantValue):
        tracer.stop("object_unknown", f"a weak reference is made to {target.describe()}")
    return MadeWeakref(target)
