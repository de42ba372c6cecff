"""The primitive operations a graph of ATen operations is decomposed into.

Everything is a Node with a shape and a dtype. Buffers are in memory; Maps (one value for each index), Reduces (one
value for each row) and views of them are computed, by kernels that fusion puts together; Externs call ATen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bothways import ops
from bothways.lower.ir.sizes import size_hint

Shape = tuple[int, ...]
# What kernels compute with; half precision is computed in single.
COMPUTABLE = frozenset({
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
})  # fmt: skip
_numbers = itertools.count()


@dataclass(eq=False)
class Node:
    """A value; ``name`` and ``origin`` say which operation of the user's it belongs to."""

    shape: Shape
    dtype: torch.dtype
    name: str = field(default="value", kw_only=True)
    origin: str = field(default="", kw_only=True)
    number: int = field(default_factory=lambda: next(_numbers), kw_only=True)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def sources(self) -> tuple[Node, ...]:
        """The nodes this one is computed from."""
        return ()


@dataclass(eq=False)
class Memory:
    """What a buffer is a window on: an input, the result of an ATen call, or what a kernel writes."""

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Shape
    producer: Node | None = None


@dataclass(eq=False)
class Buffer(Node):
    """Elements of a memory, reached by strides from an offset."""

    memory: Memory
    strides: Shape
    offset: int = 0

    def sources(self) -> tuple[Node, ...]:
        return () if self.memory.producer is None else (self.memory.producer,)


@dataclass(eq=False)
class Scalar(Node):
    """A number that is part of the program; ``as_stored`` when it is rounded to its dtype, as memory would hold it."""

    value: Any
    as_stored: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(eq=False)
class IndexAlong(Node):
    """The index along one dimension."""

    dim: int


@dataclass(eq=False)
class Map(Node):
    """``op`` applied at each index; the arguments have the same shape, or are Scalars."""

    op: str
    args: tuple[Node, ...]
    strides: Shape | None = field(default=None, kw_only=True)  # the layout eager gives it, when it is stored
    into: Buffer | None = field(default=None, kw_only=True)  # other memory that it is written to

    def sources(self) -> tuple[Node, ...]:
        return self.args


@dataclass(eq=False)
class Reduce(Node):
    """``op`` over some axes, which stay as axes of size one."""

    op: str
    arg: Node
    axes: tuple[int, ...]
    strides: Shape | None = field(default=None, kw_only=True)

    def sources(self) -> tuple[Node, ...]:
        return (self.arg,)


@dataclass(eq=False)
class View(Node):
    """The elements of a computed node under other indices."""

    arg: Node

    def sources(self) -> tuple[Node, ...]:
        return (self.arg,)


@dataclass(eq=False)
class Permute(View):
    """Dimension ``i`` is dimension ``dims[i]`` of the argument."""

    dims: tuple[int, ...]


@dataclass(eq=False)
class Expand(View):
    """Dimensions of size one are repeated; the argument has as many dimensions."""


@dataclass(eq=False)
class Reshape(View):
    """The same elements in the same order."""


@dataclass(eq=False)
class Join(Node):
    """What produces a memory that several Maps write to, each its part."""

    parts: tuple[Map, ...]

    def sources(self) -> tuple[Node, ...]:
        return self.parts


@dataclass(eq=False)
class Filled(Node):
    """What produces a memory that a kernel of its own fills: with a product of matrices, or sums at computed places."""


@dataclass(eq=False)
class Take(Node):
    """``source`` at an index that is itself computed, along one dimension; the others follow the node's own."""

    source: Buffer
    dim: int
    index: Node

    def sources(self) -> tuple[Node, ...]:
        return (self.source, self.index)


@dataclass(eq=False)
class Extern(Node):
    """A call of ATen. ``arguments`` holds Nodes where tensors go; its results are Buffers."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Memory | None] = field(default_factory=list)
    is_tuple: bool = False
    is_check: bool = False  # does nothing, or raises
    only_computes: bool = False  # something new, and without fail: a function of ours

    def sources(self) -> tuple[Node, ...]:
        return tuple(nodes_in((self.args, self.kwargs)))

    @property
    def is_view(self) -> bool:
        """Whether the results may be other views of the arguments' memory."""
        operation = ops.of(self.target)
        return operation.aliases or operation.is_view  # the schema of some says nothing of it

    @property
    def is_fresh(self) -> bool:
        """Whether nothing else sees the memory of the results."""
        return self.only_computes or ops.of(self.target).gives is ops.Gives.FRESH

    @property
    def may_fail(self) -> bool:
        """Whether the call can raise on the data it meets: a singular matrix, an index out of range."""
        if self.only_computes:
            return False
        return not any(self.results) or ops.of(self.target).call_fails

    @property
    def is_pure(self) -> bool:
        """Whether the call only computes its results: it draws no random numbers, checks nothing, writes nowhere."""
        operation = ops.of(self.target)
        if self.only_computes:
            return True
        return operation.target is not None and any(self.results) and not operation.writes and not operation.draws


def nodes_in(tree: Any) -> Iterator[Node]:
    """The Nodes inside nested arguments."""
    if isinstance(tree, Node):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from nodes_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from nodes_in(item)


def contiguous(shape: Shape) -> Shape:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in some order of dimensions."""
    step = 1
    pairs = [(stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1]
    for stride, size in sorted(pairs, key=lambda pair: (size_hint(pair[0]), size_hint(pair[1]))):
        if stride != step:
            return False
        step *= size
    return True
