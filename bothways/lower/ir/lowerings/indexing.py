"""Reading at computed places. Kernels read no place that is out of range; a check beside them raises what ATen does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers, overloads
from bothways.lower.ir.lowerings.term import compared, either
from bothways.lower.ir.prims import Buffer, Node, Shape
from bothways.lower.ir.shapes import broadcast, normal_dim

INDICES = (torch.int64, torch.int32)


def raise_as_aten(bad: torch.Tensor, *cases: tuple[Callable[..., Any], Sequence[int], Sequence[Any]]) -> None:
    """Let ATen say what is wrong with indices into tensors of some sizes, if something is: the first does that has one
    out of range."""
    if bad:
        for target, sizes, args in cases:
            target(torch.zeros(()).expand(sizes), *args)
        raise IndexError("index out of range")


def in_range(
    b: Builder, index: Node, shape: Shape, dim: int, *, from_end: bool, target: Any, args: tuple[Any, ...]
) -> Node:
    """An index into one dimension of this shape where it is in range, 0 elsewhere. What is not is reported by calling
    the operation itself, on any tensor and with these arguments; once, however often the same places are used."""
    size, whole = shape[dim], index.shape
    if b.on_gpu:
        index = b.cast(index, torch.int64)
        return b.within(_from_start(b, index, size) if from_end else index, size)
    index = _not_repeated(b, index)
    known = b.known_places.get(_key(index, size, False))
    if known is None:
        known = b.known_places.get(_key(index, size, from_end))
    if known is None:
        known = _looked_at(b, index, size, from_end, [target, list(shape), list(args)])
        b.known_places[_key(index, size, from_end)] = known
    return b.expand(b.reshape(known, index.shape), whole)


def _looked_at(b: Builder, index: Node, size: int, from_end: bool, case: list[Any]) -> Node:
    index = b.cast(index, torch.int64)
    bad = either(b, compared(b, "lt", index, -size if from_end else 0), compared(b, "ge", index, size))
    b.check_together(bad, raise_as_aten, case)
    index = b.where(bad, 0, index, torch.int64)
    return _from_start(b, index, size) if from_end else index


def _from_start(b: Builder, index: Node, size: int) -> Node:
    """An index that counts from the end where it is negative as one from the start."""
    return b.where(compared(b, "lt", index, 0), b.map("add", index, size, dtype=torch.int64), index, torch.int64)


def _key(index: Node, size: int, from_end: bool) -> Hashable:
    """What tells the same places; a window on the same memory is the same, though another lowering has made it, and
    has dimensions of size one."""
    where: Hashable = index
    if isinstance(index, Buffer):
        pairs = zip(index.shape, index.strides, strict=True)
        where = (index.memory, index.offset, *((size, stride) for size, stride in pairs if size != 1))
    return where, size, from_end


def _not_repeated(b: Builder, index: Node) -> Node:
    """An index without the repetitions of an expanded one: it has size one there."""
    if not isinstance(index, Buffer):
        return index
    repeats = [type(stride) is int and stride == 0 for stride in index.strides]
    shape = tuple(1 if repeated else size for size, repeated in zip(index.shape, repeats, strict=True))
    return index if shape == index.shape else b.window(index, shape, index.strides)


def taken(b: Builder, x: Node, dim: int, index: Node) -> Node:
    """``x`` with the dimensions of ``index`` in the place of one of its own."""
    places = index.shape or (1,)
    shape = (*x.shape[:dim], *places, *x.shape[dim + 1 :])
    ones = (1,) * (len(places) - 1)
    source = b.reshape(b.stored(x), (*x.shape[:dim], *ones, *x.shape[dim:]))
    where = dim + len(ones)
    source = b.expand(source, (*shape[:where], x.shape[dim], *shape[where + 1 :]))
    index = b.reshape(index, (*[1] * dim, *places, *[1] * (len(x.shape) - dim - 1)))
    return b.map("copy", b.take(source, where, b.expand(index, shape)), dtype=x.dtype)


@lowers(aten.embedding.default)
def _embedding(b: Builder, out: torch.Tensor, weight: Node, index: Node, *settings: Any, **more: Any) -> Node:
    safe = in_range(b, index, weight.shape, 0, from_end=False, target=aten.embedding.default, args=(index,))
    return b.reshape(taken(b, weight, 0, safe), tuple(out.shape))


@lowers(aten.index_select.default)
def _index_select(b: Builder, out: torch.Tensor, x: Node, dim: int, index: Node) -> Node:
    if not x.shape or len(index.shape) > 1 or index.dtype not in INDICES:
        raise NotLowered  # shapes alone do not refuse an index of floats
    dim = normal_dim(dim, len(x.shape))
    target = aten.index_select.default
    safe = in_range(b, index, x.shape, dim, from_end=False, target=target, args=(dim, index))
    return b.reshape(taken(b, x, dim, safe), tuple(out.shape))


@lowers(aten.gather.default)
def _gather(b: Builder, out: torch.Tensor, x: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    if not x.shape or len(index.shape) != len(x.shape):
        raise NotLowered
    dim = normal_dim(dim, len(x.shape))
    safe = in_range(b, index, x.shape, dim, from_end=False, target=aten.gather.default, args=(dim, index))
    return b.map("copy", b.take(x, dim, safe), dtype=out.dtype)


@lowers(aten.index.Tensor, *overloads("_unsafe_index"))
def _index(b: Builder, out: torch.Tensor, x: Node, indices: Sequence[Node | None]) -> Node:
    by_dim = numbered(indices)
    [(dim, index), *more] = by_dim
    if not more:
        return b.reshape(taken(b, x, dim, place(b, x.shape, indices, dim, index)), tuple(out.shape))
    # A window whose one dimension goes over all that the indices reach: they add up to one index.
    source, dims = b.stored(x), [dim for dim, _ in by_dim]
    first = dims[0] if is_together(dims) else 0
    sizes = [(x.shape[dim], source.strides[dim]) for dim in range(len(x.shape)) if dim not in dims]
    reach = 1 + sum((x.shape[dim] - 1) * source.strides[dim] for dim in dims)
    sizes.insert(first, (reach, 1))
    window = b.window(source, tuple(size for size, _ in sizes), tuple(stride for _, stride in sizes))
    steps = {dim: source.strides[dim] for dim in dims}
    return b.reshape(taken(b, window, first, flat(b, x.shape, indices, steps)), tuple(out.shape))


def numbered(indices: Sequence[Node | None]) -> list[tuple[int, Node]]:
    """The indices with their dimensions, where all of them are numbers."""
    by_dim = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if not by_dim or any(index.dtype not in INDICES for _, index in by_dim):
        raise NotLowered
    return by_dim


def is_together(dims: Sequence[int]) -> bool:
    """Whether no other dimension is between these: the result then has those of the index in their place."""
    return list(dims) == list(range(dims[0], dims[0] + len(dims)))


def place(b: Builder, shape: Shape, indices: Sequence[Node | None], dim: int, index: Node) -> Node:
    """One of the indices, which count from the end where they are negative."""
    return in_range(b, index, shape, dim, from_end=True, target=aten.index.Tensor, args=(list(indices),))


def flat(b: Builder, shape: Shape, indices: Sequence[Node | None], steps: dict[int, int]) -> Node:
    """Several indices as one, where one element further in a dimension is so many ``steps``."""
    by_dim = numbered(indices)
    places = broadcast([index.shape for _, index in by_dim])
    total: Node | None = None
    for dim, index in by_dim:
        step = place(b, shape, indices, dim, index)
        if type(steps[dim]) is not int or steps[dim] != 1:
            step = b.map("mul", step, steps[dim], dtype=torch.int64)
        step = b.expand(step, places)
        total = step if total is None else b.map("add", total, step, dtype=torch.int64)
    assert total is not None
    return total
