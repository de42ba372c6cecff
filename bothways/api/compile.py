"""``bothways.compile``: checks what it is given and returns something that behaves like the original.

Functions become dispatchers with the same face, methods and callable objects are compiled through their
function, modules through a twin that shares the module's state.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

from bothways import torch_compat
from bothways.api.modules import compile_module
from bothways.backends import DEFAULT_BACKEND, backend_name, lookup_backend
from bothways.backward.capturing import reset as reset_backwards
from bothways.driver.compiled import compiled_function, reset_all
from bothways.errors import InvalidOption, InvalidTarget
from bothways.pipeline import Options
from bothways.runtime.dispatcher import is_compiled
from bothways.runtime.marks import Mark, mark_of

T = TypeVar("T")

# Mode -> what it asks for. They steer code generation; the eager backend has nothing to steer.
MODES: dict[str, str] = {
    "default": "a good balance",
    "reduce-overhead": "least cost per call",
    "max-autotune": "fastest kernels, longer compilation",
    "max-autotune-no-cudagraphs": "fastest kernels, without CUDA graphs",
}
# Option -> the type it takes. Backends add theirs with them.
OPTIONS: dict[str, type] = {}


@overload
def compile(
    fn: T,
    *,
    backend: str | Callable[..., Any] = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> T: ...


@overload
def compile(
    fn: None = ...,
    *,
    backend: str | Callable[..., Any] = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[T], T]: ...


def compile(
    fn: Any = None,
    *,
    backend: str | Callable[..., Any] = DEFAULT_BACKEND,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function, method, callable object or ``nn.Module``; usable as a decorator with or without arguments.

    ``fullgraph=True`` raises ``errors.Unsupported`` where capture would break; ``disable=True`` returns the
    target as it is. Wrong names and values raise here, not at the first call.
    """
    settings = _checked_options(backend, fullgraph, dynamic, mode, options, disable)

    def decorate(target: Any) -> Any:
        check_target(target)
        return target if disable else _compile(target, settings)

    return decorate if fn is None else decorate(fn)


def _checked_options(
    backend: Any, fullgraph: Any, dynamic: Any, mode: Any, options: Any, disable: Any
) -> Options:
    for name, value, allowed in (
        ("fullgraph", fullgraph, (True, False)),
        ("dynamic", dynamic, (True, False, None)),
        ("disable", disable, (True, False)),
    ):
        if not any(value is choice for choice in allowed):
            raise InvalidOption(f"{name}={value!r}: the valid values are {', '.join(map(repr, allowed))}")
    if mode is not None and mode not in tuple(MODES):  # a tuple: what is no name need not be hashable
        raise InvalidOption(f"mode={mode!r}: the valid modes are {', '.join(map(repr, MODES))}")
    if options is not None:
        if not isinstance(options, Mapping):
            raise InvalidOption(f"options={options!r}: a mapping of option names to values is expected")
        for name in options:
            if name not in OPTIONS:
                raise InvalidOption(f"no option {name!r}; the valid options are {', '.join(OPTIONS) or '(none yet)'}")
    return Options(
        backend=lookup_backend(backend),
        backend_name=backend_name(backend),
        fullgraph=fullgraph,
        dynamic=dynamic,
    )


def check_target(target: Any) -> None:
    if isinstance(target, type):
        raise InvalidTarget(f"{target.__name__} is a class; compile an instance or one of its methods")
    if not callable(target) and not isinstance(target, classmethod):
        raise InvalidTarget(
            f"cannot compile {target!r}: a function, a method, a callable object or an nn.Module is expected"
        )


def _compile(target: Any, settings: Options) -> Any:
    if mark_of(target) is Mark.DISABLED:
        return target
    compiled_otherwise = torch_compat.compiled_by_torch(target)
    if compiled_otherwise is not None:  # by torch.compile: one compiler is enough
        return _compile(compiled_otherwise, settings)
    if isinstance(target, torch.nn.Module):
        return compile_module(target, lambda function: compile_function(function, settings))
    if isinstance(target, types.FunctionType):
        return compile_function(target, settings)
    if isinstance(target, (staticmethod, classmethod)):  # compile was written above the other decorator
        return type(target)(_compile(target.__func__, settings))
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        return types.MethodType(compile_function(target.__func__, settings), target.__self__)
    call = type(target).__call__
    if isinstance(call, types.FunctionType):
        return types.MethodType(compile_function(call, settings), target)
    return compile_function(_forwarding_to(target), settings)


def _forwarding_to(target: Callable[..., Any]) -> types.FunctionType:
    """A Python function in front of a callable that has none: a builtin, a ``functools.partial``."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    forward.__name__ = getattr(target, "__name__", type(target).__name__)
    forward.__qualname__ = getattr(target, "__qualname__", forward.__name__)
    forward.__doc__ = getattr(target, "__doc__", None)
    assert isinstance(forward, types.FunctionType)
    return forward


def compile_function(function: types.FunctionType, settings: Options) -> Any:
    """The dispatcher of a Python function; an already compiled one is compiled anew from its original."""
    original = function.__wrapped__ if is_compiled(function) else function  # type: ignore[attr-defined]
    return compiled_function(original, settings)


def reset() -> None:
    """Forget every program of every compiled function, as if nothing had been called yet."""
    reset_all()
    reset_backwards()
