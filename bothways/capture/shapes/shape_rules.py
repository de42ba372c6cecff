"""Shapes of the commonest operations, worked out in Python without asking PyTorch.

A pointwise operation on dense operands of one floating dtype is most of what programs do, and its result is
known from the operands; asking a meta kernel takes a hundred times as long. ``predict`` answers for exactly the
cases it is sure of and gives None for all others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from bothways import ops, torch_compat
from bothways.fake.promotion import FLOATING
from bothways.ops import LooksLike

if TYPE_CHECKING:
    from bothways.capture.shapes.fakes import Fake

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Prediction:
    """What an operation returns."""

    shape: Shape
    stride: Shape
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


Rule = Callable[[tuple[Any, ...]], "Prediction | None"]


def predict(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prediction | None:
    """The result of ``function(*args)``, or None when only PyTorch can tell."""
    if kwargs:
        return None
    rule = _TABLE.get(function)
    return rule(args) if rule is not None else None


def _unary(args: tuple[Any, ...]) -> Prediction | None:
    if len(args) != 1 or not _is_dense(args[0]):
        return None
    return _like(args[0], args)


def _clamp(args: tuple[Any, ...]) -> Prediction | None:
    if not _is_dense(args[0]) or not all(bound is None or _is_number(bound) for bound in args[1:]):
        return None
    return _like(args[0], args)


def _binary(args: tuple[Any, ...]) -> Prediction | None:
    if len(args) == 2 and _is_number(args[1]):
        return _like(args[0], args) if _is_dense(args[0]) else None
    return _binary_of_tensors(args)


def _operator(args: tuple[Any, ...]) -> Prediction | None:
    """An operator also takes the number first; functions and methods do not."""
    if _is_number(args[0]):
        return _like(args[1], args) if _is_dense(args[1]) else None
    return _binary(args)


def _binary_of_tensors(args: tuple[Any, ...]) -> Prediction | None:
    if len(args) != 2:
        return None
    left, right = args
    if not (_is_dense(left) and _is_dense(right)) or left.dtype is not right.dtype or left.device != right.device:
        return None
    # Sizes, which may be symbols, are compared only where the number of dimensions is the same.
    if len(left.shape) == len(right.shape) and left.shape == right.shape:
        return _like(left, args) if left.stride == right.stride else None
    if not (left.is_contiguous and right.is_contiguous) or not (left.shape and right.shape):
        return None
    shape = _broadcast(left.shape, right.shape)
    if shape is None:
        return None
    return Prediction(shape, contiguous_stride(shape), left.dtype, left.device, _wants_grad(args))


def _like(operand: Any, args: tuple[Any, ...]) -> Prediction:
    return Prediction(operand.shape, operand.stride, operand.dtype, operand.device, _wants_grad(args))


def _wants_grad(args: tuple[Any, ...]) -> bool:
    return torch_compat.records_gradients() and any(getattr(arg, "requires_grad", False) for arg in args)


def _is_number(arg: Any) -> bool:
    return type(arg) in (int, float)


def _is_dense(arg: Any) -> bool:
    """A floating tensor whose own strides a pointwise result keeps."""
    fake: Fake = arg
    return getattr(arg, "dtype", None) in FLOATING and fake.is_dense


def _broadcast(left: Shape, right: Shape) -> Shape | None:
    rank = max(len(left), len(right))
    left = (1,) * (rank - len(left)) + left
    right = (1,) * (rank - len(right)) + right
    shape = []
    for a, b in zip(left, right, strict=True):
        if a != b and 1 not in (a, b):
            return None
        shape.append(b if a == 1 else a)
    return tuple(shape)


def contiguous_stride(shape: Shape) -> Shape:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


RULES: dict[LooksLike, Rule] = {
    LooksLike.ONE: _unary,
    LooksLike.TWO: _binary,
    LooksLike.TWO_TENSORS: _binary_of_tensors,
    LooksLike.FIRST: _clamp,
}
OF_OPERATORS = {**RULES, LooksLike.TWO: _operator}


def _build_table() -> dict[Any, Rule]:
    table: dict[Any, Rule] = {}
    for operation in ops.having("looks_like"):
        for holder, rules in ((torch, RULES), (torch.Tensor, RULES), (F, RULES), (operator, OF_OPERATORS)):
            function = getattr(holder, operation.name, None)
            if function is not None and operation.looks_like is not None:
                table[function] = rules[operation.looks_like]
    return table


_TABLE = _build_table()
