"""Inputs that a compiled graph changes: whether others share their memory, and how they get their new values.

A graph that was traced has no memory: it gives new values, which kernels may have written where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bothways import torch_compat
from bothways.calls.call_library import apart, looking, same, word_library
from bothways.runtime.picking import Picker, picker

Share = Callable[[Sequence[torch.Tensor]], bool]
Apart = Callable[..., Any] | None
Look = Callable[[tuple[Any, ...]], int] | None

_is_inference = torch.Tensor.is_inference
FEW = 2  # tensors, which are copied faster one by one


def sharing(changed: Sequence[int], count: int) -> tuple[Share, Apart, Look]:
    """What tells whether an input that is mutated shares memory with another, which would have to see the change, or
    may not be changed at all, as one that was made in inference mode outside of it; and what tells at once that none
    does, and that none is of inference mode, where there is something that does: of few inputs each for itself, of many
    as one tuple.

    Storages are not asked for: the same array, given to PyTorch twice, has two.
    """
    if not changed:
        return lambda inputs: False, None, None
    look = looking(count, changed)
    are_apart = apart(count, changed) if look is None else None
    written = frozenset(changed)
    may_refuse = not torch.is_inference_mode_enabled()

    def share(inputs: Sequence[torch.Tensor]) -> bool:
        if are_apart(*inputs) if are_apart is not None else look is not None and look(tuple(inputs)):
            return False
        if may_refuse and any(map(_is_inference, map(inputs.__getitem__, changed))):
            return True
        places = [(*torch_compat.memory_of(tensor), index) for index, tensor in enumerate(inputs)]
        return any(len(group) > 1 and not written.isdisjoint(group) for group in _meeting(places))

    return share, are_apart, look


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


class Changes:
    """The inputs that a graph changes, by their places, and by how much the version of each grows."""

    def __init__(self, places: Sequence[int], counts: Sequence[int]) -> None:
        self._counts = counts
        library = word_library()
        updates = [(place, number, count) for number, (place, count) in enumerate(zip(places, counts, strict=True))]
        self._count = None if library is None else library.counting(updates)
        self._targets = picker(places)
        self._counted = picker([place for place, count in zip(places, counts, strict=True) for _ in range(count)])
        self._are_same = same(len(places))

    def count(self, inputs: Sequence[torch.Tensor]) -> None:
        """Give the inputs, whose values are the new ones, the versions that eager gives them."""
        if self._count is None or not self._count(inputs):
            _count(self._counted(inputs))

    def write_back(self, inputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Give the inputs their new values, where kernels have not, which leave out such as they have; and the versions
        that eager gives them."""
        if not values:
            return self.count(inputs)
        if self._count is not None and self._count(inputs, values):
            return None
        targets = self._targets(inputs)
        return _count(self._counted(inputs) if self._are_same(*targets, *values) else self._copied(targets, values))

    def _copied(self, targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy what is not there yet; the inputs come back as often as they are still to be counted."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        rest: list[torch.Tensor] = []
        for target, value, count in zip(targets, values, self._counts, strict=True):
            is_copied = value is not target
            if is_copied:
                pairs.append((target if count else target.data, value))
            rest += [target] * (count - (is_copied and count > 0))
        grad = torch_compat.is_grad_enabled()
        torch_compat.set_grad_enabled(False)
        try:
            if len(pairs) <= FEW:  # a model with normalisations copies their counters at every call
                for target, value in pairs:
                    target.copy_(value)
            else:
                _copy_alike(pairs)
        finally:
            torch_compat.set_grad_enabled(grad)
        return rest


def recounting(run: Callable[..., Any], places: Sequence[int], skipped: int) -> Callable[..., Any]:
    """A forward after which the versions of these inputs have grown, each as often as its place is there; ``skipped``
    numbers come before the inputs. What is kept for a backward is kept afterwards, as in eager: a trace in which it was
    kept before has failed."""
    if not places:
        return run
    counted = picker([skipped + place for place in places])

    def call(*values: Any) -> Any:
        results = run(*values)
        _count(counted(values))
        return results

    return call


def _count(tensors: Sequence[torch.Tensor]) -> None:
    """Let versions grow; tensors that were made in inference mode have none."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def _copy_alike(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy by one launch on a GPU for each kind of tensors."""
    for kind in dict.fromkeys(target.dtype for target, _ in pairs):
        alike = [pair for pair in pairs if pair[0].dtype is kind]
        torch_compat.foreach_copy_(*map(list, zip(*alike, strict=True)))


class Versions:
    """The versions of a graph's results, which are to be what eager's are.

    ATen and kernels make a value in as many changes as they like. That is so in every call, and looked at in the first
    one, so that others set the few that differ.
    """

    def __init__(self, expected: Sequence[int]) -> None:
        self._expected = expected
        self.others: list[int] | None = None  # those that differ; None before the first call
        self._versions: tuple[int, ...] = ()
        self._picked: Picker = picker(())
        self._set: Callable[[Sequence[Any]], bool] | None = None

    def set(self, results: Sequence[torch.Tensor]) -> None:
        others = self.others
        if others is None:
            versions = map(torch_compat.version_of, results[: len(self._expected)])
            pairs = enumerate(zip(versions, self._expected, strict=True))
            others = [place for place, (own, eager) in pairs if own is not None and own != eager]
            self.others, self._versions = others, tuple([self._expected[place] for place in others])
            self._picked = picker(others)
            library = word_library()
            if library is not None:
                self._set = library.versions(dict(zip(others, self._versions, strict=True)))
        if others and (self._set is None or not self._set(results)):
            torch_compat.set_versions(self._picked(results), self._versions)
