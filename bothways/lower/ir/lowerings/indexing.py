"""Reading at computed places. Kernels read no place that is out of range; a check beside them raises what ATen does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers, overloads
from bothways.lower.ir.lowerings.term import compared, either
from bothways.lower.ir.prims import Node
from bothways.lower.ir.shapes import normal_dim


def raise_as_aten(bad: torch.Tensor, target: Callable[..., Any], *args: Any) -> None:
    """Let ATen say what is wrong, if something is."""
    if bad:
        target(*args)
        raise IndexError("index out of range")


def in_range(b: Builder, index: Node, size: int, *, from_end: bool, target: Any, args: tuple[Any, ...]) -> Node:
    """The index where it is in range, 0 elsewhere; what is not is reported by calling the operation itself."""
    index = b.cast(index, torch.int64)
    if b.on_gpu:
        if from_end:
            from_start = b.map("add", index, size, dtype=torch.int64)
            index = b.where(compared(b, "lt", index, 0), from_start, index, torch.int64)
        return b.within(index, size)
    bad = either(b, compared(b, "lt", index, -size if from_end else 0), compared(b, "ge", index, size))
    b.check(bad, raise_as_aten, target, *args)
    index = b.where(bad, 0, index, torch.int64)
    if not from_end:
        return index
    return b.where(compared(b, "lt", index, 0), b.map("add", index, size, dtype=torch.int64), index, torch.int64)


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
    safe = in_range(b, index, weight.shape[0], from_end=False, target=aten.embedding.default, args=(weight, index))
    return b.reshape(taken(b, weight, 0, safe), tuple(out.shape))


@lowers(aten.index_select.default)
def _index_select(b: Builder, out: torch.Tensor, x: Node, dim: int, index: Node) -> Node:
    if not x.shape or len(index.shape) > 1 or index.dtype not in (torch.int64, torch.int32):
        raise NotLowered  # shapes alone do not refuse an index of floats
    dim = normal_dim(dim, len(x.shape))
    target = aten.index_select.default
    safe = in_range(b, index, x.shape[dim], from_end=False, target=target, args=(x, dim, index))
    return b.reshape(taken(b, x, dim, safe), tuple(out.shape))


@lowers(aten.gather.default)
def _gather(b: Builder, out: torch.Tensor, x: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    if not x.shape or len(index.shape) != len(x.shape):
        raise NotLowered
    dim = normal_dim(dim, len(x.shape))
    safe = in_range(b, index, x.shape[dim], from_end=False, target=aten.gather.default, args=(x, dim, index))
    return b.map("copy", b.take(x, dim, safe), dtype=out.dtype)


@lowers(aten.index.Tensor, *overloads("_unsafe_index"))
def _index(b: Builder, out: torch.Tensor, x: Node, indices: Sequence[Node | None]) -> Node:
    by_dim = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if len(by_dim) != 1 or by_dim[0][1].dtype not in (torch.int64, torch.int32):
        raise NotLowered
    [(dim, index)] = by_dim
    safe = in_range(b, index, x.shape[dim], from_end=True, target=aten.index.Tensor, args=(x, list(indices)))
    return b.reshape(taken(b, x, dim, safe), tuple(out.shape))


@lowers(aten.index_put.default)
def _index_put(
    b: Builder, out: torch.Tensor, x: Node, places: Sequence[Node | None], value: Node, accumulate: bool = False
) -> Node:
    """``x[mask] = number``; other places are ATen's business."""
    mask = places[0] if len(places) == 1 else None
    if mask is None or mask.dtype != torch.bool or accumulate or value.shape not in ((), (1,)):
        raise NotLowered
    mask = b.reshape(mask, (*mask.shape, *[1] * (len(x.shape) - len(mask.shape))))
    return b.where(mask, b.reshape(value, ()), x, out.dtype)
