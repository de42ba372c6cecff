"""Keeps values in memory if one of them is chosen, the largest or smallest, and is then looked for among them.

A kernel computes a value again in each of its loops rather than store it, and a mathematical function may round another
way in another loop, with or without vectors. Then the largest equals none of them: it has no index, and its gradient is
divided by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bothways.lower.ir.prims import Buffer, Map, Node, Reduce, Take, View
from bothways.ops import PRIMITIVES, REDUCTIONS


def keep_chosen(live: Iterable[Node], stored: Callable[[Node], Buffer]) -> None:
    """Let all who read what such a value comes from read it in memory."""
    nodes = list(live)
    choosing = [node for node in nodes if isinstance(node, Reduce) and REDUCTIONS[node.op].chooses]
    if not choosing:
        return
    comparing = [node for node in nodes if isinstance(node, Map) and PRIMITIVES[node.op].compares]
    rounded = _rounded(choosing) & _rounded(comparing)
    kept: dict[Node, Buffer] = {value: stored(value) for value in sorted(rounded, key=lambda node: node.number)}
    for node in nodes if kept else ():
        if isinstance(node, Map):
            node.args = tuple(kept.get(arg, arg) for arg in node.args)
        elif isinstance(node, (Reduce, View)):
            node.arg = kept.get(node.arg, node.arg)
        elif isinstance(node, Take):
            node.index = kept.get(node.index, node.index)


def _rounded(readers: Iterable[Node]) -> set[Node]:
    """The results of a library's functions that something reads, as they are or with what is exact done to them."""
    results: set[Node] = set()
    seen: set[Node] = set()
    pending = [source for reader in readers for source in reader.sources()]
    while pending:
        step = pending.pop()
        if step in seen:
            continue
        seen.add(step)
        if isinstance(step, Map) and PRIMITIVES[step.op].is_expensive:
            results.add(step)
        elif isinstance(step, (Map, View)):
            pending += step.sources()
    return results
