"""Tensors made of nothing but numbers and positions, and those that are cut along the diagonal."""

from __future__ import annotations

from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers
from bothways.lower.ir.lowerings.term import Term, compared
from bothways.lower.ir.prims import Node
from bothways.lower.ir.sizes import Size


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default)
def _full(b: Builder, out: torch.Tensor, first: Any, *args: Any, **settings: Any) -> Node:
    value = settings.get("fill_value", args[-1] if args else None)
    return _constant(b, out, value)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default)
def _zeros(b: Builder, out: torch.Tensor, *args: Any, **settings: Any) -> Node:
    return _constant(b, out, 0)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(b: Builder, out: torch.Tensor, *args: Any, **settings: Any) -> Node:
    return _constant(b, out, 1)


@lowers(aten.scalar_tensor.default)
def _scalar_tensor(b: Builder, out: torch.Tensor, value: Any, **settings: Any) -> Node:
    return _constant(b, out, value)


@lowers(aten.fill.Scalar)
def _fill(b: Builder, out: torch.Tensor, x: Node, value: Any) -> Node:
    return _constant(b, out, value)


@lowers(aten.fill.Tensor)
def _fill_tensor(b: Builder, out: torch.Tensor, x: Node, value: Node) -> Node:
    if value.shape:
        raise NotLowered
    return b.map("copy", b.expand(b.cast(value, out.dtype), tuple(out.shape)), dtype=out.dtype)


def _constant(b: Builder, out: torch.Tensor, value: Any) -> Node:
    if out.device != b.device or not isinstance(value, (bool, int, float, Size)):
        raise NotLowered
    return b.full(tuple(out.shape), value, out.dtype)


@lowers(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(b: Builder, out: torch.Tensor, *bounds: Any, **settings: Any) -> Node:
    start, step = (0, 1) if len(bounds) == 1 else (bounds[0], bounds[2] if len(bounds) > 2 else 1)
    if out.device != b.device or out.dtype == torch.bool:
        raise NotLowered  # ATen has none of truths
    position = b.position(tuple(out.shape), 0)
    if not out.dtype.is_floating_point:
        if not isinstance(start, (int, Size)) or not isinstance(step, (int, Size)):
            raise NotLowered
        return (Term(b, position, torch.int64) * step + start).as_(out.dtype)
    return b.cast((Term(b, position, torch.float64) * step + start).node, out.dtype)


@lowers(aten.linspace.default)
def _linspace(b: Builder, out: torch.Tensor, start: Any, end: Any, steps: int, **settings: Any) -> Node:
    if out.device != b.device or out.dtype not in (torch.float32, torch.float64) or steps < 2:
        raise NotLowered
    position = Term(b, b.position((steps,), 0), out.dtype)
    step = (end - start) / (steps - 1)
    near = position * step + start
    return near.where(position < steps // 2, end - (steps - 1 - position) * step).node


@lowers(aten.eye.default, aten.eye.m)
def _eye(b: Builder, out: torch.Tensor, *sizes: int, **settings: Any) -> Node:
    if out.device != b.device:
        raise NotLowered
    return b.cast(_diagonals(b, out, "eq", 0), out.dtype)


@lowers(aten.tril.default)
def _tril(b: Builder, out: torch.Tensor, x: Node, diagonal: int = 0) -> Node:
    return b.where(_diagonals(b, out, "le", diagonal), x, 0, out.dtype)


@lowers(aten.triu.default)
def _triu(b: Builder, out: torch.Tensor, x: Node, diagonal: int = 0) -> Node:
    return b.where(_diagonals(b, out, "ge", diagonal), x, 0, out.dtype)


def _diagonals(b: Builder, out: torch.Tensor, op: str, diagonal: int) -> Node:
    """Where the column is on, below or above a diagonal."""
    shape = tuple(out.shape)
    column, row = b.position(shape, len(shape) - 1), b.position(shape, len(shape) - 2)
    distance = b.map("sub", column, row, dtype=torch.int64)
    return compared(b, op, distance, diagonal)
