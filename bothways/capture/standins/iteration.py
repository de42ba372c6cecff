"""``itertools`` in Python: generators that take from their iterables exactly when the C versions do.

Each function checks its arguments and makes its iterators when it is called; a generator does the rest.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_MISSING: Any = object()


def accumulate(
    iterable: Iterable[Any], func: Callable[[Any, Any], Any] | None = None, *, initial: Any = None
) -> Iterator[Any]:
    return _accumulate(iter(iterable), operator.add if func is None else func, initial)


def _accumulate(iterator: Iterator[Any], func: Callable[[Any, Any], Any], initial: Any) -> Iterator[Any]:
    total = initial
    if initial is None:
        try:
            total = next(iterator)
        except StopIteration:
            return
    yield total
    for element in iterator:
        total = func(total, element)
        yield total


def batched(iterable: Iterable[Any], n: int, *, strict: bool = False) -> Iterator[tuple[Any, ...]]:
    if n < 1:
        raise ValueError("n must be at least one")
    return _batched(iter(iterable), n, strict)


def _batched(iterator: Iterator[Any], n: int, strict: bool) -> Iterator[tuple[Any, ...]]:
    while batch := tuple(islice(iterator, n)):
        if strict and len(batch) != n:
            raise ValueError("batched(): incomplete batch")
        yield batch


def chain(*iterables: Iterable[Any]) -> Iterator[Any]:
    return chain_from_iterable(iterables)


def chain_from_iterable(iterables: Iterable[Iterable[Any]]) -> Iterator[Any]:
    return _chain(iter(iterables))


def _chain(iterators: Iterator[Iterable[Any]]) -> Iterator[Any]:
    for iterable in iterators:
        yield from iter(iterable)


def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    return _compress(iter(data), iter(selectors))


def _compress(data: Iterator[Any], selectors: Iterator[Any]) -> Iterator[Any]:
    for element, selected in zip(data, selectors, strict=False):
        if selected:
            yield element


def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    return _count(start, step)


def _count(number: Any, step: Any) -> Iterator[Any]:
    while True:
        yield number
        number = number + step


def cycle(iterable: Iterable[Any]) -> Iterator[Any]:
    return _cycle(iter(iterable))


def _cycle(iterator: Iterator[Any]) -> Iterator[Any]:
    saved = []
    for element in iterator:
        yield element
        saved.append(element)
    while saved:
        yield from saved


def dropwhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    return _dropwhile(predicate, iter(iterable))


def _dropwhile(predicate: Callable[[Any], Any], iterator: Iterator[Any]) -> Iterator[Any]:
    for element in iterator:
        if not predicate(element):
            yield element
            break
    for element in iterator:
        yield element


def takewhile(predicate: Callable[[Any], Any], iterable: Iterable[Any]) -> Iterator[Any]:
    return _takewhile(predicate, iter(iterable))


def _takewhile(predicate: Callable[[Any], Any], iterator: Iterator[Any]) -> Iterator[Any]:
    for element in iterator:
        if not predicate(element):
            return
        yield element


def filterfalse(function: Callable[[Any], Any] | None, iterable: Iterable[Any]) -> Iterator[Any]:
    return _filterfalse(function, iter(iterable))


def _filterfalse(function: Callable[[Any], Any] | None, iterator: Iterator[Any]) -> Iterator[Any]:
    for element in iterator:
        if not (element if function is None else function(element)):
            yield element


class groupby:
    """Runs of elements with equal keys; a group ends when the next one is asked for."""

    def __init__(self, iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> None:
        self.key = key
        self.iterator = iter(iterable)
        self.target_key: Any = _MISSING
        self.current_key: Any = _MISSING
        self.current_value: Any = None
        self.group: object = None

    def __iter__(self) -> groupby:
        return self

    def __next__(self) -> tuple[Any, Iterator[Any]]:
        self.group = group = object.__new__(_Token)
        while self.current_key is _MISSING or (
            self.target_key is not _MISSING and self.current_key == self.target_key
        ):
            self.advance()
        self.target_key = self.current_key
        return self.current_key, self.members(group, self.target_key)

    def advance(self) -> None:
        self.current_value = next(self.iterator)
        self.current_key = self.current_value if self.key is None else self.key(self.current_value)

    def members(self, group: object, key: Any) -> Iterator[Any]:
        while self.group is group and self.current_key == key:
            yield self.current_value
            try:
                self.advance()
            except StopIteration:
                self.group = None
                self.current_key = _MISSING


class _Token:
    """Stands for one group, so that an abandoned one knows that it ended."""


def islice(iterable: Iterable[Any], *bounds: int | None) -> Iterator[Any]:
    if not 1 <= len(bounds) <= 3:
        raise TypeError(
            f"islice expected at {'least 2' if not bounds else 'most 4'} arguments, got {len(bounds) + 1}"
        )
    window = slice(*bounds)
    start, stop, step = window.start, window.stop, window.step
    if stop is not None and (not hasattr(stop, "__index__") or stop < 0):
        raise ValueError("Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    for bound in (start, step):
        if bound is not None and not hasattr(bound, "__index__"):
            raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if start is not None and start < 0:
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    if step is not None and step < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return _islice(iter(iterable), start or 0, stop, step or 1)


def _islice(iterator: Iterator[Any], start: int, stop: int | None, step: int) -> Iterator[Any]:
    position, wanted = 0, start
    while stop is None or wanted < stop:
        while position < wanted:
            try:
                next(iterator)
            except StopIteration:
                return
            position += 1
        try:
            element = next(iterator)
        except StopIteration:
            return
        position += 1
        yield element
        wanted += step
    while stop is not None and position < stop:  # the C version takes everything up to the end of the window
        try:
            next(iterator)
        except StopIteration:
            return
        position += 1


def pairwise(iterable: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    return _pairwise(iter(iterable))


def _pairwise(iterator: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    before = _MISSING
    for element in iterator:
        if before is not _MISSING:
            yield before, element
        before = element


def repeat(object: Any, times: int | None = None) -> Iterator[Any]:
    return _repeat(object, times)


def _repeat(obj: Any, times: int | None) -> Iterator[Any]:
    done = 0
    while times is None or done < times:
        yield obj
        done += 1


def starmap(function: Callable[..., Any], iterable: Iterable[Iterable[Any]]) -> Iterator[Any]:
    return _starmap(function, iter(iterable))


def _starmap(function: Callable[..., Any], iterator: Iterator[Iterable[Any]]) -> Iterator[Any]:
    for arguments in iterator:
        yield function(*arguments)


def tee(iterable: Iterable[Any], n: int = 2) -> tuple[Iterator[Any], ...]:
    if n < 0:
        raise ValueError("n must be >= 0")
    iterator = iter(iterable)
    waiting: list[deque[Any]] = [deque() for _ in range(n)]
    return tuple([_branch(iterator, own, waiting) for own in waiting])


def _branch(iterator: Iterator[Any], own: deque[Any], waiting: list[deque[Any]]) -> Iterator[Any]:
    while True:
        if not own:
            try:
                element = next(iterator)
            except StopIteration:
                return
            for queue in waiting:
                queue.append(element)
        yield own.popleft()


def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[tuple[Any, ...]]:
    return _zip_longest([iter(iterable) for iterable in iterables], fillvalue)


def _zip_longest(iterators: list[Any], fillvalue: Any) -> Iterator[tuple[Any, ...]]:
    running = len(iterators)
    while running:
        elements = []
        for number, iterator in enumerate(iterators):
            element = fillvalue
            if iterator is not None:
                try:
                    element = next(iterator)
                except StopIteration:
                    running -= 1
                    if not running:
                        return
                    iterators[number] = None
            elements.append(element)
        yield tuple(elements)


# Stand-in -> the iterator it stands for, and how that is made of what the stand-in was given.
REAL_ITERATORS: dict[Any, tuple[Any, str]] = {
    _accumulate: (itertools.accumulate, "{iterator}, {func}, initial={initial}"),
    _chain: (itertools.chain.from_iterable, "{iterators}"),
    _compress: (itertools.compress, "{data}, {selectors}"),
    _count: (itertools.count, "{number}, {step}"),
    _cycle: (itertools.cycle, "{iterator}"),
    _dropwhile: (itertools.dropwhile, "{predicate}, {iterator}"),
    _filterfalse: (itertools.filterfalse, "{function}, {iterator}"),
    _islice: (itertools.islice, "{iterator}, {start}, {stop}, {step}"),
    _pairwise: (itertools.pairwise, "{iterator}"),
    _starmap: (itertools.starmap, "{function}, {iterator}"),
    _takewhile: (itertools.takewhile, "{predicate}, {iterator}"),
}

STANDINS: dict[Any, Any] = {
    itertools.accumulate: accumulate,
    itertools.chain: chain,
    itertools.chain.from_iterable: chain_from_iterable,
    itertools.compress: compress,
    itertools.count: count,
    itertools.cycle: cycle,
    itertools.dropwhile: dropwhile,
    itertools.filterfalse: filterfalse,
    itertools.groupby: groupby,
    itertools.islice: islice,
    itertools.pairwise: pairwise,
    itertools.repeat: repeat,
    itertools.starmap: starmap,
    itertools.takewhile: takewhile,
    itertools.tee: tee,
    itertools.zip_longest: zip_longest,
}
if hasattr(itertools, "batched"):  # Python 3.12
    STANDINS[itertools.batched] = batched
