"""A captured backward: the module the engine's instructions were written into, and what compilers made of it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from bothways.backward.compiled_nodes import OpenedGraph
from bothways.backward.custom import opened
from bothways.errors import InvalidBackend, Position
from bothways.runtime.hooks import hook_behind

Compiler = Callable[[torch.fx.GraphModule], Callable[..., Any]]


class BackwardProgram:
    """One structure of the autograd graph, as a module that is compiled once for each compiler that meets it."""

    def __init__(self, module: torch.fx.GraphModule, where: Position, custom_nodes: Mapping[int, Any]) -> None:
        self.module, self.where, self.custom_nodes = module, where, custom_nodes
        # With the compilers, whose keys are made of ids.
        self._compiled: dict[Any, tuple[Compiler, Callable[..., Any]]] = {}

    def __call__(self, *arguments: Any) -> Any:  # the engine keeps nothing that could not be called
        return self.module(*arguments)

    def opened(self, hooks: tuple[Any, ...], inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The hooks as the module takes them: the user's own, and what can be looked into for custom functions."""
        found = [hook_behind(hook) for hook in hooks]
        for place, saved in self.custom_nodes.items():
            node = found[place]
            found[place] = opened(node) if saved is None else OpenedGraph(node, [inputs[index] for index in saved])
        return tuple(found)

    def compiled_by(self, compiler: Compiler) -> Callable[..., Any]:
        key = key_of(compiler)
        known = self._compiled.get(key)
        if known is not None:
            return known[1]
        made = compiler(self.module)
        if not callable(made):
            raise InvalidBackend(made, ["what a compiler of backwards returns must be callable"])
        self._compiled[key] = compiler, made
        return made


def key_of(compiler: Any) -> Any:
    """What tells compilers apart: people write the same lambda anew for each step."""
    if isinstance(compiler, functools.partial):
        keywords = tuple(sorted((name, id(value)) for name, value in compiler.keywords.items()))
        return ("partial", key_of(compiler.func), tuple(map(id, compiler.args)), keywords)
    if isinstance(compiler, types.FunctionType):
        cells = tuple(_content(cell) for cell in compiler.__closure__ or ())
        return (compiler.__code__, cells, tuple(map(id, compiler.__defaults__ or ())))
    if isinstance(compiler, types.MethodType):
        return (key_of(compiler.__func__), id(compiler.__self__))
    return id(compiler)


def _content(cell: Any) -> Any:
    try:
        return id(cell.cell_contents)
    except ValueError:  # nothing is in it yet
        return None

