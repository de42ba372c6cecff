"""What a capture leaves behind: the text of the guards and of the body, and the objects they name.

A Program is plain data; the dispatcher puts one or several of them into a function. It holds no tensor and
no module of the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bothways.errors import Position

# Stands in a body for the call of the user's own function with everything it was given.
PLAIN_CALL = "@plain@"
# The name under which bodies find ``logs.ran_plainly_after``.
DISAGREE = "_bothways_disagree"


@dataclass(frozen=True)
class Check:
    """One guard as code: an expression over the parameters, how people read it, and what caused it."""

    code: str
    text: str
    where: Position | None


@dataclass
class Program:
    """One way to run a compiled function, and when it applies; without a body it runs as plain Python."""

    name: str
    checks: tuple[Check, ...]
    body: tuple[str, ...]
    namespace: dict[str, Any]
    effects: tuple[str, ...] = ()
    graph_text: Callable[[], str] | None = field(default=None, repr=False)
    op_count: int = 0
    # What has to hold before the guards may be asked, and the context they are asked in: where reading a tensor
    # would call somebody's ``__torch_function__``.
    quietly: tuple[Check, str] | None = None

    def lines(self, plain: str, promote: str | None = None) -> list[str]:
        """The block of a dispatcher that tries this program; falls through when a guard fails."""
        return [
            "try:",
            *(f"    {line}" for line in self._question()),
            "except Exception:  # what a guard reads is not there: another program",
            "    hit = False",
            "if hit:",
            *(f"    {line}" for line in ([promote] if promote else [])),
            *(f"    {line.replace(PLAIN_CALL, plain)}" for line in self.body or [f"return {PLAIN_CALL}"]),
        ]

    def _question(self) -> list[str]:
        asked = ["hit = (", *(f"    {line}" for line in self._condition()), ")"]
        if self.quietly is None:
            return asked
        first, context = self.quietly
        return [
            f"hit = {first.code}",
            "if hit:",
            f"    with {context}():",
            *(f"        {line}" for line in asked),
        ]

    def _condition(self) -> list[str]:
        """The guards, one a line, each with the place in the user's source that relied on it."""
        lines: list[str] = []
        for check in self.checks:
            where = f"  # {check.where.function}:{check.where.line}" if check.where and check.where.line else ""
            lines.append(f"{'and ' * bool(lines)}{check.code}{where}")
        return lines or ["True"]

    @property
    def source(self) -> str:
        """The program as people read it."""
        return "\n".join(self.lines("plain(...)"))
