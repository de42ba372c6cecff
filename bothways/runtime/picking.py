"""Some items of a sequence, by their places, picked in one call: a step has hundreds of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

Picker = Callable[[Sequence[Any]], tuple[Any, ...]]


def picker(places: Sequence[int]) -> Picker:
    """A function that gives the items at these places, in this order."""
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda items: tuple([items[place] for place in places])
