"""Functions that are called at a break: they are compiled as well, each for itself."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Protocol

import torch

from bothways import torch_compat
from bothways.runtime.marks import mark_of

# The name under which programs find ``Callees.compiled``.
COMPILED_CALLEE = "_bothways_compiled_callee"
# So many functions that were made from one code, and no more of them are compiled: they are made for each call.
MOST_OF_A_KIND = 4


# Methods of a module that, without hooks, do nothing but to call ``forward``.
_MODULE_CALLS = (torch.nn.Module.__call__, torch_compat.call_module)


class Compiled(Protocol):
    """A function that was compiled."""

    function: types.FunctionType


class Callees:
    """The functions that one compiled function calls at its breaks.

    Objects with a ``__call__`` of one class share a function, and would use up each other's programs: the class of
    the object is part of the key.
    """

    def __init__(self, compile: Callable[[types.FunctionType], Compiled]) -> None:
        self._compile = compile
        self._known: dict[tuple[types.FunctionType, type | None], Compiled] = {}
        self._kinds: dict[types.CodeType, set[types.FunctionType]] = {}

    def compiled(self, target: Any) -> Any:
        """What to call instead of ``target``; it itself when it is nothing that can be compiled."""
        function, owner = _parts(target)
        if function is None or "__bothways__" in function.__dict__ or mark_of(function) is not None:
            return target
        key = function, None if owner is None else type(owner)
        known = self._known.get(key)
        if known is None:
            kinds = self._kinds.setdefault(function.__code__, set())
            if function not in kinds and len(kinds) >= MOST_OF_A_KIND:
                return target
            kinds.add(function)
            known = self._known[key] = self._compile(function)
        return known.function if owner is None else types.MethodType(known.function, owner)

    def forget(self) -> None:
        self._known.clear()
        self._kinds.clear()


def _parts(target: Any) -> tuple[types.FunctionType | None, Any]:
    """The function behind a callable, and the object it is bound to."""
    owner = target.__self__ if isinstance(target, types.MethodType) and target.__func__ in _MODULE_CALLS else target
    if isinstance(owner, torch.nn.Module) and torch_compat.calls_forward(owner):
        forward = type(owner).forward
        return (forward, owner) if isinstance(forward, types.FunctionType) else (None, None)
    if isinstance(target, types.FunctionType):
        return target, None
    if isinstance(target, types.MethodType):
        return (target.__func__, target.__self__) if isinstance(target.__func__, types.FunctionType) else (None, None)
    call = type(target).__call__ if callable(target) else None
    return (call, target) if isinstance(call, types.FunctionType) else (None, None)
