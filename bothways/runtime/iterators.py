"""Makes the real iterators that stand where captured code has left them: what programs call to rebuild one.

They go over the very containers that the program has, so what the user's Python does to those later is seen as always.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

END = object()
_PLAIN = frozenset({int, float, complex, str, bytes})


def advanced(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """An iterator over a container after so many elements were taken."""
    for _ in range(count):
        next(iterator)
    return iterator


def over_dict(entries: Any, which: str, taken: int, backwards: bool = False) -> Iterator[Any]:
    """An iterator over the keys, values or items of a dictionary after so many were taken."""
    kind = OrderedDict if isinstance(entries, OrderedDict) else dict
    view = getattr(kind, which)(entries) if isinstance(entries, dict) else getattr(entries, which)()
    return advanced(reversed(view) if backwards else iter(view), taken)


def over_deque(elements: Any, taken: int, backwards: bool = False) -> Iterator[Any]:
    """The same over a deque."""
    return advanced(deque.__reversed__(elements) if backwards else deque.__iter__(elements), taken)


def over_set(elements: Any, taken: tuple[Any, ...] = (), rest: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The same over a set.

    The order of a set depends on its history, too. Where it is not that of captured code, what is left is given in the
    order of captured code.
    """
    kind = set if isinstance(elements, set) else frozenset
    iterator: Iterator[Any] = kind.__iter__(elements)
    if all(_is_same(next(iterator, END), element) for element in taken):
        return iterator
    return iter(rest)


def _is_same(value: Any, expected: Any) -> bool:
    return value is expected or (type(value) is type(expected) and type(value) in _PLAIN and value == expected)


def over_changed(make: Callable[..., Iterator[Any]], kind: Any, *which: Any) -> Iterator[Any]:
    """An iterator over a container that was changed meanwhile: all it ever does is to complain."""
    container = kind([(0, 0)] if issubclass(kind, dict) else [0])
    iterator = make(container, *which)
    if issubclass(kind, dict):
        container[1] = 1
    elif kind is deque:
        container.append(1)
    else:
        container.add(1)
    return iterator


def exhausted(iterator: Iterator[Any]) -> Iterator[Any]:
    """An iterator that has come to its end."""
    deque(iterator, 0)
    return iterator


def exhausted_call() -> Iterator[Any]:
    """What ``iter(function, sentinel)`` gives, at its end."""
    return exhausted(iter(int, 0))


def begun_accumulate(iterator: Iterable[Any], function: Callable[..., Any], total: Any) -> Iterator[Any]:
    """``accumulate`` after it has given ``total``."""
    return advanced(itertools.accumulate(itertools.chain((total,), iterator), function), 1)


def begun_chain(current: Iterable[Any], iterators: Iterable[Iterable[Any]]) -> Iterator[Any]:
    """``chain`` in the middle of one of its iterables."""
    return itertools.chain.from_iterable(itertools.chain((current,), iterators))


def begun_anew(make: Callable[..., Iterator[Any]], taken: int, *arguments: Any) -> Iterator[Any]:
    """One that holds all it needs, after so many elements."""
    return advanced(make(*arguments), taken)


def begun_cycle(iterator: Iterable[Any], saved: list[Any], last: Any, taken: int, again: bool) -> Iterator[Any]:
    """``cycle``: the first time through, where it has given ``last``, or ``again``."""
    return advanced(itertools.cycle(saved if again else itertools.chain(saved, (last,), iterator)), taken)


def over_items(sequence: Any, index: int) -> Iterator[Any]:
    """An iterator over what has a ``__getitem__`` and no ``__iter__``."""
    iterator: Any = iter(sequence)
    iterator.__setstate__(index)
    return cast(Iterator[Any], iterator)


def begun_dropwhile(iterator: Iterable[Any]) -> Iterator[Any]:
    """``dropwhile`` that does not drop any more."""
    return itertools.dropwhile(lambda element: False, iterator)


def begun_islice(iterator: Iterable[Any], position: int, wanted: int, stop: int | None, step: int) -> Iterator[Any]:
    """``islice`` after it has given the element ``wanted``, with so many taken from the iterator."""
    following = wanted + step
    if stop is None:
        return itertools.islice(iterator, following - position, None, step)
    return itertools.islice(iterator, min(following, stop) - position, stop - position, step)


def begun_pairwise(iterator: Iterable[Any], element: Any) -> Iterator[Any]:
    """``pairwise`` after it has given a pair that ends with ``element``."""
    return itertools.pairwise(itertools.chain((element,), iterator))


def begun_zip_longest(iterators: list[Any], fillvalue: Any) -> Iterator[Any]:
    """``zip_longest`` with None for the iterators that have come to their end."""
    return itertools.zip_longest(*[() if each is None else each for each in iterators], fillvalue=fillvalue)


