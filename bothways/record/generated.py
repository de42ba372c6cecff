"""Where the stages write down what they do: into the record of the compilation they work for.

A stage runs when a function is compiled, and again when a backward or a part of a graph is compiled later; whose
compilation it is is remembered in between. Where no record is kept, nothing is written.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
import torch.fx

from bothways.node_facts import facts_of_node
from bothways.record import logs
from bothways.record.compilation import Compilation, StageSpan
from bothways.record.graphs import NOTHING, traced_graph, value_text
from bothways.record.outcomes import Generated, Piece, SavedValue, Way
from bothways.record.progress import compiling, current_line
from bothways.symbols import SYMBOLIC, hint

# So many spans of one record are kept: a function whose backwards keep being compiled has seconds all the same.
MOST_SPANS = 2000

_current: ContextVar[Compilation | None] = ContextVar("compilation", default=None)
# The seconds of the stages inside the one that runs now.
_inside: ContextVar[list[float] | None] = ContextVar("seconds of stages inside", default=None)


def current() -> Compilation | None:
    """The record of what is compiled now."""
    return _current.get()


@contextmanager
def recording(place: Compilation | None) -> Iterator[None]:
    """Have the stages inside write to ``place``."""
    token = _current.set(place)
    try:
        with nullcontext() if place is None else compiling(place.function):
            yield
    finally:
        _current.reset(token)


@contextmanager
def kept_in(place: Compilation | None) -> Iterator[None]:
    """The same for what the differentiator does later: for a backward that runs for the first time, for a part."""
    with recording(place), stage("differentiate"):
        yield


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Time a stage, less the stages inside it."""
    place, outer = _current.get(), _inside.get()
    if place is None:
        yield
        return
    token, begin = _inside.set(inside := [0.0]), time.perf_counter()
    line = current_line()
    if line is not None:
        line.begin(name)
    try:
        yield
    finally:
        if line is not None:
            line.end()
        _inside.reset(token)
        taken = time.perf_counter() - begin
        place.seconds[name] = place.seconds.get(name, 0.0) + taken - inside[0]
        if len(place.spans) < MOST_SPANS:
            place.spans.append(StageSpan(name, begin, taken))
        if outer is not None:
            outer[0] += taken


def keep(generated: Generated) -> None:
    """Keep a text that was generated."""
    place = _current.get()
    if place is not None:
        place.generated.append(generated)


def keep_graph(name: str, graph: torch.fx.Graph, returned: Mapping[str, Sequence[Any]] = NOTHING) -> None:
    """Keep the text of a traced graph; ``returned`` is for one without an output node."""
    place = _current.get()
    if place is not None:
        place.graphs.append(traced_graph(name, graph, returned))


def saved_of(saved: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node]) -> list[SavedValue]:
    """What a forward keeps, for people: values that it computes, and inputs."""
    return [*(_saved(node, False) for node in saved), *(_saved(node, True) for node in inputs)]


def _saved(node: torch.fx.Node, is_input: bool) -> SavedValue:
    value = node.meta.get("val")
    size = hint(value.numel()) * value.element_size() if isinstance(value, torch.Tensor) else 0
    # One of several results comes from the line of the operation that gave them.
    traces = (one.meta.get("stack_trace") for one in (node, *node.all_input_nodes[:1]))
    return SavedValue(node.name, value_text(value), int(size), next(filter(None, traces), ""), is_input)


def keep_saved(saved: Sequence[SavedValue]) -> None:
    """Write down what a forward keeps for its backward."""
    place = _current.get()
    if place is not None:
        place.saved += saved


def note(piece: Piece) -> None:
    """Say how a piece of the graph that is compiled now runs."""
    place = _current.get()
    if place is not None and place.outcome is not None:
        place.outcome.pieces.append(piece)
        logs.outcome(place, piece)


def tell(place: Compilation | None, name: str, reason: str) -> None:
    """Say of a graph that is compiled already what of it, or when, runs as captured; once for each reason."""
    piece = Piece(name, Way.CAPTURED, reason=reason)
    if place is not None and piece not in place.pieces:
        with recording(place):
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
    if facts_of_node(node).is_size or isinstance(_value(node), SYMBOLIC):
        return True
    return node.target is operator.getitem and not isinstance(_value(node.args[0]), torch.Tensor)


def _value(node: Any) -> Any:
    """What a node of a captured or of a traced graph gave for the inputs it was made with."""
    meta = getattr(node, "meta", {})
    return meta.get("val", meta.get("example_value"))
