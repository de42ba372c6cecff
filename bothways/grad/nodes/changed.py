"""Inputs that a compiled graph changes: whether others share their memory, and how they get their new values.

A graph that was traced has no memory: it gives new values, which kernels may have written where they belong.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence

import torch

from bothways import torch_compat
from bothways.calls.call_library import apart


def sharing(changed: Sequence[int], count: int) -> Callable[[Sequence[torch.Tensor]], bool]:
    """What tells whether an input that is mutated shares memory with another, which would have to see the change.

    Storages are not asked for: the same array, given to PyTorch twice, has two.
    """
    if not changed:
        return lambda inputs: False
    are_apart = apart(count, changed)
    written = frozenset(changed)

    def share(inputs: Sequence[torch.Tensor]) -> bool:
        if are_apart is not None and are_apart(*inputs):
            return False
        places = [(*torch_compat.memory_of(tensor), index) for index, tensor in enumerate(inputs)]
        return any(len(group) > 1 and not written.isdisjoint(group) for group in _meeting(places))

    return share


def _meeting(places: list[tuple[int, int, int]]) -> Iterator[list[int]]:
    """The numbers of memories, in groups that lie over one another; each has a beginning, an end, and a number."""
    group: list[int] = []
    reach = 0
    for begin, end, index in sorted(place for place in places if place[0] != place[1]):
        if begin >= reach:
            yield group
            group = []
        group.append(index)
        reach = max(reach, end)
    yield group


def write_back(
    inputs: Sequence[torch.Tensor], changed: Sequence[int], values: Sequence[torch.Tensor], uncounted: Sequence[int]
) -> None:
    """Give the inputs that were mutated their new values; all but the ``uncounted`` get another version."""
    targets = [inputs[index] for index in changed]
    if not all(map(operator.is_, targets, values)):
        targets = _copied(inputs, changed, values, uncounted)
    elif len(uncounted) == len(changed):  # as an optimizer's updates in one are
        return
    elif uncounted:
        silent = frozenset(uncounted)
        targets = [target for index, target in zip(changed, targets, strict=True) if index not in silent]
    torch.autograd.graph.increment_version(targets)


def _copied(
    inputs: Sequence[torch.Tensor], changed: Sequence[int], values: Sequence[torch.Tensor], uncounted: Sequence[int]
) -> list[torch.Tensor]:
    """Copy what is not there yet; the inputs that were written to already, and are counted, come back."""
    written, targets, sources = [], [], []
    for index, value in zip(changed, values, strict=True):
        target = inputs[index]
        if value is not target:
            targets.append(target.data if index in uncounted else target)
            sources.append(value)
        elif index not in uncounted:
            written.append(target)
    with torch.no_grad():
        for kind in dict.fromkeys(target.dtype for target in targets):  # one launch each on a GPU, which wants one kind
            pairs = [pair for pair in zip(targets, sources, strict=True) if pair[0].dtype is kind]
            torch_compat.foreach_copy_(*map(list, zip(*pairs, strict=True)))
    return written
