"""``compile(module)``: a twin of the module that shares its state and runs compiled when called.

The twin is an instance of a subclass of the module's own class and has the very same ``__dict__``, so
parameters, buffers, hooks, ``train()`` and attribute writes are one and the same thing seen from both sides.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat
from bothways.errors import InvalidTarget

Compiler = Callable[[types.FunctionType, type], Any]  # by the class, whose modules share their programs


def call_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What calling a module does; the function that is compiled."""
    return module(*args, **kwargs)


def compile_module(module: torch.nn.Module, compile_function: Compiler) -> torch.nn.Module:
    """A compiled twin of ``module``."""
    original = getattr(module, "_orig_mod", None) if _is_twin(module) else module
    assert isinstance(original, torch.nn.Module)
    if isinstance(original, torch.jit.ScriptModule):
        raise InvalidTarget("a ScriptModule is compiled already")
    cls = type(original)
    compiled_call = compile_function(_own_copy(call_module, f"{cls.__qualname__}.__call__"), cls)

    # A closure, as attributes of a module are read slowly.
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compiled_call(original, *args, **kwargs)

    torch_compat.show_torch_compile_instead(__call__, _call_plainly)
    __call__.__bothways__ = None  # type: ignore[attr-defined]  # captures know it, and look at the module behind the twin
    face = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    twin: Any = object.__new__(_subclass(cls, {**MEMBERS, **face, "__call__": __call__}))
    object.__setattr__(twin, "__dict__", original.__dict__)
    for name, value in zip(SLOTS, (original, compiled_call, compile_function, _End(__call__)), strict=True):
        object.__setattr__(twin, name, value)
    assert isinstance(twin, torch.nn.Module)
    return twin


def wrapped_calls(module: torch.nn.Module, wrap: Callable[[Any], Any]) -> torch.nn.Module:
    """The same for a module that is compiled already, with something around its calls; copies have it as well."""
    if not _is_twin(module):
        return module
    twin: Any = module
    compile_function: Compiler = twin._bothways_compile
    return compile_module(module, lambda function, kind: wrap(compile_function(function, kind)))


# What a twin has for itself. Not in its class: a class is freed by the garbage collector alone, and what it held would
# wait for that.
SLOTS = ("_orig_mod", "_bothways_call", "_bothways_compile", "_bothways_end")


class _End:
    """Goes with a twin, and empties the closure of its class's ``__call__``."""

    def __init__(self, call: Any) -> None:
        self._cells: tuple[types.CellType, ...] = call.__closure__

    def __del__(self) -> None:
        for cell in self._cells:
            with contextlib.suppress(ValueError):  # it is empty
                del cell.cell_contents


def _call_plainly(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self._orig_mod(*args, **kwargs)


def _deep_copy(self: Any, memo: dict[int, Any]) -> Any:
    return compile_module(copy.deepcopy(self._orig_mod, memo), self._bothways_compile)


def _shallow_copy(self: Any) -> Any:
    return compile_module(copy.copy(self._orig_mod), self._bothways_compile)


def _reduce(self: Any, protocol: Any) -> Any:
    # Programs are not saved: what is loaded is the plain module, which can be compiled again.
    return _identity, (self._orig_mod,)


MEMBERS: dict[str, Any] = {
    "__slots__": SLOTS,
    "__bothways_original__": True,
    "__deepcopy__": _deep_copy,
    "__copy__": _shallow_copy,
    "__reduce_ex__": _reduce,
}


def state_of(module: torch.nn.Module) -> Any:
    """The state of the compiled function behind a twin; None for any other module."""
    return module._bothways_call.__bothways__ if _is_twin(module) else None  # type: ignore[union-attr]


def _subclass(cls: type, members: dict[str, Any]) -> type:
    """A subclass the user's code does not hear of: neither ``__init_subclass__`` nor a metaclass is called."""
    subclass = type.__new__(type(cls), cls.__name__, (torch.nn.Module,), members)
    subclass.__bases__ = (cls,)
    return subclass


def _is_twin(module: torch.nn.Module) -> bool:
    return "__bothways_original__" in type(module).__dict__


def _identity(module: torch.nn.Module) -> torch.nn.Module:
    return module


def _own_copy(function: Any, qualname: str) -> types.FunctionType:
    """A function object of its own, so that each compiled module has its own dispatcher and name."""
    twin = types.FunctionType(function.__code__, function.__globals__, qualname.rpartition(".")[2])
    twin.__qualname__ = qualname
    twin.__module__ = function.__module__
    return twin
