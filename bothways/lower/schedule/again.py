"""Computes some values a second time, so that their memory is not held from the forward pass to the backward.

Comes in: the nodes of a graph. A value that is written to memory for those who read it soon, a relu below a pooling,
may be read once more behind calls of ATen, by the gradient of the relu. It is computed there again, where that takes a
few operations on tensors that are still there then: the kernel reads those anyway, and the memory is free in between.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

from bothways.lower.ir.prims import Buffer, Extern, IndexAlong, Map, Memory, Node, Scalar, View
from bothways.lower.ir.sizes import size_hint
from bothways.ops import PRIMITIVES

MAX_OPERATIONS = 8
# A value that is so many times smaller than the largest one of the graph is none that the peak of memory depends on.
SMALL = 4


def compute_again(live: Iterable[Node], kept: Iterable[Node]) -> None:
    """Let late readers of cheap values read values of their own; ``kept`` are in memory in the end, whoever reads."""
    Readers(live, kept).replace_late()


class Readers:
    """Who reads what in one graph, and when: nodes are numbered in the order of the program."""

    def __init__(self, live: Iterable[Node], kept: Iterable[Node]) -> None:
        self._nodes = sorted(live, key=lambda node: node.number)
        self._calls = [node.number for node in self._nodes if isinstance(node, Extern)]
        sizes = [_bytes(node) for node in self._nodes if isinstance(node, (Map, Buffer))]
        self._least = max(sizes, default=0) // SMALL
        self._kept = {node.memory.producer for node in kept if isinstance(node, Buffer)}
        self._direct: dict[Node, list[Map]] = {}  # maps that read a value at their own index
        self._last: dict[Node | Memory, int] = {}  # when something else reads a value, or anything a memory
        for node in self._nodes:
            if not isinstance(node, Buffer):
                for source in node.sources():
                    self._note(node, source)

    def _note(self, reader: Node, source: Node) -> None:
        if isinstance(source, Buffer):
            for read in (source.memory, source.memory.producer):
                if read is not None:
                    self._last[read] = max(self._last.get(read, -1), reader.number)
        elif isinstance(reader, Map):
            self._direct.setdefault(source, []).append(reader)
        else:
            self._last[source] = max(self._last.get(source, -1), reader.number)

    def replace_late(self) -> None:
        for node in self._nodes:
            if not isinstance(node, Map) or node in self._kept or node.into is not None or node not in self._last:
                continue
            if _bytes(node) < self._least:
                continue
            late = [reader for reader in self._direct.get(node, ()) if self._is_behind_call(node, reader)]
            if late and all(self._last[node] < reader.number for reader in late):
                self._replace(node, late)

    def _is_behind_call(self, node: Node, reader: Node) -> bool:
        """Whether ATen is called between those who need the value in memory and a reader of it."""
        after = bisect_right(self._calls, self._last[node])
        return after < len(self._calls) and self._calls[after] < reader.number

    def _replace(self, node: Map, readers: list[Map]) -> None:
        chain = self._chain(node, max(reader.number for reader in readers))
        if chain is None:
            return
        for reader in dict.fromkeys(readers):
            copies: dict[Node, Node] = {}
            for step in chain:  # those it reads come before it
                copies[step] = replace(step, args=tuple(copies.get(arg, arg) for arg in step.args), strides=None)
            reader.args = tuple(copies[node] if arg is node else arg for arg in reader.args)

    def _chain(self, node: Map, until: int) -> list[Map] | None:
        """The maps that a value is computed by, from what is in memory at a later time as well; None if it is not."""
        chain: dict[Map, None] = {}
        pending = [node]
        while pending:
            step = pending.pop()
            if step in chain:
                continue
            chain[step] = None
            if PRIMITIVES[step.op].is_expensive or len(chain) > MAX_OPERATIONS:
                return None
            for arg in step.args:
                if isinstance(arg, Map) and arg.numel == node.numel:
                    pending.append(arg)
                elif not self._is_there(arg, node, until):
                    return None
        return sorted(chain, key=lambda step: step.number)

    def _is_there(self, arg: Node, node: Map, until: int) -> bool:
        """Whether what a step reads costs nothing, is small beside its result, or is read later anyway."""
        if isinstance(arg, Buffer):
            is_small = 0 in arg.strides
            return is_small or arg.memory.producer is None or self._last[arg.memory] >= until
        below = arg
        while isinstance(below, View):
            below = below.arg
        return isinstance(below, (Scalar, IndexAlong)) or size_hint(below.numel) * 8 <= size_hint(node.numel)


def _bytes(node: Node) -> int:
    return size_hint(node.numel) * node.dtype.itemsize
