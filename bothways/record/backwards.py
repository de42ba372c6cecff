"""What became of the backwards that were to be captured: which were, and which ran on PyTorch's engine, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Position
from bothways.runtime.logs import say

# Places that are remembered; a program that makes up source files must not fill the memory.
MOST_PLACES = 1000


@dataclass
class BackwardRecord:
    """The backwards that one line of the user's calls for."""

    where: Position
    modules: list[Any] = field(default_factory=list)
    plain: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"the backward at {self.where}: captured {len(self.modules)} times"]
        lines += [f"  on PyTorch's engine {count} times: {reason}" for reason, count in self.plain.items()]
        return "\n".join(lines)


class Backwards:
    """The records, by place."""

    def __init__(self) -> None:
        self._records: dict[Position, BackwardRecord] = {}

    def _at(self, where: Position) -> BackwardRecord:
        if where not in self._records and len(self._records) >= MOST_PLACES:
            self._records.pop(next(iter(self._records)))
        return self._records.setdefault(where, BackwardRecord(where))

    def captured(self, where: Position, module: Any) -> None:
        self._at(where).modules.append(module)
        say("graphs", f"the backward at {where}\n{module.code}")

    def plain(self, where: Position, reason: str) -> None:
        record = self._at(where)
        if not record.plain[reason]:
            say("outcomes", f"the backward at {where} runs on PyTorch's engine: {reason}")
        record.plain[reason] += 1

    def captures_at(self, where: Position) -> int:
        """How often the backward of this line was captured."""
        return len(self._records[where].modules) if where in self._records else 0

    def __iter__(self) -> Iterator[BackwardRecord]:
        return iter(list(self._records.values()))

    def clear(self) -> None:
        self._records.clear()


backwards = Backwards()
