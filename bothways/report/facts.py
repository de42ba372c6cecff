"""The facts of a report as plain data: compilations, graphs, kernels, guards, breaks, memory and lines, by numbers.

It reads records and nothing else. The page draws the data; nothing of it is about how it looks.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from bothways.errors import Break, Position
from bothways.record.compilation import STAGES, Compilation, breaks_of
from bothways.record.graphs import GraphText, Line, Name, call_text
from bothways.record.outcomes import Generated, KernelFacts
from bothways.record.standing import Standing
from bothways.report.sources import STATES, SourceMap

_FRAME = re.compile(r'File "(.*)", line (\d+), in (.*)')
_MEMBER = re.compile(r"^(.*?): (.+):(\d+)  (.*)$", re.DOTALL)
# Which stage of the road a graph shows, in the order the page has them.
GRAPH_ORDER = ("captured", "joint", "forward", "backward")


@runtime_checkable
class Times(Protocol):
    """What was measured: a profile's."""

    def of_kernel(self, program: str, kernel: str) -> tuple[int, int] | None:
        """How often a kernel of a program ran, and for how many nanoseconds altogether."""

    def lines(self) -> Iterable[tuple[str, int, int]]:
        """Nanoseconds by a file's own name and a line."""

    def data(self) -> list[list[Any]]:
        """What ran: kind, name, function, graph, lines, how often, nanoseconds, bytes."""


class ReportFacts:
    """Collects the facts of some functions."""

    def __init__(self, times: Times | None = None) -> None:
        self._times = times
        self._sources = SourceMap()
        self._places: dict[tuple[str, int, str], int] = {}
        self._compilations: list[dict[str, Any]] = []
        self._graphs: list[dict[str, Any]] = []
        self._kernels: list[dict[str, Any]] = []
        self._texts: list[dict[str, Any]] = []
        self._breaks: list[dict[str, Any]] = []
        self._functions: list[dict[str, Any]] = []

    def add(self, name: str, compilations: Sequence[Compilation], standings: Sequence[Standing], summary: str) -> None:
        """One function of the user's, with what goes on after its breaks."""
        number = len(self._functions)
        breaks = breaks_of(compilations)
        self._functions.append({"name": name, "summary": summary.split("\n"), "standings": list(map(str, standings))})
        known = {id(each): self._break(each) for each in breaks}
        before: dict[str, Compilation] = {}
        for one in compilations:
            own = [known[id(each)] for each in one.breaks if id(each) in known]
            self._compilation(number, one, before.get(one.function), own)
            if one.program is not None:
                before[one.function] = one
        for standing in standings:
            if standing.why and not standing.programs:
                self._plain(standing, compilations)

    def data(self) -> dict[str, Any]:
        """All of it."""
        if self._times is not None:
            for file, line, taken in self._times.lines():
                path = self._sources.file_called(file, line)
                if path is not None:
                    self._sources.at(path, line).nanoseconds += taken
        return {
            "states": STATES, "stages": STAGES, "places": list(self._places), "functions": self._functions,
            "compilations": self._compilations, "graphs": self._graphs, "kernels": self._kernels,
            "texts": self._texts, "breaks": self._breaks, "files": self._sources.files(),
            "measured": self._times is not None, "profile": [] if self._times is None else self._times.data(),
        }  # fmt: skip

    # Places.

    def _place(self, where: Position | None) -> int | None:
        if where is None or not where.line:
            return None
        return self._places.setdefault((where.filename, where.line, where.function), len(self._places))

    def _place_in_trace(self, trace: str) -> Position | None:
        match = _FRAME.search(trace) if trace else None
        return None if match is None else Position(match[1], int(match[2]), match[3])

    # Compilations.

    def _compilation(self, function: int, one: Compilation, before: Compilation | None, breaks: list[int]) -> None:
        number = len(self._compilations)
        if one.code is not None:
            self._sources.show(*one.code)
        graphs = [self._graph(number, graph) for graph in sorted(one.graphs, key=_graph_order)]
        halves = [(self._text(number, half), half) for half in one.generated]
        texts = [text for text, _ in halves]
        kernels = [kernel for text, half in halves for kernel in self._kernels_of(number, text, half)]
        for check in one.guards:
            if check.where is not None and check.where.line:
                line = self._sources.at(check.where.filename, check.where.line)
                line.states.add("guard")
                line.guards.append(check.text)
        self._compilations.append({
            "function": function, "number": one.number, "name": one.function, "backend": one.backend, "why": one.why,
            "conclusion": one.conclusion.value, "reason": one.reason, "again": one.is_recompilation,
            "failed": one.failed_guard, "began": one.began, "seconds": one.seconds,
            "spans": sorted(([span.stage, span.begin, span.seconds] for span in one.spans), key=lambda span: span[1]),
            "guards": [[check.text, self._place(check.where)] for check in one.guards],
            "diff": _differences(before, one) if one.failed_guard is not None else [],
            "breaks": breaks, "graphs": graphs, "kernels": kernels, "texts": texts, "program": one.source,
            "runs": [str(piece) for piece in one.pieces] or ([str(one.outcome)] if one.outcome is not None else []),
            "effects": [] if one.program is None else list(one.program.effects),
            "saved": self._saved(one),
            "cached": [half.name for half in one.generated if half.from_cache],
            "cuda_graphs": [str(replays) for replays in one.replays],
        })  # fmt: skip

    def _saved(self, one: Compilation) -> list[list[Any]]:
        rows: list[list[Any]] = []
        for value in one.saved:
            where = self._place_in_trace(value.where)
            if where is not None and not value.is_input:
                self._sources.at(where.filename, where.line).saved += value.size
            rows.append([value.name, value.value, value.size, self._place(where), value.is_input])
        return rows

    def _break(self, end: Break) -> int:
        where = end.places[0]
        number = len(self._breaks)
        if where.line:
            line = self._sources.at(where.filename, where.line)
            if not end.of_first_call:
                line.states.add("break")
            line.breaks.append(number)
        stack = [self._place(at) for at in end.places]
        self._breaks.append({
            "code": end.code, "reason": end.reason, "hint": end.hint, "stack": stack, "once": end.of_first_call
        })
        return number

    def _plain(self, standing: Standing, compilations: Sequence[Compilation]) -> None:
        """A function, or the rest of one, that runs as plain Python."""
        name, _, rest = standing.name.partition(", from line ")
        code = next((one.code for one in compilations if one.name == name and one.code is not None), None)
        if code is not None:
            first = int(rest.split()[0]) if rest else code.first
            self._sources.plain(code.filename, first, code.last)

    # Graphs, kernels and texts.

    def _graph(self, compilation: int, graph: GraphText) -> int:
        number, lines = len(self._graphs), list(graph.read())
        index = {line.name: place for place, line in enumerate(lines)}
        state = "captured" if graph.name == "captured" else "aten"
        nodes = []
        for line in lines:
            where = self._place_in_trace(line.where)
            if where is not None and line.op.startswith("call"):
                facts = self._sources.at(where.filename, where.line)
                facts.states.add(state)
                facts.graphs.add(number)
                facts.operations[number] += graph.name == "captured"
            sources = [index[name] for name in _names_in((line.args, line.kwargs)) if name in index]
            call = f"return {line.args[0]}" if line.op == "output" else call_text(line)
            inputs = list(dict.fromkeys(sources))
            nodes.append([line.name, line.op, _short(line), line.value, call, inputs, self._place(where)])
        self._graphs.append({"compilation": compilation, "name": graph.name, "nodes": nodes})
        return number

    def _text(self, compilation: int, generated: Generated) -> int:
        self._texts.append({
            "compilation": compilation, "name": generated.name, "texts": generated.texts, "cached": generated.from_cache
        })
        return len(self._texts) - 1

    def _kernels_of(self, compilation: int, text: int, generated: Generated) -> list[int]:
        """The kernels of one program: those of one text are one kernel, which runs several times."""
        alike: dict[str, list[KernelFacts]] = {}
        for kernel in generated.kernels:
            alike.setdefault(kernel.name, []).append(kernel)
        return [self._kernel(compilation, text, generated, kernels) for kernels in alike.values()]

    def _kernel(self, compilation: int, text: int, generated: Generated, kernels: list[KernelFacts]) -> int:
        number, kernel = len(self._kernels), kernels[0]
        members = []
        for member in dict.fromkeys(member for one in kernels for member in one.members):
            match = _MEMBER.match(member)
            operation, file, line, code = match.groups() if match is not None else (member, "", "0", "")
            members.append([operation, file, int(line), code])
            path = self._path(file, int(line))
            if path is not None:
                facts = self._sources.at(path, int(line))
                facts.states.add("kernel")
                facts.kernels.add(number)
        times = None if self._times is None else self._times.of_kernel(generated.texts.get("Python", ""), kernel.name)
        self._kernels.append({
            "compilation": compilation, "text": text, "half": generated.name, "name": kernel.name,
            "routine": kernel.routine, "members": members, "read": kernel.read, "written": kernel.written,
            "times": times, "uses": len(kernels),
        })  # fmt: skip
        return number

    def _path(self, file: str, line: int) -> str | None:
        return self._sources.file_called(file, line) if file else None


def _graph_order(graph: GraphText) -> int:
    return next((place for place, name in enumerate(GRAPH_ORDER) if graph.name.startswith(name)), len(GRAPH_ORDER))


def _names_in(tree: Any) -> Iterable[str]:
    if isinstance(tree, Name):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _names_in(item)
    elif isinstance(tree, dict):
        yield from _names_in(list(tree.values()))
    elif isinstance(tree, slice):
        yield from _names_in((tree.start, tree.stop, tree.step))


def _short(line: Line) -> str:
    """What an operation is called, in a word."""
    if line.op in ("placeholder", "output"):
        return "input" if line.op == "placeholder" else "output"
    name = line.target if isinstance(line.target, str) else getattr(line.target, "__name__", str(line.target))
    parts = str(line.target).split(".") if str(line.target).startswith("aten.") else []
    return parts[1] if parts else str(name)


def _differences(before: Compilation | None, after: Compilation) -> list[list[str]]:
    """The guards of two programs of one function as a diff: of what is the same, only what stands beside a change."""
    if before is None:
        return []
    old, new = ([check.text for check in one.guards] for one in (before, after))
    lines = list(difflib.unified_diff(old, new, lineterm="", n=1))[2:]
    return [[line[:1], line[1:]] for line in lines if not line.startswith("@@")]
