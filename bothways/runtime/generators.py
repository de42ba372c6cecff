"""Makes generators that have already begun: the generator's own code, entered at the ``yield`` it stands at.

A short beginning puts back the value stack, as in a continuation, and yields once; after that first step, which gives
nothing, the new generator stands where the other one stood. An exception thrown into it meets the handlers around that
``yield``, and what it delegates to is asked as always.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import Any

from bothways.runtime.code_tables import Handler, exception_table, instruction, line_of, lines_of_nothing, no_columns
from bothways.runtime.code_tables import packed_exception_table as packed
from bothways.runtime.resume import ResumePoint, put_back, slots_of, stack_names

UNIT = 2  # bytes of an instruction
AFTER_YIELD_FROM = 2  # what the low bits of RESUME's operand say
FOLLOWS_SEND = sys.version_info < (3, 12)


def suspended(code: types.CodeType, point: ResumePoint, globals_: dict[str, Any], name: str) -> types.FunctionType:
    """A function of the code's variables, its closure's cells and the stack's values that gives such a generator.

    ``point`` is the instruction behind a ``yield``.
    """
    function = types.FunctionType(suspended_code(code, point), globals_, name)
    function.__qualname__ = code.co_qualname
    return function


@functools.lru_cache(maxsize=1024)
def suspended_code(code: types.CodeType, point: ResumePoint) -> types.CodeType:
    slots = slots_of(code) + code.co_freevars
    names = stack_names(code, point.stack)
    before = b"".join([
        instruction("RETURN_GENERATOR"), instruction("POP_TOP"), instruction("RESUME"), *put_back(slots, point),
        instruction("LOAD_CONST", len(code.co_consts)),
    ])  # fmt: skip
    pause = _pause(code, point.offset)
    shift = len(before) + len(pause)
    rows = [
        row._replace(start=row.start + shift, end=row.end + shift, target=row.target + shift)
        for row in exception_table(code)
    ]
    handler = next((row for row in rows if row.start <= point.offset - UNIT + shift < row.end), None)
    if handler is not None:
        rows.insert(0, Handler(len(before), shift, *handler[2:]))
    line = (line_of(code, point.offset - UNIT) or code.co_firstlineno) - code.co_firstlineno
    units = len(pause) // UNIT - 1
    lines = [lines_of_nothing(len(before) // UNIT), no_columns(units, line), no_columns(1, -line)]
    return code.replace(
        co_argcount=len(slots) + len(names),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        co_varnames=(*slots, *names),
        co_cellvars=(*code.co_cellvars, *code.co_freevars),
        co_freevars=(),
        co_nlocals=len(slots) + len(names),
        co_consts=(*code.co_consts, None),
        co_code=before + pause + code.co_code,
        co_linetable=b"".join(lines) + code.co_linetable,
        co_exceptiontable=packed(rows),
        co_stacksize=max(code.co_stacksize, len(point.stack) + 2),
    )


def _pause(code: types.CodeType, offset: int) -> bytes:
    """A ``yield`` like the one before an offset, after which the code goes on there.

    The operands of the instructions tell what it is part of. In 3.11 the interpreter itself leaves the loop that
    delegates, when the delegate raises: by the instruction in front, whose place is kept here as well.
    """
    own = code.co_code[offset - UNIT : offset + UNIT]
    if not FOLLOWS_SEND or own[-1] & 3 != AFTER_YIELD_FROM:
        return own + instruction("JUMP_FORWARD", offset // UNIT)
    send = offset - 2 * UNIT
    leave = instruction("JUMP_FORWARD", (send + UNIT) // UNIT + code.co_code[send + 1])
    go_on = instruction("JUMP_FORWARD", (offset + len(leave)) // UNIT)
    return instruction("JUMP_FORWARD", 1) + instruction("SEND", (len(own) + len(go_on)) // UNIT) + own + go_on + leave


def begun(generator: Any) -> Any:
    """A generator of such a function, at the place it was made for."""
    next(generator)
    return generator


def finished(name: str) -> Any:
    """A generator that has come to its end."""

    def nothing() -> Any:
        return
        yield

    nothing.__name__ = nothing.__qualname__ = name
    generator = nothing()
    generator.close()
    return generator
