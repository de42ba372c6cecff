"""The symbols a captured graph takes before its tensors, and the sizes of those in terms of them.

A graph whose sizes are fixed is the case with no symbols: every question about its sizes has one answer, which costs
nothing to find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from bothways.node_facts import facts_of_node
from bothways.symbols import (
    SYMBOLIC,
    Condition,
    Environment,
    Expression,
    SizeNodes,
    Symbol,
    expression_of,
    size,
    spelled,
)


@dataclass(frozen=True, eq=False)
class Sizes:
    """``outlines`` are tensors without data, laid out like the inputs, with symbolic sizes. Where they
    ``may_specialise``, what cannot be told for all sizes is told for those of this call."""

    environment: Environment
    symbols: tuple[Symbol, ...] = ()
    outlines: tuple[torch.Tensor, ...] = ()
    may_specialise: bool = False

    def __bool__(self) -> bool:
        """Whether any size is a symbol."""
        return bool(self.symbols)

    @property
    def specialising(self) -> Sizes:
        return self if self.may_specialise else replace(self, may_specialise=True)

    def about(self, outlines: Sequence[torch.Tensor]) -> Sizes:
        """The same symbols in front of other tensors."""
        return replace(self, outlines=tuple(outlines)) if self.symbols else self

    @property
    def numbers(self) -> list[Any]:
        """What the traced function is called with: symbols, numbers where they have become some."""
        return [size(self.environment, Expression.atom(symbol)) for symbol in self.symbols]

    @property
    def now(self) -> list[Any]:
        """The numbers of this call."""
        return [self.environment.values[symbol] for symbol in self.symbols]

    def specialise(self) -> None:
        """Give up on all symbols: from now on they are the numbers of this call."""
        for number in self.numbers:
            float(number) if isinstance(number, torch.SymFloat) else int(number)

    def values(self, numbers: Sequence[int]) -> dict[Symbol, int]:
        return dict(zip(self.symbols, numbers, strict=True))

    def reader(self, numbers: Sequence[int]) -> Callable[[Any], int]:
        """What gives the number that a symbolic size stands for in a call."""
        values = self.values(numbers)
        return lambda number: expression_of(number).value(values)

    def later(self, numbers: Sequence[int]) -> AbstractContextManager[list[Condition]]:
        """Inside of it the program is finished, and called with these numbers: what is assumed goes into the list."""
        return self.environment.later(self.values(numbers)) if self.symbols else nullcontext([])

    # Questions at run time, as functions of the numbers of a call.

    def condition(self, conditions: Sequence[Condition]) -> Callable[..., bool]:
        """Whether all conditions hold."""
        return self._function(" and ".join(map(str, dict.fromkeys(conditions)))) if conditions else always

    def layouts(self, strides: Sequence[tuple[Any, ...] | None]) -> Callable[..., Any]:
        """The strides that symbolic ones stand for."""
        if not self.symbols:
            fixed = tuple(strides)
            return lambda: fixed
        texts = ["None" if stride is None else _tuple_text(stride) for stride in strides]
        return self._function(f"({''.join(f'{text}, ' for text in texts)})")

    def _function(self, text: str) -> Any:
        return eval(f"lambda {', '.join(symbol.key for symbol in self.symbols)}: {text}", {"max": max, "min": min})


# The sizes of a graph without symbols.
FIXED = Sizes(Environment(), may_specialise=True)


def always(*numbers: int) -> bool:
    """The condition that holds for all sizes."""
    return True


def _tuple_text(numbers: Sequence[Any]) -> str:
    texts = [spelled(expression_of(number), lambda symbol: symbol.key) for number in numbers]
    return f"({''.join(f'{text}, ' for text in texts)})"


def sizes_of(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[Sizes, list[torch.Tensor]] | None:
    """What a captured graph says about its inputs, which may begin with symbols; None when others than those are
    there."""
    if all(isinstance(value, torch.Tensor) for value in inputs):
        return FIXED, list(inputs)
    symbols: list[Symbol] = []
    tensors: list[torch.Tensor] = []
    outlines: list[torch.Tensor] = []
    environment: Environment | None = None
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, argument in zip(placeholders, inputs, strict=True):
        example = node.meta.get("example_value")
        if isinstance(argument, torch.Tensor) and isinstance(example, torch.Tensor):
            tensors.append(argument)
            outlines.append(example)
        elif isinstance(example, SYMBOLIC) and not tensors:
            [atom] = example.node.origin.atoms()
            symbols.append(atom)
            environment = example.node.environment
        else:
            return None
    return None if environment is None else (Sizes(environment, tuple(symbols), tuple(outlines)), tensors)


@dataclass(frozen=True, eq=False)
class SymbolicArgument:
    """A symbolic size among the arguments of a recorded operation; graphs made of parts of it compute it."""

    number: torch.SymInt | torch.SymFloat


def is_size(node: torch.fx.Node) -> bool:
    """Whether a node of a captured graph is a symbol, or computes a size from symbols."""
    return facts_of_node(node).is_size


def symbols_of(placeholders: Sequence[torch.fx.Node]) -> Sizes:
    """The symbols that placeholders of a captured graph stand for."""
    nodes = [placeholder.meta["example_value"].node for placeholder in placeholders]
    return Sizes(nodes[0].environment, tuple(next(node.origin.atoms()) for node in nodes)) if nodes else FIXED


class SizeArguments:
    """Gives the nodes of a new graph nodes in the place of symbolic sizes; the graph takes all symbols first."""

    def __init__(self, graph: torch.fx.Graph, sizes: Sizes) -> None:
        self._nodes = SizeNodes(graph)
        self._nodes.declare(sizes.symbols, sizes.environment)

    def prepare(self, node: torch.fx.Node) -> None:
        """Compute what a node takes, before it is copied."""
        torch.fx.node.map_aggregate((node.args, node.kwargs), self._node)

    def replace(self, copy: torch.fx.Node) -> None:
        copy.args = torch.fx.node.map_aggregate(copy.args, self._node)
        copy.kwargs = torch.fx.node.map_aggregate(copy.kwargs, self._node)

    def _node(self, argument: Any) -> Any:
        return self._nodes.node(argument.number) if isinstance(argument, SymbolicArgument) else argument
