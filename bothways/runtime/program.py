"""What a capture leaves behind: the text of the guards and of the body, and the objects they name.

A Program is plain data; the dispatcher puts one or several of them into a function. It holds no tensor and
no module of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bothways.errors import Position
from bothways.source_text import in_comment

# Stands in a body for the call of the user's own function with everything it was given. No literal holds a NUL.
PLAIN_CALL = "\0plain\0"
# The name under which bodies find ``logs.ran_plainly_after``.
DISAGREE = "_bothways_disagree"
# The names under which programs find what compiles a function that is called at a break, and a hook.
COMPILED_CALLEE = "_bothways_compiled_callee"
COMPILED_HOOK = "_bothways_compiled_hook"


@dataclass(frozen=True)
class Check:
    """One guard as code: an expression over the parameters, how people read it, and what caused it."""

    code: str
    text: str
    where: Position | None
    in_table: bool = False  # the program's table checks it as well
    changed: Callable[[], str] | None = None  # what is not as it was, where the text speaks of many things


@dataclass(frozen=True)
class Table:
    """A function that checks many guards at once: its name, the parameters it takes and the names it gives."""

    key: str
    parameters: tuple[str, ...]
    names: tuple[str, ...]

    def lines(self) -> list[str]:
        call = f"hit = {self.key}({', '.join(self.parameters)})"
        return [call, "if hit:", f"    {', '.join(self.names)}, = hit"] if self.names else [call]


@dataclass
class Program:
    """One way to run a compiled function, and when it applies; without a body it runs as plain Python."""

    name: str
    checks: tuple[Check, ...]
    body: tuple[str, ...]
    namespace: dict[str, Any]
    effects: tuple[str, ...] = ()
    op_count: int = 0
    # What has to hold before the guards may be asked, and the context they are asked in: where reading a tensor
    # would call a ``__torch_function__`` of the user's.
    unseen_by_modes: tuple[Check, str] | None = None
    table: Table | None = None

    def lines(
        self, plain: str, promote: str | None = None, *, by_table: bool = False, escape: str = PLAIN_CALL
    ) -> list[str]:
        """The block of a dispatcher that tries this program; falls through when a guard fails.

        ``by_table`` has the table check what it can, and Python the rest. ``escape`` is the whole of a program without
        a body.
        """
        return [
            *(self._by_table(self.table) if by_table and self.table is not None else self._in_python(self.checks)),
            "if hit:",
            *(f"    {line}" for line in ([promote] if promote else [])),
            *(f"    {line.replace(PLAIN_CALL, plain)}" for line in self.body or [f"return {escape}"]),
        ]

    def _by_table(self, table: Table) -> list[str]:
        rest = [check for check in self.checks if not check.in_table]
        taken = self._condition([check for check in self.checks if check.in_table])
        lines = [f"# {table.key} checks", *(f"#     {line}" for line in taken), *table.lines()]
        if rest:
            lines += ["if hit:", *(f"    {line}" for line in self._in_python(rest))]
        return lines

    def _in_python(self, checks: Sequence[Check]) -> list[str]:
        asked = ["hit = (", *(f"    {line}" for line in self._condition(checks)), ")"]
        if self.unseen_by_modes is not None:
            first, context = self.unseen_by_modes
            asked = [f"hit = {first.code}", "if hit:", f"    with {context}():", *(f"        {line}" for line in asked)]
        return [
            "try:",
            *(f"    {line}" for line in asked),
            "except Exception:  # what a guard reads is not there: another program",
            "    hit = False",
        ]

    def _condition(self, checks: Sequence[Check]) -> list[str]:
        """The guards, one a line, each with the place in the user's source that relied on it."""
        lines: list[str] = []
        for check in checks:
            where = check.where
            comment = f"  # {in_comment(where.function)}:{where.line}" if where is not None and where.line else ""
            lines.append(f"{'and ' * bool(lines)}{check.code}{comment}")
        return lines or ["True"]

    @property
    def source(self) -> str:
        """The program as people read it."""
        return "\n".join(self.lines("plain(...)"))
