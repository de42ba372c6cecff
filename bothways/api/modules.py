"""``compile(module)``: a twin of the module that shares its state and runs compiled when called.

The twin is an instance of a subclass of the module's own class and has the very same ``__dict__``, so
parameters, buffers, hooks, ``train()`` and attribute writes are one and the same thing seen from both sides.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch

from bothways.errors import InvalidTarget

Compiler = Callable[[types.FunctionType], Any]


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
    compiled_call = compile_function(_own_copy(call_module, f"{cls.__qualname__}.__call__"))

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compiled_call(original, *args, **kwargs)

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        return compile_module(copy.deepcopy(original, memo), compile_function)

    def __copy__(self: Any) -> Any:
        return compile_module(copy.copy(original), compile_function)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        # Programs are not saved: what is loaded is the plain module, which can be compiled again.
        return _identity, (original,)

    __call__.__bothways__ = compiled_call.__bothways__  # type: ignore[attr-defined]
    members: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__bothways_original__": True,
        "_orig_mod": property(lambda self: original),
        "__call__": __call__,
        "__deepcopy__": __deepcopy__,
        "__copy__": __copy__,
        "__reduce_ex__": __reduce_ex__,
    }
    twin_class = _subclass(cls, members)
    twin: Any = object.__new__(twin_class)
    object.__setattr__(twin, "__dict__", original.__dict__)
    assert isinstance(twin, torch.nn.Module)
    return twin


def _subclass(cls: type, members: dict[str, Any]) -> type:
    """A subclass the user's code does not hear of: neither ``__init_subclass__`` nor a metaclass is called."""
    made = type.__new__(type(cls), cls.__name__, (torch.nn.Module,), members)
    made.__bases__ = (cls,)
    return made


def _is_twin(module: torch.nn.Module) -> bool:
    return "__bothways_original__" in type(module).__dict__


def _identity(module: torch.nn.Module) -> torch.nn.Module:
    return module


def _own_copy(function: Any, qualname: str) -> types.FunctionType:
    """A function object of its own, so that each compiled module has its own dispatcher and name."""
    made = types.FunctionType(function.__code__, function.__globals__, qualname.rpartition(".")[2])
    made.__qualname__ = qualname
    made.__module__ = function.__module__
    return made
