"""``bothways.compile``: checks what it is given and returns a callable that behaves like the original.

Functions become dispatchers with the same face, methods and callable objects are compiled through their
function, modules through a twin that shares the module's state.
"""

from __future__ import annotations

import functools
import platform
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

from bothways import torch_compat
from bothways.api.modules import compile_module
from bothways.backends import DEFAULT_BACKEND, backend_name, lookup_backend
from bothways.backward.capturing import reset as reset_backwards
from bothways.capture.bytecode.opcodes import problem_of_python
from bothways.driver.compiled import compiled_function, reset_all
from bothways.errors import InvalidOption, InvalidTarget
from bothways.pipeline import Options
from bothways.report.ranges import tell_profilers
from bothways.runtime.dispatcher import is_compiled
from bothways.runtime.marks import Mark, mark_of
from bothways.runtime.tracebacks import show_users_frames

T = TypeVar("T")

# Mode -> what it asks for. They steer code generation; the eager backend has nothing to steer.
MODES: dict[str, str] = {
    "default": "a good balance",
    "reduce-overhead": "least cost per call",
    "max-autotune": "fastest kernels, longer compilation",
    "max-autotune-no-cudagraphs": "fastest kernels, without CUDA graphs",
}
# Mode -> what it says about CUDA graphs, in the place of the configuration.
GRAPHED = {"reduce-overhead": True, "max-autotune": True, "max-autotune-no-cudagraphs": False}
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

    What comes back behaves like the original; its first call compiles. Wrong options raise here, not at the first call.

    - ``fn``: what to compile. Without it, a decorator comes back.
    - ``backend``: a name of ``list_backends()``, or any ``f(graph_module, example_inputs) -> callable``.
    - ``fullgraph``: raise ``errors.Unsupported`` where capture would break. A backward that reaches tensors computed
      before the call is allowed: PyTorch's engine runs it, between two graphs.
    - ``dynamic``: which sizes and numbers may change without another program: with True all of them, with False none,
      with None those that have changed before.
    - ``mode``: one of PyTorch's names. ``"reduce-overhead"`` and ``"max-autotune"`` set ``config.cuda_graphs`` to True
      for this function, ``"max-autotune-no-cudagraphs"`` to False.
    - ``options``: options of the backend, a mapping; there are none yet.
    - ``disable``: return the target unchanged.

    >>> @bothways.compile(fullgraph=True)
    ... def scaled(x, factor=2.0):
    ...     return torch.tanh(x * factor)
    >>> scaled(torch.zeros(3))
    tensor([0., 0., 0.])
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
        cuda_graphs=None if mode is None else GRAPHED.get(mode),
    )


def check_target(target: Any) -> None:
    if isinstance(target, type):
        raise InvalidTarget(f"{target.__name__} is a class; compile an instance or one of its methods")
    if not callable(target) and not isinstance(target, classmethod):
        raise InvalidTarget(
            f"cannot compile {target!r}: a function, a method, a callable object or an nn.Module is expected"
        )


def _compile(target: Any, settings: Options) -> Any:
    problem = problem_of_python()
    if problem is not None:
        raise RuntimeError(f"bothways does not run in Python {platform.python_version()}; {problem}")
    if mark_of(target) is Mark.DISABLED:
        return target
    compiled_otherwise = torch_compat.compiled_by_torch(target)
    if compiled_otherwise is not None:  # by torch.compile: one compiler is enough
        return _compile(compiled_otherwise, settings)
    if isinstance(target, torch.nn.Module):
        return compile_module(target, lambda function, kind: compile_function(function, settings, kind))
    if isinstance(target, types.FunctionType):
        return compile_function(target, settings)
    if isinstance(target, (staticmethod, classmethod)):  # compile was written above the other decorator
        return type(target)(_compile(target.__func__, settings))
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        owner = target.__self__
        return types.MethodType(compile_function(target.__func__, settings, type(owner)), owner)
    call = type(target).__call__
    if isinstance(call, types.FunctionType):
        return types.MethodType(compile_function(call, settings, type(target)), target)
    return compile_function(_forwarding_to(target), settings, _kind_of(target))


def _forwarding_to(target: Callable[..., Any]) -> types.FunctionType:
    """A Python function in front of a callable that has none: a builtin, a ``functools.partial``."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    forward.__name__ = getattr(target, "__name__", type(target).__name__)
    forward.__qualname__ = getattr(target, "__qualname__", forward.__name__)
    forward.__doc__ = getattr(target, "__doc__", None)
    assert isinstance(forward, types.FunctionType)
    return forward


def _kind_of(target: Callable[..., Any]) -> Any:
    """What tells callables apart that share no programs: the code that a partial leads to, or the callable itself."""
    while type(target) is functools.partial:
        target = target.func
    if isinstance(target, types.MethodType):
        target = target.__func__
    return target.__code__ if isinstance(target, types.FunctionType) else target


def compile_function(function: types.FunctionType, settings: Options, kind: Any = None) -> Any:
    """The dispatcher of a Python function; an already compiled one is compiled anew from its original.

    Functions of one code share their programs where they are of one ``kind``: methods of objects of one class.
    """
    original = function.__wrapped__ if is_compiled(function) else function  # type: ignore[attr-defined]
    show_users_frames()
    tell_profilers()
    return compiled_function(original, settings, kind=kind)


def reset() -> None:
    """Forget every program of every compiled function, as if nothing had been called yet.

    >>> double = bothways.compile(lambda x: x * 2)
    >>> _ = double(torch.ones(3))
    >>> bothways.reset()
    >>> bothways.history(double)
    []
    """
    reset_all()
    reset_backwards()
