"""The code that is being interpreted: its frames, its generators, and the exceptions that it handles."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from bothways.errors import OWN_CODE, UNKNOWN_POSITION, Position
from bothways.source_text import printable

if TYPE_CHECKING:
    from bothways.capture.bytecode.interpreter import Frame
    from bothways.capture.values.generators.generators import GeneratorValue
    from bothways.capture.values.objects.exceptions import ExceptionValue

# Whose lines tell people little: those of PyTorch, and what stands in bothways for code in C.
OF_OTHERS = (os.path.dirname(torch.__file__) + os.sep, *OWN_CODE)


class Running:
    """Where the captured program is."""

    def __init__(self, handled_outside: BaseException | None = None, frames: list[Frame] | None = None) -> None:
        self.frames: list[Frame] = frames or []  # the innermost last
        self.handled_outside = handled_outside  # by the caller of the captured function
        # The exceptions being handled: by the program, and by each generator that is running, innermost last.
        self.handling: list[ExceptionValue | None] = [None]
        self.generators: list[GeneratorValue] = []  # all that were made
        self.backwards = self.updates = 0  # how many backwards and steps of optimizers were captured

    def fork(self) -> Running:
        """The same frames, for code that is only looked at."""
        return Running(self.handled_outside, list(self.frames))

    def release(self) -> None:
        """Let go of the user's objects."""
        self.handled_outside, self.generators = None, []

    # Frames.

    def enter(self, frame: Frame) -> None:
        self.frames.append(frame)

    def leave(self) -> None:
        self.frames.pop()

    def where(self) -> Position:
        return self.frames[-1].position() if self.frames else UNKNOWN_POSITION

    def led_by(self) -> int:
        """The instruction of the captured function itself that runs, by its number; -1 where none does."""
        return self.frames[0].index - 1 if self.frames else -1

    def stack(self) -> tuple[Position, ...]:
        """The positions of the callers, the innermost first."""
        return tuple(frame.position() for frame in reversed(self.frames[:-1]))

    def origin(self) -> str:
        """Where the program is, in the form PyTorch writes it: as a stack trace, the innermost last.

        A line of PyTorch's own layers says little; before it comes the line that calls the layer.
        """
        where = self.where()
        if not where.filename.startswith(OF_OTHERS):
            return _frame_text(where)
        for frame in reversed(self.frames[:-1]):
            if not frame.code.co_filename.startswith(OF_OTHERS):
                return f"{_frame_text(frame.position())}\n{_frame_text(where)}"
        return _frame_text(where)

    # Exceptions and generators.

    @property
    def handled(self) -> ExceptionValue | None:
        """The exception a bare ``raise`` raises again, and the context of a new one."""
        return next((exception for exception in reversed(self.handling) if exception is not None), None)

    def handle(self, exception: ExceptionValue | None) -> None:
        """Handle an exception from now on, or none."""
        self.handling[-1] = exception

    def resume_generator(self, handled: ExceptionValue | None) -> None:
        """A generator runs, which was handling an exception when it stopped."""
        self.handling.append(handled)

    def suspend_generator(self) -> ExceptionValue | None:
        """The generator stops; what it is handling now."""
        return self.handling.pop()

    def note_backward(self) -> None:
        self.backwards += 1

    def note_update(self) -> None:
        self.updates += 1

    def add_generator(self, generator: GeneratorValue) -> None:
        self.generators.append(generator)


def _frame_text(where: Position) -> str:
    """A line of a stack trace. It ends up in comments and in keys of the cache."""
    file, function, text = map(printable, (where.filename, where.function, where.text))
    return f'File "{file}", line {where.line}, in {function}\n    {text}'
