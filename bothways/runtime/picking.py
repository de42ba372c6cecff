"""Some items of a sequence, by their places, picked in one call: a step has hundreds of them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MANY = 16  # places that are asked for as one range, where they are one


class Joined(Sequence[Any]):
    """The items of two tuples, which are not copied: counting who holds a thousand tensors takes microseconds."""

    __slots__ = ("first", "second")

    def __init__(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def __getitem__(self, place: Any) -> Any:
        behind = place - len(self.first)
        return self.first[place] if behind < 0 else self.second[behind]

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(self.first, self.second)


Picker = Callable[[Sequence[Any]], tuple[Any, ...]]


def picker(places: Sequence[int]) -> Picker:
    """A function that gives the items at these places, in this order."""
    first = places[0] if places else 0
    if len(places) >= MANY and list(places) == list(range(first, first + len(places))):
        whole = operator.itemgetter(slice(first, first + len(places)))
        return lambda items: tuple(whole(items))
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])
