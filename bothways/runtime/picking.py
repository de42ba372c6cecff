"""Some items of a sequence, by their places, picked in one call: a step has hundreds of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

MANY = 16  # places that are asked for as one range, where they are one

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
