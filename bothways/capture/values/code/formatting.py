"""Text made by ``%`` and ``str.format`` from operands that are not all constants.

Python's own formatting runs on the constants and, for everything else, on objects that ask the captured
program for their text when the template does.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.wording import name_in_c

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator


class _Shown:
    """A Value as an operand of Python's formatting."""

    def __init__(self, tracer: Tracer, value: Value) -> None:
        self._tracer, self._value = tracer, value

    def __str__(self) -> str:
        return protocols.text(self._tracer, self._value, "str")

    def __repr__(self) -> str:
        return protocols.text(self._tracer, self._value, "repr")

    def __format__(self, spec: str) -> str:
        return protocols.format_value(self._tracer, self._value, spec)

    def __index__(self) -> int:
        return protocols.as_index(self._tracer, self._value)

    def __int__(self) -> int:
        kind = self._value.python_type()
        method = next((name for name in ("__int__", "__index__") if hasattr(kind, name)), None)
        if method is None:
            self._tracer.throw(TypeError, f"%d format: a real number is required, not {name_in_c(kind)}")
        return int(protocols.as_constant(self._tracer, protocols.call_attr(self._tracer, self._value, method)))

    def __float__(self) -> float:
        method = protocols.get_attr(self._tracer, self._value, "__float__")
        return float(protocols.as_constant(self._tracer, protocols.call(self._tracer, method, [])))

    def __getitem__(self, key: Any) -> Any:
        return operand(self._tracer, self._value.get_item(self._tracer, ConstantValue(key)))

    def __getattr__(self, name: str) -> Any:
        return operand(self._tracer, protocols.get_attr(self._tracer, self._value, name))


def operand(tracer: Tracer, value: Value) -> Any:
    """What Python's formatting gets for a Value."""
    value = value.realize()
    try:
        return value.constant()
    except NotConstant:
        if isinstance(value, TupleValue) and value.kind is tuple:
            return tuple(operand(tracer, item) for item in value.known_items())
        if isinstance(value, DictValue) and value.kind is dict:
            return {key: operand(tracer, item) for key, item in value.constant_items(tracer)}
        return _Shown(tracer, value)


def text_binary(tracer: Tracer, text: str | bytes, op: Operator, other: Value) -> Value | None:
    """``text op other`` for an operand that is no constant."""
    if op.symbol == "%" and isinstance(text, str):
        operands = other.known_items() if isinstance(other, TupleValue) and other.kind is tuple else [other]
        late = linked.late_text(tracer, text, operands, "%")
        if late is not None:
            return late
    if op.symbol == "+" and isinstance(text, str) and isinstance(other, linked.LateText):
        return other.binary(tracer, op, ConstantValue(text), True)
    if op.symbol == "%":
        return ConstantValue(tracer.run_const(op.function, text, operand(tracer, other)))
    kind = name_in_c(other.python_type())
    if op.symbol == "*" and issubclass(other.python_type(), (list, tuple, deque)):
        tracer.throw(TypeError, f"can't multiply sequence by non-int of type {kind!r}")
    if op.symbol == "+" and not hasattr(other.python_type(), "__radd__"):
        if isinstance(text, str):
            tracer.throw(TypeError, f'can only concatenate str (not "{kind}") to str')
        tracer.throw(TypeError, f"can't concat {kind} to bytes")
    return None


def format_text(tracer: Tracer, template: str, name: str, args: Args, kwargs: Kwargs) -> Value:
    """``template.format(…)`` and ``template.format_map(…)``."""
    late = linked.late_text(tracer, template, args) if name == "format" and not kwargs else None
    if late is not None:
        return late
    positional = [operand(tracer, arg) for arg in args]
    keywords = {key: operand(tracer, arg) for key, arg in kwargs.items()}
    return ConstantValue(tracer.run_const(getattr(template, name), *positional, **keywords))
