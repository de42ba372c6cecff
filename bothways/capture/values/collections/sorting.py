"""Sorting by the captured program's own comparisons: ``sorted`` and ``list.sort``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.methods import is_none

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


class _SortKey:
    """Orders Values by the captured program's own ``<``, for Python's sort to use."""

    __slots__ = ("tracer", "value")

    def __init__(self, tracer: Tracer, value: Value) -> None:
        self.tracer, self.value = tracer, value

    def __lt__(self, other: _SortKey) -> bool:
        return protocols.truth(self.tracer, protocols.compare(self.tracer, "<", self.value, other.value))


def sort_values(tracer: Tracer, items: list[Value], key: Value | None, reverse: Value | None) -> list[Value]:
    """The elements in the order ``sorted`` gives them."""
    keys = items if key is None or is_none(key) else [protocols.call(tracer, key, [item]) for item in items]
    pairs = [(_SortKey(tracer, by), item) for by, item in zip(keys, items, strict=True)]
    backwards = reverse is not None and protocols.truth(tracer, reverse)
    return [item for _, item in sorted(pairs, key=lambda pair: pair[0], reverse=backwards)]
