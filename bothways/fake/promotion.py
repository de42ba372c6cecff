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
# The complex numbers whose parts are of a dtype.
COMPLEX_OF = {torch.float32: torch.complex64, torch.float64: torch.complex128}
COMPLEX = frozenset(COMPLEX_OF.values())

# Asked once: PyTorch dispatches the question like an operation.
_PROMOTED = {(one, other): torch.promote_types(one, other) for one in REAL | COMPLEX for other in REAL | COMPLEX}

NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, torch.SymInt: torch.int64}


def number_dtype(number: Any) -> torch.dtype:
    """The dtype of a Python number among tensors."""
    if type(number) is float or type(number) is torch.SymFloat:
        return torch.get_default_dtype()
    if type(number) is complex:
        return _complex_of(torch.get_default_dtype())
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
    if other not in REAL and other not in COMPLEX:
        raise NotThin(f"{other} is promoted by rules of its own")
    return other if one is None or one is other else promote(one, other)


def promote(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    return _PROMOTED[one, other]


def fits_into(dtype: torch.dtype, target: torch.dtype) -> bool:
    """Whether a result may be written into a tensor of another dtype: no kind of numbers is narrowed."""
    if dtype in COMPLEX:
        return target in COMPLEX
    if dtype in FLOATING:
        return target in FLOATING or target in COMPLEX
    return dtype is torch.bool or target is not torch.bool


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher in COMPLEX:
        return higher
    if higher in FLOATING:
        return _complex_of(higher) if lower in COMPLEX else higher
    if higher is torch.bool or lower in FLOATING or lower in COMPLEX:
        return promote(higher, lower)
    return higher


def _complex_of(dtype: torch.dtype) -> torch.dtype:
    if dtype not in COMPLEX_OF:
        raise NotThin(f"complex numbers of {dtype}")
    return COMPLEX_OF[dtype]


def to_floating(dtype: torch.dtype) -> torch.dtype:
    """Where integers are computed with as if they were floating numbers."""
    return dtype if dtype in FLOATING or dtype in COMPLEX else torch.get_default_dtype()
