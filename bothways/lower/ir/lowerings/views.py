"""Views: the same elements under other indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bothways.fake.rules.views import sliced
from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import Lowering, aten, lowers
from bothways.lower.ir.prims import Node
from bothways.lower.ir.shapes import normal_dim
from bothways.ops import LOWERINGS


@lowers(aten.alias.default, aten.detach.default, aten.lift_fresh.default)
def _alias(b: Builder, out: torch.Tensor, x: Node) -> Node:
    return x


@lowers(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default,
)  # fmt: skip
def _view(b: Builder, out: torch.Tensor, x: Node, *shape: Any) -> Node:
    return b.reshape(x, tuple(out.shape))


@lowers(aten.expand.default)
def _expand(b: Builder, out: torch.Tensor, x: Node, shape: Sequence[int], implicit: bool = False) -> Node:
    return b.expand(x, tuple(out.shape))


@lowers(aten.permute.default)
def _permute(b: Builder, out: torch.Tensor, x: Node, dims: Sequence[int]) -> Node:
    return b.permute(x, dims)


@lowers(aten.t.default)
def _t(b: Builder, out: torch.Tensor, x: Node) -> Node:
    return b.permute(x, (1, 0)) if len(x.shape) == 2 else x


@lowers(aten.transpose.int)
def _transpose(b: Builder, out: torch.Tensor, x: Node, one: int, other: int) -> Node:
    dims = list(range(len(x.shape)))
    if dims:
        dims[one], dims[other] = dims[other], dims[one]
    return b.permute(x, dims)


@lowers(aten.slice.Tensor)
def _slice(
    b: Builder, out: torch.Tensor, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Node:
    dim = normal_dim(dim, len(x.shape))
    first = sliced(start, end, step, x.shape[dim])[0]
    return b.slice(x, dim, first, out.shape[dim], step)


@lowers(aten.select.int)
def _select(b: Builder, out: torch.Tensor, x: Node, dim: int, index: int) -> Node:
    dim = normal_dim(dim, len(x.shape))
    return b.squeezed(b.slice(x, dim, normal_dim(index, x.shape[dim]), 1), [dim])


@lowers(
    aten.split.Tensor, aten.split_with_sizes.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default
)  # fmt: skip
def _split(b: Builder, out: Sequence[torch.Tensor], x: Node, sizes: Any, dim: int = 0) -> tuple[Node, ...]:
    dim = normal_dim(dim, len(x.shape))
    parts, start = [], 0
    for part in out:
        parts.append(b.slice(x, dim, start, part.shape[dim]))
        start += part.shape[dim]
    return tuple(parts)


@lowers(aten.unbind.int)
def _unbind(b: Builder, out: Sequence[torch.Tensor], x: Node, dim: int = 0) -> tuple[Node, ...]:
    dim = normal_dim(dim, len(x.shape))
    return tuple(b.squeezed(b.slice(x, dim, index, 1), [dim]) for index in range(len(out)))


def _then_copied(view: Lowering) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Node, *args: Any, **kwargs: Any) -> Node:
        return b.map("copy", view(b, out, x, *args, **kwargs), dtype=out.dtype)

    return lower


for _name, _overload in (
    ("view", "default"), ("expand", "default"), ("permute", "default"), ("transpose", "int"), ("t", "default"),
    ("unsqueeze", "default"), ("squeeze", "default"), ("squeeze", "dim"), ("squeeze", "dims"), ("alias", "default"),
    ("detach", "default"), ("slice", "Tensor"), ("select", "int"),
):  # fmt: skip
    _copy = getattr(getattr(aten, f"{_name}_copy"), _overload)
    lowers(_copy)(_then_copied(LOWERINGS[getattr(getattr(aten, _name), _overload)]))


@lowers(aten.diagonal.default)
def _diagonal(b: Builder, out: torch.Tensor, x: Node, offset: int = 0, one: int = 0, other: int = 1) -> Node:
    rank = len(x.shape)
    one, other = normal_dim(one, rank), normal_dim(other, rank)
    base = b.stored(x)
    rest = [dim for dim in range(rank) if dim not in (one, other)]
    first = offset * base.strides[other] if offset >= 0 else -offset * base.strides[one]
    strides = (*(base.strides[dim] for dim in rest), base.strides[one] + base.strides[other])
    return b.window(base, tuple(out.shape), strides, base.offset + first)


@lowers(aten.unfold.default)
def _unfold(b: Builder, out: torch.Tensor, x: Node, dim: int, size: int, step: int) -> Node:
    if not x.shape:
        raise NotLowered
    dim = normal_dim(dim, len(x.shape))
    base = b.stored(x)
    strides = tuple(stride * step if index == dim else stride for index, stride in enumerate(base.strides))
    return b.window(base, tuple(out.shape), (*strides, base.strides[dim]), base.offset)
