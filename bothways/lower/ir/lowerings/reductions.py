"""Reductions: sums, extremes and where they are, variances, norms."""

from __future__ import annotations

import math
from typing import Any

import torch

from bothways.lower.ir.builder import Builder, NotLowered
from bothways.lower.ir.lowerings.registry import aten, lowers, overloads
from bothways.lower.ir.lowerings.term import Term, terms, wide
from bothways.lower.ir.prims import Node
from bothways.lower.ir.shapes import normal_dim, normal_dims


def reduced(b: Builder, op: str, x: Node, out: torch.Tensor, dims: Any, dtype: torch.dtype | None = None) -> Node:
    """Over some dimensions (all, if none are given), in the shape of the result."""
    return b.reshape(b.reduce(op, x, normal_dims(dims, len(x.shape)), dtype=dtype), tuple(out.shape))


@lowers(aten.sum.dim_IntList, aten.sum.default)
def _sum(b: Builder, out: torch.Tensor, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return reduced(b, "sum", b.cast(x, out.dtype), out, dims)


@lowers(aten.mean.dim, aten.mean.default)
def _mean(
    b: Builder, out: torch.Tensor, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    [t] = terms(b, out.dtype, b.cast(x, out.dtype))
    return b.reshape(t.mean(normal_dims(dims, len(x.shape))).as_(out.dtype), tuple(out.shape))


@lowers(aten.nansum.default)
def _nansum(
    b: Builder, out: torch.Tensor, x: Node, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    x = b.cast(x, out.dtype)
    if out.dtype.is_floating_point:
        x = b.where(b.map("isnan", x, dtype=torch.bool, of=x.dtype), 0, x, out.dtype)
    return reduced(b, "sum", x, out, dims)


@lowers(aten.prod.default)
def _prod(b: Builder, out: torch.Tensor, x: Node, *, dtype: Any = None) -> Node:
    return _product(b, out, x, None)


@lowers(aten.prod.dim_int)
def _prod_dim(b: Builder, out: torch.Tensor, x: Node, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Node:
    return _product(b, out, x, dim)


def _product(b: Builder, out: torch.Tensor, x: Node, dims: Any) -> Node:
    if wide(out.dtype) != out.dtype:
        raise NotLowered  # ATen rounds after each factor, in an order of its own
    return reduced(b, "prod", b.cast(x, out.dtype), out, dims)


@lowers(aten.any.default, aten.any.dim, aten.any.dims)
def _any(b: Builder, out: torch.Tensor, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
    return b.cast(reduced(b, "any", _truth(b, x), out, dims), out.dtype)


@lowers(aten.all.default, aten.all.dim, aten.all.dims)
def _all(b: Builder, out: torch.Tensor, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
    return b.cast(reduced(b, "all", _truth(b, x), out, dims), out.dtype)


@lowers(aten.count_nonzero.dim_IntList, aten.count_nonzero.default)
def _count_nonzero(b: Builder, out: torch.Tensor, x: Node, dims: Any = None) -> Node:
    return reduced(b, "sum", b.cast(_truth(b, x), torch.int64), out, dims)


def _truth(b: Builder, x: Node) -> Node:
    return x if x.dtype == torch.bool else b.map("ne", x, 0, dtype=torch.bool, of=x.dtype)


# Extremes -----------------------------------------------------------------------------------------------------------


@lowers(aten.amax.default)
def _amax(b: Builder, out: torch.Tensor, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return reduced(b, "max", x, out, dims)


@lowers(aten.amin.default)
def _amin(b: Builder, out: torch.Tensor, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return reduced(b, "min", x, out, dims)


@lowers(aten.max.default)
def _max(b: Builder, out: torch.Tensor, x: Node) -> Node:
    return reduced(b, "max", x, out, None)


@lowers(aten.min.default)
def _min(b: Builder, out: torch.Tensor, x: Node) -> Node:
    return reduced(b, "min", x, out, None)


@lowers(aten.aminmax.default)
def _aminmax(b: Builder, out: Any, x: Node, *, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    return reduced(b, "min", x, out[0], dim), reduced(b, "max", x, out[1], dim)


def _place(b: Builder, op: str, x: Node, extreme: Node, dim: int) -> Node:
    """The first position of an extreme along a dimension; of a NaN, where there is one."""
    is_extreme = b.map("eq", x, extreme, dtype=torch.bool, of=x.dtype)
    if x.dtype.is_floating_point:
        is_extreme = b.map("logical_or", is_extreme, b.map("isnan", x, dtype=torch.bool, of=x.dtype), dtype=torch.bool)
    places = b.where(is_extreme, b.position(x.shape, dim), x.shape[dim], torch.int64)
    return b.reduce("min", places, [dim])


def _extreme_of_dim(op: str) -> Any:
    def lower(b: Builder, out: Any, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        if not x.shape:
            return b.map("copy", x, dtype=x.dtype), b.full((), 0, torch.int64)
        dim, shape = normal_dim(dim, len(x.shape)), tuple(out[0].shape)
        extreme = b.reduce(op, x, [dim])
        return b.reshape(extreme, shape), b.reshape(_place(b, op, x, extreme, dim), shape)

    return lower


def _place_of_extreme(op: str) -> Any:
    def lower(b: Builder, out: torch.Tensor, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        if x.dtype == torch.bool:
            raise NotLowered  # ATen finds no place among truths
        if not x.shape:
            return b.full((), 0, torch.int64)
        if dim is None:
            x, dim = b.reshape(x, (x.numel,)), 0
        dim = normal_dim(dim, len(x.shape))
        return b.reshape(_place(b, op, x, b.reduce(op, x, [dim]), dim), tuple(out.shape))

    return lower


lowers(aten.max.dim)(_extreme_of_dim("max"))
lowers(aten.min.dim)(_extreme_of_dim("min"))
lowers(aten.argmax.default)(_place_of_extreme("max"))
lowers(aten.argmin.default)(_place_of_extreme("min"))


# Moments ------------------------------------------------------------------------------------------------------------


def variance(x: Term, axes: Any, correction: float) -> tuple[Term, Term]:
    """Variance and mean, in two passes."""
    mean = x.mean(axes)
    centered = x - mean
    count = math.prod(x.node.shape[axis] for axis in axes)
    return (centered * centered).sum(axes) / max(count - correction, 0.0), mean


def _moments(*, root: bool, with_mean: bool) -> Any:
    def lower(
        b: Builder, out: Any, x: Node, dims: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        if not x.dtype.is_floating_point:
            raise NotLowered  # ATen raises
        if with_mean and x.dtype == torch.float64:
            raise NotLowered  # how far from the largest number ATen's mean of means overflows is its own
        t = Term(b, x, torch.float64)  # as ATen: squares and their roots do not overflow on the way
        axes = normal_dims(dims, len(x.shape))
        spread, mean = variance(t, axes, 1 if correction is None else correction)
        # ATen goes from mean to mean, and after an infinite number there is none.
        mean = Term(b, math.nan, t.dtype).where(spread.isnan(), mean)
        spread = spread.apply("sqrt") if root else spread
        fake = out[0] if with_mean else out
        result = b.reshape(spread.as_(fake.dtype), tuple(fake.shape))
        return (result, b.reshape(mean.as_(fake.dtype), tuple(fake.shape))) if with_mean else result

    return lower


lowers(aten.var.correction)(_moments(root=False, with_mean=False))
lowers(aten.std.correction)(_moments(root=True, with_mean=False))
lowers(aten.var_mean.correction)(_moments(root=False, with_mean=True))
lowers(aten.std_mean.correction)(_moments(root=True, with_mean=True))


@lowers(aten.logsumexp.default)
def _logsumexp(b: Builder, out: torch.Tensor, x: Node, dims: Any, keepdim: bool = False) -> Node:
    axes = normal_dims(dims, len(x.shape))
    [t] = terms(b, out.dtype, x)
    highest = t.max(axes)
    # Infinite minus infinite is NaN: where the highest is infinite, nothing is subtracted.
    base = Term(b, 0, t.dtype).where(highest.abs().equals(math.inf), highest)
    powers = (t - base).stored(out.dtype).exp().stored(out.dtype)
    whole = powers.sum(axes).stored(out.dtype).log().stored(out.dtype) + base
    return b.reshape(whole.as_(out.dtype), tuple(out.shape))


@lowers(*overloads("linalg_vector_norm"))
def _vector_norm(
    b: Builder, out: torch.Tensor, x: Node, ord: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    axes = normal_dims(dims, len(x.shape))
    return b.reshape(_norm(Term(b, x, wide(out.dtype)), ord, axes).as_(out.dtype), tuple(out.shape))


@lowers(aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dtype, aten.norm.ScalarOpt_dim_dtype)
def _old_norm(
    b: Builder, out: torch.Tensor, x: Node, ord: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Node:
    return _vector_norm(b, out, x, 2 if ord is None else ord, dims)


def _norm(x: Term, ord: float, axes: Any) -> Term:
    sizes = x.abs()
    if ord == math.inf:
        return sizes.max(axes)
    if ord == -math.inf:
        return Term(x.b, x.b.reduce("min", sizes.node, axes), x.dtype)
    if ord == 0:
        return Term(x.b, x.b.map("ne", x.node, 0, dtype=torch.bool, of=x.dtype), x.dtype).sum(axes)
    if ord == 1:
        return sizes.sum(axes)
    if ord == 2:
        return (x * x).sum(axes).apply("sqrt")
    return sizes.apply("pow", ord).sum(axes).apply("pow", 1 / ord)


@lowers(aten.dist.default)
def _dist(b: Builder, out: torch.Tensor, x: Node, y: Node, p: Any = 2) -> Node:
    if x.shape != y.shape:
        raise NotLowered
    one, other = terms(b, out.dtype, x, y)
    return b.reshape(_norm(one - other, p, range(len(x.shape))).as_(out.dtype), ())
