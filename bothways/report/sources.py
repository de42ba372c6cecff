"""The user's source in a report: which lines there are, in which functions, and what became of each.

Comes in: places (a file, a line, a function) with what was found there. Comes out: files with their functions, each
with its lines, as plain data that the page draws.
"""

from __future__ import annotations

import linecache
import os
import sysconfig
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

# What became of a line, the one that people should see first: the page has a colour for each.
STATES: dict[str, str] = {
    "break": "capture stopped here, and plain Python did it",
    "kernel": "in a fused kernel",
    "aten": "in a graph; ATen runs it",
    "captured": "in a graph that runs as it was captured",
    "guard": "a guard was made here",
    "python": "runs as plain Python",
    "folded": "done while compiling; costs nothing in a call",
}
_HOMES = sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), os.path.dirname(torch.__file__)
_LIBRARIES = tuple(path + os.sep for path in _HOMES)


@dataclass
class LineFacts:
    """What was found at one line. Graphs, kernels and breaks are numbers of the report's."""

    states: set[str] = field(default_factory=set)
    operations: Counter[int] = field(default_factory=Counter)  # by captured graph
    graphs: set[int] = field(default_factory=set)
    kernels: set[int] = field(default_factory=set)
    guards: list[str] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    saved: int = 0
    nanoseconds: int = 0

    def data(self) -> dict[str, Any]:
        state = next((state for state in STATES if state in self.states), "")
        entry = {
            "s": state, "o": max(self.operations.values(), default=0), "g": sorted(self.graphs),
            "k": sorted(self.kernels), "d": list(dict.fromkeys(self.guards)), "b": self.breaks, "m": self.saved,
            "t": self.nanoseconds,
        }  # fmt: skip
        return {key: value for key, value in entry.items() if value}


class SourceMap:
    """The lines of all files that a report speaks of."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, LineFacts]] = defaultdict(lambda: defaultdict(LineFacts))
        self._wanted: dict[str, set[int]] = defaultdict(set)  # lines of functions that are shown in any case
        self._plain: dict[str, set[int]] = defaultdict(set)
        self._folded: dict[str, set[int]] = defaultdict(set)
        self._by_name: dict[str, set[str]] = defaultdict(set)

    def at(self, filename: str, line: int) -> LineFacts:
        self._by_name[os.path.basename(filename)].add(filename)
        return self._lines[filename][line]

    def show(self, filename: str, first: int, last: int) -> None:
        """A function that was compiled, with operations or without."""
        self._wanted[filename].update((first, last))
        self._folded[filename].update(range(first, last + 1))

    def plain(self, filename: str, first: int, last: int) -> None:
        """Lines that run as plain Python."""
        self._wanted[filename].add(first)
        self._plain[filename].update(range(first, last + 1))

    def file_called(self, name: str, line: int) -> str | None:
        """The file that a comment with a file's own name means."""
        paths = sorted(self._by_name.get(name, ()))
        return next((path for path in paths if line in self._lines[path]), paths[0] if paths else None)

    def files(self) -> list[dict[str, Any]]:
        """The files, the user's first, each with the functions that something was found in."""
        names = sorted({*self._lines, *self._wanted}, key=lambda name: (is_library(name), name))
        return [file for name in names if (file := self._file(name))["functions"]]

    def _file(self, filename: str) -> dict[str, Any]:
        lines, facts = source_lines(filename), self._lines[filename]
        touched = {*facts, *self._wanted[filename]}
        blocks = []
        for function in functions_in(filename, lines, touched):
            known = [line for line in range(function.first, function.last + 1) if line not in function.inner]
            entries = {line: self._entry(filename, line, line in function.code) for line in known}
            text = [lines[line - 1].rstrip("\n") if 0 < line <= len(lines) else "" for line in known]
            blocks.append({
                "name": function.name, "first": function.first, "numbers": known, "text": text,
                "facts": {line: entry for line, entry in entries.items() if entry},
            })  # fmt: skip
        name = os.path.basename(filename)
        return {"path": filename, "name": name, "library": is_library(filename), "functions": blocks}

    def _entry(self, filename: str, line: int, is_code: bool) -> dict[str, Any]:
        facts = self._lines[filename].get(line)
        entry = {} if facts is None else facts.data()
        if "s" not in entry and is_code:
            if line in self._plain[filename]:
                entry["s"] = "python"
            elif line in self._folded[filename]:
                entry["s"] = "folded"
        return entry


@dataclass(frozen=True)
class FunctionLines:
    """A function in a file: ``code`` are the lines with instructions, ``inner`` those of functions shown apart."""

    name: str
    first: int
    last: int
    code: frozenset[int]
    inner: frozenset[int]


def source_lines(filename: str) -> list[str]:
    """The lines of a file, or of a cell of a notebook; none where there is no source."""
    try:
        return linecache.getlines(filename)
    except (ValueError, OSError, SyntaxError):
        return []


def is_library(filename: str) -> bool:
    """Whether a file belongs to Python, to PyTorch or to an installed package."""
    return filename.startswith(_LIBRARIES)


def functions_in(filename: str, lines: list[str], touched: set[int]) -> list[FunctionLines]:
    """The innermost functions that the lines lie in; what lies in none, line by line as one block."""
    try:
        codes = list(_codes(compile("".join(lines), filename, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError, RecursionError):
        codes = []
    bounds: dict[types.CodeType, tuple[int, int]] = {}
    for line in touched:
        around = [(last - first, code) for code, first, last in codes if first <= line <= last]
        if around:
            code = min(around, key=lambda pair: pair[0])[1]
            bounds[code] = next((first, last) for other, first, last in codes if other is code)
    shown = []
    for code, (first, last) in bounds.items():
        others = [set(range(begin, end + 1)) for other, (begin, end) in bounds.items() if other is not code]
        inner = frozenset().union(*(other for other in others if first <= min(other) and max(other) <= last))
        own = frozenset(line for _, _, line in code.co_lines() if line)
        shown.append(FunctionLines(code.co_qualname, first, last, own, inner))
    outside = {line for line in touched if not any(first <= line <= last for first, last in bounds.values())}
    if outside and (lines or not bounds):
        first, last = min(outside), max(outside)
        inner = frozenset(line for line in range(first, last + 1) if line not in outside)
        shown.append(FunctionLines("module level", first, last, frozenset(outside), inner))
    return sorted(shown, key=lambda function: function.first)


def _codes(code: types.CodeType) -> Iterator[tuple[types.CodeType, int, int]]:
    """The functions inside code, with their first and last lines; not classes, nor the module."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = list(_codes(constant))
            yield from inner
            is_function = bool(constant.co_flags & 0x2) and not constant.co_name.startswith("<")  # it has fast locals
            if is_function:
                lines = [line for _, _, line in constant.co_lines() if line]
                yield constant, constant.co_firstlineno, max([*lines, *(last for _, _, last in inner)])
