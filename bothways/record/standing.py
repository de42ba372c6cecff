"""Where one function stands, for people: compiled, compiled in part, or plain Python, and why.

The same for a function, for what goes on after one of its breaks, and for what is called at one: each has programs of
its own, and each may be plain Python while the others are compiled.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from dataclasses import dataclass

from bothways.errors import Break
from bothways.record.compilation import CodeRange, from_line
from bothways.record.outcomes import Outcome, counted, summary
from bothways.runtime.program import Program
from bothways.runtime.resume import Continuation, entry_point, line_of, origin_of, point_of


class State(enum.Enum):
    """What becomes of the calls of a function. The values are what people read."""

    WAITING = "not called yet"
    COMPILED = "compiled"
    PARTLY = "compiled in part"
    PLAIN = "plain Python"


FOR_GOOD, SO_FAR = "from now on", "so far"


@dataclass(frozen=True)
class Standing:
    """One function, ``why`` some of its calls or all of them run as plain Python, and from when to when."""

    name: str
    state: State
    programs: int = 0
    operations: int = 0
    why: str = ""
    when: str = ""

    @property
    def for_good(self) -> bool:
        """Whether nothing more of it is compiled."""
        return self.when == FOR_GOOD

    def __str__(self) -> str:
        programs = counted(self.programs, "program")
        compiled = f"compiled, {programs}{' without tensor operations' * (not self.operations)}"
        others = "calls that fit none of them run" if self.for_good else "other calls ran"
        texts = {
            State.WAITING: "not called yet",
            State.COMPILED: compiled,
            State.PARTLY: f"{compiled}; {others} as plain Python{' from now on' * self.for_good}: {self.why}",
            State.PLAIN: f"plain Python{self.when and ' '}{self.when}: {self.why}",
        }
        return f"{self.name}: {texts[self.state]}"


def standing_of(
    name: str, programs: Sequence[Program], *, is_new: bool, stopped: str | None, gave_up: str, stance: str
) -> Standing:
    """The standing of a function with these programs. ``stopped`` says why nothing more is captured, ``gave_up`` why
    the last call that was not captured was not."""
    compiled = [program for program in programs if program.body]
    operations = sum(program.op_count for program in compiled)
    if stance == "force_eager" or (stance == "eager_on_recompile" and not compiled):
        return Standing(name, State.PLAIN, why=f"the stance is {stance!r}")
    why, when = (gave_up, SO_FAR) if stopped is None else (stopped, FOR_GOOD)
    if why and not compiled:
        return Standing(name, State.PLAIN, why=why, when=when)
    if is_new:
        return Standing(name, State.WAITING)
    if not why:
        return Standing(name, State.COMPILED, len(compiled), operations)
    return Standing(name, State.PARTLY, len(compiled), operations, why, when)


def rest_of(continued: Continuation, reason: Break | None) -> Standing:
    """The standing of what goes on after a break and is not compiled."""
    name = from_line(continued.origin.code.co_qualname, line_of(continued.origin.code, continued.point))
    why = "the frame itself goes on there" if reason is None else short(reason)
    return Standing(name, State.PLAIN, why=why, when=FOR_GOOD)


def left_out(function: types.FunctionType, most: int) -> Standing:
    """The standing of functions that are called at a break and are made anew so often that no more are compiled."""
    why = f"more than {most} functions were made from this code, and each would be compiled for itself"
    return Standing(function.__qualname__, State.PLAIN, why=why, when=FOR_GOOD)


def title_of(function: types.FunctionType) -> str:
    """What people call a function, or a continuation of one."""
    line = begins_at(function)
    return function.__qualname__ if line is None else from_line(function.__qualname__, line)


def begins_at(function: types.FunctionType) -> int | None:
    """The line a continuation goes on from; None for a function, or one that is entered at its beginning."""
    point, origin = point_of(function), origin_of(function)
    if point is None or (origin.closure_is_given and point == entry_point(origin.code)):
        return None
    return line_of(origin.code, point)


def lines_of(function: types.FunctionType) -> CodeRange:
    """The lines of a function, or of the one that it is the rest of."""
    code = origin_of(function).code
    lines = [line for _, _, line in code.co_lines() if line]
    return CodeRange(code.co_filename, min(lines, default=code.co_firstlineno), max(lines, default=0))


def limit_text(title: str, count: int, reason: str) -> str:
    """What is said when a function has as many programs as it may have."""
    return (
        f"{title} was compiled {counted(count, 'time')} (config.recompile_limit), and calls that fit none of these "
        f"programs run as plain Python from now on. The guard that failed last: {reason}. "
        "Pass what changes as a tensor, keep it constant, or raise config.recompile_limit."
    )


def limit_reason(count: int, reason: str) -> str:
    """Why nothing more is captured then."""
    return f"it was compiled {counted(count, 'time')} (config.recompile_limit); the guard that failed last: {reason}"


def short(reason: Break) -> str:
    """A break in one line."""
    where = reason.places[0]
    return f"{reason.reason} [{reason.code}]{f' at {where}' if where.line else ''}"


def told(outcomes: Sequence[Outcome], standings: Sequence[Standing]) -> str:
    """How all graphs run, in one line, and under it a line for each function."""
    return "\n".join([f"{summary(outcomes)}.", *dict.fromkeys(f"    {standing}" for standing in standings)])
