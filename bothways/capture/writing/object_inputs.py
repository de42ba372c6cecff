"""Inputs of a graph that are no tensors: objects that a node hands to the user's own Python.

They are read or built before the graph runs, while the program's effects come after it. So an object may not have
been changed by the captured code before, nor be changed by it afterwards; what it holds may not come from the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.fx

from bothways.capture.values.core.base import Value
from bothways.capture.writing.emit import Emitter, resolve

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

Outline = tuple[object, ...]


@dataclass(frozen=True)
class ObjectInput:
    """A Value the graph takes as it is, and what it looked like when it was taken."""

    value: Value
    node: torch.fx.Node
    outline: Outline

    @property
    def example(self) -> object:
        return getattr(resolve(self.value), "obj", None)


def outline_of(value: Value) -> Outline:
    """What an object consists of: equal outlines mean that nothing in it was exchanged in between."""
    steps: list[object] = []
    seen: set[int] = set()
    pending = [value]
    while pending:
        step = resolve(pending.pop())
        if step.source is not None and not step.mutated:
            steps.append(step.source)
        elif id(step) not in seen:
            seen.add(id(step))
            steps.append(step)
            pending.extend(step.parts())
    return tuple(steps)


def build_before(tracer: Tracer, emitter: Emitter, objects: list[ObjectInput]) -> tuple[list[str], list[str]]:
    """The expressions of a graph's objects, and the statements that make them before the graph runs."""
    expressions = [emitter.rebuild(taken.value) for taken in objects]
    statements = list(emitter.builds)
    emitter.builds.clear()
    if emitter.tensors or any(outline_of(taken.value) != taken.outline for taken in objects):
        tracer.stop("object_in_graph", "an object that a custom function or a hook takes is changed by the function")
    return expressions, statements
