"""A captured backward: the module the engine's instructions were written into, and what compilers made of it."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch.fx

from bothways.backward.compiled_nodes import OpenedGraph
from bothways.backward.custom import opened
from bothways.errors import BackendFailed, Position
from bothways.grad.nodes.result_hooks import ResultHooks
from bothways.runtime.hooks import hook_behind, no_hook

Compiler = Callable[[torch.fx.GraphModule], Callable[..., Any]]


class BackwardProgram:
    """One structure of the autograd graph, as a module that is compiled once for each compiler that meets it."""

    def __init__(
        self, module: torch.fx.GraphModule, where: Position, custom_nodes: Mapping[int, Any], unreached: Set[int]
    ) -> None:
        self.module, self.where, self.custom_nodes, self.unreached = module, where, custom_nodes, unreached
        # With everything that the keys know by its id.
        self._compiled: dict[Any, tuple[list[Any], Callable[..., Any]]] = {}
        _all.add(self)

    def __call__(self, *arguments: Any) -> Any:  # the engine keeps nothing that could not be called
        return self.module(*arguments)

    def opened(self, hooks: tuple[Any, ...], inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The hooks as the module takes them: the user's own, and what can be looked into for custom functions."""
        hooked = [self._own(hook, place not in self.unreached) for place, hook in enumerate(hooks)]
        for place, saved in self.custom_nodes.items():
            node = hooked[place]
            hooked[place] = opened(node) if saved is None else OpenedGraph(node, [inputs[index] for index in saved])
        return tuple(hooked)

    @staticmethod
    def _own(hook: Any, is_reached: bool) -> Any:
        """The user's own hook, by whose code programs are known; none where it is not told."""
        if isinstance(hook, ResultHooks):
            only = hook.only() if is_reached else None if hook.counts() else no_hook
            return hook if only is None else hook_behind(only)
        return hook_behind(hook)

    def compiled_by(self, compiler: Compiler, again: bool = False) -> Callable[..., Any]:
        """What a compiler makes of the module; where its gradients are differentiated ``again``, of a copy."""
        kept: list[Any] = []
        key = key_of(compiler, kept), again
        known = self._compiled.get(key)
        if known is not None:
            return known[1]
        run = compiler(self._copy() if again else self.module)
        if not callable(run):
            raise BackendFailed(f"the compiler of a captured backward must return a callable, not {type(run).__name__}")
        self._compiled[key] = kept, run
        return run

    def forget(self) -> None:
        """Let go of what compilers made of the module."""
        self._compiled.clear()

    def _copy(self) -> torch.fx.GraphModule:
        return torch.fx.GraphModule(self.module, self.module.graph, "CapturedBackward")


_all: weakref.WeakSet[BackwardProgram] = weakref.WeakSet()


def forget_all() -> None:
    """Let go of all that was compiled: PyTorch's engine never frees the pair that it was handed a program in."""
    for program in list(_all):
        program.forget()


def key_of(compiler: Any, kept: list[Any]) -> Any:
    """What tells compilers apart: people write the same lambda anew for each step.

    What is known by its id is added to ``kept``; a variable of the compiler's may be given another value later.
    """

    def identity(thing: Any) -> int:
        kept.append(thing)
        return id(thing)

    def content(cell: Any) -> int | None:
        try:
            return identity(cell.cell_contents)
        except ValueError:  # nothing is in it yet
            return None

    if isinstance(compiler, functools.partial):
        keywords = tuple(sorted((name, identity(value)) for name, value in compiler.keywords.items()))
        return ("partial", key_of(compiler.func, kept), tuple(map(identity, compiler.args)), keywords)
    if isinstance(compiler, types.FunctionType):
        defined = map(identity, (compiler.__code__, compiler.__globals__, *(compiler.__defaults__ or ())))
        return (*defined, tuple(map(content, compiler.__closure__ or ())))
    if isinstance(compiler, types.MethodType):
        return (key_of(compiler.__func__, kept), identity(compiler.__self__))
    return identity(compiler)
