"""Writes to memory that several elements share: eager refuses most of them, and does the others one by one. Random
numbers that fill memory with gaps are drawn one by one, too, those for memory without in another order.

A traced graph has no memory: what is written through a view is computed and put back by the inverse of the view, and
an expanded one has none. ``Overlaps`` watches a captured graph while it is traced, node by node, and says where it may
not be taken apart; it then runs as captured.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.ops import Gives


class WritesShared(RuntimeError):
    """What a traced graph cannot say; like an operation that fails, it means that the graph runs as captured."""


class Overlaps:
    """What was seen so far of one graph."""

    def __init__(self) -> None:
        self._through: set[torch.fx.Node] = set()  # nodes that give views through memory whose elements are shared

    def before(self, arguments: list[Any]) -> list[tuple[torch.Tensor, int]]:
        """The tensors a node is given, with their versions."""
        return [(tensor, tensor._version) for tensor in tensors_in(arguments) if not tensor.is_inference()]

    def after(self, node: torch.fx.Node, before: list[tuple[torch.Tensor, int]], result: Any) -> None:
        """Look at what a node has done; raises where that cannot be expressed without memory."""
        behind = any(argument in self._through for argument in node.all_input_nodes)
        views = [tensor for tensor in tensors_in(result) if tensor._is_view() or node.op == "placeholder"]
        if any(behind or shares_elements(tensor) for tensor in views):
            self._through.add(node)
        written = [tensor for tensor, version in before if tensor._version != version]
        for tensor in written:
            if shares_elements(tensor) or (behind and tensor._is_view()):
                raise WritesShared("an operation writes to elements that share their memory")
            in_order = tensor.is_contiguous() or ("out" not in node.kwargs and _is_dense(tensor))
            if _fills_at_random(node) and not in_order:
                raise WritesShared("random numbers are drawn into memory in an order of its own")
            if not puts_back(node) and any(_meet(tensor, other) for other, _ in before if other is not tensor):
                raise WritesShared("an operation writes to a part of what it reads")


def _fills_at_random(node: torch.fx.Node) -> bool:
    """Whether random numbers take the place of a tensor's elements; dropout draws into memory of its own."""
    return (node.op == "call_method" or "out" in node.kwargs) and ops.of_node(node).draws


def puts_back(node: torch.fx.Node) -> bool:
    """Whether it is the end of ``x[0] += y``: what was taken from a place, and changed there, is written to it."""
    if node.target is not operator.setitem or not isinstance(node.args[2], torch.fx.Node):
        return False
    value = node.args[2]
    while ops.of_node(value).writes_left and isinstance(value.args[0], torch.fx.Node):
        value = value.args[0]
    return value.target is operator.getitem and value.args == node.args[:2] and len(node.all_input_nodes) == 2


def is_view_in_secret(node: torch.fx.Node) -> bool:
    return ops.of_node(node).gives is Gives.SECRET_VIEW


def writes_through(graph: torch.fx.Graph) -> bool:
    """Whether a captured graph writes to a view of a view whose elements share memory.

    Such a graph is not to be cut: the parts would know the view, and not what it is a view of.
    """
    return any(ops.of_node(node).writes for node in graph.nodes if _is_behind_shared(node))


def _is_behind_shared(node: torch.fx.Node) -> bool:
    while node.args and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
        example = node.meta.get("example_value")
        if isinstance(example, torch.Tensor) and example.layout is torch.strided and shares_elements(example):
            return True
        operation = ops.of_node(node)
        if not operation.is_view and not operation.writes:
            return False
    return False


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether two elements may be in one place; where sizes are symbols, whether a stride is 0."""
    return is_shared(tensor.shape, tensor.stride())


def is_shared(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """The same for a layout."""
    pairs = list(zip(strides, shape, strict=True))
    if not all(type(number) is int for pair in pairs for number in pair):
        return any(type(stride) is int and stride == 0 and not _is_single(size) for stride, size in pairs)
    reach = 0
    for stride, size in sorted(pair for pair in pairs if pair[1] > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _is_single(size: Any) -> bool:
    return type(size) is int and size <= 1


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are different parts of one memory that may have elements in common."""
    return torch_compat.storage_of(one) == torch_compat.storage_of(other) and _share_elements(one, other)


def _share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The same for two of one memory."""
    places = [_lies_at(tensor) for tensor in (one, other)]
    if not all(type(number) is int for place in places for number in (place[0], *place[1], *place[2])):
        return places[0] != places[1]
    if places[0] == places[1] or 0 in (one.numel(), other.numel()):
        return False
    ends = [(first, first + sum((n - 1) * s for n, s in zip(*rest, strict=True))) for first, *rest in places]
    return ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1] and not _are_apart(*places)


def meet_in_part(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether eager is sure that two thin tensors are parts of one memory with some elements in common, and refuses to
    write to one of them what it reads in the other."""
    return one.untyped_storage() is other.untyped_storage() and _share_elements(one, other) and _are_dense(one, other)


def are_met_again(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether one of these thin tensors is there twice, or has elements in common with another."""
    by_memory: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_memory.setdefault(id(tensor.untyped_storage()), []).append(tensor)
    return any(
        _lies_at(one) == _lies_at(other) or _share_elements(one, other)
        for together in by_memory.values()
        for one, other in itertools.combinations(together, 2)
    )


def _lies_at(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _are_dense(*tensors: torch.Tensor) -> bool:
    """Whether the elements of each lie side by side."""
    return all(map(_is_dense, tensors))


def _is_dense(tensor: torch.Tensor) -> bool:
    if not all(type(number) is int for number in (*tensor.stride(), *tensor.shape)):
        return False
    reach = 1
    for stride, size in sorted(pair for pair in zip(tensor.stride(), tensor.shape, strict=True) if pair[1] != 1):
        if stride != reach:
            return False
        reach *= size
    return True


def _are_apart(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two parts of the same strides begin in different columns of one layout and stay in them."""
    (first, shape, strides), (second, other_shape, other_strides) = one, other
    if strides != other_strides or shape != other_shape or not strides:
        return False
    for stride, size in zip(strides, shape, strict=True):
        inner = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < stride)
        difference = abs(first - second)
        # Within one step of this dimension both fit side by side.
        if size > 1 and inner < difference and difference + inner < stride:
            return True
    return False


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))
