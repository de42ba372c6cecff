"""What became of the backwards that were to be captured: which were, and which ran on PyTorch's engine, and why."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Position
from bothways.runtime.logs import say

# Places that are remembered; a program that makes up source files must not fill the memory.
MOST_PLACES = 1000
MOST_MODULES = 8


@dataclass
class BackwardRecord:
    """The backwards that one line of the user's calls for."""

    where: Position
    modules: list[Any] = field(default_factory=list)  # the latest ones
    captures: int = 0
    plain: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"the backward at {self.where}: captured {times(self.captures)}"]
        lines += [f"  on PyTorch's engine {times(count)}: {reason}" for reason, count in self.plain.items()]
        return "\n".join(lines)


class BackwardRecords:
    """The records, by place."""

    def __init__(self) -> None:
        self._records: dict[Position, BackwardRecord] = {}

    def _at(self, where: Position) -> BackwardRecord:
        if where not in self._records and len(self._records) >= MOST_PLACES:
            self._records.pop(next(iter(self._records)))
        return self._records.setdefault(where, BackwardRecord(where))

    def captured(self, where: Position, module: Any) -> None:
        record = self._at(where)
        record.captures += 1
        record.modules = [*record.modules, module][-MOST_MODULES:]
        say("graphs", f"the backward at {where}\n{module.code}")

    def plain(self, where: Position, reason: str) -> None:
        record = self._at(where)
        if not record.plain[reason]:
            say("outcomes", f"the backward at {where} runs on PyTorch's engine: {reason}")
        record.plain[reason] += 1

    def captures_at(self, where: Position) -> int:
        """How often the backward of this line was captured."""
        return self._records[where].captures if where in self._records else 0

    def in_code(self, code: types.CodeType) -> list[BackwardRecord]:
        """Those that lines of one function call for, or of functions inside it."""
        lines = _lines_of(code)
        return [record for record in self if record.where.filename == code.co_filename and record.where.line in lines]

    def __iter__(self) -> Iterator[BackwardRecord]:
        return iter(list(self._records.values()))

    def clear(self) -> None:
        self._records.clear()


def _lines_of(code: types.CodeType) -> set[int]:
    inner = [_lines_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {line for _, _, line in code.co_lines() if line is not None}.union(*inner)


backwards = BackwardRecords()


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
