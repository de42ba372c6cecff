"""The combinatoric iterators of ``itertools`` in Python: selections from a pool, in lexicographic order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any


def product(*iterables: Iterable[Any], repeat: int = 1) -> Iterator[tuple[Any, ...]]:
    if repeat < 0:
        raise ValueError("repeat argument cannot be negative")
    return _product([tuple(iterable) for iterable in iterables] * repeat)


def _product(pools: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    if not all(len(pool) for pool in pools):
        return
    places = [0] * len(pools)
    while True:
        yield tuple([pool[place] for pool, place in zip(pools, places, strict=True)])
        for turn in reversed(range(len(pools))):
            places[turn] += 1
            if places[turn] < len(pools[turn]):
                break
            places[turn] = 0
        else:
            return


def permutations(iterable: Iterable[Any], r: int | None = None) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    length = len(pool) if r is None else r
    if length < 0:
        raise ValueError("r must be non-negative")
    return _permutations(pool, length)


def _permutations(pool: tuple[Any, ...], r: int) -> Iterator[tuple[Any, ...]]:
    n = len(pool)
    if r > n:
        return
    indices = list(range(n))
    cycles = list(range(n, n - r, -1))
    yield tuple([pool[index] for index in indices[:r]])
    while True:
        for i in reversed(range(r)):
            cycles[i] -= 1
            if cycles[i] == 0:
                indices[i:] = indices[i + 1 :] + indices[i : i + 1]
                cycles[i] = n - i
            else:
                j = cycles[i]
                indices[i], indices[-j] = indices[-j], indices[i]
                yield tuple([pool[index] for index in indices[:r]])
                break
        else:
            return


def combinations(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _combinations(pool, r)


def _combinations(pool: tuple[Any, ...], r: int) -> Iterator[tuple[Any, ...]]:
    n = len(pool)
    if r > n:
        return
    indices = list(range(r))
    while True:
        yield tuple([pool[index] for index in indices])
        for i in reversed(range(r)):
            if indices[i] != i + n - r:
                break
        else:
            return
        indices[i] += 1
        for j in range(i + 1, r):
            indices[j] = indices[j - 1] + 1


def combinations_with_replacement(iterable: Iterable[Any], r: int) -> Iterator[tuple[Any, ...]]:
    pool = tuple(iterable)
    if r < 0:
        raise ValueError("r must be non-negative")
    return _combinations_with_replacement(pool, r)


def _combinations_with_replacement(pool: tuple[Any, ...], r: int) -> Iterator[tuple[Any, ...]]:
    n = len(pool)
    if not n and r:
        return
    indices = [0] * r
    while True:
        yield tuple([pool[index] for index in indices])
        for i in reversed(range(r)):
            if indices[i] != n - 1:
                break
        else:
            return
        indices[i:] = [indices[i] + 1] * (r - i)


STANDINS: dict[Any, Any] = {
    itertools.combinations: combinations,
    itertools.combinations_with_replacement: combinations_with_replacement,
    itertools.permutations: permutations,
    itertools.product: product,
}
