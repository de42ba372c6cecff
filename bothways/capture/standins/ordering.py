"""``bisect`` and ``heapq`` in Python: the same comparisons in the same order as the C versions make."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable
from typing import Any

Key = Callable[[Any], Any]


def bisect_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Key | None = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    high = len(a) if hi is None else hi
    while lo < high:
        middle = (lo + high) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            high = middle
        else:
            lo = middle + 1
    return lo


def bisect_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Key | None = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    high = len(a) if hi is None else hi
    while lo < high:
        middle = (lo + high) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            high = middle
    return lo


def insort_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Key | None = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


def insort_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Key | None = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


# The steps that keep a heap in order are Python in the standard library, so they are inlined from there.
_sift_down: Any = heapq._siftdown  # type: ignore[attr-defined]
_sift_up: Any = heapq._siftup  # type: ignore[attr-defined]
_sift_up_max: Any = heapq._siftup_max  # type: ignore[attr-defined]


def heappush(heap: list[Any], item: Any, /) -> None:
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


def heappop(heap: list[Any], /) -> Any:
    return _pop(heap, _sift_up)


def heappop_max(heap: list[Any], /) -> Any:
    return _pop(heap, _sift_up_max)


def _pop(heap: list[Any], sift_up: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    first = heap[0]
    heap[0] = last
    sift_up(heap, 0)
    return first


def heapreplace(heap: list[Any], item: Any, /) -> Any:
    return _replace(heap, item, _sift_up)


def heapreplace_max(heap: list[Any], item: Any, /) -> Any:
    return _replace(heap, item, _sift_up_max)


def _replace(heap: list[Any], item: Any, sift_up: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first = heap[0]
    heap[0] = item
    sift_up(heap, 0)
    return first


def heappushpop(heap: list[Any], item: Any, /) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sift_up(heap, 0)
    return item


def heapify(heap: list[Any], /) -> None:
    for position in reversed(range(len(heap) // 2)):
        _sift_up(heap, position)


def heapify_max(heap: list[Any], /) -> None:
    for position in reversed(range(len(heap) // 2)):
        _sift_up_max(heap, position)


STANDINS: dict[Any, Any] = {
    bisect.bisect_left: bisect_left,
    bisect.bisect_right: bisect_right,
    bisect.insort_left: insort_left,
    bisect.insort_right: insort_right,
    heapq.heapify: heapify,
    heapq.heappop: heappop,
    heapq.heappush: heappush,
    heapq.heappushpop: heappushpop,
    heapq.heapreplace: heapreplace,
    heapq._heapify_max: heapify_max,
    heapq._heappop_max: heappop_max,  # type: ignore[attr-defined]
    heapq._heapreplace_max: heapreplace_max,  # type: ignore[attr-defined]
}
