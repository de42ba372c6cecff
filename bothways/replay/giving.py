"""Lent results that are given again: the very tensors of the call before, where their last holder has left them to us.

They cannot be told from fresh ones: no reference to them is left, weak ones included, they have no attributes and no
history, and C compares every word of them with what it was. Making hundreds of fresh ones takes longer than all else
that the host does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.call_library import CallLibrary, word_library
from bothways.runtime.picking import Picker, picker

MOST_DIMENSIONS = 5  # whose sizes and strides lie among the words of a ``TensorImpl``


def _is_told_by_words(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor and tensor.dim() <= MOST_DIMENSIONS


class LentTensors:
    """The tensors that one recording lends, with the versions they begin with. ``storages`` are those they lie in."""

    def __init__(self, lent: Sequence[torch.Tensor], versions: Sequence[int], storages: Sequence[Any]) -> None:
        self._lent, self._versions, self._storages = lent, versions, storages
        is_known = torch_compat.tensor_length() and torch_compat.object_word() and torch_compat.gradient_getter()
        self._library = word_library() if is_known else None
        self._addresses = [tensor.data_ptr() for tensor in lent]
        # Unknown until some were left: for those that are given again, the places of their owners.
        self._places: dict[int, int] | None = None
        self._others: list[int] = []
        self._left_as_given: Callable[[Sequence[Any]], tuple[Any, ...] | bool] | None = None
        self._are_held_as_given: Callable[[], bool] = lambda: False
        self._note: Callable[[Sequence[Any]], bool] = lambda tensors: False
        self._arranged: Picker | None = None
        self._set_versions: Callable[[Sequence[Any]], bool] = lambda tensors: False

    def left_to(self, owners: Sequence[Any]) -> Sequence[torch.Tensor] | None:
        """The tensors that were lent, if these are the gradients of their owners still, and can be given again; else
        where they are is noted, for the next time."""
        if self._left_as_given is not None:
            left = self._left_as_given(owners)
            return left if not isinstance(left, bool) and self._are_held_as_given() else None
        if self._places is None and self._library is not None:
            self._find(self._library.gradients_of(owners))
        return None

    def _find(self, gradients: Sequence[Any]) -> None:
        plain = [(place, tensor) for place, tensor in enumerate(gradients) if _is_told_by_words(tensor)]
        by_address = {tensor.data_ptr(): place for place, tensor in plain}
        pairs = [(number, by_address.get(address)) for number, address in enumerate(self._addresses)]
        self._places = {number: place for number, place in pairs if place is not None}
        if len({*self._places.values()}) < len(self._places):  # two lie at one address
            self._places = {}
        self._others = [number for number, _ in pairs if number not in self._places]

    def fresh(self) -> list[torch.Tensor]:
        """All of them anew. Each begins to count its changes: whoever held it before may have changed it."""
        if self._places and self._left_as_given is None and self._library is not None:
            self._learn(self._library, self._places)
        tensors = [tensor.data for tensor in self._lent]
        if any(self._versions):
            torch_compat.set_versions(tensors, self._versions)
        if self._left_as_given is not None and self._places:
            self._note([tensors[number] for number in self._places])
        return tensors

    def _learn(self, library: CallLibrary, places: dict[int, int]) -> None:
        """Note who holds the memory while there are some that are given again, and how these are found."""
        some = [self._lent[number].data for number in places]
        self._are_held_as_given = library.holding(self._storages)
        del some
        self._left_as_given, self._note = library.giving(list(places.values()))
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
