"""Iteration over objects that only have ``__getitem__``, as Python's own sequence iterators do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def iterate_by_index(sequence: Any) -> Iterator[Any]:
    index = 0
    while True:
        try:
            item = sequence[index]
        except (IndexError, StopIteration):
            return
        yield item
        index += 1


def reverse_by_index(sequence: Any) -> Iterator[Any]:
    index = len(sequence) - 1
    while index >= 0:
        try:
            item = sequence[index]
        except (IndexError, StopIteration):
            return
        yield item
        index -= 1
