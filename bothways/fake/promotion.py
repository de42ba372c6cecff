"""Type promotion: the dtype in which an operation on several operands computes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from bothways.fake.tensor import NotThin

FLOATING = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
INTEGRAL = INTEGERS | {torch.bool}
REAL = FLOATING | INTEGRAL
NUMERIC = REAL - {torch.bool}

# Asked once: PyTorch dispatches the question like an operation.
_PROMOTED = {(one, other): torch.promote_types(one, other) for one in REAL for other in REAL}

NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, torch.SymInt: torch.int64}


def number_dtype(number: Any) -> torch.dtype:
    """The dtype of a Python number among tensors."""
    if type(number) is float or type(number) is torch.SymFloat:
        return torch.get_default_dtype()
    dtype = NUMBER_DTYPES.get(type(number))
    if dtype is None:
        raise NotThin(f"a {type(number).__name__} among the operands")
    return dtype


def common_dtype(operands: Iterable[Any]) -> torch.dtype:
    """Tensors with dimensions come first, then scalar tensors, then numbers; a lower one counts by its kind only."""
    dims = scalars = numbers = None
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            if operand.dim():
                dims = _promote(dims, operand.dtype)
            else:
                scalars = _promote(scalars, operand.dtype)
        else:
            numbers = _promote(numbers, number_dtype(operand))
    if scalars is None and numbers is None:
        assert dims is not None
        return dims
    return _ranked(dims, scalars, numbers)


@lru_cache(1024)
def _ranked(dims: torch.dtype | None, scalars: torch.dtype | None, numbers: torch.dtype | None) -> torch.dtype:
    result = _combine(dims, _combine(scalars, numbers))
    assert result is not None
    return result


def _promote(one: torch.dtype | None, other: torch.dtype) -> torch.dtype:
    if other not in REAL:
        raise NotThin(f"{other} is promoted by rules of its own")
    return other if one is None or one is other else promote(one, other)


def promote(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    return _PROMOTED[one, other]


def fits_into(dtype: torch.dtype, target: torch.dtype) -> bool:
    """Whether a result may be written into a tensor of another dtype: no kind of numbers is narrowed."""
    if dtype in FLOATING:
        return target in FLOATING
    return dtype is torch.bool or target is not torch.bool


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher in FLOATING:
        return higher
    if higher is torch.bool or lower in FLOATING:
        return promote(higher, lower)
    return higher


def to_floating(dtype: torch.dtype) -> torch.dtype:
    """Where integers are computed with as if they were floating numbers."""
    return dtype if dtype in FLOATING else torch.get_default_dtype()
