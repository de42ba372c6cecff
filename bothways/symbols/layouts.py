"""Strides as expressions of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def symbolic_strides(shape: Sequence[Any], sizes: Sequence[int], strides: Sequence[int]) -> tuple[Any, ...]:
    """The strides of a tensor whose sizes are ``shape``, and ``sizes`` now.

    Where a dimension begins right behind the one inside of it, its stride is that of the other times its size. Other
    strides are numbers.
    """
    symbolic: list[Any] = list(strides)
    expected: int = 1
    product: Any = 1
    for dim in sorted(range(len(sizes)), key=lambda dim: (strides[dim], -dim)):
        if strides[dim] == expected:
            symbolic[dim] = product
        if sizes[dim] > 1 and strides[dim]:
            expected, product = strides[dim] * sizes[dim], symbolic[dim] * shape[dim]
    return tuple(symbolic)
