"""Continuations: a function's own code object, entered in the middle.

Jumps in bytecode are relative, so the whole code stays as it is behind a short beginning that puts back the value
stack and jumps to the place. Local variables, the cells of variables that inner functions share, and the entries of
the stack come as arguments. Variables of the functions around it come from the closure, as always; or, for functions
that are made anew for each call, as cells among the arguments, so that one continuation serves them all.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bothways.runtime.code_tables import (
    SUSPENDS,
    exception_table,
    instruction,
    lines_of_nothing,
    packed_exception_table,
)
from bothways.runtime.dispatcher import RESUMED
from bothways.runtime.parameters import parameters_of


class Entry(enum.Enum):
    """What stands at a place of the value stack."""

    VALUE = "value"
    NULL = "null"  # beside a callable, or for a variable that a comprehension put aside unbound
    HANDLED = "handled"  # what is handled again after the exception that is handled now, which is given


class NotResumable(Exception):
    """The code cannot be entered at that place."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a frame goes on: a byte offset, what the stack holds there, and which variables are unbound.

    Variables that are ``kept`` are not read any more; they hold what cleans up when it goes.
    """

    offset: int
    stack: tuple[Entry, ...]
    unbound: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Origin:
    """What continuations go on with: a function's code and globals, and its closure, unless that is given, too.

    ``shift`` says how many bytes later the instructions are in the function it is the origin of.
    """

    code: types.CodeType
    globals: dict[str, Any]
    closure: tuple[types.CellType, ...] | None = None
    closure_is_given: bool = False
    shift: int = 0

    @property
    def slots(self) -> tuple[str, ...]:
        """The variables that continuations are given."""
        return slots_of(self.code) + (self.code.co_freevars if self.closure_is_given else ())

    def without_closure(self) -> Origin:
        """The same for every function of this code, where continuations can be given the closure."""
        code = self.code
        # ``super()`` looks for its class in the closure; and no two parameters can have one name.
        is_named_twice = not set(code.co_freevars).isdisjoint(slots_of(code))
        if self.closure is None or "__class__" in code.co_freevars or is_named_twice:
            return self
        return replace(self, closure=None, closure_is_given=True)


@dataclass(frozen=True)
class Continuation:
    """Where a program goes on, under which name it calls what goes on there, and whether that is compiled, too."""

    name: str
    origin: Origin
    point: ResumePoint
    is_compiled: bool


@dataclass(frozen=True)
class Resumed:
    """What a continuation is: where it comes from, where it goes on, and, of one that is compiled, what functions of
    its code share."""

    origin: Origin
    point: ResumePoint
    root: weakref.ref[Any] | None = None


def resumption_of(function: types.FunctionType) -> Resumed | None:
    """What a continuation is; None for any other function."""
    record: Resumed | None = getattr(function, RESUMED, None)
    return record


def origin_of(function: types.FunctionType) -> Origin:
    """Where a continuation comes from; any other function comes from itself."""
    record = resumption_of(function)
    return Origin(function.__code__, function.__globals__, function.__closure__) if record is None else record.origin


def resumed(origin: Origin, point: ResumePoint, root: weakref.ref[Any] | None = None) -> types.FunctionType:
    """The continuation at a point: a function of the origin's slots and of the stack's values."""
    code, shift = resumed_code(origin.code, point, origin.closure_is_given)
    function = types.FunctionType(code, origin.globals, code.co_name, None, origin.closure)
    function.__qualname__, function.__module__ = code.co_qualname, origin.globals.get("__name__", "")
    setattr(function, RESUMED, Resumed(replace(origin, shift=shift), point, root))
    return function


def point_of(function: types.FunctionType) -> ResumePoint | None:
    """Where a continuation goes on; None for any other function."""
    record = resumption_of(function)
    return None if record is None else record.point


def line_of(code: types.CodeType, point: ResumePoint) -> int:
    """The line of the source where a frame goes on."""
    lines = (line for start, end, line in code.co_lines() if start <= point.offset < end)
    return next(lines, None) or code.co_firstlineno


def slots_of(code: types.CodeType) -> tuple[str, ...]:
    """The variables of a frame that are its own, in the order of their slots."""
    return (*code.co_varnames, *(name for name in code.co_cellvars if name not in code.co_varnames))


@functools.lru_cache(maxsize=1024)
def resumed_code(
    code: types.CodeType, point: ResumePoint, closure_is_given: bool = False
) -> tuple[types.CodeType, int]:
    """The code of a continuation, and how many bytes later than in the original its instructions are."""
    if code.co_flags & SUSPENDS:
        raise NotResumable("the frame is one of a generator or a coroutine")
    free = code.co_freevars if closure_is_given else ()
    closure = () if closure_is_given else code.co_freevars
    slots = slots_of(code) + free
    names = stack_names(code, point.stack)
    beginning = b"".join(_beginning(slots, closure, free, point))
    shift = len(beginning)
    resumed = code.replace(
        co_argcount=len(slots) + len(names),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        co_varnames=(*slots, *names),
        co_cellvars=(*code.co_cellvars, *free),
        co_freevars=closure,
        co_nlocals=len(slots) + len(names),
        co_code=beginning + _with_closure_behind(code, len(slots), len(names) if closure else 0),
        co_linetable=lines_of_nothing(shift // 2) + code.co_linetable,
        co_exceptiontable=packed_exception_table(
            row._replace(start=row.start + shift, end=row.end + shift, target=row.target + shift)
            for row in exception_table(code)
        ),
        co_stacksize=max(code.co_stacksize, len(point.stack) + 2),
    )
    return resumed, shift


def stack_names(code: types.CodeType, stack: tuple[Entry, ...]) -> list[str]:
    """Parameters for the values of a stack, by names that the code does not use."""
    count = sum(entry is not Entry.NULL for entry in stack)
    taken = {*slots_of(code), *code.co_freevars}
    prefix = "stack"
    while any(f"{prefix}_{index}" in taken for index in range(count)):
        prefix += "_"
    return [f"{prefix}_{index}" for index in range(count)]


def _beginning(
    slots: tuple[str, ...], closure: tuple[str, ...], free: tuple[str, ...], point: ResumePoint
) -> Iterator[bytes]:
    if closure:
        yield instruction("COPY_FREE_VARS", len(closure))
    yield instruction("RESUME")
    yield from put_back(slots, point)
    # Never run: whoever looks at the frame's variables takes those for cells that such an instruction is for.
    cells = b"".join(instruction("MAKE_CELL", slots.index(name)) for name in free)
    yield instruction("JUMP_FORWARD", (point.offset + len(cells)) // 2)
    yield cells


def put_back(slots: tuple[str, ...], point: ResumePoint) -> Iterator[bytes]:
    """The instructions that make variables unbound again and put arguments on the stack."""
    for name in point.unbound:
        yield instruction("DELETE_FAST", slots.index(name))
    slot = len(slots)
    for entry in point.stack:
        if entry is Entry.NULL:
            yield instruction("PUSH_NULL")
            continue
        yield instruction("LOAD_FAST", slot)
        yield instruction("DELETE_FAST", slot)  # no other code sees it, and nothing keeps it alive
        slot += 1
        if entry is Entry.HANDLED:
            yield instruction("PUSH_EXC_INFO")
            yield instruction("POP_TOP")


# Two operands of four bits each, since 3.13.
_PAIRS = frozenset(dis.opmap[name] for name in dis.opmap if name.count("_FAST") == 2 and "AND_CLEAR" not in name)
_BY_SLOT = frozenset(dis.hasfree) | (frozenset(dis.haslocal) if sys.version_info >= (3, 13) else frozenset())


def _with_closure_behind(code: types.CodeType, first: int, count: int) -> bytes:
    """The instructions, for a frame in which the closure's slots come so many later, behind those of the stack."""
    if not count:
        return code.co_code
    moved = bytearray(code.co_code)
    extended = 0
    for offset, opcode in _units(code):
        arg = extended << 8 | moved[offset + 1]
        extended = arg if opcode == dis.EXTENDED_ARG else 0
        if opcode in _PAIRS:
            if max(arg >> 4, arg & 15) >= first:
                raise NotResumable("a variable of a function around it is read together with another one")
        elif opcode in _BY_SLOT and arg >= first:
            if arg >> 8 != arg + count >> 8:
                raise NotResumable("the function has too many variables")
            moved[offset + 1] = arg + count & 255
    return bytes(moved)


def _units(code: types.CodeType) -> Iterator[tuple[int, int]]:
    """Offset and opcode of each code unit that is an instruction, without their caches."""
    data = code.co_code
    offset = 0
    while offset < len(data):
        opcode = data[offset]
        yield offset, opcode
        offset += 2 + 2 * _caches(opcode)


def _caches(opcode: int) -> int:
    name = dis.opname[opcode]
    if sys.version_info >= (3, 13):
        return int(dis._inline_cache_entries.get(name, 0))  # type: ignore[attr-defined]
    return int(dis._inline_cache_entries[opcode])  # type: ignore[attr-defined]


def entry_point(code: types.CodeType) -> ResumePoint:
    """The beginning of a function, for a continuation whose closure is given; only the arguments are bound."""
    first = next(offset for offset, opcode in _units(code) if opcode != dis.opmap["COPY_FREE_VARS"])
    return ResumePoint(first, (), slots_of(code)[len(parameters_of(code)) :])
