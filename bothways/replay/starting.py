"""How a recording is started: C looks where inputs lie, and who holds what was lent, and launches at once.

Whatever was looked at before may be another by then, since finalizers and other threads run between any two
instructions of Python's.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.call_library import word_library
from bothways.replay.outputs import Outputs
from bothways.runtime.picking import Joined

MOST_COPIED = 16  # inputs that are compared with all others at each call
Start = Callable[[tuple[Any, ...], Any, bool], "tuple[Any, ...] | bool"]


class Starting:
    """The ways to start one recording for inputs that lie where ``values`` do, those in ``copied`` aside. ``changes``:
    how often it changes some of them, by their places behind the numbers."""

    def __init__(
        self,
        launch: Callable[[], Any],
        outputs: Outputs,
        values: Sequence[Any],
        copied: Collection[int],
        changes: Mapping[int, int],
    ) -> None:
        self._launch, self._outputs, self._library = launch, outputs, word_library()
        self._places, self.counts = places_of(values, copied, changes) if torch_compat.offset_word() else (None, False)
        self._there: Start = self._never
        self._free: Start = self._never
        self._again: Start = self._never
        if self._library is not None and self._places is not None:
            self._there = self._library.starting(launch, self._places)
            self._free = self._library.starting(launch, self._places, outputs.held)

    @property
    def is_known(self) -> bool:
        """Whether there is any."""
        return self._there is not self._never

    @staticmethod
    def _never(inputs: tuple[Any, ...], owners: Any, counts: bool) -> bool:
        return False

    def there(self, values: Sequence[Any]) -> bool:
        """Launch if inputs lie where they lay; what was lent is known to be free. False if nothing was done."""
        return self._there(_tensors(values), None, False) is not False

    def free(self, values: Sequence[Any], counts: bool) -> bool:
        """The same, if what was lent is held no more. Changes of inputs may be counted; all lie apart then."""
        return self._free(_tensors(values), None, counts) is not False

    def again(self, values: Sequence[Any], owners: Any, counts: bool) -> Sequence[torch.Tensor] | None:
        """The same, if these are still the owners of what was lent, which is given again: None if nothing was done."""
        known = self._outputs.given_again.known
        if self._again is self._never and known is not None and self._library is not None and self._places is not None:
            self._again = self._library.starting(self._launch, self._places, known.held, known.lent)
        left = self._again(_tensors(values), owners, counts)
        return None if isinstance(left, bool) else left


def _tensors(values: Sequence[Any]) -> tuple[Any, ...]:
    return values.second if type(values) is Joined else tuple(values)


def places_of(
    values: Sequence[Any], copied: Collection[int], changes: Mapping[int, int]
) -> tuple[bytes | None, bool]:
    """Where inputs lie, as C reads it, and whether changes can be counted with it, as all lie apart. None where one is
    no plain tensor, or a number comes behind one."""
    first = next((place for place, value in enumerate(values) if isinstance(value, torch.Tensor)), len(values))
    tensors = list(enumerate(values))[first:]
    if any(type(value) not in torch_compat.PLAIN_TENSORS for _, value in tensors):
        return None, False
    lying = [(*_lies(value), place) for place, value in tensors if place not in copied]
    spans = sorted((begin, end) for begin, end, *_ in lying if begin != end)
    are_apart = all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    lying += [(0, 0, 0, place) for place in sorted(copied)]
    words = [word for *where, place in lying for word in (*where, place - first, changes.get(place - first, 0))]
    counted = sum(place - first in changes for *_, place in lying if place not in copied)
    head = first, len(tensors), len(lying) - len(copied), len(copied), counted
    return struct.pack(f"{len(head) + len(words)}Q", *head, *words), are_apart and len(copied) <= MOST_COPIED


def _lies(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Where a storage begins and ends, and where the tensor is; without an offset, that is where its storage begins."""
    storage = tensor.untyped_storage()
    begin = storage.data_ptr()
    address = begin if begin and not tensor.storage_offset() else tensor.data_ptr()
    return begin, begin + storage.nbytes(), address
