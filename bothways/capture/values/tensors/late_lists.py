"""``tensor.tolist()`` of numbers that are only handed on: ``scores.extend(out.tolist())``.

The program reads them all at once behind the graph. The list itself is the function's own, of the length that the
tensor has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bothways.capture.values.collections.containers import ListValue
from bothways.capture.values.core.base import Value
from bothways.capture.values.tensors.late_numbers import LateNumber, ReadNumber
from bothways.capture.values.tensors.tensors import TensorValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter


class ReadList(ReadNumber):
    """All numbers of a tensor, as nested lists; capture hands on its elements alone."""

    method = "tolist"

    def name_hint(self) -> str:
        return "numbers"


class LateElement(LateNumber):
    """One of the numbers that were read together."""

    def __init__(self, tracer: Tracer, kind: type, numbers: ReadList, places: tuple[int, ...]) -> None:
        super().__init__(tracer, kind, operands=[numbers])
        self._places = places

    def rebuild(self, emitter: Emitter) -> str:
        [numbers] = self._operands
        return emitter.rebuild(numbers) + "".join(f"[{place}]" for place in self._places)


def late_list(tracer: Tracer, tensor: TensorValue, kind: type, sizes: list[int]) -> Value:
    """The nested lists of a tensor's numbers."""
    numbers = ReadList(tracer, kind, tensor)

    def listed(places: tuple[int, ...]) -> Value:
        if len(places) == len(sizes):
            return LateElement(tracer, kind, numbers, places)
        return ListValue([listed((*places, place)) for place in range(sizes[len(places)])])

    return listed(())
