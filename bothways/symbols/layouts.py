"""Strides as expressions of sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def loose_dims(sizes: Sequence[int], strides: Sequence[int]) -> set[int]:
    """The dimensions whose strides do not follow from sizes: those of a window on something larger."""
    loose: set[int] = set()

    def other(dim: int) -> int:
        loose.add(dim)
        return strides[dim]

    symbolic_strides(sizes, sizes, strides, other)
    return loose


def symbolic_strides(
    shape: Sequence[Any],
    sizes: Sequence[int],
    strides: Sequence[int],
    other: Callable[[int], Any] | None = None,
) -> tuple[Any, ...]:
    """The strides of a tensor whose sizes are ``shape``, and ``sizes`` now.

    Where a dimension begins right behind the one inside of it, its stride is that of the other times its size. Other
    strides are numbers, or what ``other`` gives for the dimension.
    """
    symbolic: list[Any] = list(strides)
    expected: int = 1
    product: Any = 1
    for dim in sorted(range(len(sizes)), key=lambda dim: (strides[dim], -dim)):
        if strides[dim] == expected:
            symbolic[dim] = product
        elif other is not None:
            symbolic[dim] = other(dim)
        if sizes[dim] > 1 and strides[dim]:
            expected, product = strides[dim] * sizes[dim], symbolic[dim] * shape[dim]
    return tuple(symbolic)
