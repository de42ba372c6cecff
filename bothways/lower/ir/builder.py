"""Builds primitive nodes: what lowerings are written in.

A lowering gets Nodes and Python numbers and gives Nodes. Shapes are broadcast and dtypes converted here, views of
memory become other strides, and a computed node that has to be in memory gets a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bothways.lower.ir.domain import can_regroup
from bothways.lower.ir.names import GraphNames
from bothways.lower.ir.prims import (
    Buffer,
    Expand,
    Extern,
    IndexAlong,
    Join,
    Map,
    Memory,
    Node,
    Permute,
    Reduce,
    Reshape,
    Scalar,
    Shape,
    Take,
    View,
    contiguous,
    is_dense,
)
from bothways.lower.ir.shapes import broadcast, leaves_range, normal_dim, reshaped_strides
from bothways.lower.ir.sizes import Fraction, NotLowered, Size, is_fake, size_hint
from bothways.ops import PRIMITIVES, REDUCTIONS

__all__ = ["Builder", "NotLowered", "Operand"]

Operand = Node | int | float | bool | Size | Fraction

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Checked:
    """A check that was made: its call, what it is told, and its cases."""

    extern: Extern
    bad: Node
    cases: list[Any]


class Builder:
    """Makes nodes for one graph."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type != "cpu"
        self.externs: list[Extern] = []
        self.labels: dict[str, Any] = {}  # name and origin of the nodes that are being made
        self.buffers: dict[Node, Buffer] = {}  # where computed nodes are in memory
        self.current: dict[Node, Node] = {}  # what became of values that were updated
        self.known_sums: dict[tuple[Node, tuple[int, ...]], Node] = {}  # by what is summed and its axes
        self.known_padded: dict[Hashable, Buffer] = {}  # matrices with zeros behind their ends
        self.known_places: dict[Hashable, Node] = {}  # indices that were looked at, as they are in range
        self.numbers: set[Memory] = set()  # inputs that hold what eager takes as numbers, which it does not round
        self.own_inputs: set[Memory] = set()  # inputs that only operations which update them read
        self._checked_together: Checked | None = None  # the last check that others may join
        self._rounded: set[Node] = set()  # values of half precision that memory can hold
        self.names = GraphNames()

    # Computing.

    def map(self, op: str, *operands: Operand, dtype: torch.dtype, of: torch.dtype | None = None) -> Node:
        """``op`` at each index. Operands are converted to ``of``, the dtype of the result unless said otherwise."""
        shape = broadcast([operand.shape for operand in operands if isinstance(operand, Node)])
        primitive = PRIMITIVES[op]
        if primitive.takes_numbers_in_float and dtype in HALVES and self.takes_as_number(operands[1]):
            of = torch.float32
        args = tuple(self.operand(operand, of or dtype, shape) for operand in operands)
        if not (primitive.takes_numbers_in_float or (self.on_gpu and primitive.takes_numbers_in_float_on_gpu)):
            args = tuple(map(as_stored, args))
        return Map(shape, dtype, op, args, **self.labels)

    def takes_as_number(self, value: Operand) -> bool:
        """Whether ATen takes a second operand beside half precision as the number that it holds, and does not round it:
        on a CPU a tensor without dimensions, of another dtype."""
        return not self.on_gpu and isinstance(value, Node) and value.shape == () and value.dtype not in HALVES

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
        if dtype in HALVES and isinstance(node, Buffer) and node.memory in self.numbers:
            return Map(node.shape, dtype, "copy", (self.cast(node, torch.float32),), **self.labels)
        return Map(node.shape, dtype, "cast", (node,), **self.labels)

    def result(self, tree: Any) -> Any:
        """What an operation gives, as others read it: rounded to the precision in which eager stores it."""
        if isinstance(tree, (tuple, list)):
            return type(tree)(map(self.result, tree))
        return self.rounded(tree) if isinstance(tree, Node) else tree

    def rounded(self, node: Node) -> Node:
        """The value that memory would hold."""
        if self.is_rounded(node):
            rounded = node
        elif isinstance(node, Reshape):
            rounded = self.reshape(self.rounded(node.arg), node.shape)
        elif isinstance(node, Expand):
            rounded = self.expand(self.rounded(node.arg), node.shape)
        elif isinstance(node, Permute):
            rounded = self.permute(self.rounded(node.arg), node.dims)
        else:
            rounded = Map(node.shape, node.dtype, "cast", (node,), **self.labels)
        self._rounded.add(rounded)
        return rounded

    def is_rounded(self, node: Node) -> bool:
        """Whether a value is one that memory can hold."""
        if node.dtype not in HALVES or node in self._rounded or isinstance(node, (Buffer, Take)):
            return True
        match node:
            case Map():
                keeps = PRIMITIVES[node.op].keeps_precision
                return node.op == "cast" or (keeps and all(map(self.is_rounded, node.args)))
            case Reduce():
                return REDUCTIONS[node.op].keeps_precision and self.is_rounded(node.arg)
            case View():
                return self.is_rounded(node.arg)
            case Scalar():
                return node.as_stored
        return False

    def where(self, condition: Node, yes: Operand, no: Operand, dtype: torch.dtype) -> Node:
        shape = broadcast([operand.shape for operand in (condition, yes, no) if isinstance(operand, Node)])
        args = (self.operand(condition, torch.bool, shape), *(self.operand(v, dtype, shape) for v in (yes, no)))
        return Map(shape, dtype, "where", tuple(map(as_stored, args)), **self.labels)

    def full(self, shape: Shape, value: Any, dtype: torch.dtype) -> Node:
        return Map(shape, dtype, "constant", (Scalar((), dtype, value, as_stored=True),), **self.labels)

    def position(self, shape: Shape, dim: int) -> Node:
        """The index along a dimension, as int64."""
        return Map(shape, torch.int64, "copy", (IndexAlong(shape, torch.int64, dim),), **self.labels)

    def reduce(self, op: str, node: Node, axes: Sequence[int], *, dtype: torch.dtype | None = None) -> Node:
        """Over the axes, which stay with size one."""
        axes = [axis for axis in axes if node.shape[axis] != 1]
        if not axes:
            # The only element, but not its memory: people may change either.
            return self.map("copy", self.cast(node, dtype or node.dtype), dtype=dtype or node.dtype)
        known = self._known_sum(node, tuple(axes)) if op == "sum" else None
        if known is not None:
            return self.cast(known, dtype or node.dtype)
        shape = tuple(1 if dim in axes else size for dim, size in enumerate(node.shape))
        return Reduce(shape, dtype or node.dtype, op, node, tuple(axes), **self.labels)

    def _known_sum(self, node: Node, axes: tuple[int, ...]) -> Node | None:
        """What a sum comes to, of which the lowering of what is summed has told; of what is wider than that, too."""
        known = self.known_sums.get((node, axes))
        if known is None and isinstance(node, Map) and node.op == "cast" and node.args[0].dtype in HALVES:
            known = self.known_sums.get((node.args[0], axes))
        return known

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
            return self.window(node, shape, strides)
        return Expand(shape, node.dtype, node, name=node.name, origin=node.origin)

    def permute(self, node: Node, dims: Sequence[int]) -> Node:
        dims = tuple(normal_dim(dim, len(node.shape)) for dim in dims)
        shape = tuple(node.shape[dim] for dim in dims)
        if dims == tuple(range(len(dims))):
            return node
        if isinstance(node, Buffer):
            return self.window(node, shape, tuple(node.strides[dim] for dim in dims))
        return Permute(shape, node.dtype, node, dims, name=node.name, origin=node.origin)

    def reshape(self, node: Node, shape: Sequence[int]) -> Node:
        shape = self._known_sizes(node, tuple(shape))
        while isinstance(node, Reshape):
            node = node.arg
        if node.shape == shape:
            return node
        if not isinstance(node, Buffer) and not can_regroup(node.shape, shape):
            node = self.stored(node)  # (3, 4) as (4, 3): no loop of the one is a part of one of the other
        if not isinstance(node, Buffer):
            return Reshape(shape, node.dtype, node, name=node.name, origin=node.origin)
        strides = reshaped_strides(node.shape, node.strides, shape)
        if strides is None:
            if node.strides == contiguous(node.shape):
                raise NotLowered  # that the sizes agree is not known for all calls
            copied = Map(node.shape, node.dtype, "copy", (node,), name=node.name, origin=node.origin)
            return self.reshape(self.stored(copied), shape)
        return self.window(node, shape, strides)

    def slice(self, node: Node, dim: int, start: int, length: int, step: int = 1) -> Node:
        """Every ``step``-th element from ``start``: a window on memory, so the node has to be there."""
        if leaves_range(node.shape[dim], start, length, step):
            raise NotLowered
        base = self.stored(node)
        shape = tuple(length if index == dim else size for index, size in enumerate(base.shape))
        strides = tuple(stride * step if index == dim else stride for index, stride in enumerate(base.strides))
        return self.window(base, shape, strides, base.offset + start * base.strides[dim])

    def flipped(self, node: Node, dims: Sequence[int]) -> Node:
        """Backwards along some dimensions. The window that is read has negative strides, which no tensor may have."""
        base = self.stored(node)
        strides = tuple(-stride if dim in dims else stride for dim, stride in enumerate(base.strides))
        offset = base.offset + sum((base.shape[dim] - 1) * base.strides[dim] for dim in dims)
        return Map(base.shape, base.dtype, "copy", (self.window(base, base.shape, strides, offset),), **self.labels)

    def squeezed(self, node: Node, dims: Sequence[int]) -> Node:
        return self.reshape(node, [size for dim, size in enumerate(node.shape) if dim not in dims])

    def take(self, source: Node, dim: int, index: Node) -> Node:
        """``source`` with dimension ``dim`` at ``index``, which has the shape of the result."""
        if self.on_gpu and size_hint(index.numel) <= size_hint(source.numel):
            computed = self._taken(source, dim, index)
            if computed is not None:
                return computed
        return Take(index.shape, source.dtype, self.stored(source), dim, index, **self.labels)

    def _taken(self, node: Node, dim: int, index: Node) -> Node | None:
        """The same, computed from what is in memory where that is cheap, so that all of ``node`` need not be, or need
        not be waited for: of the logarithms of probabilities, a loss takes one in each row."""
        match node:
            case Buffer():
                return Take(index.shape, node.dtype, node, dim, index, **self.labels)
            case Scalar():
                return node
            case Expand() if node.arg.shape == index.shape and node.arg.shape[dim] == 1:  # wherever it is taken
                return node.arg
            case Map() if node.into is None and not PRIMITIVES[node.op].is_expensive:
                args = [self._taken(arg, dim, index) for arg in node.args]
                if None in args:
                    return None
                taken = Map(index.shape, node.dtype, node.op, tuple(filter(None, args)), **self.labels)
                if node in self._rounded:
                    self._rounded.add(taken)
                return taken
        return None

    @staticmethod
    def _known_sizes(node: Node, shape: Shape) -> Shape:
        if -1 not in shape:
            return shape
        known = -math.prod(shape)
        return tuple(node.numel // known if size == -1 else size for size in shape)

    @staticmethod
    def window(base: Buffer, shape: Shape, strides: Shape, offset: int | None = None) -> Buffer:
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
        if isinstance(node, (Scalar, IndexAlong, Take)):
            node = self._copied(node)
        buffer = self.buffers.get(node)
        if buffer is None:
            strides = _strides(node)
            memory = Memory(self.unique(node.name), node.dtype, node.shape, strides, node)
            buffer = self.buffers[node] = _whole(memory, node)
        return buffer

    def joined(self, shape: Shape, strides: Shape, dtype: torch.dtype, parts: Sequence[tuple[Node, Shape]]) -> Buffer:
        """One memory that is filled part by part: each where its first element goes. Together they cover it."""
        if not is_dense(shape, strides):
            strides = contiguous(shape)
        memory = Memory(self.unique(self.labels.get("name", "joined")), dtype, shape, strides)
        whole = Buffer(shape, dtype, memory, strides, **self.labels)
        copies = []
        for part, start in parts:
            if any(map(leaves_range, shape, start, part.shape)):
                raise NotLowered
            offset = sum(first * stride for first, stride in zip(start, strides, strict=True))
            copies.append(self.written(part, self.window(whole, part.shape, strides, offset)))
        memory.producer = Join(shape, dtype, tuple(copies), **self.labels)
        return whole

    def written(self, node: Node, into: Buffer) -> Map:
        """A map that is computed into memory that is there already."""
        value = Map(into.shape, into.dtype, "copy", (self.cast(node, into.dtype),), into=into, **self.labels)
        self.buffers[value] = into
        return value

    def update(self, old: Node, new: Node) -> None:
        """From here on a value is another. When it is an input, that is written to in the end: only operations that
        update it, too, may read it, since kernels run in no order that would keep other reads before the write."""
        if isinstance(old, Buffer) and old.memory.producer is None and old.memory not in self.own_inputs:
            raise NotLowered
        self.current[old] = new

    def updates(self) -> list[Map]:
        """What is written to inputs."""
        buffers = []
        for first in [old for old in self.current if isinstance(old, Buffer) and old.memory in self.own_inputs]:
            new: Node = first
            while new in self.current:
                new = self.current[new]
            self.labels = {"name": first.name, "origin": new.origin}
            buffers.append(self.written(new, first))
        return buffers

    def within(self, index: Node, size: int) -> Node:
        """An index that kernels themselves find to be in range, or end with an error, as eager's do on a GPU."""
        return Map(index.shape, torch.int64, "within", (index, Scalar((), torch.int64, size)), **self.labels)

    def check(self, bad: Node, function: Any, *args: Any) -> None:
        """Call ``function`` with whether anything is bad, and ``args``, which it may raise an error about."""
        self._check(self._any(bad), function, *args)

    def check_together(self, bad: Node, function: Any, case: Any) -> None:
        """The same, with other checks of the kind in one call, which gets all their cases in order: what is called in
        between does not show."""
        anything, cases = self._any(bad), [case]
        last = self._checked_together
        if last is not None and last.extern.target is function and not any(map(_may_show, self._externs_behind(last))):
            self.externs.remove(last.extern)
            self.buffers.pop(last.bad.arg if isinstance(last.bad, View) else last.bad, None)
            anything, cases = self.map("logical_or", last.bad, anything, dtype=torch.bool), [*last.cases, case]
        self._check(anything, function, *cases)
        self._checked_together = Checked(self.externs[-1], anything, cases)

    def _externs_behind(self, last: Checked) -> list[Extern]:
        return self.externs[self.externs.index(last.extern) + 1 :]

    def _any(self, bad: Node) -> Node:
        return self.reshape(self.reduce("any", bad, range(len(bad.shape))), ())

    def _check(self, anything: Node, function: Any, *args: Any) -> None:
        self.extern(function, (anything, *args), {}, (), "check")
        self.externs[-1].is_check = True

    def computed(self, function: Any, args: tuple[Any, ...], shape: Shape, dtype: torch.dtype) -> Buffer:
        """New memory that ``function``, one of ours, fills: a contiguous tensor of this shape."""
        name, origin = self.labels.get("name", "computed"), self.labels.get("origin", "")
        call = Extern(
            (), torch.float32, function, self.in_memory(args), {}, only_computes=True, name=name, origin=origin
        )
        self.externs.append(call)
        memory = Memory(self.unique(name), dtype, shape, contiguous(shape), call)
        call.results.append(memory)
        return _whole(memory, call)

    def empty(self, fake: torch.Tensor) -> Buffer:
        """Memory that nothing reads."""
        settings = {"dtype": fake.dtype, "device": fake.device}  # whatever is made where nothing is said
        buffer = self.extern(
            torch.ops.aten.empty_strided.default, (list(fake.shape), list(fake.stride())), settings, fake,
            self.labels.get("name", "empty"),
        )  # fmt: skip
        assert isinstance(buffer, Buffer)
        return buffer

    def _viewed(self, node: View) -> Buffer:
        below = node.arg
        plain = isinstance(below, (Map, Reduce)) and _strides(below) == contiguous(below.shape)
        if isinstance(node, Reshape) and plain and below not in self.buffers:
            # The memory is made in the shape that is asked for, which is the one that leaves the program.
            memory = Memory(self.unique(below.name), below.dtype, node.shape, contiguous(node.shape), below)
            self.buffers[below] = self.window(_whole(memory, below), below.shape, contiguous(below.shape))
            return _whole(memory, node)
        base = self.stored(below)
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
        if any(isinstance(fake, (tuple, list)) for fake in fakes):
            raise NotLowered(f"{target} gives several lists of tensors")
        origin = self.labels.get("origin", "")
        call = Extern((), torch.float32, target, self.in_memory(args), self.in_memory(kwargs), name=name, origin=origin)
        call.is_tuple = is_tuple
        self.externs.append(call)
        buffers: list[Buffer | None] = []
        for fake in fakes:
            if not is_fake(fake):
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
        return self.names.fresh(name)


def _may_show(extern: Extern) -> bool:
    """Whether the caller may see that a call comes before a check, and not after it."""
    return extern.may_fail or not extern.is_pure


def as_stored(node: Node) -> Node:
    """A number of the program rounded to its dtype; any other value as it is."""
    return replace(node, as_stored=True) if isinstance(node, Scalar) else node


def _strides(node: Node) -> Shape:
    """How a computed node is laid out in memory: as eager has it, where that leaves no gaps."""
    strides = getattr(node, "strides", None)
    return contiguous(node.shape) if strides is None or not is_dense(node.shape, strides) else strides


def _whole(memory: Memory, node: Node) -> Buffer:
    return Buffer(memory.shape, memory.dtype, memory, memory.strides, name=node.name, origin=node.origin)
