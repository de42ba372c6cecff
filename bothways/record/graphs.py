"""Graphs as people read them, without what graphs hold: a line an operation, kept until the text is asked for.

A traced graph leads to fake tensors, to sizes and to all of its nodes; what is kept here are names, operations and
plain arguments, which takes some microseconds a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.fx

from bothways import torch_compat

NOTHING: Mapping[str, Sequence[Any]] = {}
_FRAME = re.compile(r'File "(.*)", line (\d+), in (.*)\n\s*(.*)')


@dataclass(frozen=True)
class GraphText:
    """One graph: ``name`` says which (captured, joint, forward, backward), ``str()`` gives its text."""

    name: str
    write: Callable[[], str] = field(repr=False)
    read: Callable[[], Sequence[Line]] = field(repr=False)  # node by node

    def __str__(self) -> str:
        return self.write()


class Line(NamedTuple):
    """One node of a graph."""

    name: str
    op: str
    target: Any
    args: Any
    kwargs: Any
    value: str
    where: str


class Name(str):
    """The name of a node, in the place of the node."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def captured_graph(graph: torch.fx.GraphModule) -> GraphText:
    """A captured graph, in PyTorch's own words."""
    write = lambda: str(graph.print_readable(print_output=False)).strip()  # noqa: E731
    return GraphText("captured", write, lambda: [_line(node) for node in graph.graph.nodes])


def traced_graph(name: str, graph: torch.fx.Graph, returned: Mapping[str, Sequence[Any]] = NOTHING) -> GraphText:
    """A graph of ATen operations. ``returned`` are what a graph that has no output node gives, under their titles."""
    lines = [_line(node) for node in graph.nodes]
    last = {title: [node and node.name for node in nodes] for title, nodes in returned.items() if nodes}
    write = lambda: "\n".join([*_written(lines), *(_returned(*each) for each in last.items())])  # noqa: E731
    return GraphText(name, write, lambda: lines)


def _line(node: torch.fx.Node) -> Line:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: Name(arg.name))
    value = value_text(node.meta.get("val", node.meta.get("example_value")))
    return Line(node.name, node.op, node.target, args, kwargs, value, node.meta.get("stack_trace") or "")


def value_text(value: Any) -> str:
    """What a node gives: ``float32[3, 4]``."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(value_text, value))})"
    return "" if value is None else type(value).__name__


def _written(lines: Sequence[Line]) -> Iterable[str]:
    before = ""
    for line in lines:
        match = _FRAME.search(line.where) if line.where else None
        where = f"# {match[1].rpartition('/')[2]}:{match[2]} in {match[3]}: {match[4]}" if match is not None else ""
        if where and where != before:
            yield where
        before = where
        yield f"{line.name}{f': {line.value}' if line.value else ''} = {call_text(line)}" if line.op != "output" else (
            f"return {_plain(line.args[0])}"
        )


def call_text(line: Line) -> str:
    if line.op in ("placeholder", "get_attr"):
        return "an input" if line.op == "placeholder" else f"the constant {line.target}"
    arguments = [*map(_plain, line.args), *(f"{key}={_plain(value)}" for key, value in line.kwargs.items())]
    is_operation = isinstance(line.target, str) or torch_compat.is_plain_overload(line.target)
    name = str(line.target) if is_operation else getattr(line.target, "__name__", repr(line.target))
    return f"{name}({', '.join(arguments)})"


def _plain(value: Any) -> str:
    """An argument as text; immutable collections of torch.fx are the lists and dictionaries they stand for."""
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_plain, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return repr(value)


def _returned(title: str, names: Sequence[str | None]) -> str:
    return f"return {', '.join(map(str, names)) or 'nothing'}  # {title}"
