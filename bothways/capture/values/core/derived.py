"""Numbers that Python works out from one that changes: ``math.cos(step)``, ``0.5 ** step``, ``min(1.0, step / 100)``.

Such a number is found like one that the call is given, before the graph runs: its path computes it. A guard makes sure
that computing it raises nothing and gives a number of the same kind; where it does not, the call is looked at anew.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Attr, Item, Reading, Source
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue, number_value
from bothways.symbols import expression_of, spelled

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Functions that follow from their arguments alone; of those that give no number, nothing is derived.
FUNCTIONS: frozenset[Any] = frozenset(one for one in vars(math).values() if isinstance(one, types.BuiltinFunctionType))


def derived(tracer: Tracer, function: Callable[..., Any], args: Sequence[Value]) -> Value | None:
    """What a function gives of one number that changes and of constants; None where that is to be a constant."""
    values = [arg.realize() for arg in args]
    if any(isinstance(value, linked.LateNumber) for value in values):
        return linked.late_math(tracer, function, values)
    numbers = [value for value in values if isinstance(value, NumberValue)]
    if not numbers or tracer.symbols.only_looks or any(number.is_unknown for number in numbers):
        return None
    symbols = {symbol for number in numbers for symbol in expression_of(number.content).symbols()}
    if len(symbols) != 1 or not all(isinstance(value, (NumberValue, ConstantValue)) for value in values):
        return None
    origin = tracer.symbols.sources.get(next(iter(symbols)))
    texts = list(map(_text, values))
    if origin is None or _is_size(origin) or None in texts:
        return None
    try:
        result = function(*(_now(value) for value in values))
    except (ArithmeticError, ValueError, TypeError):  # as it will be found again, and raised
        return None
    if type(result) not in (int, float) or result != result:
        return None
    name = getattr(function, "__name__", "function")
    called = tracer.inject(function, name).code("")
    known = tracer.symbols.found(result, Reading(origin, f"{called}({', '.join(filter(None, texts))})"))
    return None if known is None else number_value(known)


def _now(value: Value) -> Any:
    """The number of this call, of which nothing is assumed."""
    if isinstance(value, NumberValue):
        node = value.content.node
        return value.python_type()(expression_of(value.content).value(node.environment.values))
    assert isinstance(value, ConstantValue)
    return value.content


def _text(value: Value) -> str | None:
    """How a path spells an operand; None where it cannot."""
    if isinstance(value, NumberValue):
        return spelled(expression_of(value.content), lambda symbol: "{0}")
    content: Any = value.content if isinstance(value, ConstantValue) else None
    if type(content) not in (int, float) or not math.isfinite(content):
        return None
    return repr(content)


def _is_size(source: Source) -> bool:
    """Whether a number is a size of a tensor: those are reasoned about."""
    return isinstance(source, Item) and isinstance(source.origin, Attr) and source.origin.attribute == "shape"
