"""From ATen operations to primitive nodes: one table, one short function for each operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways.lower.builder import Builder, NotLowered, Operand
from bothways.lower.prims import Node
from bothways.lower.shapes import normal_dim, normal_dims

aten = torch.ops.aten

# A lowering gets the builder, the fake result of the operation, and its arguments with Nodes for tensors.
Lowering = Callable[..., Any]
LOWERINGS: dict[Any, Lowering] = {}


def lowers(*targets: Any) -> Callable[[Lowering], Lowering]:
    def register(function: Lowering) -> Lowering:
        for target in targets:
            LOWERINGS[target] = function
        return function

    return register


# Pointwise ------------------------------------------------------------------------------------------------------

UNARY: dict[str, str] = {
    name: name
    for name in (
        "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh "
        "atanh erf erfc sigmoid reciprocal floor ceil trunc square relu logical_not bitwise_not isnan isinf isfinite "
        "sign"
    ).split()
} | {"round": "rint"}
BINARY: dict[str, str] = {
    "mul": "mul", "maximum": "maximum", "minimum": "minimum", "atan2": "atan2", "pow": "pow", "hypot": "hypot",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor", "copysign": "copysign",
}  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor")
INTEGERS_TOO = frozenset("abs neg square relu sign mul maximum minimum".split())
QUESTIONS = frozenset("logical_not isnan isinf isfinite".split())


def _overloads(name: str) -> list[Any]:
    packet = getattr(aten, name, None)
    if packet is None:
        return []
    wanted = ("default", "Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
    return [getattr(packet, overload) for overload in packet.overloads() if overload in wanted]


def _unary(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Node) -> Node:
        if not out.dtype.is_floating_point and op not in INTEGERS_TOO | QUESTIONS | {"bitwise_not"}:
            raise NotLowered
        if op == "neg" and out.dtype == torch.bool:
            raise NotLowered
        own = "logical_not" if op == "bitwise_not" and out.dtype == torch.bool else op
        return b.map(own, x, dtype=out.dtype, of=x.dtype if op in QUESTIONS else None)

    return lower


def _binary(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
        if op in ("pow", "atan2", "hypot", "copysign") and not out.dtype.is_floating_point:
            raise NotLowered
        if op == "pow" and isinstance(y, (int, float)) and y in (2, 3, 1, 0.5, -1):
            return _power(b, out.dtype, x, y)
        return b.map(op, x, y, dtype=out.dtype)

    return lower


def _power(b: Builder, dtype: torch.dtype, x: Operand, exponent: float) -> Node:
    if exponent == 1:
        return b.map("copy", x, dtype=dtype)
    if exponent == 0.5:
        return b.map("sqrt", x, dtype=dtype)
    if exponent == -1:
        return b.map("reciprocal", x, dtype=dtype)
    square = b.map("square", x, dtype=dtype)
    return square if exponent == 2 else b.map("mul", square, x, dtype=dtype)


def _comparison(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
        return b.map(op, x, y, dtype=torch.bool, of=_common_dtype(x, y))

    return lower


def _common_dtype(x: Operand, y: Operand) -> torch.dtype:
    """The dtype a comparison is made in."""
    empties: list[Any] = [
        torch.empty([1] * len(value.shape), dtype=value.dtype) if isinstance(value, Node) else value for value in (x, y)
    ]
    return torch.result_type(*empties)


for _name, _op in UNARY.items():
    lowers(*_overloads(_name))(_unary(_op))
for _name, _op in BINARY.items():
    lowers(*_overloads(_name))(_binary(_op))
for _name in COMPARISONS:
    lowers(*_overloads(_name))(_comparison(_name))


@lowers(aten.add.Tensor, aten.add.Scalar)
def _add(b: Builder, out: torch.Tensor, x: Operand, y: Operand, alpha: float = 1) -> Node:
    if out.dtype == torch.bool:
        return b.map("logical_or", x, y, dtype=out.dtype)
    return b.map("add", x, y if alpha == 1 else b.map("mul", y, alpha, dtype=out.dtype), dtype=out.dtype)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def _sub(b: Builder, out: torch.Tensor, x: Operand, y: Operand, alpha: float = 1) -> Node:
    return b.map("sub", x, y if alpha == 1 else b.map("mul", y, alpha, dtype=out.dtype), dtype=out.dtype)


@lowers(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(b: Builder, out: torch.Tensor, x: Operand, y: Operand, alpha: float = 1) -> Node:
    return _sub(b, out, y, x, alpha)


@lowers(aten.div.Tensor, aten.div.Scalar)
def _div(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
    return b.map("div", x, y, dtype=out.dtype)


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(b: Builder, out: torch.Tensor, condition: Node, x: Operand, y: Operand) -> Node:
    return b.where(condition, x, y, out.dtype)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(b: Builder, out: torch.Tensor, x: Node, mask: Node, value: Operand) -> Node:
    return b.where(mask, value, x, out.dtype)


@lowers(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def _clone(b: Builder, out: torch.Tensor, x: Node, memory_format: Any = None) -> Node:
    return b.map("copy", x, dtype=out.dtype)


@lowers(aten._to_copy.default)
def _to_copy(b: Builder, out: torch.Tensor, x: Node, **settings: Any) -> Node:
    if out.device != b.device:
        raise NotLowered
    return b.cast(x, out.dtype) if x.dtype != out.dtype else b.map("copy", x, dtype=out.dtype)


# Views ----------------------------------------------------------------------------------------------------------


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(b: Builder, out: torch.Tensor, x: Node, shape: Sequence[int]) -> Node:
    return b.reshape(x, tuple(out.shape))


@lowers(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _unsqueeze(b: Builder, out: torch.Tensor, x: Node, *dims: Any) -> Node:
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
    first = slice(start, end, step).indices(x.shape[dim])[0]
    return b.slice(x, dim, first, out.shape[dim], step)


@lowers(aten.select.int)
def _select(b: Builder, out: torch.Tensor, x: Node, dim: int, index: int) -> Node:
    dim = normal_dim(dim, len(x.shape))
    return b.squeezed(b.slice(x, dim, normal_dim(index, x.shape[dim]), 1), [dim])


@lowers(aten.split.Tensor, aten.split_with_sizes.default)
def _split(b: Builder, out: Sequence[torch.Tensor], x: Node, sizes: Any, dim: int = 0) -> tuple[Node, ...]:
    dim = normal_dim(dim, len(x.shape))
    found, start = [], 0
    for part in out:
        found.append(b.slice(x, dim, start, part.shape[dim]))
        start += part.shape[dim]
    return tuple(found)


@lowers(aten.unbind.int)
def _unbind(b: Builder, out: Sequence[torch.Tensor], x: Node, dim: int = 0) -> tuple[Node, ...]:
    dim = normal_dim(dim, len(x.shape))
    return tuple(b.squeezed(b.slice(x, dim, index, 1), [dim]) for index in range(len(out)))


# Making ---------------------------------------------------------------------------------------------------------


@lowers(aten.full.default, aten.full_like.default, aten.new_full.default)
def _full(b: Builder, out: torch.Tensor, first: Any, *args: Any, **settings: Any) -> Node:
    return b.full(tuple(out.shape), args[-1], out.dtype)


@lowers(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def _zeros(b: Builder, out: torch.Tensor, *args: Any, **settings: Any) -> Node:
    return b.full(tuple(out.shape), 0, out.dtype)


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(b: Builder, out: torch.Tensor, *args: Any, **settings: Any) -> Node:
    return b.full(tuple(out.shape), 1, out.dtype)


@lowers(aten.scalar_tensor.default)
def _scalar_tensor(b: Builder, out: torch.Tensor, value: Any, **settings: Any) -> Node:
    return b.full((), value, out.dtype)


# Reductions -----------------------------------------------------------------------------------------------------


def _reduced(b: Builder, op: str, x: Node, out: torch.Tensor, dims: Any, keepdim: bool, **settings: Any) -> Node:
    axes = normal_dims(dims, len(x.shape))
    if not any(x.shape[axis] != 1 for axis in axes):
        return b.reshape(b.cast(x, settings.get("dtype") or x.dtype), tuple(out.shape))
    return b.reshape(b.reduce(op, x, axes, **settings), tuple(out.shape))


@lowers(aten.sum.dim_IntList, aten.sum.default)
def _sum(b: Builder, out: torch.Tensor, x: Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    return _reduced(b, "sum", b.cast(x, out.dtype), out, dims, keepdim)


@lowers(aten.mean.dim, aten.mean.default)
def _mean(b: Builder, out: torch.Tensor, x: Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Node:
    count = x.numel // max(out.numel(), 1)
    return b.map("div", _reduced(b, "sum", b.cast(x, out.dtype), out, dims, keepdim), count, dtype=out.dtype)


@lowers(aten.amax.default)
def _amax(b: Builder, out: torch.Tensor, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return _reduced(b, "max", x, out, dims, keepdim)


@lowers(aten.amin.default)
def _amin(b: Builder, out: torch.Tensor, x: Node, dims: Any = (), keepdim: bool = False) -> Node:
    return _reduced(b, "min", x, out, dims, keepdim)


