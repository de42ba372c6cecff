"""Inputs that a graph changes, kept so that a call whose graph fails half-way can start again as plain Python.

A graph that was differentiated writes to its inputs when everything else is done, so nothing is to be undone where
it fails, the statistics of normalisations aside. One that runs as captured has changed what came before the failing
operation; of tensors up to a size there is a copy, unless nothing that may fail follows the first change. What cannot
be put back is left as it is, and the error leaves.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from bothways import torch_compat
from bothways.runtime.compiled_graph import GRAPH, UNKNOWN, CompiledGraph

# Copying more than so many elements before every call would cost more than an error that is rare is worth.
MOST_ELEMENTS = 1 << 16

_is_inference = torch.Tensor.is_inference  # torch's function of this name takes twice the time, for hundreds of inputs


# Sizes, strides, and where it begins; None of tensors that have none.
Layout = tuple[Sequence[int], Sequence[int], int]


class Kept(NamedTuple):
    """A tensor before the call; ``counted`` is None where changes of it are not counted."""

    tensor: torch.Tensor
    version: int | None  # None where it was not looked at
    counted: int | None
    is_written: bool  # before the graph fails, as far as names tell
    copy: torch.Tensor | None
    place: int | None  # where it begins in the copy, if that is one of several tensors
    is_half_written: bool  # what an operation has written before it fails does not count
    layout: Layout | None = None  # where its elements lay, if that may have changed: ``out=`` gives other sizes
    may_share: bool = False  # nothing writes to it by name, but it may lie in the memory of one that is written to

    def may_have_changed(self, refused: bool) -> bool:
        """``refused``: whether autograd has raised, which it does before anything is written."""
        if self.counted is None or (self.is_half_written and not refused):
            return self.is_written
        return not self.is_as_counted

    @property
    def is_as_counted(self) -> bool:
        """Whether no operation has come to the end of changing it."""
        return self.counted is not None and torch_compat.version_of(self.tensor) == self.counted

    def put_back(self) -> None:
        copy = self.copy
        assert copy is not None
        if self.place is not None:
            copy = copy[self.place : self.place + self.tensor.numel()]
        if self.tensor.is_inference():
            with torch.inference_mode():
                self._lay_back()
                _each_element_once(self.tensor).copy_(copy)
            return
        self._lay_back()
        _each_element_once(self.tensor.data).copy_(copy)
        if self.version is not None:
            # Whoever holds the tensor for a backward finds it as it was.
            torch_compat.set_versions([self.tensor], [self.version])

    def _lay_back(self) -> None:
        if self.layout is not None and _layout(self.tensor) != self.layout:
            with torch.no_grad():
                self.tensor.as_strided_(*self.layout)


def keep_inputs(
    graph: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    counted: AbstractSet[int],
    as_data: AbstractSet[int],
    statistics: AbstractSet[int],
    early: AbstractSet[int],
    fails_late: bool,
    breaks_off: bool,
    relies_late: bool,
    is_called_together: bool = False,
) -> Iterable[Kept]:
    """What is needed to tell whether the graph has changed its inputs, and to undo it; nothing where it has not.

    The positions are those of inputs that may be written to: counted by their version, or not because that is done to
    their ``.data``, or because they are statistics, which are written in the middle of any graph. The ``early`` ones
    are written to before an operation that may fail, or by it. ``fails_late`` says whether an operation may fail once
    something was written, ``breaks_off`` whether one may in the middle of writing, ``relies_late`` whether data is
    looked at by then: an error that says no more than that must never leave. Where ``call_together`` follows, it may
    look by itself whether inputs lie apart.
    """
    known = getattr(graph, GRAPH, UNKNOWN)
    if is_called_together and known.at_once is not None and not statistics and known.writes_at_end:
        facts = counted, as_data, statistics, early, fails_late, breaks_off, relies_late
        return KeptLater(graph, tensors, facts)
    if not statistics and known.writes_at_end:
        if known.are_apart is not None and known.are_apart(*tensors):
            return ()
        if known.look is not None and (seen := known.look(tuple(tensors))):
            return Apart(seen)
    written = _written(counted, as_data)
    # Where inputs share their memory, a differentiated graph runs as captured.
    on_its_way = fails_late and (not known.writes_at_end or _share_memory(known, tensors, written))
    for_inference = (
        any(map(_is_inference, map(tensors.__getitem__, written))) and not torch_compat.is_inference_mode_enabled()
    )
    if not on_its_way and not statistics and not for_inference:
        return ()
    if on_its_way or for_inference:
        spoilt = [*early] if on_its_way else []
        if for_inference:  # which operations write to before they refuse to, outside of that mode: the last ones, too
            spoilt += [index for index in written if index not in spoilt and tensors[index].is_inference()]
        return KeptOnItsWay(tensors, counted, as_data, statistics, spoilt, on_its_way, breaks_off, relies_late)
    return KeptStatistics(tensors, counted, as_data, statistics, breaks_off)


class Apart:
    """Nothing is kept: inputs lie apart, and where they lie has this number."""

    __slots__ = ("seen",)

    def __init__(self, seen: int) -> None:
        self.seen = seen

    def __iter__(self) -> Iterator[Kept]:
        return iter(())


class KeptLater:
    """Nothing is kept yet: a launch that does it all looks at the inputs itself."""

    __slots__ = ("_facts", "_graph", "_kept", "_tensors")

    def __init__(self, graph: Callable[..., Any], tensors: Sequence[torch.Tensor], facts: tuple[Any, ...]) -> None:
        self._graph, self._tensors, self._facts = graph, tensors, facts
        self._kept: Iterable[Kept] = ()

    def keep(self) -> Iterable[Kept]:
        """What is needed where no such launch was made."""
        self._kept = keep_inputs(self._graph, self._tensors, *self._facts)
        return self._kept

    def __iter__(self) -> Iterator[Kept]:
        return iter(self._kept)


def call_together(
    graph: Callable[..., Any],
    numbers: tuple[Any, ...],
    tensors: tuple[Any, ...],
    count: int,
    kept: Iterable[Kept] = (),
) -> Any:
    """The results of a graph of many tensors, so many of them; it takes the tensors as one tuple where it can."""
    known = getattr(graph, GRAPH, UNKNOWN)
    results = None if known.at_once is None else known.at_once(numbers, tensors)
    if results is None:
        kept = kept.keep() if type(kept) is KeptLater else kept
        if known.takes_together:
            results = graph(*numbers, together=tensors, seen=kept.seen if type(kept) is Apart else 0)
        else:
            results = graph(*numbers, *tensors)
    if count and len(results) != count:
        raise ValueError(f"a compiled graph has given {len(results)} results instead of {count}")
    return results


class KeptOnItsWay:
    """What is kept of a graph that may fail once it has written to inputs, or that writes to inference tensors: copies
    of those, and how often each input was changed. What belongs to each is put together where one does fail."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        counted: AbstractSet[int],
        as_data: AbstractSet[int],
        statistics: AbstractSet[int],
        spoilt: Sequence[int],
        on_its_way: bool,
        breaks_off: bool,
        relies_late: bool,
    ) -> None:
        self._tensors, self._breaks_off = tensors, breaks_off
        written = _written(counted, as_data)
        self._uncounted = _written(as_data, statistics)
        # Before the end of a differentiated graph nothing but statistics is written.
        self._looked_at = range(len(tensors)) if on_its_way else sorted(written | statistics)
        try:
            self._versions: list[int | None] = [tensors[index]._version for index in self._looked_at]
        except RuntimeError:  # of inference tensors changes are not counted
            self._versions = [torch_compat.version_of(tensors[index]) for index in self._looked_at]
        self._together = _together([tensors[index] for index in statistics]) if statistics else {}
        self._copies = {
            index: None if id(tensors[index]) in self._together else _copy(tensors[index], relies_late, breaks_off)
            for index in (*spoilt, *statistics)
        }
        self._layouts = {index: _layout(tensors[index]) for index in spoilt}

    def __iter__(self) -> Iterator[Kept]:
        for index, version in zip(self._looked_at, self._versions, strict=True):
            tensor, is_written = self._tensors[index], index in self._copies
            copy, place = self._together.get(id(tensor)) or (self._copies.get(index), None)
            counted = None if index in self._uncounted else version
            is_half_written, layout = is_written and self._breaks_off, self._layouts.get(index)
            yield Kept(tensor, version, counted, is_written, copy, place, is_half_written, layout, not is_written)


class KeptStatistics:
    """What is kept of a graph that writes at its end and to statistics before: of these a copy, of the rest versions.

    A step has hundreds of inputs and never fails, so that what belongs to each is put together where one does.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        counted: AbstractSet[int],
        as_data: AbstractSet[int],
        statistics: AbstractSet[int],
        breaks_off: bool,
    ) -> None:
        self._tensors, self._as_data, self._statistics, self._breaks_off = tensors, as_data, statistics, breaks_off
        self._counted = _counted_alone(counted, as_data, statistics)
        self._versions = [tensors[index]._version for index in self._counted]
        self._together = _together([tensors[index] for index in statistics])
        alone = [index for index in statistics if id(tensors[index]) not in self._together]
        self._alone = {index: _copy(tensors[index], False) for index in alone}

    def __iter__(self) -> Iterator[Kept]:
        for index, version in zip(self._counted, self._versions, strict=True):
            yield Kept(self._tensors[index], version, version, False, None, None, False)
        for index in sorted(self._as_data | self._statistics):
            tensor, is_written = self._tensors[index], index in self._statistics
            copy, place = self._together.get(id(tensor)) or (self._alone.get(index), None)
            yield Kept(tensor, None, None, is_written, copy, place, is_written and self._breaks_off)


# The sets belong to programs, and are the same objects at every call.


@lru_cache(256)
def _written(counted: AbstractSet[int], as_data: AbstractSet[int]) -> AbstractSet[int]:
    return counted | as_data


@lru_cache(256)
def _counted_alone(
    counted: AbstractSet[int], as_data: AbstractSet[int], statistics: AbstractSet[int]
) -> tuple[int, ...]:
    return tuple(sorted(counted - as_data - statistics))


def _together(tensors: Sequence[torch.Tensor]) -> dict[int, tuple[torch.Tensor, int]]:
    """One copy of all the vectors of one kind, and where in it each begins: a normalisation has two, and a copy of each
    costs a call."""
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in tensors:
        is_plain = tensor.dim() == 1 and tensor.layout is torch.strided and not tensor.requires_grad
        if is_plain and tensor.stride(0) == 1 and tensor.numel() <= MOST_ELEMENTS:
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    copies: dict[int, tuple[torch.Tensor, int]] = {}
    for vectors in kinds.values():
        if len(vectors) > 1:
            copy, begin = torch.cat(vectors), 0
            for vector in vectors:
                copies[id(vector)] = copy, begin
                begin += vector.numel()
    return copies


def _share_memory(graph: CompiledGraph, tensors: Sequence[torch.Tensor], written: AbstractSet[int]) -> bool:
    """Whether one that is written to shares its memory with another; where the graph does not tell, whether any do."""
    if graph.share is not None:
        return graph.share(tensors)
    if not written:
        return False
    places = sorted(place for place in map(torch_compat.memory_of, tensors) if place[0] != place[1])
    return any(following[0] < place[1] for place, following in itertools.pairwise(places))


def _copy(tensor: torch.Tensor, of_any_size: bool, of_history: bool = False) -> torch.Tensor | None:
    """``of_history``: also of a tensor with a history, which an operation that breaks off leaves as it is."""
    if (tensor.numel() > MOST_ELEMENTS and not of_any_size) or (tensor.grad_fn is not None and not of_history):
        return None
    return _each_element_once(tensor.detach() if tensor.requires_grad else tensor).clone()


def _layout(tensor: torch.Tensor) -> Layout | None:
    if tensor.layout is not torch.strided:
        return None
    return tensor.size(), tensor.stride(), int(tensor.storage_offset())


def _each_element_once(tensor: torch.Tensor) -> torch.Tensor:
    """The part of an expanded tensor that everything else repeats: PyTorch lets no operation write to the whole."""
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(1) if stride == 0 else slice(None) for stride in tensor.stride())]


def put_back(kept: Iterable[Kept]) -> bool:
    """Undo what a graph did to its inputs before it raised what is being handled; False where that is not possible, and
    nothing is undone."""
    changed: list[Kept] = []
    shared: list[torch.Tensor] = []
    refused = torch_compat.is_refusal_of_autograd(sys.exception())
    for one in kept:
        if one.may_have_changed(refused):
            if one.may_share:
                shared.append(one.tensor)
                continue
            # What an operation in place made part of autograd's graph stays one.
            if one.copy is None or (one.tensor.grad_fn is not None and not one.is_as_counted):
                return False
            changed.append(one)
    memories = {torch_compat.storage_of(one.tensor) for one in changed} if shared else set()
    if not memories.issuperset(map(torch_compat.storage_of, shared)):
        return False
    for one in changed:
        one.put_back()
    return True
