"""What people read instead of ``L['stack_0']``: the values that a break leaves on the stack of a continuation.

They have no name in the user's source, but each has a place there: the iterator of a loop, the end of a ``with``
block, what the line of the break has computed. Labels are for people only; code knows the values by their slots.
"""

from __future__ import annotations

import dis
import functools
import itertools
import types
from collections.abc import Mapping
from typing import NamedTuple

from bothways.runtime.resume import ResumePoint, line_of, origin_of, point_of

# The parameter that Python gives to the function of a comprehension or of a generator expression.
ITERABLE = ".0"


def labels_of(function: types.FunctionType, arguments: Mapping[str, object]) -> dict[str, str]:
    """The parameters of a function that the user has no name for, with what they are."""
    labels = {ITERABLE: "<what the comprehension goes through>"} if ITERABLE in arguments else {}
    point, origin = point_of(function), origin_of(function)
    if point is None:
        return labels
    slots = set(origin.slots)
    stack = {name: value for name, value in arguments.items() if name not in slots}
    loops = [loop for loop in _loops(origin.code) if loop.start <= point.offset < loop.end]
    iterators = [name for name, value in stack.items() if hasattr(type(value), "__next__")]
    if len(iterators) >= len(loops):  # those of loops are there before anything else that is one
        for loop, name in zip(loops, iterators, strict=False):
            labels[name] = f"<the iterator of the loop at line {loop.line}>"
    for name, value in stack.items():
        if getattr(value, "__name__", None) == "__exit__":
            labels[name] = "<the end of a with block>"
    others = [name for name in stack if name not in labels]
    if others and loops and point.offset == loops[-1].body:
        labels[others.pop()] = f"<the element of the loop at line {loops[-1].line}>"
    return {**labels, **_computed(others, origin.code, point)}


def _computed(names: list[str], code: types.CodeType, point: ResumePoint) -> dict[str, str]:
    line = line_of(code, point)
    if len(names) == 1:
        return {names[0]: f"<what line {line} has computed>"}
    return {name: f"<value {number} that line {line} has computed>" for number, name in enumerate(names, 1)}


class LoopLines(NamedTuple):
    """A ``for`` loop: the offsets from which to which its iterator is there, where its body begins, and its line."""

    start: int
    end: int
    body: int
    line: int


@functools.lru_cache(maxsize=256)
def _loops(code: types.CodeType) -> tuple[LoopLines, ...]:
    """The loops of a function, outer ones before those inside."""
    loops = []
    line = code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    for instruction, following in itertools.pairwise(instructions):
        position = instruction.positions
        line = (position and position.lineno) or line
        if instruction.opname == "FOR_ITER":
            loops.append(LoopLines(instruction.offset, int(instruction.argval), following.offset, line))
    return tuple(sorted(loops))
