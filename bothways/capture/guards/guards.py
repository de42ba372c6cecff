"""What a capture assumed about objects that existed before the call.

A Guard is a template over Sources and constants; ``GuardSet`` keeps each one once, in the order capture
relied on them, together with the source line that did. ``capture/program/guard_text.py`` writes them as code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bothways.capture.guards.sources import Source
from bothways.errors import Position

# The guard of a stamp, which is its one constant: a definition is what it was.
STAMPED = "{c0}.holds()"
# Which of the keys of one dictionary are in another, in order.
MEMBERS = "tuple(map({s1}.__contains__, {s0})) == {c0}"


@dataclass(frozen=True)
class Guard:
    """One assumption: ``template`` with ``{s0}``, ``{s1}`` for sources and ``{c0}`` … for constants."""

    template: str
    sources: tuple[Source, ...]
    constants: tuple[object, ...] = ()
    where: Position | None = field(default=None, compare=False)
    led_by: int = field(default=-1, compare=False)  # the number of the captured function's own instruction

    def text(self) -> str:
        """How people read it, with the sources' own names and the constants' reprs."""
        if self.template == STAMPED:
            return str(self.constants[0])
        return self.template.format(
            **{f"s{i}": source.name for i, source in enumerate(self.sources)},
            **{f"c{i}": readable(constant) for i, constant in enumerate(self.constants)},
        )


class GuardSet:
    """The guards of one capture, each kept once."""

    def __init__(self) -> None:
        self._guards: dict[tuple[object, ...], Guard] = {}

    def add(self, guard: Guard) -> None:
        key = (guard.template, guard.sources, tuple(map(id, guard.constants)))
        self._guards.setdefault(key, guard)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards.values())

    def __len__(self) -> int:
        return len(self._guards)


def distinct_template(count: int) -> str:
    """The guard that so many sources lead to as many objects."""
    ids = ", ".join(f"id({{s{index}}})" for index in range(count))
    return f"len({{{{{ids}}}}}) == {count}"


class WeakIdentity:
    """Marks a guard constant that must be compared by identity without being kept alive."""

    def __init__(self, obj: object) -> None:
        self.obj = obj

    def __repr__(self) -> str:
        return f"<{type(self.obj).__name__} at {id(self.obj):#x}>"


def readable(constant: object) -> str:
    """A constant as a guard's text shows it: a name where it has one, else its repr, kept short."""
    if isinstance(constant, type):
        return constant.__qualname__
    name = getattr(constant, "__qualname__", None) or getattr(constant, "co_qualname", None)
    if name is None and hasattr(constant, "__spec__"):
        name = getattr(constant, "__name__", None)
    text = name or repr(constant)
    return text if len(text) <= 80 else text[:77] + "..."
