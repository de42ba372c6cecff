"""Closure cells: variables that functions share, from outside or made by the captured code."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.guards.sources import Attr, Cell, Item, Source
from bothways.capture.values.core.base import Value

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class CellValue(Value):
    """A closure cell; ``content`` is None while the variable is unbound."""

    def __init__(self, content: Value | None, source: Source | None = None) -> None:
        self.content = content
        self.source = source

    def python_type(self) -> type:
        return types.CellType

    def store(self, tracer: Tracer, content: Value | None) -> None:
        self.content = content
        self.note_change(tracer)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name != "cell_contents":
            return super().get_attr(tracer, name)
        if self.content is None:
            tracer.throw(ValueError, "Cell is empty")
        return self.content

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if name != "cell_contents":
            super().set_attr(tracer, name, value)
        self.store(tracer, value)

    def binary(self, tracer: Tracer, op: Any, other: Value, reflected: bool) -> Value | None:
        tracer.stop("operator_unknown", "closure cells are compared")

    def parts(self) -> Iterable[Value]:
        return () if self.content is None else (self.content,)

    two_phase = True

    def name_hint(self) -> str:
        return "cell"

    def rebuild_empty(self, emitter: Emitter) -> str:
        return f"{emitter.inject(types.CellType, 'CellType')}()"

    def fill(self, emitter: Emitter, name: str) -> None:
        if self.content is not None:
            emitter.build(f"{name}.cell_contents = {emitter.rebuild(self.content)}")

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        target = f"{emitter.read(self.source)}.cell_contents"
        emitter.effect(f"del {target}" if self.content is None else f"{target} = {emitter.rebuild(self.content)}")


def is_empty(cell: types.CellType) -> bool:
    """Whether the variable a cell is for is unbound."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def external_cell(tracer: Tracer, cell: types.CellType, source: Source, inside: Source) -> Value:
    """The Value of a cell from outside, and of what is inside; one cell is one Value, whoever shares it."""
    known = tracer.known(cell)
    if known is not None:
        if known.source is not None and known.source != source:
            tracer.guard("{s0} is {s1}", source, known.source)
        return known
    try:
        content: Value | None = tracer.wrap(cell.cell_contents, inside)
    except ValueError:
        content = None
        tracer.guard("{c0}({s0})", source, is_empty)
    value = CellValue(content, source)
    tracer.remember(cell, value)
    return value


def external_closure(tracer: Tracer, function: types.FunctionType, source: Source) -> list[Value]:
    """The Values of the cells that a function from outside has."""
    variables = zip(function.__closure__ or (), function.__code__.co_freevars, strict=True)
    return [
        external_cell(tracer, cell, Item(Attr(source, "__closure__"), index), Cell(source, index, variable))
        for index, (cell, variable) in enumerate(variables)
    ]
