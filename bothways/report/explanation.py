"""What ``explain`` shows: graph, guards with what caused them, effects, program, recompilations, breaks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Break
from bothways.runtime.generated import Generated
from bothways.runtime.program import Check, Program
from bothways.source_text import writable


@dataclass
class Explanation:
    """How one call was compiled; print it to read it."""

    name: str
    programs: list[Program] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    recompilations: list[str] = field(default_factory=list)
    generated: list[Generated] = field(default_factory=list)
    plain_from_now_on: bool = False
    result: Any = field(default=None, repr=False)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.breaks)

    @property
    def break_reasons(self) -> list[Break]:
        return self.breaks

    @property
    def op_count(self) -> int:
        return sum(program.op_count for program in self.programs)

    @property
    def guards(self) -> list[Check]:
        return [check for program in self.programs for check in program.checks]

    def __str__(self) -> str:
        counts = ((len(self.programs), "program"), (self.op_count, "operation"), (len(self.breaks), "break"))
        lines = [f"{self.name}: {_counted(counts)}"]
        if self.plain_from_now_on:
            lines.append("Calls that none of these programs takes run as plain Python from now on.")
        for index, program in enumerate(self.programs):
            lines += ["", *_program_lines(index, program)]
        for found in self.generated:
            for language, text in found.texts.items():
                lines += _section(f"{language} of the {found.name} graph", [text.strip()])
        lines += _section("Breaks", [str(found) for found in self.breaks])
        lines += _section("Recompilations", self.recompilations)
        return writable("\n".join(lines))


def _program_lines(index: int, program: Program) -> list[str]:
    graph = program.graph_text().strip() if program.graph_text is not None else "(no tensor operations)"
    if not program.body:
        graph = "(none: the function raises when these guards hold, and runs as plain Python)"
    return [
        f"== Program {index} of {program.name} ==",
        *_section("Graph", [graph]),
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
