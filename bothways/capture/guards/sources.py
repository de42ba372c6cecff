"""Where an object that existed before the call can be found again: a path from the call's own names.

A Source prints twice: as the expression the generated code evaluates, given the text of its base, and as
the name people read (``L['x'].weight``). It never holds the object it leads to, ``Injected`` roots aside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

from bothways.source_text import is_plain_name

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def path_step(cls: type[T]) -> type[T]:
    """A frozen dataclass that works out its hash once: paths are long, and looked up all the time."""
    step = dataclass(frozen=True)(cls)
    of_fields = step.__hash__

    def remembered(self: object) -> int:
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = of_fields(self)
        return known

    step.__hash__ = remembered  # type: ignore[method-assign]
    return step


@path_step
class Source:
    """One step of a path. ``base`` is None for roots."""

    @property
    def base(self) -> Source | None:
        return None

    def code(self, base: str) -> str:
        """The expression that reads this step, where ``base`` is the expression of the step before."""
        raise AssertionError(f"{type(self).__name__} has no code")

    @property
    def name(self) -> str:
        """How people read it."""
        return self.code("")

    @property
    def root(self) -> Source:
        step: Source = self
        while step.base is not None:
            step = step.base
        return step if step is self else step.root

    def __str__(self) -> str:
        return self.name


@path_step
class Local(Source):
    """A parameter of the compiled function; ``label`` is for one that people have no name for."""

    local: str
    label: str = field(default="", compare=False)

    def code(self, base: str) -> str:
        return self.local

    @property
    def name(self) -> str:
        return self.label or f"L[{self.local!r}]"


@path_step
class Injected(Source):
    """An object the generated code keeps in its namespace under ``key``: a globals dict, a class, a function."""

    key: str
    label: str

    def code(self, base: str) -> str:
        return self.key

    @property
    def name(self) -> str:
        return self.label


@path_step
class WeakInjected(Injected):
    """An object of the user's that the namespace knows by a weak reference: a key that is no constant."""

    def code(self, base: str) -> str:
        return f"{self.key}()"


@path_step
class SourceStep(Source):
    """A step that starts from another source."""

    origin: Source

    @property
    def base(self) -> Source:
        return self.origin

    @property
    def name(self) -> str:
        return self.code(self.origin.name)


@path_step
class Attr(SourceStep):
    """``base.attribute``, where reading it runs no user code."""

    attribute: str

    def code(self, base: str) -> str:
        if is_plain_name(self.attribute):
            return f"{base}.{self.attribute}"
        return f"getattr({base}, {self.attribute!r})"


@path_step
class Item(SourceStep):
    """``base[key]`` for keys whose repr is their literal."""

    key: object

    def code(self, base: str) -> str:
        return f"{base}[{self.key!r}]"


@path_step
class Length(SourceStep):
    """``len(base)``."""

    def code(self, base: str) -> str:
        return f"len({base})"


@path_step
class InjectedItem(SourceStep):
    """``base[key]`` for a key that is an object kept in the namespace (an enum member, a class, a module)."""

    key: Injected

    def code(self, base: str) -> str:
        return f"{base}[{self.key.code('')}]"

    @property
    def name(self) -> str:
        return f"{self.origin.name}[{self.key.label}]"


@path_step
class TensorOf(SourceStep):
    """What a function of the program's namespace makes of the base, another object each time."""

    function: Injected

    def code(self, base: str) -> str:
        return f"{self.function.code('')}({base})"

    @property
    def name(self) -> str:
        return f"{self.function.label}({self.origin.name})"


@path_step
class Cell(SourceStep):
    """The content of a function's closure cell."""

    index: int
    variable: str

    def code(self, base: str) -> str:
        return f"{base}.__closure__[{self.index}].cell_contents"


@path_step
class BaseItem(SourceStep):
    """``builtin.__getitem__(base, key)``: an item of a container whose class overrides item access."""

    builtin: str
    key: object

    def code(self, base: str) -> str:
        return f"{self.builtin}.__getitem__({base}, {self.key!r})"


@path_step
class DictGet(SourceStep):
    """``dict.get(base, key)``: an entry where subscripting would make it, or run the user's code."""

    key: object  # an ``Injected``, or what is its own literal

    def code(self, base: str) -> str:
        text = self.key.code("") if isinstance(self.key, Injected) else repr(self.key)
        return f"dict.get({base}, {text})"

    @property
    def name(self) -> str:
        return f"{self.origin.name}[{self.key.label if isinstance(self.key, Injected) else repr(self.key)}]"


# All that a dictionary holds, in order.
VALUES = "(*{}.values(),)"


@path_step
class WorkedOut(SourceStep):
    """A number that a function without effects gives of the base: ``template`` holds ``{0}`` for it."""

    template: str

    def code(self, base: str) -> str:
        return self.template.format(base)

    @property
    def name(self) -> str:
        start = self.origin
        while isinstance(start, WorkedOut):
            start = start.origin
        return f"<a number that {start.name} leads to>"


@path_step
class Together(Source):
    """The tuple of what several paths lead to that begin at arguments of the call."""

    parts: tuple[Source, ...]

    @property
    def name(self) -> str:
        return " and ".join(part.name for part in self.parts)

    @property
    def root(self) -> Source:
        return self.parts[0].root


def spelled_with(source: Source, read: Callable[[Source], str]) -> str:
    """The expression that reads a step, where ``read`` gives those of the steps before."""
    if isinstance(source, Together):
        return f"({', '.join(map(read, source.parts))})"
    return source.code(read(source.base) if source.base is not None else "")


@path_step
class Reading(SourceStep):
    """Any other way to read something off the base: ``template`` holds one ``{}`` for it."""

    template: str

    def code(self, base: str) -> str:
        return self.template.format(base)
