"""Transforms of ``torch.func`` that are being captured: where each began, and what must not leave it.

Inside of one a tensor has a history of the transform's own, which code outside never sees. So captured code may not
ask for it, nor use a tensor afterwards that the transform did not give back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.fx

from bothways.capture.shapes.changes import written_roots
from bothways.capture.values.tensors.tensor_attributes import NOT_IN_TRANSFORMS
from bothways.node_facts import facts_of_call

if TYPE_CHECKING:
    from bothways.capture.recording.graph import GraphBuilder
    from bothways.capture.values.tensors.tensors import TensorValue

# Of what is forbidden inside of a transform: what makes leaves, as a method or as a function.
MAKES_LEAVES = frozenset({"requires_grad_", torch.nn.Parameter})


@dataclass
class Level:
    """One transform: ``begin`` is the last node before it, ``aliases`` are what its arguments are inside."""

    begin: torch.fx.Node | None
    registrations: int
    aliases: dict[torch.fx.Node, TensorValue] = field(default_factory=dict)  # -> what it was given
    given_back: set[torch.fx.Node] = field(default_factory=set)
    end: torch.fx.Node | None = None  # the last node of it, when it is over
    revived: set[torch.fx.Node] = field(default_factory=set)  # of an earlier one, whose results are differentiated


class Levels:
    """The transforms of one graph, the innermost last."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._all: list[Level] = []
        self._open: list[Level] = []
        self.mapping = 0  # how many functions around are captured for one example
        self._dead: set[torch.fx.Node] = set()  # what transforms have computed and not given back

    def begin(self) -> int:
        """A transform begins; what it computes is differentiated later by its number."""
        registered = len(self._builder.tracer.effects.registrations)
        self._open.append(Level(self._builder.last_node_or_none, registered))
        self._all.append(self.innermost)
        return len(self._all) - 1

    def again(self, number: int, nodes: set[torch.fx.Node]) -> None:
        """What a transform that is over has computed, these nodes, is differentiated: until the next end."""
        earlier = self._all[number]
        later = self._builder.nodes_after(earlier.end)
        leaves = {node for level in self._all for node in level.aliases}
        written = written_roots(node for node in later if node not in leaves)
        if any(root not in later for roots in written for root in roots):
            self._builder.tracer.stop("transform", "a tensor is written to before what vjp gave is called")
        self.begin()
        self.innermost.aliases, self.innermost.revived = earlier.aliases, nodes & self._dead
        self._dead -= nodes

    @property
    def innermost(self) -> Level:
        return self._open[-1]

    def is_leaf_around(self, node: torch.fx.Node) -> bool:
        """Whether a leaf is seen outside of the innermost transform: not if it is one of its own, or of one that is
        over, in which ``vjp`` was called."""
        around = any(node in level.aliases for level in self._open[:-1])
        return around or not any(node in level.aliases for level in self._all)

    def nodes(self, level: Level) -> list[torch.fx.Node]:
        """All that was recorded since a transform began."""
        return self._builder.nodes_after(level.begin)

    def end(self) -> None:
        """A transform is over, and nothing that it has not given back may be used."""
        level = self._open.pop()
        level.end = self._builder.last_node_or_none
        self._dead.update(set(self.nodes(level)) - level.given_back, level.revived)

    def bury(self, nodes: Iterable[torch.fx.Node]) -> None:
        """Nothing may use these any more: they were one example of many."""
        self._dead.update(nodes)

    def check(self, level: Level) -> None:
        """Stop where a transform did what PyTorch refuses, or what the graph's own history would show otherwise."""
        tracer, nodes = self._builder.tracer, self.nodes(level)
        if len(tracer.effects.registrations) > level.registrations:
            tracer.stop("transform", "a hook is registered inside of a transform")
        own = set(nodes)
        for node in nodes:
            known = facts_of_call(node.target)
            if known.opaque or known.region is not None or known.has_effects:
                tracer.stop("transform", f"{node.target} is called inside of a transform")
            if node.target in MAKES_LEAVES and not level.aliases.keys() & {node}:
                tracer.stop("transform", "a tensor is made to need gradients inside of a transform")
        written = [node for node in nodes if node not in level.aliases]
        if any(root not in own for roots in written_roots(written) for root in roots):
            tracer.stop("transform", "a transform writes to a tensor that was there before")

    def refuse(self, name: str) -> None:
        """Stop where captured code asks what a transform answers in its own way."""
        if (self._open or self.mapping) and name in NOT_IN_TRANSFORMS:
            self._builder.tracer.stop("transform", f"Tensor.{name} is used inside of a transform")

    def refuse_all(self, what: str) -> None:
        if self._open or self.mapping:
            self._builder.tracer.stop("transform", f"{what} inside of a transform")

    def is_gone(self, node: torch.fx.Node) -> bool:
        """Whether a tensor lived in a transform only, which is over."""
        return node in self._dead

    def use(self, node: torch.fx.Node) -> None:
        """Stop where a tensor is used that lived in a transform only."""
        if self.is_gone(node):
            self._builder.tracer.stop("transform", "a tensor is used that a transform has computed and not given back")
