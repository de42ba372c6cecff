"""Writing to computed places. What is added up there is added in the order of the indices, one after the other, as ATen
does on a CPU; on a GPU it has its own way to the same bits every time, and is called.
Where ATen adds up many floats in several threads, its order is another one each time, and this one is one of them.

Half precision is ATen's too: some of its kernels round every sum, others only the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.indexing import INDICES, flat, in_range, is_together, numbered
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.prims import Map, Node, Scalar, Shape, contiguous
from bothways.lower.ir.shapes import broadcast, normal_dim
from bothways.lower.ir.sizes import size_hint

ADDED = frozenset({
    torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
})  # fmt: skip

MOST = 1 << 22  # elements: from there on several threads are faster, which ATen has for some


def added_at(
    first: Any, sizes: Sequence[int], shape: Sequence[int], dim: int, index: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """``first``, a tensor or the number in all its places, of these sizes, with ``source`` added along a dimension of
    ``shape`` where ``index``, which has the shape of ``source``, says: what the kernel does where there is one."""
    tensor = first.reshape(shape) if isinstance(first, torch.Tensor) else source.new_full(shape, first)
    return tensor.contiguous().scatter_add(dim, index, source).view(sizes)


def _index_added(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Something added, for what ATen says of the index: it has two ways to add, and other words in each."""
    sizes = *tensor.shape[:dim], len(index), *tensor.shape[dim + 1 :]
    return tensor.index_add(dim, index, tensor.new_zeros(()).expand(sizes))


@lowers(aten.index_add.default)
def _index_add(
    b: Builder, out: torch.Tensor, x: Node, dim: int, index: Node, source: Node, *, alpha: Any = 1
) -> Node:
    _check_added(b, out, x, source)
    if type(alpha) not in (int, float) or alpha != 1 or index.dtype not in INDICES:
        raise NotLowered
    if len(index.shape) != 1 or len(source.shape) != len(x.shape):
        raise NotLowered
    dim = normal_dim(dim, len(x.shape))
    if source.shape != (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :]):
        raise NotLowered
    index = in_range(b, index, x.shape, dim, from_end=False, target=_index_added, args=(dim, index))
    return _added(b, out, x, tuple(out.shape), dim, _along(b, index, source.shape, dim), source)


@lowers(aten.scatter_add.default)
def _scatter_add(b: Builder, out: torch.Tensor, x: Node, dim: int, index: Node, source: Node) -> Node:
    _check_added(b, out, x, source)
    if not len(index.shape) == len(source.shape) == len(x.shape) or index.dtype != torch.int64:
        raise NotLowered
    dim = normal_dim(dim, len(x.shape))
    others = (own == dim or _is_part(*sizes) for own, sizes in enumerate(zip(index.shape, x.shape, strict=True)))
    if not all(others) or not all(_is_part(*sizes) for sizes in zip(index.shape, source.shape, strict=True)):
        raise NotLowered
    places = in_range(b, index, x.shape, dim, from_end=False, target=aten.gather.default, args=(dim, index))
    if index.shape != source.shape:
        source = b.stored(source)
        source = b.window(source, index.shape, source.strides)
    return _added(b, out, x, tuple(out.shape), dim, places, source)


@lowers(aten.index_put.default)
def _index_put(
    b: Builder, out: torch.Tensor, x: Node, places: Sequence[Node | None], value: Node, accumulate: bool = False
) -> Node:
    """``x[mask] = number``, and what is added at places; other places are ATen's business."""
    if accumulate:
        return _added_at_places(b, out, x, places, value)
    mask = places[0] if len(places) == 1 else None
    if mask is None or mask.dtype != torch.bool or value.shape not in ((), (1,)):
        raise NotLowered
    mask = b.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - len(mask.shape))))
    return b.where(mask, b.reshape(value, ()), x, out.dtype)


def _added_at_places(b: Builder, out: torch.Tensor, x: Node, places: Sequence[Node | None], value: Node) -> Node:
    """Indices of one dimension, whose order is the only one there is, for dimensions that lie together."""
    _check_added(b, out, x, value)
    dims = [dim for dim, _ in numbered(places)]
    along = broadcast([index.shape for _, index in numbered(places)])
    if len(along) != 1 or not is_together(dims):
        raise NotLowered
    first, behind = dims[0], x.shape[dims[-1] + 1 :]
    shape = *x.shape[:first], *along, *behind
    missing = len(shape) - len(value.shape)
    pairs = zip(value.shape, shape[missing:], strict=True) if missing >= 0 else [(0, 1)]
    if not all(own == whole or (type(own) is int and own == 1) for own, whole in pairs):
        raise NotLowered
    steps = {dim: math.prod(x.shape[dim + 1 : dims[-1] + 1]) for dim in dims}
    index = flat(b, x.shape, places, steps)
    whole = *x.shape[:first], math.prod(x.shape[dim] for dim in dims), *behind
    return _added(b, out, x, whole, first, _along(b, index, shape, first), b.expand(value, shape))


def _check_added(b: Builder, out: torch.Tensor, x: Node, source: Node) -> None:
    """Whether a kernel does what ATen does, with results that lie as its."""
    if b.on_gpu or not x.shape or out.dtype not in ADDED or {x.dtype, source.dtype} != {out.dtype}:
        raise NotLowered
    if size_hint(source.numel) > MOST:
        raise NotLowered
    if tuple(out.stride()) != contiguous(tuple(out.shape)):
        raise NotLowered


def _added(b: Builder, out: torch.Tensor, x: Node, shape: Shape, dim: int, index: Node, source: Node) -> Node:
    """In memory that is seen with this shape where it is added to."""
    number, sizes = _number_of(x), tuple(out.shape)
    first = b.reshape(b.stored(x), shape) if number is None else number
    return b.computed(added_at, (first, list(sizes), list(shape), dim, b.stored(index), source), sizes, x.dtype)


def _number_of(x: Node) -> Any:
    """The number that all elements of a tensor are; None where they are not."""
    if isinstance(x, Map) and x.op == "constant" and x.into is None and isinstance(x.args[0], Scalar):
        number = x.args[0].value
        return number if type(number) in (int, float) else None
    return None


def _along(b: Builder, index: Node, shape: Shape, dim: int) -> Node:
    """An index of one dimension as one of all."""
    ones = [1] * len(shape)
    ones[dim] = shape[dim]
    return b.expand(b.reshape(index, ones), shape)


def _is_part(size: Any, whole: Any) -> bool:
    return size == whole or (type(size) is int and type(whole) is int and size <= whole)
