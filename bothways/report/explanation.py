"""What ``explain`` shows: ten lines first, and behind them graphs, times, guards with what caused them, effects,
programs, kernels, memory, recompilations and breaks.

It is read from the records of compilations, and from how each function stands now.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Break
from bothways.record.backwards import BackwardRecord
from bothways.record.compilation import (
    Compilation,
    breaks_of,
    failed_guards_of,
    generated_of,
    graphs_of,
    outcomes_of,
    timing,
)
from bothways.record.graphs import GraphText
from bothways.record.outcomes import Generated, KernelFacts, Outcome, SavedValue
from bothways.record.standing import Standing, told
from bothways.report.facts import Times
from bothways.report.html import explanation_page, inline_page, write_page
from bothways.report.summary import Listing, kernel_line, saved_line, ten_lines
from bothways.runtime.program import Check, Program
from bothways.source_text import writable


@dataclass(repr=False)
class Explanation:
    """What has become of a function so far. Printed, it is ten lines; ``details`` is all of it. Called with arguments,
    it runs the function once and returns an explanation that includes this call.

    Read or print its parts: ``guards``, ``breaks``, ``graph``, ``code``, ``kernels`` and ``memory``.
    ``html("report.html")`` writes the page that shows them beside the source.
    """

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
    def has_bodies(self) -> bool:
        """Whether any program runs something; one without a body only says when the function raises or runs plainly."""
        return any(program.body for program in self.programs)

    @property
    def graphs(self) -> list[Any]:
        """The captured graphs."""
        return graphs_of(self.compilations)

    @property
    def outcomes(self) -> list[Outcome]:
        """How each of the graphs runs."""
        return outcomes_of(self.compilations)

    @property
    def breaks(self) -> list[Break]:
        """Where capture stopped: each with ``code``, ``reason``, ``where`` and ``hint``."""
        return Listing(breaks_of(self.compilations), empty="none: everything is captured")

    @property
    def recompilations(self) -> list[str]:
        """The guards that failed, each of which led to another compilation."""
        return failed_guards_of(self.compilations)

    @property
    def generated(self) -> list[Generated]:
        """The generated texts of programs and kernels."""
        return generated_of(self.compilations)

    @property
    def plain_from_now_on(self) -> bool:
        """Whether the function, or a part of it, will not be compiled any more."""
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
        """The same as ``breaks``, under the name that ``torch._dynamo.explain`` uses."""
        return self.breaks

    @property
    def op_count(self) -> int:
        """How many operations the graphs of the programs have."""
        return sum(program.op_count for program in self.programs)

    @property
    def guards(self) -> list[Check]:
        """What the programs assume: each with ``text`` and ``where``."""
        return Listing([check for program in self.programs for check in program.checks], _guard_line)

    @property
    def graph(self) -> Listing[GraphText]:
        """The captured graphs as people read them; ``graphs`` are the graphs themselves."""
        texts = [text for one in self.compilations for text in one.graphs_of("captured")]
        return Listing(texts, empty="no tensor operations")

    @property
    def code(self) -> Listing[str]:
        """What was generated: the Python of programs, and the Python and C or CUDA of their graphs."""
        texts = [f"# The program of {program.name}\n{program.source}" for program in self.programs]
        for half in self.generated:
            texts += [f"# {language} of the {half.name} graph\n{text.strip()}" for language, text in half.texts.items()]
        return Listing(texts, lambda text: f"{text}\n")

    @property
    def kernels(self) -> Listing[KernelFacts]:
        """The kernels: each with ``name``, ``members``, and the bytes it has ``read`` and ``written``."""
        return Listing([kernel for half in self.generated for kernel in half.kernels], kernel_line)

    @property
    def memory(self) -> Listing[SavedValue]:
        """What is saved for the backward: each with ``name``, ``value``, ``size`` in bytes, and ``where``."""
        return Listing([value for one in self.compilations for value in one.saved], saved_line)

    def html(self, path: str | os.PathLike[str] | None = None, *, profile: Times | None = None) -> str:
        """The report as one HTML file that needs no network: its text, which is written to ``path`` where one is given.

        ``profile`` adds measured times, see ``bothways.profile``.
        """
        text = explanation_page([self], profile)
        if path is not None:
            write_page(path, text)
        return text

    def _repr_html_(self) -> str:
        """For notebooks: the report in a frame of its own, under the ten lines."""
        return inline_page(str(self), self.html())

    def __str__(self) -> str:
        if not self.is_compiled:
            return f"{self.name} {NOT_COMPILED_FOR_THIS if self.has_run else NOT_COMPILED}"
        return writable("\n".join(ten_lines(self)))

    __repr__ = __str__  # what a prompt shows

    @property
    def details(self) -> str:
        """All of it, as one text."""
        if not self.is_compiled:
            return str(self)
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
        lines += _section("Backwards", [str(backward) for backward in self.backwards])
        return writable("\n".join(lines))


HAS_RUN = "The function was called once for this explanation."
HAS_NOT_RUN = "This is what has happened so far; nothing was run for this explanation."
NOT_COMPILED = (
    "is not compiled. explain(f)(*args) compiles it and calls it once; a call of a training step is one more step."
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
