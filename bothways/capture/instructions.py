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

from bothways.runtime.code_tables import exception_table

if TYPE_CHECKING:
    from bothways.capture.interpreter import Frame, Signal

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
    from bothways.capture.opcodes import handler_table

    table, unknown = handler_table()
    raw = list(dis.get_instructions(code))
    index_of = {instruction.offset: index for index, instruction in enumerate(raw)}
    # Exception ranges and jumps may name offsets of caches or prefixes that get_instructions folds away.
    offsets = sorted(index_of)

    def index_at(offset: int) -> int:
        found = index_of.get(offset)
        if found is not None:
            return found
        return bisect.bisect_left(offsets, offset)

    jumps = set(dis.hasjrel) | set(dis.hasjabs)
    line = code.co_firstlineno
    instructions = []
    for instruction in raw:
        line = _line_of(instruction) or line
        target = index_at(instruction.argval) if instruction.opcode in jumps else -1
        instructions.append(
            Instruction(
                instruction.opname,
                instruction.arg or 0,
                instruction.argval,
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


def _line_of(instruction: dis.Instruction) -> int | None:
    position = instruction.positions
    return position.lineno if position is not None else None
