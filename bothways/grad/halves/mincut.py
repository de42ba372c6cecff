"""Minimum cuts of flow networks, by Dinic's algorithm.

Nodes are numbers, capacities are whole numbers. The networks met here have thousands of edges and short paths; what
takes time is the number of rounds, one for each length an augmenting path can have.
"""

from __future__ import annotations

from collections import deque

# More than any finite cut: an edge of this capacity is never part of one.
UNLIMITED = 1 << 62


class Network:
    """A directed graph with capacities. It is used up by the one question it answers."""

    def __init__(self) -> None:
        # Edge e leads to _heads[e] and has _room[e] capacity left; e ^ 1 is the same edge the other way round.
        self._heads: list[int] = []
        self._room: list[int] = []
        self._edges: list[list[int]] = []

    def node(self) -> int:
        """A new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def connect(self, tail: int, head: int, capacity: int) -> None:
        for at, to, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges[at].append(len(self._heads))
            self._heads.append(to)
            self._room.append(room)

    def cut(self, source: int, sink: int) -> set[int]:
        """The nodes on the sink's side of a minimum cut: of several, the one nearest to the sink."""
        while True:
            distances = self._distances(sink)
            if distances[source] < 0:
                return {node for node, distance in enumerate(distances) if distance >= 0}
            self._fill_shortest_paths(source, sink, distances)

    def _distances(self, sink: int) -> list[int]:
        """How many edges with room lead from each node to the sink; -1 where none do."""
        heads, room, edges = self._heads, self._room, self._edges
        distances = [-1] * len(edges)
        distances[sink] = 0
        pending = deque([sink])
        while pending:
            node = pending.popleft()
            for edge in edges[node]:
                before = heads[edge]
                if room[edge ^ 1] and distances[before] < 0:
                    distances[before] = distances[node] + 1
                    pending.append(before)
        return distances

    def _fill_shortest_paths(self, source: int, sink: int, distances: list[int]) -> None:
        """Send flow along paths on which the distance falls with every step, until each of them is full."""
        heads, room, edges = self._heads, self._room, self._edges
        position = [0] * len(edges)
        path: list[int] = []
        node = source
        while True:
            if node == sink:
                amount = min(room[edge] for edge in path)
                full = len(path)
                for index in reversed(range(len(path))):
                    room[path[index]] -= amount
                    room[path[index] ^ 1] += amount
                    if not room[path[index]]:
                        full = index
                node = heads[path[full] ^ 1]
                del path[full:]
                continue
            while position[node] < len(edges[node]):
                edge = edges[node][position[node]]
                if room[edge] and distances[heads[edge]] == distances[node] - 1:
                    path.append(edge)
                    node = heads[edge]
                    break
                position[node] += 1
            else:
                if not path:
                    return
                node = heads[path.pop() ^ 1]
                position[node] += 1
