"""Items are picked by their places, however many, in a row or not."""

import pytest

from bothways.runtime.picking import MANY, picker


@pytest.mark.parametrize(
    "places", [[], [2], [1, 2, 3], list(range(3, 3 + MANY)), list(range(MANY)), list(range(MANY))[::-1], [0] * MANY]
)
def test_places(places):
    items = [object() for _ in range(2 * MANY)]
    for kind in (list, tuple):
        found = picker(places)(kind(items))
        assert type(found) is tuple and found == tuple(items[place] for place in places)
