"""``max`` and ``min`` with numbers that are read behind the graph: ``best = min(best, loss.item())``.

The program calls them out there. Which of the numbers it is, and so whether it is a whole one, data decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.late_numbers import LateNumber
from bothways.runtime.nodes import ARITHMETIC, QUESTIONS, Applied

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

# What a limit on one side answers for both numbers.
BOUNDED = {"min": (">", ">="), "max": ("<", "<=")}


class LateChoice(LateNumber):
    """The larger or the smaller one of two numbers."""

    def __init__(self, tracer: Tracer, function: str, left: Value, right: Value) -> None:
        kinds = dict.fromkeys(kind for value in (left, right) for kind in _kinds(value))
        super().__init__(tracer, *kinds, operands=(left, right))
        self._function = function

    def require(
        self, question: str, others: tuple[float, ...], wanted: bool, applied: tuple[Applied, ...] = ()
    ) -> bool:
        late = [value for value in self._operands if isinstance(value, LateNumber)]
        known: list[Any] = [value.content for value in self._operands if isinstance(value, ConstantValue)]
        if len(late) + len(known) < 2:
            return False
        answers = [_answer(number, question, others, applied) is wanted for number in known]
        if known and all(answers) and not applied and not wanted and question in BOUNDED[self._function]:
            return True
        return all(answers) and all(value.require(question, others, wanted, applied) for value in late)

    def rebuild(self, emitter: Emitter) -> str:
        left, right = (emitter.rebuild(operand) for operand in self._operands)
        return self._named(emitter, f"{self._function}({left}, {right})")


def late_extreme(tracer: Tracer, function: str, left: Value, right: Value) -> Value | None:
    """``max`` or ``min`` of two numbers, where one is read behind the graph; None for all else."""
    left, right = left.realize(), right.realize()
    pair = (left, right)
    if not any(isinstance(value, LateNumber) for value in pair) or not all(map(_kinds, pair)):
        return None
    return LateChoice(tracer, function, left, right)


def _kinds(value: Value) -> tuple[type, ...]:
    """The kinds of number a value may be; none for what is no number."""
    if isinstance(value, LateNumber):
        return () if bool in value.kinds else value.kinds
    plain = isinstance(value, ConstantValue) and type(value.content) in (int, float)
    changes = isinstance(value, NumberValue) and value.python_type() in (int, float)
    return (value.python_type(),) if plain or changes else ()


def _answer(number: float, question: str, others: tuple[float, ...], applied: tuple[Applied, ...]) -> bool | None:
    """What is said of a number that is known; None where working it out raises."""
    try:
        for symbol, other, is_left in applied:
            number = ARITHMETIC[symbol](other, number) if is_left else ARITHMETIC[symbol](number, other)
        return QUESTIONS[question](number, *others)
    except (ArithmeticError, TypeError):
        return None
