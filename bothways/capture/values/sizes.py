"""Whole numbers that are symbols: sizes and Python numbers that change from call to call.

Sums, products, quotients and comparisons of them are worked out as expressions; a comparison is decided and guarded.
For everything else the number is taken as the constant it is in this call, which a guard then says.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.values.base import Args, Kwargs, Value
from bothways.capture.values.constants import ConstantValue, constant_value
from bothways.symbols import expression_of

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.protocols import Operator
    from bothways.capture.sources import Source
    from bothways.capture.tracer import Tracer

ARITHMETIC = frozenset("+ - * // % == != < <= > >=".split())
UNARY = frozenset({"__neg__", "__pos__"})


class SizeValue(Value):
    """An ``int`` of the program whose value may be another one at the next call."""

    def __init__(self, content: torch.SymInt, source: Source | None = None) -> None:
        self.content, self.source = content, source

    def python_type(self) -> type:
        return int

    def constant(self) -> Any:
        return int(self.content)

    def _as_constant(self) -> ConstantValue:
        return ConstantValue(int(self.content))

    def hash_key(self, tracer: Tracer) -> Hashable:
        return int(self.content)

    def describe(self) -> str:
        return f"the number {self.content}"

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return self._as_constant().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return self._as_constant().call_method(tracer, name, args, kwargs)

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.content)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if op.symbol.endswith("=") and op.symbol not in ARITHMETIC:
            return None  # in place is the same as not, for numbers
        if not isinstance(other, (ConstantValue, SizeValue)) or not issubclass(other.python_type(), (int, float, complex)):
            return None
        number = other.content
        if op.symbol not in ARITHMETIC or not isinstance(number, (int, torch.SymInt)):
            from bothways.capture import protocols

            pair = [ConstantValue(other.constant()), self._as_constant()]
            left, right = pair if reflected else reversed(pair)
            arithmetic = protocols.compare if op.symbol in protocols.COMPARE else protocols.binary
            return arithmetic(tracer, op.symbol, left, right)
        operands = (number, self.content) if reflected else (self.content, number)
        result = tracer.run_const(op.function, *operands)
        return number_value(bool(result) if isinstance(result, torch.SymBool) else result)

    def unary(self, tracer: Tracer, function: Callable[[Any], Any], method: str) -> Value:
        if method == "__abs__":
            return number_value(-self.content if self.content < 0 else self.content)
        if method not in UNARY:
            return constant_value(function(int(self.content)))
        return number_value(function(self.content))

    def text(self, tracer: Tracer, conversion: str) -> str:
        return str(int(self.content))

    def format(self, tracer: Tracer, spec: str) -> str | None:
        return format(int(self.content), spec)

    # After the call.

    def name_hint(self) -> str:
        return "size"

    def rebuild(self, emitter: Emitter) -> str:
        text = emitter.tracer.symbols.text(expression_of(self.content), emitter)
        return f"({text})" if " " in text else text


def number_value(number: Any) -> Value:
    """A result of arithmetic: a symbol, or the constant it turned out to be."""
    return SizeValue(number) if isinstance(number, torch.SymInt) else ConstantValue(number)
