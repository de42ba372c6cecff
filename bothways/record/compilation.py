"""The record of one compilation from start to end: what was compiled and why, what came of it, and how long it took.

``bothways.history(f)`` gives those of a function; explanations and logs read nothing else. What is compiled later, a
backward at its first run or a part of a graph that was cut, adds to the same record. A record keeps no tensor, no
object of the user's and no program alive.
"""

from __future__ import annotations

import enum
import itertools
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bothways.errors import Break
from bothways.record.graphs import GraphText
from bothways.record.outcomes import Generated, Outcome, Piece, SavedValue
from bothways.record.replays import Replays
from bothways.runtime.dispatcher import Dispatcher
from bothways.runtime.program import Check, Program

# The stages in the order of the road; "backend" is one that people have brought along.
STAGES = ("capture", "differentiate", "lower", "build", "backend", "program")
# Other reasons for a break at a place that was told of so often are not told of: sizes make a new one at each call.
REASONS_AT_A_PLACE = 8
# So many records of one function are kept, besides those of programs in use.
MOST_RECORDS = 256

_numbers = itertools.count(1)


class Conclusion(enum.Enum):
    """What came of a compilation. The values are what people read."""

    OPEN = "under way"
    PROGRAM = "a program"
    ONCE = "a program for this call alone"
    PLAIN = "plain Python"
    FAILED = "an error"


class CodeRange(NamedTuple):
    """The lines of a function."""

    filename: str
    first: int
    last: int


class StageSpan(NamedTuple):
    """One stage as it ran: when it began, in seconds of ``time.perf_counter``, and how long it took with all in it."""

    stage: str
    begin: float
    seconds: float


@dataclass(eq=False, repr=False)
class Compilation:
    """One compilation from start to end. Print it to read it in a few lines.

    ``name`` is the function's, ``from_line`` the line it goes on from if this is the rest of it after a break.
    ``failed_guard`` is the guard of the last program that failed, if there was a program. ``seconds`` are those of each
    stage, without the stages inside it. ``graph`` is the captured graph; ``graphs`` are the texts of all of them:
    captured, joint, forward, backward.
    """

    name: str
    backend: str
    from_line: int | None = None
    failed_guard: str | None = None
    is_first: bool = True
    number: int = field(default_factory=lambda: next(_numbers))
    conclusion: Conclusion = Conclusion.OPEN
    reason: str = ""  # why it is plain Python, or which error there was
    is_recompilation: bool = False  # beside a program that was made before
    seconds: dict[str, float] = field(default_factory=dict)
    spans: list[StageSpan] = field(default_factory=list, repr=False)
    began: float = field(default_factory=time.time, repr=False)
    code: CodeRange | None = None
    graph: Any = field(default=None, repr=False)
    graphs: list[GraphText] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    generated: list[Generated] = field(default_factory=list, repr=False)
    saved: list[SavedValue] = field(default_factory=list, repr=False)  # for the backward
    outcome: Outcome | None = None  # how the graph runs, where there is one
    settings: dict[str, Any] = field(default_factory=dict, repr=False)  # of the configuration, where they matter
    replays: list[Replays] = field(default_factory=list)  # of graphs on a GPU: what is replayed as CUDA graphs
    cuda_graphs: bool | None = None  # what the function's mode says about these, where it says something
    # The program, as each of the functions has it that share it.
    _holders: list[tuple[weakref.ref[Program], weakref.ref[Dispatcher]]] = field(default_factory=list, repr=False)

    @property
    def function(self) -> str:
        """What was compiled: the function's name, with the line if it is the rest of one after a break."""
        return self.name if self.from_line is None else from_line(self.name, self.from_line)

    @property
    def why(self) -> str:
        """Why it was compiled."""
        if self.failed_guard is not None:
            return f"this no longer holds: {self.failed_guard}"
        begin = "" if self.from_line is None else f"after a break it goes on from line {self.from_line}: "
        return f"{begin}{'the first call' if self.is_first else 'no program takes the call'}"

    @property
    def made(self) -> Program | None:
        """The program that it made, as long as that exists."""
        return next((program for reference, _ in list(self._holders) if (program := reference()) is not None), None)

    @property
    def program(self) -> Program | None:
        """The program that it made, as long as calls may run it."""
        for of_program, of_dispatcher in list(self._holders):
            program, dispatcher = of_program(), of_dispatcher()
            if program is not None and dispatcher is not None and dispatcher.has(program):
                return program
        return None

    def is_held_by(self, dispatcher: Dispatcher) -> bool:
        """Whether calls of one function may take the program."""
        held = [of_program() for of_program, of_dispatcher in list(self._holders) if of_dispatcher() is dispatcher]
        return any(program is not None and dispatcher.has(program) for program in held)

    def gave(self, program: Program, dispatcher: Dispatcher) -> None:
        """A program came of it, which calls may take as long as the dispatcher has it."""
        alive = [holder for holder in self._holders if holder[0]() is not None and holder[1]() is not None]
        self._holders = [*alive, (weakref.ref(program), weakref.ref(dispatcher))]

    def conclude(self, conclusion: Conclusion, reason: str = "") -> None:
        """Say what came of it, and why."""
        self.conclusion, self.reason = conclusion, reason

    def fail(self, error: Exception) -> None:
        """It ended with an error. What was made until then is not kept: it may come to the same at every call."""
        self.conclude(Conclusion.FAILED, f"{type(error).__name__}: {error}")
        self.graph = None
        self.graphs.clear()
        self.generated.clear()
        self.saved.clear()

    @property
    def was_captured(self) -> bool:
        """Whether the call was captured at all; it is not while another tracer is active."""
        return "capture" in self.seconds

    @property
    def pieces(self) -> list[Piece]:
        """How the parts of its graph run: forward, backward, and parts that were cut."""
        return [] if self.outcome is None else self.outcome.pieces

    @property
    def kernels(self) -> int:
        """How many kernels all its graphs have."""
        return sum(piece.kernels for piece in self.pieces)

    @property
    def guards(self) -> tuple[Check, ...]:
        """The guards, each with the line that caused it, while the program is in use."""
        program = self.program
        return () if program is None else program.checks

    @property
    def source(self) -> str:
        """The program's Python, while it is in use."""
        program = self.program
        return "" if program is None else program.source

    def graphs_of(self, name: str) -> list[GraphText]:
        """The graphs of that name: captured, joint, forward, backward."""
        return [graph for graph in self.graphs if graph.name == name]

    @property
    def _title(self) -> str:
        return f"compilation {self.number} of {self.function}: {self.conclusion.value}"

    def __repr__(self) -> str:
        return f"<{self._title}>"

    def __str__(self) -> str:
        lines = [
            self._title,
            f"    why: {self.why}",
            f"    time: {timing([self])}",
        ]
        if self.outcome is not None:
            lines.append(f"    runs: {self.outcome}")
        lines += [f"    on the GPU: {replays}" for replays in self.replays]
        if self.reason:
            lines.append(f"    reason: {self.reason}")
        return "\n".join(lines)


def from_line(name: str, line: int) -> str:
    """What people call the rest of a function after a break."""
    return f"{name}, from line {line} on"


def timing(compilations: Iterable[Compilation]) -> str:
    """How long each stage took: ``capture 12 ms, differentiate 30 ms``."""
    seconds: dict[str, float] = {}
    for compilation in compilations:
        for stage, taken in list(compilation.seconds.items()):
            seconds[stage] = seconds.get(stage, 0.0) + taken
    order = [*(stage for stage in STAGES if stage in seconds), *(stage for stage in seconds if stage not in STAGES)]
    return ", ".join(f"{stage} {_milliseconds(seconds[stage])}" for stage in order) or "nothing was timed"


def _milliseconds(seconds: float) -> str:
    if seconds >= 10:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{0 if seconds > 0.01 else 2}f} ms"


def breaks_of(compilations: Iterable[Compilation]) -> list[Break]:
    """The breaks people are told of: each reason once, and not too many of one place."""
    told: list[Break] = []
    for compilation in compilations:
        told += [one for one in compilation.breaks if is_news(one, told)]
    return told


def graphs_of(compilations: Iterable[Compilation]) -> list[Any]:
    return [one.graph for one in compilations if one.graph is not None]


def outcomes_of(compilations: Iterable[Compilation]) -> list[Outcome]:
    """How each of the graphs runs."""
    return [one.outcome for one in compilations if one.graph is not None and one.outcome is not None]


def generated_of(compilations: Iterable[Compilation]) -> list[Generated]:
    return [text for one in compilations for text in one.generated]


def failed_guards_of(compilations: Iterable[Compilation]) -> list[str]:
    """What did not hold where something was compiled again."""
    return [one.failed_guard for one in compilations if one.is_recompilation and one.failed_guard is not None]


def is_news(one: Break, told: Sequence[Break]) -> bool:
    """Whether a break is one to tell of. A caller may have a reason of its own, after that of its callee."""
    at = one.code, one.where
    reasons = [known.reason for known in told if (known.code, known.where) == at]
    return one.reason not in reasons and len(reasons) < REASONS_AT_A_PLACE
