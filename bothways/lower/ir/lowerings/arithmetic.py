"""Sums, differences, quotients, powers and what is made of them, element by element."""

from __future__ import annotations

import math
from typing import Any

import torch

from bothways.fake import holds
from bothways.lower.ir.builder import Builder, NotLowered, Operand
from bothways.lower.ir.lowerings.registry import aten, lowers, lowers_floating
from bothways.lower.ir.lowerings.term import Term, number_as, terms, wide
from bothways.lower.ir.prims import Node
from bothways.lower.ir.sizes import Size


def scaled(b: Builder, value: Operand, factor: Any, dtype: torch.dtype) -> Operand:
    """A product, where there is something to multiply with."""
    return value if factor == 1 else b.map("mul", value, factor, dtype=dtype)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(b: Builder, out: torch.Tensor, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    if out.dtype == torch.bool:
        if alpha is not True and alpha != 1:
            raise NotLowered
        return b.map("logical_or", x, y, dtype=out.dtype)
    return _plus_scaled(b, out, x, y, alpha)


def _plus_scaled(b: Builder, out: torch.Tensor, x: Operand, y: Operand, factor: Any) -> Node:
    if isinstance(factor, bool):
        raise NotLowered  # ATen scales truths alone by a truth
    if factor == 1:
        return b.map("add", x, y, dtype=out.dtype)
    if not out.dtype.is_floating_point:
        return b.map("add", x, b.map("mul", y, factor, dtype=out.dtype), dtype=out.dtype)
    return b.map("multiply_add", y, factor, x, dtype=out.dtype)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(b: Builder, out: torch.Tensor, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    if any(isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool for value in (x, y)):
        raise NotLowered  # ATen does not subtract truths
    if isinstance(alpha, bool):
        raise NotLowered
    return b.map("sub", x, y, dtype=out.dtype) if alpha == 1 else _plus_scaled(b, out, x, y, -alpha)


@lowers(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(b: Builder, out: torch.Tensor, x: Operand, y: Operand, alpha: Any = 1) -> Node:
    return sub(b, out, y, x, alpha)


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
    return b.map("div", x, y, dtype=out.dtype)


ROUNDED_DIVISION = {"floor": "floor_divide", "trunc": "trunc_divide"}


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_rounded(
    b: Builder, out: torch.Tensor, x: Operand, y: Operand, *, rounding_mode: str | None = None
) -> Node:
    if rounding_mode is None:
        return div(b, out, x, y)
    return _whole_division(b, out, ROUNDED_DIVISION[rounding_mode], x, y)


@lowers(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
    return _whole_division(b, out, "floor_divide", x, y)


@lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)
def _remainder(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
    return _whole_division(b, out, "remainder", x, y)


@lowers(aten.fmod.Tensor, aten.fmod.Scalar)
def _fmod(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
    return _whole_division(b, out, "fmod", x, y)


def _whole_division(b: Builder, out: torch.Tensor, op: str, x: Operand, y: Operand) -> Node:
    if not out.dtype.is_floating_point and (not isinstance(y, int) or y in (0, -1) or out.dtype == torch.bool):
        raise NotLowered  # ATen raises for a divisor of zero; the lowest number by -1 is nothing C can compute
    is_half = out.dtype in (torch.float16, torch.bfloat16)
    if op == "floor_divide" and is_half and isinstance(y, Node) and (b.on_gpu or y.numel != 1):
        raise NotLowered  # ATen rounds the remainder, what is left and the quotient, one by one
    if isinstance(x, (int, float)) and out.dtype.is_floating_point:
        x = number_as(out.dtype, x)  # ATen makes a tensor of it; a divisor stays the number it is
    if op == "trunc_divide" and out.dtype.is_floating_point:
        quotient = b.map("div", x, y, dtype=out.dtype)
        is_rounded = b.on_gpu or (isinstance(y, Node) and y.numel != 1)  # a divisor of one element is a number
        return b.map("trunc", b.rounded(quotient) if is_rounded else quotient, dtype=out.dtype)
    return b.map(op, x, y, dtype=out.dtype)


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
    if isinstance(y, (int, float)) and isinstance(x, Node):
        known = _known_power(b, out.dtype, x, y)
        if known is not None:
            return known
    if not out.dtype.is_floating_point:
        raise NotLowered
    if isinstance(x, (int, float)) and x == 2:
        return b.map("exp2", y, dtype=out.dtype)
    return b.map("pow", x, y, dtype=out.dtype)


def _known_power(b: Builder, dtype: torch.dtype, x: Node, exponent: float) -> Node | None:
    """Powers that ATen, too, computes another way; those of integers as long as they cannot be negative."""
    if exponent == 0:
        return b.full(x.shape, 1, dtype)
    if exponent == 1:
        return b.map("copy", x, dtype=dtype)
    if dtype == torch.bool:
        return None
    if exponent in (2, 3):
        square = b.map("square", x, dtype=dtype)
        square = b.rounded(square) if dtype == torch.bfloat16 else square
        return square if exponent == 2 else b.map("mul", square, x, dtype=dtype)
    if not dtype.is_floating_point:
        return None
    if dtype == torch.float16 and exponent == 0.5:
        raise NotLowered  # no root in ATen: that of -0 is 0; compilers of C make it one
    if dtype == torch.float16:
        return None
    if exponent in (0.5, -0.5):
        return b.map("sqrt" if exponent > 0 else "rsqrt", x, dtype=dtype)
    if exponent == -1:
        return b.map("reciprocal", x, dtype=dtype)
    return b.map("reciprocal", b.rounded(b.map("square", x, dtype=dtype)), dtype=dtype) if exponent == -2 else None


@lowers(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def _where(b: Builder, out: torch.Tensor, condition: Node, x: Operand, y: Operand) -> Node:
    return b.where(condition, x, y, out.dtype)


@lowers(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(b: Builder, out: torch.Tensor, x: Node, mask: Node, value: Operand) -> Node:
    return b.where(mask, value, x, out.dtype)


def refuse_nan(*bounds: Any) -> None:
    """What a bound that is no number does to the others differs between PyTorch's versions."""
    if any(isinstance(bound, float) and math.isnan(bound) for bound in bounds):
        raise NotLowered("a bound is NaN")


@lowers(aten.clamp.default, aten.clamp.Tensor)
def _clamp(b: Builder, out: torch.Tensor, x: Node, low: Any = None, high: Any = None) -> Node:
    refuse_nan(low, high)
    if out.dtype == torch.bool:
        raise NotLowered
    clamped = b.map("copy", x, dtype=out.dtype) if low is None else _clamp_min(b, out, x, low)
    return clamped if high is None else _clamp_max(b, out, clamped, high)


@lowers(aten.clamp_min.default, aten.clamp_min.Tensor)
def _clamp_min(b: Builder, out: torch.Tensor, x: Node, low: Operand) -> Node:
    refuse_nan(low)
    return b.map("maximum" if isinstance(low, Node) else "clamp_min", x, low, dtype=out.dtype)


@lowers(aten.clamp_max.default, aten.clamp_max.Tensor)
def _clamp_max(b: Builder, out: torch.Tensor, x: Node, high: Operand) -> Node:
    refuse_nan(high)
    return b.map("minimum" if isinstance(high, Node) else "clamp_max", x, high, dtype=out.dtype)


def _promoted(b: Builder, dtype: torch.dtype, *values: Any) -> list[Any]:
    """Tensors as the common dtype holds them: one without dimensions may be of a wider one, and ATen rounds it."""
    return [b.cast(value, dtype) if isinstance(value, Node) else value for value in values]


@lowers(aten.addcmul.default)
def addcmul(b: Builder, out: torch.Tensor, x: Node, y: Node, z: Node, *, value: Any = 1) -> Node:
    if out.dtype == torch.bool:
        raise NotLowered
    x, y, z = _promoted(b, out.dtype, x, y, z)
    t, u, v = terms(b, out.dtype, x, scaled(b, y, value, wide(out.dtype)), z)
    return (u.times_plus(v, t) if out.dtype.is_floating_point else t + u * v).as_(out.dtype)


@lowers(aten.addcdiv.default)
def addcdiv(b: Builder, out: torch.Tensor, x: Node, y: Node, z: Node, *, value: Any = 1) -> Node:
    if not out.dtype.is_floating_point:
        raise NotLowered
    x, y, z = _promoted(b, out.dtype, x, y, z)
    t, u, v = terms(b, out.dtype, x, scaled(b, y, value, wide(out.dtype)), z)
    return (t + u / v).as_(out.dtype)


@lowers_floating(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(b: Builder, out: torch.Tensor, start: Node, end: Node, weight: Operand) -> Node:
    """From the nearer end, as ATen does, so that both ends are met exactly."""
    s, e, w = terms(b, out.dtype, *_promoted(b, out.dtype, start, end, weight))
    if not isinstance(weight, Node):
        near = abs(weight) < 0.5
        return (e - s).times_plus(weight if near else weight - 1, s if near else e).as_(out.dtype)
    near = w.abs() < 0.5
    return (e - s).times_plus(w.where(near, w - 1), s.where(near, e)).as_(out.dtype)


@lowers(aten.nan_to_num.default)
def _nan_to_num(b: Builder, out: torch.Tensor, x: Node, nan: Any = None, high: Any = None, low: Any = None) -> Node:
    if not out.dtype.is_floating_point:
        return b.map("copy", x, dtype=out.dtype)
    limits = torch.finfo(out.dtype)
    term = Term(b, x, out.dtype)
    replaced = Term(b, 0.0 if nan is None else nan, out.dtype).where(term.isnan(), term)
    replaced = Term(b, limits.max if high is None else high, out.dtype).where(term.equals(float("inf")), replaced)
    return Term(b, limits.min if low is None else low, out.dtype).where(term.equals(float("-inf")), replaced).node


@lowers(aten.ldexp.Tensor)
def _ldexp(b: Builder, out: torch.Tensor, x: Operand, exponent: Operand) -> Node:
    if not out.dtype.is_floating_point:
        raise NotLowered
    return b.map("mul", x, b.rounded(b.map("exp2", exponent, dtype=out.dtype)), dtype=out.dtype)


@lowers(aten.frac.default)
def _frac(b: Builder, out: torch.Tensor, x: Node) -> Node:
    if not out.dtype.is_floating_point:
        raise NotLowered
    return b.map("sub", x, b.map("trunc", x, dtype=out.dtype), dtype=out.dtype)


@lowers(aten.heaviside.default)
def _heaviside(b: Builder, out: torch.Tensor, x: Node, y: Node) -> Node:
    if out.dtype == torch.bool:
        raise NotLowered
    zero = b.map("eq", x, 0, dtype=torch.bool, of=out.dtype)
    return b.where(zero, y, b.map("gt", x, 0, dtype=torch.bool, of=out.dtype), out.dtype)


@lowers(aten.clone.default, aten.lift_fresh_copy.default)
def _clone(b: Builder, out: torch.Tensor, x: Node, memory_format: Any = None) -> Node:
    return b.map("copy", x, dtype=out.dtype)


@lowers(aten.copy.default)
def _copy(b: Builder, out: torch.Tensor, x: Node, source: Operand, non_blocking: bool = False) -> Node:
    if not isinstance(source, Node):  # the binding takes a number, and makes a tensor of it
        return _of_number(b, out, source)
    return b.map("copy", b.expand(b.cast(source, out.dtype), tuple(out.shape)), dtype=out.dtype)


def _of_number(b: Builder, out: torch.Tensor, number: Any) -> Node:
    """A tensor full of a number that its dtype holds as it is."""
    if isinstance(number, complex) or (isinstance(number, float) and not out.dtype.is_floating_point):
        raise NotLowered
    if not isinstance(number, Size) and not holds(out.dtype, number):
        raise NotLowered
    return b.full(tuple(out.shape), number, out.dtype)


@lowers(aten._to_copy.default)
def _to_copy(b: Builder, out: torch.Tensor, x: Operand, **settings: Any) -> Node:
    if out.device != b.device:
        raise NotLowered
    if not isinstance(x, Node):  # a number, of which ``vmap`` makes a tensor like the other operand
        return _of_number(b, out, x)
    return b.cast(x, out.dtype) if x.dtype != out.dtype else b.map("copy", x, dtype=out.dtype)
