"""What outlives the call, in the order it first happened: mutations, hooks, draws of random numbers.

A Value that stands for an external object registers itself at its first mutation; at the end it writes
its own changes into the program. Globals and closure cells, which are not Values, are kept here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bothways.capture.guards.sources import Source
from bothways.capture.values.core.base import Value

if TYPE_CHECKING:
    from bothways.capture.values.hooks.hooks import Event
    from bothways.capture.values.tensors.random_numbers import Draw
    from bothways.capture.writing.emit import Emitter


class ReadTooEarly(Exception):
    """Captured code asks for what a call leaves behind that was put off until the graph has run."""


class Mutable(Protocol):
    """A Value that can write its own changes."""

    source: Source | None
    only_registers: bool

    def emit_effects(self, emitter: Emitter) -> None: ...


@dataclass
class GlobalWrite:
    """The last value a global variable was given; None means deleted."""

    globals_: Source
    variable: str
    value: Value | None

    def emit_effects(self, emitter: Emitter) -> None:
        globals_ = emitter.read(self.globals_)
        if self.value is None:
            emitter.effect(f"{globals_}.pop({self.variable!r}, None)")  # it may have been made inside as well
        else:
            emitter.effect(f"{globals_}[{self.variable!r}] = {emitter.rebuild(self.value)}")


class Effects:
    """What has to be written back, and what happens besides."""

    def __init__(self) -> None:
        self._mutated: dict[int, Mutable] = {}
        self._globals: dict[tuple[int, str], GlobalWrite] = {}
        self.changes = 0  # how often something was changed: an object that was changed before may be changed again
        self.registrations: list[Event] = []  # hooks and the like, in the order they were registered
        self.draws: list[Draw] = []  # calls of Python's random number generators, in order
        self.forgotten: list[Value] = []  # tensors whose gradients go first of all: their memory is free for the graph
        # Objects that the user's Python changes while the graph runs: what they hold from then on is unknown.
        self.left_to_python: list[tuple[object, Value]] = []
        # Objects that a call changes which was put off.
        self._put_off: list[object] = []

    def follow(self, other: Effects) -> None:
        """Begin where ``other`` has left objects to the user's Python."""
        self.left_to_python = list(other.left_to_python)

    def register(self, event: Event) -> None:
        self.changes += 1
        self.registrations.append(event)

    def forget(self, tensor: Value) -> None:
        """A tensor's gradient goes before the graph runs."""
        self.forgotten.append(tensor)

    def draw(self, draw: Draw) -> None:
        self.changes += 1
        self.draws.append(draw)

    def leave_to_python(self, changed: Iterable[tuple[object, Value]]) -> None:
        """The user's Python changes these objects while the graph runs."""
        self.left_to_python += changed

    def put_off(self, changed: object) -> None:
        """A call changes this object when everything else is done."""
        self._put_off.append(changed)

    def check_not_put_off(self, obj: object) -> None:
        if any(obj is changed for changed in self._put_off):
            raise ReadTooEarly

    def mutated(self, value: Mutable) -> None:
        self.changes += 1
        self._mutated.setdefault(id(value), value)

    def write_global(self, globals_: dict[str, object], source: Source, variable: str, value: Value | None) -> None:
        self.changes += 1
        self._globals[id(globals_), variable] = GlobalWrite(source, variable, value)

    def read_global(self, globals_: dict[str, object], variable: str) -> GlobalWrite | None:
        return self._globals.get((id(globals_), variable))

    def all(self) -> list[Mutable | GlobalWrite]:
        return [*self._mutated.values(), *self._globals.values()]

    def values(self) -> list[Mutable]:
        return list(self._mutated.values())

    def globals(self) -> list[GlobalWrite]:
        return list(self._globals.values())

    @property
    def changed(self) -> bool:
        """Whether captured code has changed something that other code could read now; hooks only wait."""
        return bool(self._globals) or any(not value.only_registers for value in self._mutated.values())

    def __bool__(self) -> bool:
        return bool(self._mutated or self._globals)
