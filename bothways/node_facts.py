"""What is known of the nodes of a graph, of the callables in it, and of a graph as a whole, beside what PyTorch knows.

PyTorch keeps such things in ``node.meta``, under names; some of those are its own, and its backends read them. All that
is ours is one record under one name. Records are never changed: copies of a node share them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch.fx

# Names in ``node.meta`` that PyTorch and its backends know, which are written and read as they are.
PYTORCH_KEYS = {
    "example_value": "of a captured graph: what the node computes, without data",
    "val": "the same, of a graph of ATen operations",
    "stack_trace": "the user's line that the node comes from",
    "tensor_dict": "of an input: the attributes that the user gave the tensor",
}

KEY = "bothways"  # our name in ``meta``
# How names of those inputs begin that the function itself was given, in the graphs of both ways. Its caller holds them.
GIVEN = "primals_"
CALL = "__bothways_call__"  # our attribute of callables in graphs


class Watched(enum.Enum):
    """What people outside look at, of a tensor that a graph computes.

    A differentiator must let autograd itself see the tensor (GRADIENT: hooks, ``retain_grad``), or run the very
    operation that computes it (NODE: its ``grad_fn`` is looked at or hooked).
    """

    GRADIENT = "gradient"
    NODE = "node"


class Region(enum.Enum):
    """Of a callable in a graph: from BEGIN to END the nodes run as they were captured."""

    BEGIN = "begin"
    END = "end"


class NodeFacts(NamedTuple):  # of which many are made
    """The facts of one node.

    ``is_size``: it is a symbol, or computes a size from symbols.
    ``is_number``: it reads a number from data, which is a symbol from there on.
    ``as_captured``: it runs as it was captured, with PyTorch's autograd.
    ``watched``: what people outside look at.
    ``writes_by_index``: it writes to an input by an index, which ATen does best.
    ``is_last_write``: what it writes to is read afterwards, but not changed any more.
    ``may_not_be_kept``: autograd may not keep what it reads, a tensor of inference mode.
    ``without_grad``: gradients were disabled when it was traced.
    ``is_in_place``: it changed an input, or may have, whatever its name is.
    ``variable``: what the user called the tensor first.
    ``is_spelling``: it is there because graphs of custom functions are spelled so, and does nothing of the user's.
    ``changes_as_data``: it may be changed by its ``.data``, unseen by autograd, between a forward and its backward.
    ``is_view``, ``memory``: of an input: whether it is a view, and the storage that it lies in.
    """

    is_size: bool = False
    is_number: bool = False
    as_captured: bool = False
    watched: Watched | None = None
    writes_by_index: bool = False
    is_last_write: bool = False
    may_not_be_kept: bool = False
    without_grad: bool = False
    is_in_place: bool = False
    variable: str | None = None
    is_spelling: bool = False
    changes_as_data: bool = False
    is_view: bool = False
    memory: object = None


@dataclass(frozen=True)
class CallFacts:
    """The facts of a callable that stands in graphs.

    ``opaque``: its backward runs as the user's Python, or autograd alone can follow it.
    ``has_effects``: that it runs a second time could be noticed.
    ``warns``: it warns at the user's line.
    ``region``: whether nodes that run as captured begin or end with it.
    ``traced``: though it is opaque, it can be part of a traced graph where autograd follows nothing.
    ``detaches``: autograd does not follow what it gives.
    """

    opaque: bool = False
    has_effects: bool = False
    warns: bool = False
    region: Region | None = None
    traced: bool = False
    detaches: bool = False


NO_FACTS, NO_CALL_FACTS = NodeFacts(), CallFacts()
Function = TypeVar("Function", bound=Callable[..., Any])


def facts_of_node(node: torch.fx.Node) -> NodeFacts:
    facts: NodeFacts = node.meta.get(KEY, NO_FACTS)
    return facts


def note_of_node(node: torch.fx.Node, **facts: Any) -> None:
    """Add to what is known of a node."""
    known = node.meta.get(KEY)
    node.meta[KEY] = NodeFacts(**facts) if known is None else known._replace(**facts)


def facts_of_call(target: Any) -> CallFacts:
    """What is known of a node's target; nothing of PyTorch's own functions."""
    facts: CallFacts = getattr(target, CALL, NO_CALL_FACTS)
    return facts


def in_graphs(**facts: Any) -> Callable[[Function], Function]:
    """Say of a function or a class how the readers of a graph have to treat calls of it."""

    def note(function: Function) -> Function:
        setattr(function, CALL, CallFacts(**facts))
        return function

    return note


def writes_of(graph: torch.fx.GraphModule) -> Mapping[int, int]:
    """Which results are the new values of which inputs: they may be written there, and the inputs returned."""
    writes: Mapping[int, int] = graph.meta.get(KEY, {})
    return writes


def note_writes(graph: torch.fx.GraphModule, writes: Mapping[int, int]) -> None:
    graph.meta[KEY] = writes


def body_of(graph: torch.fx.GraphModule) -> Any:
    """What is known of a graph that is a body of a custom function; None of others."""
    return graph.meta.get(KEY)


def note_body(graph: torch.fx.GraphModule, body: object) -> None:
    graph.meta[KEY] = body
