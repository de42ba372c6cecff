"""PyTorch's entry points with PyTorch's signatures, carried out by bothways.

Each takes what its original takes; arguments that steer PyTorch's own compilers are accepted and have no
effect. A facade that needs its original asks the ledger for it; none of those for compiling imports
``torch._dynamo`` unless the request cannot be met without.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch

from bothways import backends
from bothways.api import compile as compiling
from bothways.api import decorators
from bothways.api.dropin import backward
from bothways.api.dropin.changes import ledger
from bothways.api.dropin.names import BACKENDS
from bothways.api.dropin.reasons import telling_why
from bothways.api.explain import explain as our_explain
from bothways.driver.stances import STANCES
from bothways.errors import Break, InvalidBackend, Position
from bothways.runtime.dispatcher import is_compiled
from bothways.runtime.marks import Mark, mark

F = TypeVar("F", bound=Callable[..., Any])

REGISTRY = "torch._dynamo.backends.registry"


def theirs(name: str, module: str = "torch._dynamo") -> Any:
    """What PyTorch's module had under this name."""
    return ledger.before(importlib.import_module(module), name)


def for_programs(module: str) -> Callable[[F], F]:
    """Leave calls that come from inside PyTorch to the function of the same name in ``module``.

    PyTorch builds some operators (``torch.cond``, ``flex_attention``) with its own compiler, and they work
    with no other.
    """

    def decorate(facade: F) -> F:
        @functools.wraps(facade)
        def choose(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] == "torch" and not caller.startswith(PROGRAMS_IN_PYTORCH):
                return theirs(facade.__name__, module)(*args, **kwargs)
            return facade(*args, **kwargs)

        return cast(F, choose)

    return decorate


# Parts of PyTorch that use the compiler as any program does.
PROGRAMS_IN_PYTORCH = ("torch._dynamo.testing", "torch._dynamo.test_case", "torch.testing")


# Compiling -------------------------------------------------------------------------------------------------


@for_programs("torch")
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
) -> Any:
    """``torch.compile``."""
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, not both at the same time.")
    backend = default_backend() if backend is None else backend
    disable = disable or compiling_is_off()
    ours: str | Callable[..., Any]
    if isinstance(backend, str) and backend in BACKENDS:
        # The options are settings of the compiler that ours stands in for.
        ours, our_mode = BACKENDS[backend], mode
    else:
        settings = {"mode": mode if mode != "default" else None, "options": options}
        ours, our_mode = with_settings(lookup_backend(backend), settings), None
    decorate = compiling.compile(backend=ours, fullgraph=fullgraph, dynamic=dynamic, mode=our_mode, disable=disable)
    if backward.is_on() and not disable:
        decorate = backward.capturing_backwards(decorate)
    return decorate_class_or(decorate) if model is None else decorate_class_or(decorate)(model)


def decorate_class_or(decorate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that also takes a class, whose instances are then compiled when they are called."""

    def decorate_either(target: Any) -> Any:
        if not isinstance(target, type):
            return decorate(target)
        name = "_call_impl" if issubclass(target, torch.nn.Module) else "__call__"
        setattr(target, name, decorate(getattr(target, name)))
        return target

    return decorate_either


def compile_in_place(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    """``torch.nn.Module.compile``."""
    module._compiled_call_impl = compile(module._call_impl, *args, **kwargs)


def with_settings(backend: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    """A backend that is passed the settings it was chosen with, as PyTorch passes them."""
    chosen = {name: value for name, value in settings.items() if value}
    return functools.partial(backend, **chosen) if chosen else backend


def default_backend() -> str | Callable[..., Any]:
    """The backend for calls that name none: PyTorch's default, or what the program has made the default."""
    registry: Any = sys.modules.get(REGISTRY)
    return registry.get_default_backend() if hasattr(registry, "get_default_backend") else "inductor"


def compiling_is_off() -> bool:
    """Whether the environment or the configuration says to run everything as plain Python."""
    config = sys.modules.get("torch._dynamo.config")
    if config is not None and config.disable:
        return True
    return "1" in (os.environ.get("TORCHDYNAMO_DISABLE"), os.environ.get("TORCH_COMPILE_DISABLE"))


class Optimizing:
    """The decorator that ``optimize`` gives. As a context, which PyTorch refuses by default, it compiles nothing."""

    def __init__(self, decorate: Callable[[Any], Any]) -> None:
        self._decorate = decorate

    def __call__(self, fn: Any) -> Any:
        return self._decorate(fn)

    def __enter__(self) -> Optimizing:
        config = sys.modules.get("torch._dynamo.config")
        if getattr(config, "raise_on_ctx_manager_usage", True):
            raise RuntimeError("torch._dynamo.optimize(...) is used as a context manager; decorate a function with it.")
        return self

    def __exit__(self, *exception: object) -> None:
        return None


@for_programs("torch._dynamo")
def optimize(
    backend: str | Callable[..., Any] = "inductor",
    *,
    nopython: bool = False,
    disable: bool = False,
    dynamic: bool | None = None,
    **settings: Any,
) -> Callable[[Any], Any]:
    """``torch._dynamo.optimize``: the decorator that ``torch.compile`` is with these arguments."""
    check_settings("optimize", settings)
    return _optimizing(backend, settings, fullgraph=nopython, disable=disable, dynamic=dynamic)


@for_programs("torch._dynamo")
def optimize_assert(
    backend: str | Callable[..., Any] = "inductor", *, dynamic: bool | None = None, **settings: Any
) -> Callable[[Any], Any]:
    """``torch._dynamo.optimize_assert``: ``optimize`` where every break is an error."""
    check_settings("optimize_assert", settings)
    return _optimizing(backend, settings, fullgraph=True, dynamic=dynamic)


def _optimizing(backend: str | Callable[..., Any], settings: dict[str, Any], **arguments: Any) -> Optimizing:
    listener = settings.get("guard_fail_fn")

    def decorate(fn: Any) -> Any:
        chosen = backend if listener is None else telling_why(lookup_backend(backend), listener, fn)
        return compile(fn, backend=chosen, **arguments)

    return Optimizing(decorate)


# What ``optimize`` and ``optimize_assert`` take beside that, in one version or another: doors into the inside
# of PyTorch's compiler, and limits it keeps for each call.
INNER_SETTINGS = frozenset(
    "error_on_graph_break export export_constraints guard_export_fn guard_fail_fn guard_filter_fn hooks "
    "isolate_recompiles load_cache_fn package rebuild_ctx recompile_limit save_cache_fn shapes_spec".split()
)


def check_settings(function: str, settings: dict[str, Any]) -> None:
    """Raise for a keyword that PyTorch does not know either."""
    for name in settings.keys() - INNER_SETTINGS:
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def run(fn: Any = None) -> Any:
    """``torch._dynamo.run``: a function that compiles nothing new when it is called, so the original."""
    if fn is None:
        return run
    if is_compiled_module(fn):
        return fn._orig_mod
    return fn.__wrapped__ if is_compiled(fn) else fn


def is_compiled_module(module: Any) -> bool:
    """Whether ``compile`` made this module."""
    return isinstance(module, torch.nn.Module) and hasattr(type(module), "__bothways_original__")


class _EitherCompiler(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return is_compiled_module(instance) or isinstance(instance, theirs("OptimizedModule"))


class OptimizedModule(metaclass=_EitherCompiler):
    """``torch._dynamo.OptimizedModule``, for ``isinstance``: compiled modules of either side are such."""


def reset() -> None:
    """``torch._dynamo.reset``: forget what was compiled, here and by PyTorch."""
    compiling.reset()
    if "torch._dynamo" in sys.modules:
        theirs("reset")()


class set_stance(decorators.set_stance):
    """``torch.compiler.set_stance``."""

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: Any = None
    ) -> None:
        if force_backend is not None and stance != "default":
            raise RuntimeError("force_backend goes with the stance 'default'")
        if stance not in STANCES:
            raise RuntimeError(f"invalid stance {stance!r}; the stances are {', '.join(STANCES)}")
        super().__init__(stance, force_backend=None if force_backend is None else lookup_backend(force_backend))


# Explaining ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BreakReason:
    """A break, as the explanations of PyTorch show it."""

    reason: str
    user_stack: list[traceback.FrameSummary]
    graph_break: bool = True

    @classmethod
    def of(cls, break_: Break) -> BreakReason:
        frames = [frame_summary(position) for position in (*reversed(break_.stack), break_.where)]
        return cls(break_.reason, frames)


def frame_summary(position: Position) -> traceback.FrameSummary:
    return traceback.FrameSummary(position.filename, position.line, position.function, line=position.text)


class ExplainOutput:
    """An ``Explanation`` with the names PyTorch has for its parts; all else is the explanation's own."""

    explanation: Any = None
    compile_times = None

    def __init__(self, explanation: Any) -> None:
        self.explanation = explanation
        self.break_reasons = [BreakReason.of(break_) for break_ in explanation.breaks]
        self.out_guards = list(explanation.guards)
        self.ops_per_graph = [
            [node.target for node in graph.graph.nodes if node.op.startswith("call")] for graph in explanation.graphs
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.explanation, name)

    def __str__(self) -> str:
        return str(self.explanation)


def explain(f: Callable[..., Any], *extra_args: Any, **extra_kwargs: Any) -> Any:
    """``torch._dynamo.explain``: ``explain(f)(*args)``, and the old ``explain(f, *args)``."""

    def explained(*args: Any, **kwargs: Any) -> ExplainOutput:
        reset()
        return ExplainOutput(our_explain(f)(*args, **kwargs))

    if extra_args or extra_kwargs:
        warnings.warn("explain(f, *args) is deprecated, use explain(f)(*args)", FutureWarning, stacklevel=2)
        return explained(*extra_args, **extra_kwargs)
    return explained


# Backends --------------------------------------------------------------------------------------------------


@for_programs(REGISTRY)
def lookup_backend(compiler_fn: Any) -> Callable[..., Any]:
    """``torch._dynamo.lookup_backend``: ours for the names we have, else what was registered with PyTorch."""
    if not isinstance(compiler_fn, str):
        return backends.lookup_backend(compiler_fn)
    name = BACKENDS.get(compiler_fn, compiler_fn)
    if name in backends.list_backends():
        return backends.lookup_backend(name)
    if name in theirs("list_backends", REGISTRY)(exclude_tags=None):
        backend: Callable[..., Any] = theirs("lookup_backend", REGISTRY)(name)
        return backend
    raise InvalidBackend(compiler_fn, list_backends(exclude_tags=None))


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """``torch._dynamo.list_backends``: the names PyTorch has, and those only we have."""
    their_names = theirs("list_backends", REGISTRY)
    only_ours = set(backends.list_backends()) - set(their_names(exclude_tags=None))
    return sorted(only_ours.union(their_names(exclude_tags=exclude_tags)))


# Marks on functions and tensors, made on both sides: PyTorch's own capture still serves ``torch.export`` ----


def allow_in_graph(fn: Any) -> Any:
    """``torch._dynamo.allow_in_graph``: one function or several."""
    return marked(theirs("allow_in_graph")(fn), Mark.IN_GRAPH)


def disallow_in_graph(fn: Any) -> Any:
    """``torch._dynamo.disallow_in_graph``: a call of the function is a break."""
    return marked(theirs("disallow_in_graph")(fn), Mark.DISABLED)


def forbid_in_graph(fn: Any) -> Any:
    """``torch._dynamo.forbid_in_graph``: a call of the function is a break."""
    return marked(theirs("forbid_in_graph")(fn), Mark.DISABLED)


def assume_constant_result(fn: Any) -> Any:
    """``torch._dynamo.assume_constant_result``."""
    return marked(theirs("assume_constant_result")(fn), Mark.CONSTANT_RESULT)


def marked(functions: Any, kind: Mark) -> Any:
    """What was passed, one function or several, after marking it for us as well."""
    for function in functions if isinstance(functions, (list, tuple)) else [functions]:
        with contextlib.suppress(TypeError):  # what cannot be referred to weakly is left to PyTorch
            mark(function, kind)
    return functions


def mark_dynamic(t: Any, index: Any, **bounds: Any) -> None:
    """``torch._dynamo.mark_dynamic``."""
    theirs("mark_dynamic")(t, index, **bounds)
    if isinstance(t, torch.Tensor):
        decorators.mark_dynamic(t, index)


def maybe_mark_dynamic(t: Any, index: Any, **bounds: Any) -> None:
    """``torch._dynamo.maybe_mark_dynamic``."""
    theirs("maybe_mark_dynamic")(t, index, **bounds)
    if isinstance(t, torch.Tensor):
        decorators.mark_dynamic(t, index)


def mark_unbacked(t: Any, index: Any, *args: Any, **wishes: Any) -> None:
    """``torch._dynamo.decorators.mark_unbacked``: a size that changes; what a program asks of it is a guard."""
    theirs("mark_unbacked", "torch._dynamo.decorators")(t, index, *args, **wishes)
    if isinstance(t, torch.Tensor):
        decorators.mark_dynamic(t, index)


def mark_static(t: Any, index: Any = None) -> Any:
    """``torch._dynamo.mark_static``: of a tensor, or of every instance of a module class."""
    theirs("mark_static")(t, index)
    return decorators.mark_static(t) if isinstance(t, type) else decorators.mark_static(t, index)


mark(mark_static, Mark.STATIC_SIZES)


def nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a call that only PyTorch's own compilers need."""
