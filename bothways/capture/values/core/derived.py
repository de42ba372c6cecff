"""Numbers that Python works out from one that changes: ``math.cos(step)``, ``0.5 ** step``, ``np.exp(-5.0 * step)``.

Such a number is found like one that the call is given, before the graph runs: its path computes it. A guard makes sure
that computing it raises nothing and gives a number of the same kind; where it does not, the call is looked at anew.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bothways.capture.guards.sources import Attr, Item, Local, Source, Together, WorkedOut, spelled_with
from bothways.capture.values.core import linked, numpy_numbers
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue, number_value
from bothways.runtime.numpy_calls import without_warning
from bothways.symbols import expression_of, spelled

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Functions that follow from their arguments alone; of those that give no number, nothing is derived.
FUNCTIONS: frozenset[Any] = frozenset(one for one in vars(math).values() if isinstance(one, types.BuiltinFunctionType))
LONGEST = 1500  # characters that a path may have where it begins further back than at its operands


class Operand(NamedTuple):
    """Where a number comes from, and how it is spelled with ``{0}`` for that; a constant comes from nowhere."""

    origin: Source | None
    text: str


def derived(tracer: Tracer, function: Callable[..., Any], args: Sequence[Value]) -> Value | None:
    """What a function gives of one number that changes and of constants; None where that is to be a constant."""
    values = [arg.realize() for arg in args]
    if any(isinstance(value, linked.LateNumber) for value in values):
        return linked.late_math(tracer, function, values)
    numbers = [value for value in values if isinstance(value, NumberValue)]
    if not numbers or tracer.symbols.only_looks or any(number.is_unknown for number in numbers):
        return None
    operands = [_operand(tracer, value) for value in values]
    together = _from_one_place([operand for operand in operands if operand is not None])
    if None in operands or together is None:
        return None
    origin, texts = together
    is_numpys = function in numpy_numbers.PURE or any(map(_is_numpys, values))
    called = tracer.inject(function, getattr(function, "__name__", "function")).code("")
    now: list[Any] = [_now(value) for value in values]
    if is_numpys:
        texts.insert(0, called)
        called = tracer.inject(without_warning, "without_warning").code("")
        now.insert(0, function)
        function = without_warning
    try:
        result = function(*now)
    except (ArithmeticError, ValueError, TypeError):  # as it will be found again, and raised
        return None
    return _value_of(tracer, result, WorkedOut(origin, f"{called}({', '.join(texts)})"))


def _value_of(tracer: Tracer, result: Any, path: Source) -> Value | None:
    kind = type(result)
    if kind in (bool, *numpy_numbers.TRUTHS):
        tracer.guard("{s0} is {c0}", path, result)
        return ConstantValue(result)
    if kind not in (int, float, *numpy_numbers.NUMBERS) or result != result:
        return None
    if kind in numpy_numbers.NUMBERS:
        return linked.numpy_number(tracer, result, path)
    known = tracer.symbols.computed(result, path)
    return None if known is None else number_value(known)


def _now(value: Value) -> Any:
    """The number of this call, of which nothing is assumed."""
    if isinstance(value, NumberValue):
        node = value.content.node
        return value.python_type()(expression_of(value.content).value(node.environment.values))
    assert isinstance(value, ConstantValue)
    return value.content


def _operand(tracer: Tracer, value: Value) -> Operand | None:
    """How a path spells an operand; None where it cannot."""
    if isinstance(value, NumberValue):
        return Operand(value.source, "{0}") if _is_numpys(value) else _from_symbols(tracer, value)
    content: Any = value.content if isinstance(value, ConstantValue) else None
    if type(content) not in (int, float, *numpy_numbers.NUMBERS) or not math.isfinite(content):
        return None
    is_numpys = type(content) in numpy_numbers.NUMBERS
    return Operand(None, tracer.inject(content, "number").code("") if is_numpys else repr(content))


def _from_symbols(tracer: Tracer, number: NumberValue) -> Operand | None:
    """A number that is computed from others, by the place that all of these are found from."""
    symbols = list(expression_of(number.content).symbols())
    origins = [tracer.symbols.sources.get(symbol) for symbol in symbols]
    if not symbols or None in origins:
        return None
    together = _from_one_place([Operand(origin, "{0}") for origin in origins])
    if together is None:
        return None
    origin, texts = together
    text = spelled(expression_of(number.content), dict(zip(symbols, texts, strict=True)).__getitem__)
    return Operand(origin, f"({text})" if " " in text else text)


def _from_one_place(operands: Sequence[Operand]) -> tuple[Source, list[str]] | None:
    """The nearest place that all numbers among these come from, or their places together, where these are several
    arguments of a call; and how each is spelled with it. None where there is neither."""
    lines = [list(_line(operand.origin)) for operand in operands if operand.origin is not None]
    origin = next((step for step in lines[0] if all(step in line for line in lines)), None) if lines else None
    if origin is None:
        return _from_several(operands)
    texts = [_spelled_from(operand, origin) for operand in operands]
    if None in texts or sum(len(text or "") for text in texts) > LONGEST:
        return None
    return origin, [text for text in texts if text is not None]


def _from_several(operands: Sequence[Operand]) -> tuple[Source, list[str]] | None:
    places = list(dict.fromkeys(operand.origin for operand in operands if operand.origin is not None))
    together = Together(tuple(places))
    if not places or not all(isinstance(place.root, Local) for place in places) or len(_whole(together)) > LONGEST:
        return None
    at = {place: f"{{0}}[{number}]" for number, place in enumerate(places)}
    return together, [text if place is None else text.replace("{0}", at[place]) for place, text in operands]


def _whole(source: Source) -> str:
    return spelled_with(source, _whole)


def _line(source: Source) -> Iterator[Source]:
    """A place and all that it is reached by, back to where its path begins."""
    step: Source | None = source
    while step is not None:
        yield step
        step = step.base


def _spelled_from(operand: Operand, origin: Source) -> str | None:
    """How an operand is spelled with a place further back; None where the text of a step could not be a template."""
    place, text = operand
    while place is not None and place != origin:
        step = place.code("{0}")
        if step.replace("{0}", "").count("{") or step.replace("{0}", "").count("}"):
            return None
        text, place = text.replace("{0}", step), place.base
    return text


def _is_numpys(value: Value) -> bool:
    return value.python_type() in numpy_numbers.NUMBERS


def is_size(source: Source) -> bool:
    """Whether a number is a size of a tensor: those are reasoned about."""
    return isinstance(source, Item) and isinstance(source.origin, Attr) and source.origin.attribute == "shape"
