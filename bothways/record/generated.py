"""Keeps what a backend says of a graph with the function it was captured from: how it runs, the code it generated.

A backend runs when a function is compiled, and again when a backward or a part of a graph is compiled later; who is
compiled is remembered in between.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx

from bothways.record.outcomes import Generated, Outcome, Piece, Way
from bothways.runtime import logs
from bothways.symbols import SYMBOLIC

__all__ = ["Generated", "as_aten", "as_captured", "current", "keep", "kept_in", "note", "operations_in", "tell"]

_current: ContextVar[Outcome | None] = ContextVar("generated", default=None)


def current() -> Outcome | None:
    """Where code that is generated now is kept."""
    return _current.get()


@contextmanager
def kept_in(place: Outcome | None) -> Iterator[None]:
    """Keep what is generated inside in ``place``."""
    token = _current.set(place)
    try:
        yield
    finally:
        _current.reset(token)


def keep(generated: Generated) -> None:
    place = _current.get()
    if place is not None:
        place.texts.append(generated)


def note(piece: Piece) -> None:
    """Say how a piece of the graph that is compiled now runs."""
    place = _current.get()
    if place is not None:
        place.pieces.append(piece)
        logs.outcome(place.function, piece)


def tell(place: Outcome | None, name: str, reason: str) -> None:
    """Say of a graph that is compiled already what of it, or when, runs as captured; once for each reason."""
    piece = Piece(name, Way.CAPTURED, reason=reason)
    if place is not None and piece not in place.pieces:
        with kept_in(place):
            note(piece)


def as_captured(graph: torch.fx.GraphModule, reason: str, name: str = "graph") -> None:
    """Say that a graph, or a part of one, stays as it was captured, and why."""
    note(Piece(name, Way.CAPTURED, operations_in(graph), reason=reason))


def as_aten(graph: torch.fx.GraphModule, reason: str, name: str = "graph") -> None:
    """Say that a graph of ATen operations runs as these, and why."""
    note(Piece(name, Way.ATEN, operations_in(graph), reason=reason))


def operations_in(graph: torch.fx.GraphModule) -> int:
    """How many operations a graph has, without those that take results apart or compute sizes."""
    return sum(node.op.startswith("call") and not _is_glue(node) for node in graph.graph.nodes)


def _is_glue(node: torch.fx.Node) -> bool:
    if "size" in node.meta or isinstance(_value(node), SYMBOLIC):
        return True
    return node.target is operator.getitem and not isinstance(_value(node.args[0]), torch.Tensor)


def _value(node: Any) -> Any:
    """What a node of a captured or of a traced graph gave for the inputs it was made with."""
    meta = getattr(node, "meta", {})
    return meta.get("val", meta.get("example_value"))
