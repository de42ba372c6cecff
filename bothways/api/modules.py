"""``compile(module)``: a twin of the module that shares its state and runs compiled when called.

The twin is an instance of a subclass of the module's own class and has the very same ``__dict__``, so
parameters, buffers, hooks, ``train()`` and attribute writes are one and the same thing seen from both sides.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from bothways import torch_compat
from bothways.errors import InvalidTarget
from bothways.runtime.dispatcher import is_compiled

Compiler = Callable[[types.FunctionType, type], Any]  # by the class, whose modules share their programs


def call_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What calling a module does; the function that is compiled."""
    return module(*args, **kwargs)


def call_forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The same for a call of its ``forward`` alone."""
    return module.forward(*args, **kwargs)


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
    forward, compiled_forward = _compiled_forward(original, compile_function)
    own = {"__call__": __call__, **({} if forward is None else {"forward": forward})}
    face = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    twin: Any = object.__new__(_subclass(cls, {**MEMBERS, **face, **own}))
    object.__setattr__(twin, "__dict__", original.__dict__)
    held = (original, compiled_call, compiled_forward, compile_function, _End(*own.values()))
    for name, value in zip(SLOTS, held, strict=True):
        object.__setattr__(twin, name, value)
    assert isinstance(twin, torch.nn.Module)
    return twin


def _compiled_forward(original: torch.nn.Module, compile_function: Compiler) -> tuple[Any, Any]:
    """``model.forward(x)`` compiled as well, which calls no hooks: the method, and the function behind it."""
    cls = type(original)
    plain = cls.forward
    if not isinstance(plain, types.FunctionType) or is_compiled(plain):
        return None, None
    compiled = compile_function(_own_copy(call_forward, f"{cls.__qualname__}.forward"), cls)

    @functools.wraps(plain)  # its arguments are asked for by name
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compiled(original, *args, **kwargs)

    torch_compat.show_torch_compile_instead(forward, plain)
    forward.__bothways__ = None  # type: ignore[attr-defined]
    return forward, compiled


def wrapped_calls(module: torch.nn.Module, wrap: Callable[[Any], Any]) -> torch.nn.Module:
    """The same for a module that is compiled already, with something around its calls; copies have it as well."""
    if not _is_twin(module):
        return module
    twin: Any = module
    compile_function: Compiler = twin._bothways_compile
    return compile_module(module, lambda function, kind: wrap(compile_function(function, kind)))


# What a twin has for itself. Not in its class: a class is freed by the garbage collector alone, and what it held would
# wait for that.
SLOTS = ("_orig_mod", "_bothways_call", "_bothways_forward", "_bothways_compile", "_bothways_end")


class _End:
    """Goes with a twin, and empties the closures of its class's methods."""

    def __init__(self, *methods: Any) -> None:
        self._cells: list[types.CellType] = [cell for method in methods for cell in method.__closure__]

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


def state_of_forward(method: types.MethodType) -> Any:
    """The state of the compiled function behind ``twin.forward``; None for any other method."""
    twin: Any = method.__self__
    if "__bothways_original__" not in type(twin).__dict__:
        return None
    return twin._bothways_forward.__bothways__ if method.__func__ is type(twin).__dict__.get("forward") else None


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
