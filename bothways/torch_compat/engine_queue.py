"""The queue in which autograd's engine keeps the nodes that may run: which of them comes next, hooks can tell.

The youngest comes first, and leaves before all. Of several leaves the one that C++'s heap has on top comes first, so
that the heap is kept here as C++ keeps it.
"""

from __future__ import annotations

from typing import Any


class EngineQueue:
    """Nodes that may run; ``pop`` gives the one that the engine would run next."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def push(self, when: float, node: Any) -> None:
        self._heap.append((when, node))
        self._rise(len(self._heap) - 1)

    def pop(self) -> Any:
        heap = self._heap
        first, last = heap[0], heap.pop()
        if heap:
            hole, size = 0, len(heap)
            while 2 * hole + 1 < size:
                right = 2 * hole + 2
                child = right if right < size and heap[right][0] >= heap[right - 1][0] else right - 1
                heap[hole], hole = heap[child], child
            heap[hole] = last
            self._rise(hole)
        return first[1]

    def _rise(self, place: int) -> None:
        heap = self._heap
        item = heap[place]
        while place and heap[(place - 1) // 2][0] < item[0]:
            heap[place], place = heap[(place - 1) // 2], (place - 1) // 2
        heap[place] = item
