"""What ``explain`` shows: graphs, times, guards with what caused them, effects, program, recompilations, breaks.

It is read from the records of compilations, and from how each function stands now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Break
from bothways.record.backwards import BackwardRecord
from bothways.record.compilation import Compilation, breaks_of, timing
from bothways.record.outcomes import Generated, Outcome
from bothways.record.standing import Standing, told
from bothways.runtime.program import Check, Program
from bothways.source_text import writable


@dataclass
class Explanation:
    """What has become of a function so far; print it to read it. Called with arguments, it runs the function once
    and gives an explanation with that call."""

    name: str
    compilations: list[Compilation] = field(default_factory=list)
    standings: list[Standing] = field(default_factory=list)  # of the function, of what is after its breaks, of callees
    backwards: list[BackwardRecord] = field(default_factory=list)  # that its lines call for, where those are captured
    is_compiled: bool = True
    has_run: bool = False  # whether the function was called for this explanation
    result: Any = field(default=None, repr=False)
    run: Callable[..., Explanation] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._made = [(program, one) for one in self.compilations if (program := one.program) is not None]

    def __call__(self, *args: Any, **kwargs: Any) -> Explanation:
        assert self.run is not None
        return self.run(*args, **kwargs)

    @property
    def programs(self) -> list[Program]:
        """The programs that calls may take."""
        return [program for program, _ in self._made]

    @property
    def graphs(self) -> list[Any]:
        """The captured graphs."""
        return [one.graph for one in self.compilations if one.graph is not None]

    @property
    def outcomes(self) -> list[Outcome]:
        """How each of the graphs runs."""
        return [one.outcome for one in self.compilations if one.graph is not None and one.outcome is not None]

    @property
    def breaks(self) -> list[Break]:
        """Where capture stopped: each with ``code``, ``reason``, ``where`` and ``hint``."""
        return breaks_of(self.compilations)

    @property
    def recompilations(self) -> list[str]:
        """The guards that did not hold where something was compiled again."""
        return [one.failed_guard for one in self.compilations if one.is_recompilation and one.failed_guard is not None]

    @property
    def generated(self) -> list[Generated]:
        """The texts of programs and kernels."""
        return [text for one in self.compilations for text in one.generated]

    @property
    def plain_from_now_on(self) -> bool:
        """Whether nothing more is compiled of the function, or of one of its parts."""
        return any(standing.for_good for standing in self.standings)

    @property
    def graph_count(self) -> int:
        """How many graphs were captured."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """How many breaks there are."""
        return len(self.breaks)

    @property
    def break_reasons(self) -> list[Break]:
        """The same as ``breaks``, under the name of ``torch._dynamo.explain``."""
        return self.breaks

    @property
    def op_count(self) -> int:
        """How many operations the graphs of the programs have."""
        return sum(program.op_count for program in self.programs)

    @property
    def guards(self) -> list[Check]:
        """What the programs assume: each with ``text`` and ``where``."""
        return [check for program in self.programs for check in program.checks]

    def __str__(self) -> str:
        if not self.is_compiled:
            return f"{self.name} {NOT_COMPILED_FOR_THIS if self.has_run else NOT_COMPILED}"
        counts = ((len(self.programs), "program"), (self.op_count, "operation"), (len(self.breaks), "break"))
        lines = [f"{self.name}: {_counted(counts)}", told(self.outcomes, self.standings)]
        lines.append(HAS_RUN if self.has_run else HAS_NOT_RUN)
        if self.compilations:
            lines.append(f"Compiling took: {timing(self.compilations)}.")
        for index, (program, compilation) in enumerate(self._made):
            lines += ["", *_program_lines(index, program, compilation)]
        for one in self.generated:
            for language, text in one.texts.items():
                lines += _section(f"{language} of the {one.name} graph", [text.strip()])
        lines += _section("Breaks", [str(one) for one in self.breaks])
        lines += _section("Recompilations", self.recompilations)
        lines += _section("Backwards", [str(found) for found in self.backwards])
        return writable("\n".join(lines))


HAS_RUN = "The function was called once for this explanation."
HAS_NOT_RUN = "This is what has happened so far; nothing was run for this explanation."
NOT_COMPILED = (
    "is not compiled. explain(f)(*args) compiles it for the occasion and calls it once; of a training step, that is "
    "one more step."
)
NOT_COMPILED_FOR_THIS = "is not compiled: it is marked with bothways.disable. It was called once for this explanation."


def _program_lines(index: int, program: Program, compilation: Compilation) -> list[str]:
    graph = [str(text) for text in compilation.graphs_of("captured")] or ["(no tensor operations)"]
    if not program.body:
        graph = ["(none: the function raises when these guards hold, and runs as plain Python)"]
    joints = [graph for graph in compilation.graphs if graph.name.startswith("joint")]
    return [
        f"== Program {index} of {program.name} ==",
        *_section("Compiled because", [compilation.why]),
        *_section("Time", [timing([compilation])]),
        *_section("Graph", graph),
        *(line for joint in joints for line in _section(f"{joint.name.capitalize()} graph", [str(joint)])),
        *_section("Runs", [str(compilation.outcome)] if compilation.outcome is not None else []),
        *_section("On the GPU", [str(replays) for replays in compilation.replays]),
        *_section("Guards", [_guard_line(check) for check in program.checks]),
        *_section("Effects", list(program.effects)),
        *_section("Program", [program.source]),
    ]


def _guard_line(check: Check) -> str:
    if check.where is None or not check.where.line:
        return check.text
    source = check.where.text
    return f"{check.text:<60}  # {check.where.function}:{check.where.line}{f'  {source}' if source else ''}"


def _section(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    return ["", f"{title}:", *(f"    {line}" for text in lines for line in text.split("\n"))]


def _counted(counts: tuple[tuple[int, str], ...]) -> str:
    return ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts)
