"""Builds primitive nodes: what lowerings are written in.

A lowering gets Nodes and Python numbers and gives Nodes. Shapes are broadcast and dtypes converted here, views of
memory become other strides, and a computed node that has to be in memory gets a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.prims import (
    Buffer,
    Expand,
    Extern,
    Map,
    Memory,
    Node,
    Permute,
    Position,
    Reduce,
    Reshape,
    Scalar,
    Shape,
    Take,
    View,
    contiguous,
    is_dense,
)
from bothways.lower.shapes import broadcast, normal_dim, reshaped_strides

Operand = Node | int | float | bool


class NotLowered(Exception):
    """The operation has no lowering for these arguments: ATen runs it."""


class Builder:
    """Makes nodes for one graph."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.externs: list[Extern] = []
        self.labels: dict[str, Any] = {}  # name and origin of the nodes that are being made
        self.buffers: dict[Node, Buffer] = {}  # where computed nodes are in memory
        self._names: set[str] = set()

    # Computing.

    def map(self, op: str, *operands: Operand, dtype: torch.dtype, of: torch.dtype | None = None) -> Node:
        """``op`` at each index. Operands are converted to ``of``, the dtype of the result unless said otherwise."""
        shape = broadcast([operand.shape for operand in operands if isinstance(operand, Node)])
        args = tuple(self.operand(operand, of or dtype, shape) for operand in operands)
        return Map(shape, dtype, op, args, **self.labels)

    def operand(self, value: Operand, dtype: torch.dtype, shape: Shape) -> Node:
        if not isinstance(value, Node):
            return Scalar((), dtype, value)
        value = self.cast(value, dtype)
        return value if isinstance(value, Scalar) else self.expand(value, shape)

    def cast(self, node: Node, dtype: torch.dtype) -> Node:
        if node.dtype == dtype:
            return node
        if isinstance(node, Scalar):
            return Scalar((), dtype, node.value)
        return Map(node.shape, dtype, "cast", (node,), **self.labels)

    def where(self, condition: Node, yes: Operand, no: Operand, dtype: torch.dtype) -> Node:
        shape = broadcast([operand.shape for operand in (condition, yes, no) if isinstance(operand, Node)])
        args = (self.operand(condition, torch.bool, shape), *(self.operand(v, dtype, shape) for v in (yes, no)))
        return Map(shape, dtype, "where", args, **self.labels)

    def full(self, shape: Shape, value: Any, dtype: torch.dtype) -> Node:
        return Map(shape, dtype, "constant", (Scalar((), dtype, value),), **self.labels)

    def position(self, shape: Shape, dim: int) -> Node:
        """The index along a dimension, as int64."""
        return Position(shape, torch.int64, dim)

    def reduce(self, op: str, node: Node, axes: Sequence[int], *, dtype: torch.dtype | None = None) -> Node:
        """Over the axes, which stay with size one."""
        shape = tuple(1 if dim in axes else size for dim, size in enumerate(node.shape))
        return Reduce(shape, dtype or node.dtype, op, node, tuple(axes), **self.labels)

    # Views.

    def expand(self, node: Node, shape: Shape) -> Node:
        if node.shape == shape:
            return node
        node = self.reshape(node, (1,) * (len(shape) - len(node.shape)) + node.shape)
        if node.shape == shape:
            return node
        if isinstance(node, Buffer):
            strides = tuple(
                0 if size == 1 and wanted != 1 else stride
                for size, wanted, stride in zip(node.shape, shape, node.strides, strict=True)
            )
            return self._window(node, shape, strides)
        return Expand(shape, node.dtype, node, name=node.name, origin=node.origin)

    def permute(self, node: Node, dims: Sequence[int]) -> Node:
        dims = tuple(normal_dim(dim, len(node.shape)) for dim in dims)
        shape = tuple(node.shape[dim] for dim in dims)
        if dims == tuple(range(len(dims))):
            return node
        if isinstance(node, Buffer):
            return self._window(node, shape, tuple(node.strides[dim] for dim in dims))
        return Permute(shape, node.dtype, node, dims, name=node.name, origin=node.origin)

    def reshape(self, node: Node, shape: Sequence[int]) -> Node:
        shape = self._known_sizes(node, tuple(shape))
        if node.shape == shape:
            return node
        if not isinstance(node, Buffer):
            return Reshape(shape, node.dtype, node, name=node.name, origin=node.origin)
        strides = reshaped_strides(node.shape, node.strides, shape)
        if strides is None:
            copied = Map(node.shape, node.dtype, "copy", (node,), name=node.name, origin=node.origin)
            return self.reshape(self.stored(copied), shape)
        return self._window(node, shape, strides)

    def slice(self, node: Node, dim: int, start: int, length: int, step: int = 1) -> Node:
        """Every ``step``-th element from ``start``: a window on memory, so the node has to be there."""
        base = self.stored(node)
        shape = tuple(length if index == dim else size for index, size in enumerate(base.shape))
        strides = tuple(stride * step if index == dim else stride for index, stride in enumerate(base.strides))
        return self._window(base, shape, strides, base.offset + start * base.strides[dim])

    def squeezed(self, node: Node, dims: Sequence[int]) -> Node:
        return self.reshape(node, [size for dim, size in enumerate(node.shape) if dim not in dims])

    def take(self, source: Node, dim: int, index: Node) -> Node:
        """``source`` with dimension ``dim`` at ``index``, which has the shape of the result."""
        return Take(index.shape, source.dtype, self.stored(source), dim, index, **self.labels)

    @staticmethod
    def _known_sizes(node: Node, shape: Shape) -> Shape:
        if -1 not in shape:
            return shape
        known = -math.prod(shape)
        return tuple(node.numel // known if size == -1 else size for size in shape)

    @staticmethod
    def _window(base: Buffer, shape: Shape, strides: Shape, offset: int | None = None) -> Buffer:
        return Buffer(
            shape, base.dtype, base.memory, strides, base.offset if offset is None else offset,
            name=base.name, origin=base.origin,
        )  # fmt: skip

    # Memory.

    def stored(self, node: Node) -> Buffer:
        """The node as a buffer; a computed one becomes a result of its kernel."""
        if isinstance(node, Buffer):
            return node
        if isinstance(node, View):
            return self._viewed(node)
        if isinstance(node, (Scalar, Position, Take)):
            node = self._copied(node)
        found = self.buffers.get(node)
        if found is None:
            strides = getattr(node, "strides", None)
            if strides is None or not is_dense(node.shape, strides):
                strides = contiguous(node.shape)
            memory = Memory(self.unique(node.name), node.dtype, node.shape, strides, node)
            found = Buffer(node.shape, node.dtype, memory, strides, name=node.name, origin=node.origin)
            self.buffers[node] = found
        return found

    def _viewed(self, node: View) -> Buffer:
        base = self.stored(node.arg)
        match node:
            case Permute():
                result = self.permute(base, node.dims)
            case Expand():
                result = self.expand(base, node.shape)
            case _:
                result = self.reshape(base, node.shape)
        assert isinstance(result, Buffer)
        return result

    def _copied(self, node: Node) -> Map:
        return Map(node.shape, node.dtype, "copy", (node,), name=node.name, origin=node.origin)

    def extern(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: Any, name: str) -> Any:
        """A call of ATen that gives ``values`` (fakes); Buffers for its results."""
        is_tuple = isinstance(values, (tuple, list))
        fakes = list(values) if is_tuple else [values]
        call = Extern((), torch.float32, target, self.in_memory(args), self.in_memory(kwargs), name=name)
        call.is_tuple = is_tuple
        self.externs.append(call)
        buffers: list[Buffer | None] = []
        for fake in fakes:
            if not isinstance(fake, torch.Tensor):
                call.results.append(None)
                buffers.append(None)
                continue
            shape = tuple(fake.shape)
            memory = Memory(self.unique(name), fake.dtype, shape, fake.stride(), call)
            call.results.append(memory)
            buffers.append(Buffer(shape, fake.dtype, memory, fake.stride(), name=name))
        return tuple(buffers) if is_tuple else buffers[0]

    def in_memory(self, tree: Any) -> Any:
        if isinstance(tree, Scalar) and not tree.shape:
            return tree.value
        if isinstance(tree, Node):
            return self.stored(tree)
        if isinstance(tree, (tuple, list)):
            return type(tree)(self.in_memory(item) for item in tree)
        if isinstance(tree, dict):
            return {key: self.in_memory(item) for key, item in tree.items()}
        return tree

    def unique(self, name: str) -> str:
        unique, count = name, 0
        while unique in self._names:
            count += 1
            unique = f"{name}_{count}"
        self._names.add(unique)
        return unique
