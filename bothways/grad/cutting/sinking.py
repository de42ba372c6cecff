"""``tensor.data = value`` happens as late as it can without being seen: averages of parameters that are set one by one
would cut a graph after each.

Where nothing reads the tensors any more, that is behind everything else, which stays one part; otherwise behind what is
computed of other tensors, so that all the values are one part.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.grad.cutting.moving import may_write
from bothways.grad.cutting.parts import CompilePart
from bothways.grad.cutting.sections import Section, begins_or_ends, chained
from bothways.grad.tracing.sizes import is_size
from bothways.node_facts import facts_of_call
from bothways.runtime.gradients import gradients
from bothways.runtime.nodes import set_data_

Node = torch.fx.Node

# What tensors are made in these modes, they are for good; their data is set there.
_MODES = (torch_compat.enter_inference_mode, torch_compat.exit_inference_mode)


def split_before_new_data(graph: torch.fx.GraphModule, compile_part: CompilePart) -> torch.fx.GraphModule | None:
    """The graph as a part that computes and one that sets data, as captured; None where there would not be both."""
    last = _set_at_the_end(graph.graph)
    if not last:
        return None
    sunk = frozenset(last)
    nodes = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output") and not is_size(node)]
    first = [node for node in nodes if node not in sunk]
    return chained(graph, [Section(first), Section(last, True)], compile_part) if first else None


def _set_at_the_end(graph: torch.fx.Graph) -> list[Node]:
    """The nodes that may as well set data behind the last operation, in the order in which they do.

    Nothing behind them reads the tensor or changes what it is given, nothing sees more than its arguments, and nothing
    raises, which would leave the old data behind: what a backward has saved of a leaf is the leaf, whatever its data is
    by then.
    """
    read, written = set[Node](), set[Node]()
    sinking = list[Node]()
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    for node in reversed(nodes):
        if node.target is set_data_ and _is_free(node, read, written):
            sinking.append(node)
        elif _sees_more(node) or _may_raise(node):
            break
        else:
            read.update(node.all_input_nodes)
            if may_write(node):
                written.update(node.all_input_nodes)
    return sinking[::-1]


def _is_free(node: Node, read: set[Node], written: set[Node]) -> bool:
    tensor, content = node.args
    return not node.users and tensor not in read and content not in written


def _sees_more(node: Node) -> bool:
    known = facts_of_call(node.target)
    if begins_or_ends(node):
        return node.target in _MODES
    return node.target is gradients or known.opaque or known.has_effects


def _may_raise(node: Node) -> bool:
    """Whether an operation may raise on the data that it meets."""
    if node.target is operator.getitem:
        return len(node.all_input_nodes) > 1  # an index that is a tensor
    known = ops.of_node(node)
    base = ops.named(known.name.removeprefix("_foreach_").partition(".")[0])
    computes = ops.named(base.functional) if base.functional else base
    divides_whole = node.kwargs.get("rounding_mode") is not None
    return divides_whole or computes.fails is ops.Fails.ON_SOME_DATA


def with_data_set_late(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with each ``tensor.data = value`` behind what is computed of other tensors after it.

    A model that follows another one has one for each parameter. What shares memory with the tensor keeps its own, so
    nothing but the tensor itself shows when it is done.
    """
    ordered: list[Node] = []
    waiting: list[Node] = []
    changed: set[Node] = set()  # what waits, and the tensors that it changes
    for node in nodes:
        is_setting = node.target is set_data_
        if not (is_setting or _only_computes(node)) or not changed.isdisjoint(node.all_input_nodes):
            ordered += waiting
            waiting, changed = [], set()
        if is_setting:
            waiting.append(node)
            changed |= {node, node.all_input_nodes[0]}
        else:
            ordered.append(node)
    return ordered + waiting


def _only_computes(node: Node) -> bool:
    """Whether all that a node does is to compute element by element, or to read ``.data``."""
    if node.target is getattr:
        return node.args[1] == "data"
    known = ops.of_node(node)
    is_called = node.op in ("call_function", "call_method")
    return is_called and known.looks_like is not None and not (known.draws or may_write(node) or _may_raise(node))
