"""The registry: backend names in, backend functions out.

A name is looked for in the built-in table and its aliases, then among what the program registered, then among
the ``torch_dynamo_backends`` entry points of installed distributions. Entry points are listed without
importing anything; one is imported when its name is looked up.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import metadata
from typing import Any, TypeVar, cast, overload

from torch import Tensor
from torch.fx import GraphModule

from bothways.backends.aot import aot_eager
from bothways.backends.eager import eager
from bothways.backends.native import native
from bothways.errors import BackendFailed, InvalidBackend, KernelWarning
from bothways.locks import Lock
from bothways.record import generated
from bothways.runtime.compiled_graph import described, known_of
from bothways.runtime.function_spelling import spell
from bothways.runtime.listening import listening

Backend = Callable[[GraphModule, list[Tensor]], Callable[..., Any]]
B = TypeVar("B", bound=Callable[..., Any])

ENTRY_POINT_GROUP = "torch_dynamo_backends"

DEFAULT_BACKEND = "native"

BUILT_IN: dict[str, Backend] = {
    "eager": eager,
    "aot_eager": aot_eager,
    "native": native,
}

# Names that stand for another backend. The first is what programs call ours where PyTorch looks for it.
ALIASES: dict[str, str] = {"bothways": "native"}

_registered: dict[str, Backend] = {}
_loaded_entry_points: dict[str, Backend] = {}
_lock = Lock()


@overload
def register_backend(fn: B, *, name: str | None = None) -> B: ...
@overload
def register_backend(fn: None = None, *, name: str | None = None) -> Callable[[B], B]: ...
def register_backend(fn: B | None = None, *, name: str | None = None) -> B | Callable[[B], B]:
    """Register a backend under a name, by default the function's own, that ``compile(backend=...)`` accepts.

    Works as ``register_backend(fn)``, ``register_backend(fn, name="mine")``, ``@register_backend`` and
    ``@register_backend(name="mine")``. Registering a name again replaces it; the built-in names are taken.

    - ``fn``: any ``f(graph_module, example_inputs) -> callable``. Without it, a decorator comes back.
    - ``name``: the name.

    >>> @bothways.register_backend
    ... def counting(graph, inputs):
    ...     print(len(graph.graph.nodes), "nodes")
    ...     return graph.forward
    >>> bothways.compile(lambda x: x * 2, backend="counting")(torch.ones(2))
    3 nodes
    tensor([2., 2.])
    """
    if fn is None:
        return lambda decorated: register_backend(decorated, name=name)
    if not callable(fn):
        raise TypeError(f"a backend is a callable f(gm, example_inputs), not {fn!r}; its name goes in name=...")
    name = name if name is not None else getattr(fn, "__name__", None)
    if not isinstance(name, str) or not name:
        raise TypeError(f"{fn!r} has no __name__; pass register_backend(fn, name=...)")
    if name in BUILT_IN or name in ALIASES:
        raise ValueError(f"{name!r} is a backend of bothways; register yours under another name")
    with _lock:
        _registered[name] = fn
    return fn


def list_backends() -> list[str]:
    """Every name ``compile(backend=...)`` accepts, sorted.

    >>> {"aot_eager", "eager", "native"} <= set(bothways.list_backends())
    True
    """
    return sorted({*BUILT_IN, *ALIASES, *_registered, *_entry_points()})


def lookup_backend(backend: str | Backend) -> Backend:
    """The backend of that name; a callable is a backend already and comes back as it is."""
    if not isinstance(backend, str):
        if callable(backend):
            return backend
        raise InvalidBackend(backend, list_backends())
    name = ALIASES.get(backend, backend)
    known = BUILT_IN.get(name) or _registered.get(name) or _from_entry_point(name)
    if known is None:
        raise InvalidBackend(backend, list_backends())
    return known


def backend_name(backend: str | Backend) -> str:
    """What to call a backend in messages and reports."""
    if isinstance(backend, str):
        return backend
    return getattr(backend, "__name__", None) or type(backend).__name__


@contextmanager
def failures_of(backend: Backend) -> Iterator[None]:
    """What a backend raises, with its name."""
    try:
        yield
    except KernelWarning:  # the user wants warnings to be errors
        raise
    except Exception as error:
        name = backend_name(backend)
        raise BackendFailed(f"backend {name!r} raised {type(error).__name__}: {error}") from error


def call_backend(backend: Backend, gm: GraphModule, example_inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """Compile one graph, and see to it that what comes back can be called and returns what the graph returns."""
    is_ours = any(backend is known for known in BUILT_IN.values())
    if not is_ours:
        spell(gm)
    with failures_of(backend), listening() if is_ours else nullcontext():  # what a user's backend says is for the user
        compiled = backend(gm, list(example_inputs))
    if not callable(compiled):
        name = backend_name(backend)
        raise BackendFailed(f"backend {name!r} must return a callable, not {type(compiled).__name__}")
    if is_ours:
        return compiled
    if compiled is gm or compiled == gm.forward:
        generated.as_captured(gm, f"the backend {backend_name(backend)} gives it back as it is")
        return compiled
    return _checked(compiled, gm, backend_name(backend))


def _checked(compiled: Callable[..., Any], gm: GraphModule, name: str) -> Callable[..., Any]:
    """A compiled graph that gives a tuple, as its graph does; a bare tensor would be taken apart along its rows.

    When it has given one, calls go straight to it.
    """
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    count = len(output.args[0]) if isinstance(output.args[0], (tuple, list)) else 1

    def checked(*inputs: Any, **options: Any) -> Any:
        results = compiled(*inputs, **options)
        if isinstance(results, (tuple, list)) and len(results) == count:
            partial = reference()
            if partial is not None:
                partial.__setstate__((compiled, (), {}, vars(partial)))
            return results
        got = f"{len(results)} values" if isinstance(results, (tuple, list)) else f"a {type(results).__name__}"
        raise BackendFailed(f"what {name!r} compiled must return a tuple of {count}, as its graph does, not {got}")

    run: Any = functools.partial(checked)  # which can be told to call something else, and costs next to nothing
    reference = weakref.ref(run)
    known = vars(known_of(compiled))
    if hasattr(compiled, "__wrapped__"):  # by the user, whose function has taken over what is known of ours
        known = {**known, "takes_together": False, "look": None, "at_once": None}
    return described(cast(Callable[..., Any], run), **known)


def _entry_points() -> dict[str, metadata.EntryPoint]:
    # Read anew each time: it takes a few milliseconds, only on a name we do not have, and distributions
    # installed meanwhile are found.
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _from_entry_point(name: str) -> Backend | None:
    if name in _loaded_entry_points:
        return _loaded_entry_points[name]
    point = _entry_points().get(name)
    if point is None:
        return None
    try:
        loaded = point.load()
    except Exception as error:
        raise BackendFailed(f"backend {name!r} ({point.value}) could not be imported: {error}") from error
    if not callable(loaded):
        raise BackendFailed(f"backend {name!r} ({point.value}) is {type(loaded).__name__}, not a callable")
    with _lock:
        return _loaded_entry_points.setdefault(name, loaded)
