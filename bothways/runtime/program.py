"""What a capture leaves behind: the text of the guards and of the body, and the objects they name.

A Program is plain data; the dispatcher puts one or several of them into a function. It holds no tensor and
no module of the user's.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bothways.errors import Position
from bothways.runtime.stamps import rebound_stamp
from bothways.source_text import in_comment

# Stands in a body for the call of the user's own function with everything it was given. No literal holds a NUL.
PLAIN_CALL = "\0plain\0"
# The name under which bodies find what is told that plain Python has run instead of a graph that raised.
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
    led_by: int = -1  # the number of the captured function's own instruction

    def rebound(self, others: Mapping[int, Any]) -> Check:
        """The same guard, of another stamp where it is one's."""
        stamp = others.get(id(getattr(self.changed, "__self__", None)))
        return self if stamp is None else replace(self, text=str(stamp), changed=stamp.changed)


class TableRows(Protocol):
    """What a table was made from."""

    def check(self) -> Callable[..., Any]:
        """The function that checks them."""

    def rebound(self, others: Mapping[int, Any]) -> TableRows:
        """The same rows about other objects, by the ``id`` of those they are about."""


@dataclass(frozen=True)
class Table:
    """A function that checks many guards at once: its name, the parameters it takes and the names it gives.

    ``rows`` are there where the table of another function of the same code would be another one.
    """

    key: str
    parameters: tuple[str, ...]
    names: tuple[str, ...]
    rows: TableRows | None = None

    def lines(self) -> list[str]:
        call = f"hit = {self.key}({', '.join(self.parameters)})"
        return [call, "if hit:", f"    {', '.join(self.names)}, = hit"] if self.names else [call]


@dataclass(frozen=True)
class CompiledText:
    """The text of a generated function as lines, how long it is, and its code."""

    size: int
    lines: list[str]
    code: types.CodeType


@dataclass
class Program:
    """One way to run a compiled function, and when it applies; without a body it runs as plain Python.

    ``root`` is the name under which it knows the function it was made for, where it has anything to do with that very
    function: its closure, its attributes, whether it still has the same code. A program that is ``bound`` knows the
    function in other ways as well, and is for no other.
    """

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
    root: str | None = None
    is_bound: bool = False
    anew: str | None = None  # the name of its graph, where that leaves all as it was if it should fail
    # What the body takes as one tuple, by its name: the names of those in it. A table may give it as it is.
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # What functions that have this program alone are made from, by what else that depends on.
    codes: dict[Any, CompiledText] = field(default_factory=dict, repr=False, compare=False)

    def rebound(self, function: types.FunctionType) -> Program | None:
        """The same program for another function of the same code; None where it is for one function alone."""
        before = None if self.root is None else self.namespace[self.root]
        if before is None or before is function:
            return self
        if self.is_bound:
            return None
        others: dict[int, Any] = {id(before): function}
        for value in self.namespace.values():
            stamp = rebound_stamp(value, before, function)
            if stamp is not value:
                others[id(value)] = stamp
        namespace = {key: others.get(id(value), value) for key, value in self.namespace.items()}
        table = self.table
        if table is not None:
            assert table.rows is not None, "the table knows the function"
            rows = table.rows.rebound(others)
            table, namespace[table.key] = replace(table, rows=rows), rows.check()
        checks = tuple(check.rebound(others) for check in self.checks)
        return replace(self, checks=checks, namespace=namespace, table=table)

    def lines(
        self, plain: str, promote: str | None = None, *, by_table: bool = False, escape: str = PLAIN_CALL
    ) -> list[str]:
        """The block of a dispatcher that tries this program; falls through when a guard fails.

        ``by_table`` has the table check what it can, and Python the rest. ``escape`` is the whole of a program without
        a body.
        """
        table = self.table if by_table else None
        in_table = () if table is None else table.names
        groups = [f"{name} = ({', '.join(names)},)" for name, names in self.groups.items() if name not in in_table]
        return [
            *(self._in_python(self.checks) if table is None else self._by_table(table)),
            "if hit:",
            *(f"    {line}" for line in ([promote] if promote else [])),
            *(f"    {line}" for line in groups),
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
