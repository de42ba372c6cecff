"""Expressions as nodes of a ``torch.fx`` graph that takes symbols as its first inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import partial, reduce
from typing import Any

import torch
import torch.fx

from bothways.node_facts import note_of_node
from bothways.symbols.environment import Environment
from bothways.symbols.expressions import Applied, Atom, Expression, Symbol
from bothways.symbols.node import symbol_number
from bothways.symbols.reals import FUNCTIONS as REAL_FUNCTIONS
from bothways.symbols.reals import Real

SYMBOLIC = (torch.SymInt, torch.SymFloat)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,  # Python's own would ask which one it is
    "min": torch.sym_min,
}


class SizeNodes:
    """Writes what sizes are computed by into a graph, each once."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self.symbols: dict[Symbol, torch.fx.Node] = {}
        self._given: dict[Symbol, torch.fx.Node] = {}  # those that a node of the graph finds
        self._last: torch.fx.Node | None = None
        self._known: dict[Expression, Any] = {}
        self._atoms: dict[Atom, torch.fx.Node] = {}
        self._reals: dict[Real, torch.fx.Node] = {}

    def node(self, number: Any) -> Any:
        """The node that computes a size; plain numbers are themselves."""
        if not isinstance(number, SYMBOLIC):
            return number
        node = self._computed(number.node.expression)
        if isinstance(node, torch.fx.Node) and "val" not in node.meta:
            node.meta["example_value"] = node.meta["val"] = number
        return node

    def give(self, symbol: Symbol, node: torch.fx.Node) -> None:
        """Let a node of the graph be what finds the value of a symbol."""
        self._given[symbol] = node

    def numbers(self, environment: Environment) -> dict[torch.fx.Node, Any]:
        """The symbols that the graph takes so far, by node."""
        return {node: symbol_number(environment, symbol) for symbol, node in self.symbols.items()}

    def declare(self, symbols: Iterable[Symbol], environment: Environment) -> None:
        """See to it that the graph takes exactly these symbols, in this order."""
        self._last = None
        for symbol in symbols:
            node = self._placeholder(symbol)
            node.meta["example_value"] = node.meta["val"] = symbol_number(environment, symbol)
            note_of_node(node, is_size=True)
            if self._last is None:
                first = next(iter(self._graph.nodes))
                if first is not node:
                    first.prepend(node)
            else:
                self._last.append(node)
            self._last = node

    def _placeholder(self, symbol: Symbol) -> torch.fx.Node:
        if symbol not in self.symbols:
            first = next(iter(self._graph.nodes), None)
            with self._graph.inserting_before(first):
                self.symbols[symbol] = self._graph.placeholder(symbol.key)
        return self.symbols[symbol]

    def _computed(self, expression: Any) -> Any:
        if isinstance(expression, (int, float)):
            return expression
        if isinstance(expression, Real):
            if expression not in self._reals:
                args = map(self._computed, expression.args)
                self._reals[expression] = self._call(REAL_FUNCTIONS[expression.function], *args)
            return self._reals[expression]
        if expression.constant is not None:
            return expression.constant
        if expression not in self._known:
            total: Any = None
            for product, factor in expression.terms.items():
                term: Any = factor if factor != 1 or not product else None
                for atom in product:
                    term = self._atom(atom) if term is None else self._call(operator.mul, term, self._atom(atom))
                total = term if total is None else self._call(operator.add, total, term)
            self._known[expression] = total
        return self._known[expression]

    def _atom(self, atom: Atom) -> torch.fx.Node:
        if isinstance(atom, Symbol):
            return self._given[atom] if atom in self._given else self._placeholder(atom)
        assert isinstance(atom, Applied)
        if atom not in self._atoms:
            call = partial(self._call, FUNCTIONS[atom.function])
            self._atoms[atom] = reduce(call, map(self._computed, atom.args))
        return self._atoms[atom]

    def _call(self, function: Callable[..., Any], *args: Any) -> torch.fx.Node:
        node = self._graph.call_function(function, args)
        note_of_node(node, is_size=True)
        return node
