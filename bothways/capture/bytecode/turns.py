"""Loops that train: capture unrolls loops, and a turn that holds a whole backward is worth a program of its own.

A few turns are one graph, as those of a step that adds up gradients. Of more, the capture stops where the loop begins:
each turn is then a call of the same program.
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

from bothways.capture.bytecode.instructions import decode
from bothways.errors import Break, Position, Unsupported

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# So many turns are captured that make an update, or that only add to gradients; and where the user wants one graph.
MOST_UPDATES = 4
MOST_BACKWARDS = 16
MOST_IN_ONE_GRAPH = 64

TRAINING_LOOP = "training_loop"


@dataclass
class TrainingLoop:
    """What the turns of one loop have done; ``begins`` is the number of the frame's instruction where it begins."""

    where: Position
    begins: int | None = None
    turns: int = 0
    backwards: int = 0
    updates: int = 0


@lru_cache(1024)
def _ranges(code: types.CodeType) -> tuple[tuple[int, int], ...]:
    """From where to where each loop of a function goes, by its instructions."""
    instructions = decode(code).instructions
    return tuple((one.target, index) for index, one in enumerate(instructions) if 0 <= one.target < index)


def in_loop(code: types.CodeType, index: int) -> bool:
    """Whether an instruction may run again in the same call."""
    return any(begin <= index <= end for begin, end in _ranges(code))


class Loops:
    """The loops of one frame, by their first instruction."""

    def __init__(self, code: types.CodeType) -> None:
        self._is_generator = bool(code.co_flags & inspect.CO_GENERATOR)  # of which not all can be handed over
        self._loops: dict[int, TrainingLoop] = {}
        self.stopped_at: int | None = None  # the instruction before which the frame has to stop

    def enter(self, tracer: Tracer, index: int, step: int) -> None:
        """A loop goes over something, once more or for the first time."""
        if index not in self._loops:
            loop = self._loops[index] = TrainingLoop(tracer.where(), step)
            if loop.where in tracer.options.turned and not self._is_generator:
                self._stop(tracer, loop)

    def turn(self, tracer: Tracer, index: int) -> None:
        """A loop has come to the end of a turn, and a backward was captured before."""
        running = tracer.running
        loop = self._loops.get(index)
        if loop is None:  # one that goes on while something is true
            loop = self._loops[index] = TrainingLoop(tracer.where())
        if running.backwards == loop.backwards:
            return
        loop.turns += 1
        most = MOST_UPDATES if running.updates > loop.updates else MOST_BACKWARDS
        loop.backwards, loop.updates = running.backwards, running.updates
        if tracer.options.fullgraph or self._is_generator:
            most = MOST_IN_ONE_GRAPH
        elif loop.begins is None and loop.where in tracer.options.turned:
            most = 1
        if loop.turns >= most:
            self._stop(tracer, loop)

    def _stop(self, tracer: Tracer, loop: TrainingLoop) -> NoReturn:
        self.stopped_at = loop.begins
        reason = "each turn of a loop runs a backward, and there are many"
        raise Unsupported(Break(TRAINING_LOOP, reason, loop.where, tracer.stack()))
