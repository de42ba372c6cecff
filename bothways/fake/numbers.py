"""Which Python numbers a dtype can hold: where it cannot, ATen refuses some operations and wraps in others."""

from __future__ import annotations

import math

import torch

# What PyTorch's own argument parsing takes for a whole number at all.
LEAST_WHOLE, MOST_WHOLE = -(2**63), 2**64 - 1


def is_whole_for_torch(number: int) -> bool:
    """Whether PyTorch takes a whole number; any larger one is an OverflowError, or something else again."""
    return LEAST_WHOLE <= number <= MOST_WHOLE


def holds(dtype: torch.dtype, number: int | float) -> bool:
    """Whether a number becomes an element without overflow. A fraction that a whole dtype drops is no overflow."""
    if dtype is torch.bool or dtype.is_complex:
        return True
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    info = torch.iinfo(dtype)
    return math.isfinite(number) and info.min <= number <= info.max
