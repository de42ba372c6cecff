"""Which of eager's nodes a backward goes through, as far as they save something.

In eager a backward frees what these have saved, and one that comes to such a node again is refused. One node stands
for all of them here, so it is told apart what a backward by some of the inputs, through some of the results, has freed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from itertools import combinations
from operator import or_
from typing import Any

# Inputs of which it is asked one by one whether a backward is by them, so that what is left is known: an answer may
# take as long as an operation of eager's.
MOST_ASKED = 16

Outline = tuple[Any, ...]  # of a value that was saved: shape, strides, dtype and device


class Pieces:
    """The nodes that save something, alike ones as one piece.

    ``pairs`` says, one piece after the other, behind which results it is and to which inputs it leads, as bits;
    ``leads`` to which inputs each result leads. What a backward goes through is a number of as many bits as there are
    pieces.
    """

    def __init__(self, pairs: Sequence[int], leads: Sequence[int]) -> None:
        self._pieces = [(1 << place, *pair) for place, pair in enumerate(zip(pairs[::2], pairs[1::2], strict=True))]
        self._leads = leads
        self._all_inputs = reduce(or_, leads, 0)

    def between(self, results: int, inputs: int) -> int:
        """What a backward through some results, by some inputs, goes through."""
        return sum(bit for bit, behind, before in self._pieces if behind & results and before & inputs)

    def may_be_apart(self) -> bool:
        """Whether there are two backwards of which one can follow the other though the graph is not retained."""
        results = bits(place for place, inputs in enumerate(self._leads) if inputs)
        if any(behind & results == results and before == self._all_inputs for _, behind, before in self._pieces):
            return False  # all backwards come there, which is usual
        return bool(self._pieces) and any(not one & other for one, other in combinations(self._ways, 2))

    def results_fall_apart(self) -> bool:
        """Whether two results can be gone through one after the other, each by all inputs."""
        return any(not one & other for one, other in combinations(filter(None, self._whole_ways), 2))

    def is_left(self, used: int, inputs: int) -> bool:
        """Whether a backward that goes through a piece can follow one by these inputs, when so much is used.

        After one by all inputs only another one by all of them counts: what few would ask for is not worth the memory.
        """
        ways = self._ways if self._all_inputs & ~inputs else self._whole_ways
        return any(way and not way & used for way in ways)

    def frees_all(self, tangents: Sequence[Any], wanted: Sequence[bool] | None) -> bool:
        """Whether the first backward for these gradients leaves nothing to others."""
        results, inputs = asked_for(tangents, wanted)
        used = self.between(results, inputs)
        return bool(used) and not self.is_left(used, inputs)

    @cached_property
    def _whole_ways(self) -> list[int]:
        """What a backward by all inputs goes through, for each result."""
        return [self.between(1 << result, self._all_inputs) for result in range(len(self._leads))]

    @cached_property
    def _ways(self) -> set[int]:
        """What a backward goes through from a result to an input, each once."""
        return {
            self.between(1 << result, 1 << place)
            for result, inputs in enumerate(self._leads)
            for place in range(inputs.bit_length())
            if inputs >> place & 1
        }


def asked_for(tangents: Sequence[Any], wanted: Sequence[bool] | None) -> tuple[int, int]:
    """The results to which gradients come, and the inputs that get one, as bits."""
    inputs = -1 if wanted is None else bits(place for place, want in enumerate(wanted) if want)
    return bits(place for place, tangent in enumerate(tangents) if tangent is not None), inputs


def bits(places: Iterable[int]) -> int:
    """Places as the bits of a number."""
    number = 0
    for place in places:
        number |= 1 << place
    return number
