"""Operations that are one primitive for each element: functions of one or two numbers, and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bothways import ops
from bothways.lower.ir.builder import Builder, NotLowered, Operand
from bothways.lower.ir.lowerings.registry import Lowering, aten, lowers, overloads
from bothways.lower.ir.lowerings.term import number_as
from bothways.lower.ir.prims import Node

# Those that are a product with a logarithm.
LOGARITHMS = {"xlogy": "log", "xlog1py": "log1p"}


def _floating(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Node) -> Node:
        if op == "entr" and out.dtype.itemsize < 4:
            raise NotLowered  # ATen rounds on the way
        return b.map(op, x, dtype=out.dtype)

    return lower


def _same_kind(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Node) -> Node:
        if out.dtype == torch.bool:
            raise NotLowered
        return b.map(op, x, dtype=out.dtype)

    return lower


def _rounding(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Node) -> Node:
        if out.dtype == torch.bool:
            raise NotLowered
        return b.map(op if out.dtype.is_floating_point else "copy", x, dtype=out.dtype)

    return lower


def _question(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Node) -> Node:
        if x.dtype.is_floating_point:
            return b.map(op, x, dtype=torch.bool, of=x.dtype)
        if op == "signbit" and x.dtype not in (torch.bool, torch.uint8):
            return b.map("lt", x, 0, dtype=torch.bool, of=x.dtype)
        return b.full(x.shape, op == "isfinite", torch.bool)

    return lower


def _arithmetic(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
        if not out.dtype.is_floating_point:
            return b.map({"fmax": "maximum", "fmin": "minimum"}.get(op, op), x, y, dtype=out.dtype)
        if op in ("fmax", "fmin") and out.dtype == torch.bfloat16:
            x, y = y, x  # of two zeros ATen gives the first, in this precision the second
        return b.map(op, x, y, dtype=out.dtype)

    return lower


def _bitwise(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
        if out.dtype.is_floating_point:
            raise NotLowered  # ATen says that it has no such thing
        return b.map(op, x, y, dtype=out.dtype)

    return lower


def _floating_of_two(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
        # The neighbour of a number depends on the type it is stored in.
        if not out.dtype.is_floating_point or (op == "nextafter" and out.dtype.itemsize < 4):
            raise NotLowered
        if op in LOGARITHMS and out.dtype.itemsize < 4:
            return _times_logarithm(b, out.dtype, LOGARITHMS[op], x, y)
        return b.map(op, x, y, dtype=out.dtype)

    return lower


def _times_logarithm(b: Builder, dtype: torch.dtype, logarithm: str, x: Operand, y: Operand) -> Node:
    """As ATen computes half precision: the logarithm is rounded first."""
    factor = b.rounded(b.cast(x, dtype)) if isinstance(x, Node) else _stored_number(x, dtype)  # no number beside it
    product = b.map("mul", b.rounded(b.map(logarithm, y, dtype=dtype)), factor, dtype=dtype)
    zero = b.map("eq", x, 0, dtype=torch.bool, of=dtype)
    return b.where(b.map("isnan", y, dtype=torch.bool, of=dtype), y, b.where(zero, 0, product, dtype), dtype)


def _stored_number(x: Operand, dtype: torch.dtype) -> Operand:
    return number_as(dtype, x) if isinstance(x, (int, float)) else x


def _comparison(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
        return b.map(op, x, y, dtype=torch.bool, of=common_dtype(x, y))

    return lower


def _logical(op: str) -> Lowering:
    def lower(b: Builder, out: torch.Tensor, x: Operand, y: Operand) -> Node:
        truths = [b.map("ne", value, 0, dtype=torch.bool, of=value.dtype) if isinstance(value, Node) else value
                  for value in (x, y)]  # fmt: skip
        return b.map(op, *truths, dtype=torch.bool)

    return lower


def common_dtype(x: Operand, y: Operand) -> torch.dtype:
    """The dtype two numbers are compared in."""
    examples: list[Any] = [
        torch.empty([1] * len(value.shape), dtype=value.dtype) if isinstance(value, Node) else value for value in (x, y)
    ]
    return torch.result_type(*examples)


ROWS: tuple[tuple[str, Callable[[str], Lowering]], ...] = (
    # Functions of a number whose result is floating point, whatever they get.
    (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
        "erf erfc sigmoid reciprocal lgamma sinc deg2rad rad2deg special_entr",
        _floating,
    ),
    # Those that give what they get: integers stay integers, and some do nothing to them.
    ("abs neg square relu sign sgn", _same_kind),
    ("floor ceil trunc round", _rounding),
    ("isnan isinf isfinite isposinf isneginf signbit", _question),
    ("mul maximum minimum fmax fmin", _arithmetic),
    ("bitwise_and bitwise_or bitwise_xor", _bitwise),
    ("atan2 hypot copysign logaddexp logaddexp2 xlogy special_xlog1py nextafter", _floating_of_two),
    ("eq ne lt le gt ge", _comparison),
    ("logical_and logical_or logical_xor", _logical),
)

for _names, _make in ROWS:
    for _name in _names.split():
        lowers(*overloads(_name))(_make(ops.named(_name).primitive or _name))


lowers(*overloads("xlogy", ["Scalar_Self", "Scalar_Other"]))(_floating_of_two("xlogy"))


@lowers(aten.logical_not.default)
def _logical_not(b: Builder, out: torch.Tensor, x: Node) -> Node:
    return b.map("eq", x, 0, dtype=torch.bool, of=x.dtype)


@lowers(aten.bitwise_not.default)
def _bitwise_not(b: Builder, out: torch.Tensor, x: Node) -> Node:
    if out.dtype.is_floating_point:
        raise NotLowered  # which ATen refuses; shapes alone do not
    return b.map("logical_not" if out.dtype == torch.bool else "bitwise_not", x, dtype=out.dtype)
