"""What users say about their functions and tensors: disable, allow_in_graph, graph_break and the marks."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast, overload

import torch

from bothways.backends import lookup_backend
from bothways.driver import stances
from bothways.driver.stances import STANCES, ForcedBackend, Stance
from bothways.errors import InvalidOption, InvalidTarget
from bothways.runtime import logs
from bothways.runtime.dispatcher import is_compiled
from bothways.runtime.marks import Mark, mark
from bothways.runtime.size_history import DYNAMIC_MARK, STATIC_MARK
from bothways.source_text import described

F = TypeVar("F", bound=Callable[..., Any])
ModuleClass = TypeVar("ModuleClass", bound=type[torch.nn.Module])


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Never capture this function: it runs as plain Python, and calling it from a compiled function is a break.

    - ``fn``: the function or method. Without it, a decorator comes back.
    - ``recursive``: accepted for programs written for ``torch.compile``; what the function calls is plain either way.
    - ``reason``: a note for readers of the source.

    >>> @bothways.disable
    ... def report(x):
    ...     print(f"sum {x.sum().item():.1f}")
    >>> @bothways.compile
    ... def step(x):
    ...     report(x)
    ...     return x * 2
    >>> step(torch.ones(3))
    sum 3.0
    tensor([2., 2., 2.])
    """
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, (torch.nn.Module, type)) or not callable(fn):
        raise InvalidTarget(f"disable takes a function or a method, not {described(type(fn))}")
    if isinstance(fn, types.MethodType) and is_compiled(fn.__func__):
        fn = types.MethodType(fn.__func__.__wrapped__, fn.__self__)  # type: ignore[attr-defined]
    fn = fn.__wrapped__ if is_compiled(fn) else fn

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    mark(disabled, Mark.DISABLED)
    return disabled


class set_stance:
    """Say what compiled functions do from now on; or, as a context manager or decorator, only inside of it.

    - ``stance``: ``"default"``; ``"force_eager"``: the originals run; ``"eager_on_recompile"``: a call that needs
      another program runs as plain Python; ``"fail_on_recompile"``: such a call raises.
    - ``force_backend``: a backend to compile with, instead of the one each function was given.

    >>> double = bothways.compile(lambda x: x * 2)
    >>> with bothways.set_stance("force_eager"):
    ...     double(torch.ones(2))
    tensor([2., 2.])
    >>> bothways.history(double)
    []
    """

    def __init__(self, stance: str = "default", *, force_backend: str | Callable[..., Any] | None = None) -> None:
        if stance not in tuple(STANCES):
            raise InvalidOption(f"stance={stance!r}: the valid stances are {', '.join(map(repr, STANCES))}")
        if force_backend is not None and stance != "default":
            raise InvalidOption(f"force_backend goes with the stance 'default', not with {stance!r}")
        backend = None if force_backend is None else ForcedBackend(lookup_backend(force_backend))
        self._stance = Stance(stance, backend)
        self._before = stances.change(self._stance)

    def __enter__(self) -> None:
        stances.change(self._stance)

    def __exit__(self, *exception: object) -> None:
        stances.change(self._before)

    def __call__(self, fn: F) -> F:
        stances.change(self._before)

        @functools.wraps(fn)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            before = stances.change(self._stance)
            try:
                return fn(*args, **kwargs)
            finally:
                stances.change(before)

        mark(decorated, Mark.DISABLED)
        return cast(F, decorated)


def allow_in_graph(fn: F) -> F:
    """Make calls of this function one node of the graph, without looking inside.

    - ``fn``: a function that takes and returns tensors; it is called whenever the graph runs.

    >>> @bothways.allow_in_graph
    ... def norm(x):
    ...     return x.pow(2).sum().sqrt()
    >>> recorded = bothways.testing.RecordGraphs()
    >>> bothways.compile(lambda x: norm(x) + 1, backend=recorded)(torch.tensor([3.0, 4.0]))
    tensor(6.)
    >>> recorded.only.ops
    ['norm', 'add']
    """
    if not callable(fn):
        raise InvalidTarget(f"allow_in_graph takes a callable, not {fn!r}")
    mark(fn, Mark.IN_GRAPH)
    return fn


def assume_constant_result(fn: F) -> F:
    """Call this function once, during capture, and make its result a constant of the program.

    - ``fn``: a function that returns the same result as long as the process runs.

    >>> @bothways.assume_constant_result
    ... def rank():
    ...     return 3
    >>> bothways.compile(lambda x: x * rank(), fullgraph=True)(torch.ones(2))
    tensor([3., 3.])
    """
    if not callable(fn):
        raise InvalidTarget(f"assume_constant_result takes a callable, not {fn!r}")
    mark(fn, Mark.CONSTANT_RESULT)
    return fn


def graph_break() -> None:
    """End the graph here. Outside a capture this does nothing.

    >>> def halves(x):
    ...     y = x * 2
    ...     bothways.graph_break()
    ...     return y + 1
    >>> bothways.explain(halves)(torch.ones(2)).graph_count
    2
    """


def is_compiling() -> bool:
    """Whether this code is being captured: True during capture, False when it runs as plain Python.

    >>> def asked(x):
    ...     return x * 2 if bothways.is_compiling() else x
    >>> bothways.compile(asked)(torch.ones(2)), asked(torch.ones(2))
    (tensor([2., 2.]), tensor([1., 1.]))
    """
    return logs.capturing()


mark(graph_break, Mark.GRAPH_BREAK)
mark(is_compiling, Mark.IS_COMPILING)


def mark_dynamic(tensor: torch.Tensor, dims: int | Sequence[int]) -> None:
    """Say that these sizes of the tensor will change between calls, so that the first program serves all of them.

    - ``tensor``: an input of a compiled function.
    - ``dims``: a dimension, or several.

    >>> total = bothways.compile(lambda x: (x * 2).sum())
    >>> x = torch.ones(4, 3)
    >>> bothways.mark_dynamic(x, 0)
    >>> total(x), total(torch.ones(7, 3))
    (tensor(24.), tensor(42.))
    >>> len(bothways.history(total))
    1
    """
    _mark_dims(tensor, dims, DYNAMIC_MARK)


@overload
def mark_static(tensor: torch.Tensor, dims: int | Sequence[int] | None = None) -> None: ...
@overload
def mark_static(tensor: ModuleClass) -> ModuleClass: ...


def mark_static(tensor: Any, dims: int | Sequence[int] | None = None) -> Any:
    """Say that these sizes of the tensor do not change between calls: each other size gets a program of its own, unless
    ``mark_dynamic`` says otherwise. For a class of modules: numbers that its instances hold are constants.

    - ``tensor``: an input of a compiled function, or a class of modules, which is returned.
    - ``dims``: a dimension of the tensor, or several; all by default.

    >>> x = torch.ones(4, 3)
    >>> bothways.mark_static(x, 1)
    """
    if isinstance(tensor, type) and issubclass(tensor, torch.nn.Module):
        setattr(tensor, STATIC_MARK, True)
        return tensor
    _mark_dims(tensor, dims, STATIC_MARK)
    return None


mark(mark_static, Mark.STATIC_SIZES)


def _mark_dims(tensor: torch.Tensor, dims: int | Sequence[int] | None, attribute: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidTarget(f"sizes of a tensor are marked, and this is {described(type(tensor))}")
    chosen = list(range(tensor.dim()) if dims is None else dims if isinstance(dims, Iterable) else (dims,))
    for dim in chosen:
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise TypeError(f"dims={dims!r}: a dimension is a whole number; one of them, or a list")
        if not -tensor.dim() <= dim < tensor.dim():
            raise IndexError(f"dimension {dim} of a tensor with {tensor.dim()} dimensions")
    already: set[int] = getattr(tensor, attribute, set())
    setattr(tensor, attribute, already | {dim % tensor.dim() for dim in chosen})
