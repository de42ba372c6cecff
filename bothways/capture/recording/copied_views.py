"""Custom functions that give a view of their argument, as those that reverse gradients do, and give a copy instead.

A view would lead a trace past the function, whose backward is the user's. A copy does not, and they cannot be told
apart as long as neither leaves the program nor is written to; where one does, the capture begins again without copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

import torch
import torch.fx

from bothways.capture.shapes.changes import path_of, root_of, written_roots


class ViewIsSeen(Exception):
    """A view that was copied leaves the program, or its memory is written to."""


class CopiedViews:
    """The nodes of such functions in one graph."""

    def __init__(self) -> None:
        self._nodes: list[torch.fx.Node] = []

    def meet(self, node: torch.fx.Node) -> None:
        self._nodes.append(node)

    def check(self, outputs: Collection[torch.fx.Node], left_behind: Collection[torch.fx.Node]) -> None:
        """Begin again where the copies could be told from views."""
        if not self._nodes:
            return
        copied = set(self._nodes)
        leaves = any(step in copied for output in outputs for step in path_of(output))
        shared = {root_of(member) for node in copied for member in (node, *node.all_input_nodes)}
        is_written = any(shared & roots for roots in written_roots(self._nodes[0].graph.nodes))
        if leaves or is_written or copied.intersection(left_behind):
            raise ViewIsSeen


class OwnViews:
    """The nodes of custom functions that give views as such: autograd refuses these once their memory was changed."""

    def __init__(self) -> None:
        self._nodes: set[torch.fx.Node] = set()

    def meet(self, node: torch.fx.Node) -> None:
        self._nodes.add(node)

    def was_changed(self, node: torch.fx.Node) -> bool:
        """Whether a tensor is such a view, or one of it, and what it lies in was changed after it was made."""
        return any(map(_is_changed_later, self._nodes.intersection(path_of(node))))


def _is_changed_later(node: torch.fx.Node) -> bool:
    later = itertools.dropwhile(lambda other: other is not node, node.graph.nodes)
    roots = {root_of(member) for member in (node, *node.all_input_nodes)}
    return any(roots & written for written in written_roots(itertools.islice(later, 1, None)))
