"""Numbers of NumPy that change from call to call: ``lam = np.random.beta(1, 1)``, ``alpha = 2 / (1 + np.exp(-p)) - 1``.

Each has a path that finds it before the graph runs, and what is computed of it is a path again, which NumPy itself
goes: types, rounding and overflows are NumPy's. Tensor operations take the number of Python that it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Reading
from bothways.capture.values.core import linked, numpy_numbers, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_value, guard_constant
from bothways.capture.values.core.numbers import NumberValue
from bothways.symbols import SYMBOLIC

if TYPE_CHECKING:
    from bothways.capture.guards.sources import Source
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

HELD = "{}.item()"  # the number of Python that one of NumPy's holds


class NumpyNumber(NumberValue):
    """A number of NumPy. ``content`` is the number of Python that it holds, ``source`` finds the object itself."""

    source: Source

    def __init__(self, content: Any, source: Source, kind: type) -> None:
        super().__init__(content, source)
        self._kind = kind

    def python_type(self) -> type:
        return self._kind

    def constant(self) -> Any:
        return self._kind(super().python_type()(self.content))

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.BoundBuiltin(self, name) if name == "item" else super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name == "item" and not args and not kwargs:
            return NumberValue(self.content)
        return super().call_method(tracer, name, args, kwargs)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if isinstance(other, linked.LateNumber):
            tracer.stop("tensor_value", "a number read from a tensor meets one of NumPy's")
        in_place = op.symbol.endswith("=") and op.symbol not in protocols.COMPARE  # the same as not, for numbers
        if in_place or not isinstance(other, (ConstantValue, NumberValue)):
            return None
        number = linked.derived(tracer, op.function, [other, self] if reflected else [self, other])
        return self._plainly(tracer, op, other, reflected) if number is None else number

    def unary(self, tracer: Tracer, function: Callable[[Any], Any], method: str) -> Value:
        number = linked.derived(tracer, function, [self])
        return constant_value(tracer.run_const(function, self.constant())) if number is None else number

    # After the call.

    def name_hint(self) -> str:
        return "number"

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.read(self.source)


def numpy_number(tracer: Tracer, number: Any, path: Source) -> Value:
    """A number of NumPy that is found at a path."""
    tracer.guard("type({s0}) is {c0}", path, type(number))
    content = tracer.symbols.computed(number.item(), Reading(path, HELD))
    if content is None:
        guard_constant(tracer, number, path)
    return NumpyNumber(content, path, type(number)) if isinstance(content, SYMBOLIC) else ConstantValue(number)


def number_from_outside(tracer: Tracer, number: Any, source: Source) -> Value | None:
    """A number of NumPy that the call finds; None where it is a constant."""
    if type(number) not in numpy_numbers.NUMBERS:
        return None
    content = tracer.symbols.number(number.item(), Reading(source, HELD))
    if content is None:
        return None
    tracer.guard("type({s0}) is {c0}", source, type(number))
    return NumpyNumber(content, source, type(number))
