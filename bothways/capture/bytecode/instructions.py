"""Decodes a code object once: instructions with their handlers, jump targets as indexes, exception table.

The opcode table of the running Python version binds names to handlers here, so that the interpreter's
loop only indexes and calls.
"""

from __future__ import annotations

import bisect
import dis
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from bothways.capture.values.core import linked
from bothways.runtime.code_tables import exception_table
from bothways.runtime.resume import slots_of

if TYPE_CHECKING:
    from bothways.capture.bytecode.interpreter import Frame, Signal

    Handler = Callable[["Frame", "Instruction"], "Signal | None"]


@dataclass(slots=True)
class Instruction:
    """One instruction: what to do, its operand both raw and meaningful, where a jump goes, its source line."""

    name: str
    arg: int
    argval: Any
    target: int
    line: int
    offset: int
    handler: Handler


@dataclass(frozen=True, slots=True)
class HandlerRange:
    """One row of the exception table, in instruction indexes: who handles what is raised in [start, end)."""

    start: int
    end: int
    target: int
    depth: int
    push_lasti: bool


@dataclass(frozen=True, slots=True)
class Decoded:
    """A code object as the interpreter runs it."""

    instructions: list[Instruction]
    handlers: tuple[HandlerRange, ...]

    def handler_for(self, index: int) -> HandlerRange | None:
        for row in self.handlers:
            if row.start <= index < row.end:
                return row
        return None


@lru_cache(maxsize=4096)
def decode(code: types.CodeType) -> Decoded:
    table, unknown = linked.handler_table()
    raw = [instruction for instruction in dis.get_instructions(code) if instruction.opname != "NOT_TAKEN"]
    index_of = {instruction.offset: index for index, instruction in enumerate(raw)}
    # Exception ranges and jumps may name offsets of caches or prefixes that get_instructions folds away, and since 3.14
    # of marks beside branches, which nothing but monitoring looks at.
    offsets = sorted(index_of)

    def index_at(offset: int) -> int:
        index = index_of.get(offset)
        if index is not None:
            return index
        return bisect.bisect_left(offsets, offset)

    jumps = set(dis.hasjrel) | set(dis.hasjabs)
    frame_names = slots_of(code) + free_names(code)
    has_namesakes = frame_names[len(frame_names) - len(code.co_freevars) :] != code.co_freevars
    line = code.co_firstlineno
    instructions = []
    for instruction in raw:
        line = _line_of(instruction) or line
        target = index_at(instruction.argval) if instruction.opcode in jumps else -1
        argval = instruction.argval
        if has_namesakes and instruction.opcode in _ABOUT_SLOTS:
            argval = _slot_names(instruction, frame_names)
        instructions.append(
            Instruction(
                instruction.opname,
                instruction.arg or 0,
                argval,
                target,
                line,
                instruction.offset,
                table.get(instruction.opname, unknown),
            )
        )
    handlers = tuple(
        HandlerRange(index_at(start), index_at(end), index_at(target), depth, lasti)
        for start, end, target, depth, lasti in exception_table(code)
    )
    return Decoded(instructions, handlers)


# Since 3.12 a comprehension is part of its function, and its variable may have the name of one of a function around it.
FREE = " (free)"


def free_names(code: types.CodeType) -> tuple[str, ...]:
    """The variables of the functions around it, as a frame knows them: never by the name of one of its own."""
    return tuple(name + FREE if name in code.co_varnames else name for name in code.co_freevars)


_ABOUT_SLOTS = frozenset(dis.haslocal) | frozenset(dis.hasfree)


def _slot_names(instruction: dis.Instruction, names: tuple[str, ...]) -> str | tuple[str, ...]:
    arg = instruction.arg or 0
    return (names[arg >> 4], names[arg & 15]) if isinstance(instruction.argval, tuple) else names[arg]


def _line_of(instruction: dis.Instruction) -> int | None:
    position = instruction.positions
    return position.lineno if position is not None else None
