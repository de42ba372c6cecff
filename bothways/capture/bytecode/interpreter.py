"""Runs a frame symbolically: the loop, the value stack, and the way exceptions find their handlers.

A Frame interprets one call; inlined calls push further frames. What an instruction means is in the opcode
tables, what an operation on Values means is in ``protocols``.
"""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.instructions import decode
from bothways.capture.bytecode.lines import WHY_LEFT
from bothways.capture.bytecode.turns import Loops
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.raised import Raised
from bothways.capture.writing.dropping import check_dropped
from bothways.errors import Position

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.code.functions import FunctionValue
    from bothways.capture.values.objects.exceptions import ExceptionValue


class Signal(enum.Enum):
    """Why the loop hands control back."""

    RETURN = "return"
    YIELD = "yield"


class Null:
    """The NULL that CPython pushes beside callables."""

    def __repr__(self) -> str:
        return "NULL"


NULL = Null()

# Capture is a thousand times slower than Python: a loop that goes on and on is none of tensors.
MOST_STEPS = 500_000


@dataclass(frozen=True)
class Handled:
    """Stands on the stack while an exception is handled: with the one that is handled again after it."""

    before: ExceptionValue | None
    raised: ExceptionValue


class Stopped(Exception):
    """The frame reached the instruction before which it was to stop."""


class Frame:
    """One call being interpreted."""

    def __init__(self, tracer: Tracer, function: FunctionValue, bound: dict[str, Value]) -> None:
        self.tracer = tracer
        self.function = function
        self.code: types.CodeType = function.code
        self.globals: dict[str, Any] = function.globals
        self.decoded = decode(function.code)
        # Cell variables hold their CellValue here, as CPython keeps the cell in the same slot.
        self.locals: dict[str, Any] = dict(bound)
        self.stack: list[Any] = []
        self.index = 0
        self.keyword_names: tuple[str, ...] = ()
        self.result: Value | None = None
        self.steps = 0  # how many instructions were begun
        self.stop_before = -1  # the number of the one before which capture stops
        self.left: frozenset[int] = frozenset()  # instructions that are left to plain Python
        self.loops = Loops(function.code)

    # The stack.

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_many(self, count: int) -> list[Any]:
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    # Positions.

    def line(self) -> int:
        return self.decoded.instructions[max(self.index - 1, 0)].line

    def position(self) -> Position:
        return Position(self.code.co_filename, self.line(), self.code.co_qualname)

    # The loop.

    def run(self) -> Signal:
        """Interpret until the frame returns or yields; ``result`` then holds the value."""
        instructions = self.decoded.instructions
        self.tracer.running.enter(self)
        try:
            while True:
                if self.steps == self.stop_before:
                    raise Stopped
                instruction = instructions[self.index]
                self.index += 1
                self.steps += 1
                if self.index - 1 in self.left:
                    self.tracer.stop("value_changes", WHY_LEFT)
                if self.steps > MOST_STEPS:
                    self.tracer.stop("too_long", f"{self.code.co_qualname} runs more than {MOST_STEPS} instructions")
                try:
                    signal = instruction.handler(self, instruction)
                except Raised as error:
                    self.unwind(error)
                    continue
                if signal is not None:
                    return signal
        finally:
            self.tracer.running.leave()

    def run_to_return(self) -> Value:
        self.run()
        assert self.result is not None
        return self.result

    def throw_in(self, error: Raised) -> None:
        """Raise an exception at the point where a suspended frame stands."""
        self.tracer.running.enter(self)
        try:
            self.unwind(error)
        finally:
            del error  # as below
            self.tracer.running.leave()

    def unwind(self, error: Raised) -> None:
        """Jump to the handler of the instruction that raised, or leave the frame."""
        row = self.decoded.handler_for(self.index - 1)
        error.remember(self.tracer, self.position())
        if row is None:
            try:
                raise error
            finally:
                del error  # its traceback leads to this frame, and must not come back from here
        lasti = self.index - 1
        for entry in self.stack[row.depth :]:
            check_dropped(self.tracer, entry)
        del self.stack[row.depth :]
        if row.push_lasti:
            self.push(lasti)
        self.push(error.value)
        self.index = row.target

    def jump(self, target: int) -> None:
        if target < self.index and self.tracer.running.backwards:
            self.loops.turn(self.tracer, target)
        self.index = target

    def enter_loop(self) -> None:
        """A loop asks for the next element, at the instruction that runs."""
        self.loops.enter(self.tracer, self.index - 1, self.steps - 1)
