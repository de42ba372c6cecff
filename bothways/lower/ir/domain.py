"""Iteration spaces, and how the indices of a node follow from the loops of its kernel.

A Domain is a set of loops. A Mapping says, for each dimension of a node, which loops it runs over, major first;
None where the node is the same for every index (an expanded dimension). Views only rearrange mappings, so nodes of
different shapes meet in one kernel; a reshape that cuts a dimension in two cuts the loop in two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from bothways.lower.ir.prims import Expand, Permute, Shape, View
from bothways.lower.ir.sizes import as_known

Loops = tuple[int, ...]
Mapping = tuple[Loops | None, ...]

_numbers = itertools.count()


class NoMapping(Exception):
    """The view cannot be followed inside one kernel."""


class Domain:
    """The loops of a kernel. A loop that was split goes on as its parts."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._parts: dict[int, Loops] = {}
        self._roots: list[int] = []

    def add(self, size: int) -> int:
        loop = self._fresh(size)
        self._roots.append(loop)
        return loop

    def identity(self, shape: Shape) -> Mapping:
        """New loops, one for each dimension of a shape."""
        return tuple((self.add(size),) if size != 1 else () for size in shape)

    @property
    def loops(self) -> Loops:
        """The loops there are now."""
        return self.resolved(self._roots)

    def resolved(self, loops: Iterable[int]) -> Loops:
        resolved: list[int] = []
        for loop in loops:
            parts = self._parts.get(loop)
            resolved.extend((loop,) if parts is None else self.resolved(parts))
        return tuple(resolved)

    def settled(self, mapping: Mapping) -> Mapping:
        """The mapping in terms of the loops there are now."""
        return tuple(None if loops is None else self.resolved(loops) for loops in mapping)

    def split(self, loop: int, outer: int) -> Loops:
        """Cut a loop into an outer one of the given size and the rest."""
        parts = self._fresh(outer), self._fresh(self.sizes[loop] // outer)
        self._parts[loop] = parts
        return parts

    def _fresh(self, size: int) -> int:
        loop = next(_numbers)
        self.sizes[loop] = size
        return loop

    def strides(self, mapping: Mapping, strides: Shape) -> dict[int, int]:
        """How far one step of each loop goes in memory, for a node with this mapping and these strides."""
        steps: dict[int, int] = {}
        for loops, stride in zip(self.settled(mapping), strides, strict=True):
            step = stride
            for loop in reversed(loops or ()):
                steps[loop] = steps.get(loop, 0) + step
                step *= self.sizes[loop]
        return steps


def upward(view: View, mapping: Mapping, domain: Domain) -> Mapping:
    """The mapping of a view from that of its argument."""
    if isinstance(view, Permute):
        return tuple(mapping[dim] for dim in view.dims)
    if isinstance(view, Expand):
        return tuple(
            None if old == 1 and new != 1 else loops
            for loops, old, new in zip(mapping, view.arg.shape, view.shape, strict=True)
        )
    return _regrouped(mapping, view.arg.shape, view.shape, domain)


def downward(view: View, mapping: Mapping, domain: Domain) -> Mapping:
    """The mapping of a view's argument from that of the view."""
    if isinstance(view, Permute):
        below: list[Loops | None] = [()] * len(mapping)
        for loops, dim in zip(mapping, view.dims, strict=True):
            below[dim] = loops
        return tuple(below)
    if isinstance(view, Expand):
        return tuple(() if size == 1 else loops for loops, size in zip(mapping, view.arg.shape, strict=True))
    return _regrouped(mapping, view.shape, view.arg.shape, domain)


def can_regroup(shape: Shape, new: Shape) -> bool:
    """Whether one kernel can go over the same elements in both shapes, whichever its loops are made for: of sizes that
    are equal, but not known to be, one may follow the other, and not the other the one."""
    for first, second in ((shape, new), (new, shape)):
        domain = Domain()
        try:
            _regrouped(domain.identity(first), first, second, domain)
        except NoMapping:
            return False
    return True


def _regrouped(mapping: Mapping, shape: Shape, new: Shape, domain: Domain) -> Mapping:
    entries = [(size, loops) for size, loops in zip(shape, mapping, strict=True) if size != 1]
    if [size for size, _ in entries] == [size for size in new if size != 1]:
        rest = iter(loops for _, loops in entries)
        return tuple(() if size == 1 else next(rest) for size in new)
    if any(loops is None for _, loops in entries):
        raise NoMapping
    flat = list(domain.resolved(loop for _, loops in entries for loop in loops or ()))
    if math.prod(domain.sizes[loop] for loop in flat) != math.prod(new):
        raise NoMapping
    return tuple(_covering(flat, size, domain) for size in new)


def _covering(flat: list[int], size: int, domain: Domain) -> Loops:
    """Take loops from the front until they cover a dimension of this size.

    What was asked about sizes since they were made may have told more about some: all are taken as they are known now.
    """
    taken: list[int] = []
    size, covered = as_known(size), 1
    while covered != size:
        if not flat:
            raise NoMapping
        loop = flat.pop(0)
        length, wanted = as_known(domain.sizes[loop]), size // covered
        if wanted == 1:  # of sizes that are equal, but not known to be
            raise NoMapping
        if wanted % length == 0:
            taken.append(loop)
            covered *= length
        elif size % covered == 0 and length % wanted == 0:
            flat[:0] = domain.split(loop, wanted)
        else:
            raise NoMapping
    return tuple(taken)


def unified(mappings: Iterable[Mapping | None], domain: Domain) -> Mapping | None:
    """The one mapping that all known ones agree on; None inside them agrees with everything.

    Sums of the rows and of the columns of one square agree in that way, and yet go over its diagonal only.
    """
    known = [domain.settled(mapping) for mapping in mappings if mapping is not None]
    if not known:
        return None
    unified: list[Loops | None] = []
    for column in zip(*known, strict=True):
        choices = {loops for loops in column if loops is not None}
        if len(choices) > 1:
            raise NoMapping
        unified.append(choices.pop() if choices else None)
    used = [loop for loops in unified for loop in loops or ()]
    if len(used) != len(set(used)):
        raise NoMapping
    return tuple(unified)
