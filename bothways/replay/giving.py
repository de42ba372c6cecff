"""Lent results that are given again: the very tensors of the call before, where their last holder has left them to us.

They cannot be told from fresh ones: no reference to them is left, weak ones included, they have no attributes and no
history, and C compares every word of them with what it was. Making hundreds of fresh ones takes longer than all else
that the host does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from bothways import torch_compat
from bothways.calls.call_library import CallLibrary, held_storages, lent_tensors, word_library
from bothways.runtime.picking import Picker, picker

MOST_DIMENSIONS = 5  # whose sizes and strides lie among the words of a ``TensorImpl``


def _is_told_by_words(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor and tensor.dim() <= MOST_DIMENSIONS


class Known(NamedTuple):
    """Tensors that are given again, and the storages of all that are lent, as C reads them."""

    lent: bytes
    held: bytes


class LentTensors:
    """The tensors that one recording lends, with the versions they begin with. ``storages`` are those they lie in.

    ``known`` is what C asks of those that are given again, and of their storages; None until some were left."""

    def __init__(self, lent: Sequence[torch.Tensor], versions: Sequence[int], storages: Sequence[Any]) -> None:
        self._lent, self._versions, self._storages = lent, versions, storages
        is_known = torch_compat.tensor_length() and torch_compat.object_word() and torch_compat.gradient_getter()
        self._library = word_library() if is_known else None
        self._addresses = [tensor.data_ptr() for tensor in lent]
        self.known: Known | None = None
        # Unknown until some were left: for those that are given again, the places of their owners.
        self._places: dict[int, int] | None = None
        self._others: list[int] = []
        self._note: Callable[[Sequence[Any]], bool] = lambda tensors: False
        self._arranged: Picker | None = None
        self._set_versions: Callable[[Sequence[Any]], bool] = lambda tensors: False

    def may_be_left(self, owners: Sequence[Any]) -> bool:
        """Whether it is known by now how the tensors that were lent are found among the gradients of their owners; else
        where they are is noted, for the next time."""
        if self._places is None and self._library is not None:
            self._find(self._library, owners)
        return self.known is not None

    def _find(self, library: CallLibrary, owners: Sequence[Any]) -> None:
        gradients = library.gradients_of(owners)
        plain = [(place, tensor) for place, tensor in enumerate(gradients) if _is_told_by_words(tensor)]
        by_address = {tensor.data_ptr(): place for place, tensor in plain}
        pairs = [(number, by_address.get(address)) for number, address in enumerate(self._addresses)]
        self._places = {number: place for number, place in pairs if place is not None}
        if len({*self._places.values()}) < len(self._places):  # two lie at one address
            self._places = {}
        self._others = [number for number, _ in pairs if number not in self._places]

    def fresh(self) -> list[torch.Tensor]:
        """All of them anew. Each begins to count its changes: whoever held it before may have changed it."""
        if self._places and self.known is None and self._library is not None:
            self._learn(self._library, self._places)
        tensors = [tensor.data for tensor in self._lent]
        if any(self._versions):
            torch_compat.set_versions(tensors, self._versions)
        if self.known is not None and self._places:
            self._note([tensors[number] for number in self._places])
        return tensors

    def _learn(self, library: CallLibrary, places: dict[int, int]) -> None:
        """Note who holds the memory while there are some that are given again, and how these are found."""
        some = [self._lent[number].data for number in places]
        held = held_storages(self._storages)
        del some
        self.known = Known(lent_tensors(list(places.values())), held)
        self._note = library.noting(self.known.lent)
        self._set_versions = library.versions(dict(enumerate(self._versions)))
        if self._others:
            order = {number: at for at, number in enumerate([*places, *self._others])}
            self._arranged = picker([order[number] for number in range(len(self._lent))])

    def again(self, left: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """They themselves, and fresh ones of those that were not left."""
        tensors = left
        if self._arranged is not None:
            tensors = self._arranged([*left, *[self._lent[number].data for number in self._others]])
        if not self._set_versions(tensors):
            torch_compat.set_versions(tensors, self._versions)
        return tensors
