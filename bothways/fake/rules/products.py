"""Matrix products: new contiguous tensors from operands of one dtype."""

from __future__ import annotations

from typing import Any

import torch

from bothways.fake.layout import broadcast, contiguous, strides_in_order
from bothways.fake.promotion import FLOATING, NUMERIC
from bothways.fake.tensor import NotThin, Shape, Spec, ThinTensor


def _product(shape: Shape, *operands: ThinTensor) -> Spec:
    dtype = operands[0].dtype
    if any(operand.dtype is not dtype for operand in operands):
        raise NotThin("operands of several dtypes")
    if dtype not in (NUMERIC if operands[0].is_cpu else FLOATING):
        raise NotThin(f"a product of {dtype}")
    return Spec(shape, contiguous(shape), dtype)


def _shape(one: ThinTensor, other: ThinTensor, rank: int) -> Shape:
    left, right = tuple(one.shape), tuple(other.shape)
    if len(left) != rank or len(right) != rank or left[-1] != right[-2] or left[:-2] != right[:-2]:
        raise NotThin(f"a product of {left} and {right}")
    return (*left[:-1], right[-1])


def _mm(one: ThinTensor, other: ThinTensor, *out_dtype: Any) -> Spec:
    if out_dtype:
        raise NotThin("a product in another dtype")
    return _product(_shape(one, other, 2), one, other)


def _bmm(one: ThinTensor, other: ThinTensor, *out_dtype: Any) -> Spec:
    if out_dtype:
        raise NotThin("a product in another dtype")
    return _product(_shape(one, other, 3), one, other)


def _added(rank: int) -> Any:
    """``added`` broadcasts to the product's sizes."""

    def rule(added: ThinTensor, one: ThinTensor, other: ThinTensor, *out: Any, beta: Any = 1, alpha: Any = 1) -> Spec:
        shape = _shape(one, other, rank)
        if out or broadcast((tuple(added.shape), shape)) != shape:
            raise NotThin("what is added does not fit")
        if added.dtype not in FLOATING and not (type(beta) is type(alpha) is int):
            raise NotThin("integers with other factors")
        return _product(shape, added, one, other)

    return rule


def _mv(matrix: ThinTensor, vector: ThinTensor) -> Spec:
    if matrix.dim() != 2 or tuple(vector.shape) != (matrix.shape[1],):
        raise NotThin("a matrix and a vector that do not fit")
    return _product((matrix.shape[0],), matrix, vector)


def _addmv(added: ThinTensor, matrix: ThinTensor, vector: ThinTensor, *, beta: Any = 1, alpha: Any = 1) -> Spec:
    spec = _mv(matrix, vector)
    if broadcast((tuple(added.shape), spec.shape)) != spec.shape or added.dtype not in FLOATING or 0 in matrix.shape:
        raise NotThin("what is added does not fit")
    return _product(spec.shape, added, matrix, vector)


def _dot(one: ThinTensor, other: ThinTensor) -> Spec:
    if one.dim() != 1 or one.shape != other.shape:
        raise NotThin("vectors that do not fit")
    return _product((), one, other)


def _solve_triangular(
    matrix: ThinTensor, other: ThinTensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Spec:
    """What LAPACK leaves in memory column by column."""
    one, two = tuple(matrix.shape), tuple(other.shape)
    if len(one) < 2 or len(two) < 2 or one[-1] != one[-2] or two[-2 if left else -1] != one[-1]:
        raise NotThin("matrices that do not fit")
    if matrix.dtype is not other.dtype or matrix.dtype not in (torch.float32, torch.float64):
        raise NotThin("numbers that LAPACK does not know")
    shape = (*broadcast((one[:-2], two[:-2])), *two[-2:])
    order = (len(shape) - 2, len(shape) - 1, *reversed(range(len(shape) - 2)))
    if 0 in shape:
        raise NotThin("nothing to solve")
    return Spec(shape, strides_in_order(shape, order), matrix.dtype)


RULES = {
    "linalg_solve_triangular": _solve_triangular,
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _added(2),
    "baddbmm": _added(3),
    "mv": _mv,
    "addmv": _addmv,
    "dot": _dot,
    "vdot": _dot,
}
