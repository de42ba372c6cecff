"""Slices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import Method, call_from_table

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter


class SliceValue(Value):
    """A slice: start, stop and step."""

    def __init__(self, bounds: list[Value]) -> None:
        self.bounds = bounds

    def python_type(self) -> type:
        return slice

    def constant(self) -> Any:
        return slice(*(bound.realize().constant() for bound in self.bounds))

    def hash_key(self, tracer: Tracer) -> Hashable:
        return tracer.run_const(lambda: (hash(self.constant()), self.constant())[1])

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        names = ("start", "stop", "step")
        return self.bounds[names.index(name)] if name in names else linked.class_attribute(tracer, self, name)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol in protocols.COMPARE and isinstance(other, SliceValue):
            return TupleValue(self.bounds).compare(tracer, op, TupleValue(other.bounds))
        return None

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return call_from_table(tracer, self, self.METHODS, slice(None), name, args, kwargs)

    def _indices(self, tracer: Tracer, length: Value) -> Value:
        indices = tracer.run_const(
            protocols.index_constant(tracer, self).indices, protocols.as_index(tracer, length)
        )
        return TupleValue([ConstantValue(number) for number in indices])

    METHODS: ClassVar[dict[str, Method]] = {"indices": _indices}

    def text(self, tracer: Tracer, conversion: str) -> str:
        return f"slice({', '.join(protocols.text(tracer, bound, 'repr') for bound in self.bounds)})"

    def parts(self) -> Iterable[Value]:
        return self.bounds

    def rebuild(self, emitter: Emitter) -> str:
        return f"slice({emitter.rebuild_all(self.bounds)})"
