"""Lines that are left to plain Python: which instructions of a function those are at which capture stops."""

from __future__ import annotations

import types
from collections.abc import Collection

from bothways.capture.bytecode.instructions import decode
from bothways.capture.bytecode.turns import in_loop
from bothways.errors import Position

# What runs code of others, or finds something by what may be another at each call.
LEFT = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BINARY_SUBSCR"})
WHY_LEFT = "what this line relies on was otherwise at each of the last calls"


def line_left(code: types.CodeType, instruction: int) -> int | None:
    """The line of an instruction that may be left; None of others."""
    known = decode(code).instructions
    if not 0 <= instruction < len(known) or known[instruction].name not in LEFT or in_loop(code, instruction):
        return None
    return known[instruction].line


def instructions_left(code: types.CodeType, lines: Collection[Position]) -> frozenset[int]:
    """The instructions of these lines, by index; of those in loops none."""
    wanted = {where.line for where in lines if (where.filename, where.function) == (code.co_filename, code.co_qualname)}
    if not wanted:
        return frozenset()
    known = enumerate(decode(code).instructions)
    return frozenset(
        index for index, one in known if one.name in LEFT and one.line in wanted and not in_loop(code, index)
    )
