"""The configuration: one typed object, ``config``, read by every layer and written only by the user.

Setting a name that does not exist, or a value of the wrong type, raises at once and says what is valid.
``config.patch(...)`` changes values for the length of a ``with`` block or of a decorated function's calls.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import TracebackType
from typing import Any, TypeVar, get_type_hints

from bothways.locks import Lock
from bothways.source_text import with_article

F = TypeVar("F", bound=Callable[..., Any])

LOGS_VARIABLE = "BOTHWAYS_LOGS"

# Topic of ``config.logs`` -> what it prints.
LOG_TOPICS: dict[str, str] = {
    "recompiles": "why a function was captured again: the guard that failed",
    "breaks": "where a capture stopped, why, and what to do about it",
    "guards": "what each program assumes, with the source line that caused it",
    "programs": "the Python source generated for each capture",
    "graphs": "the graph handed to the backend",
    "graphs_on_gpu": "what is recorded as a CUDA graph, how large it is, and why something is not replayed",
    "outcomes": "how each graph runs (in kernels, by ATen, as captured), what is plain from now on, and why",
}


def parse_topics(text: str) -> tuple[str, ...]:
    """The topics in a comma-separated list, each once, in the order of ``LOG_TOPICS``; "all" is every one."""
    named = {topic for part in text.split(",") if (topic := part.strip().lower())}
    if unknown := sorted(named - LOG_TOPICS.keys() - {"all"}):
        raise ValueError(f"no log topic {unknown[0]!r}; the valid topics are {', '.join(LOG_TOPICS)}, all")
    return tuple(topic for topic in LOG_TOPICS if topic in named or "all" in named)


def _topics_from_environment() -> str:
    text = os.environ.get(LOGS_VARIABLE, "")
    try:
        return ",".join(parse_topics(text))
    except ValueError as error:
        # A typing mistake in the environment must not stop the program that happens to import bothways.
        warnings.warn(f"{LOGS_VARIABLE} is ignored: {error}", stacklevel=2)
        return ""


@dataclass(repr=False)
class Config:
    """What can be configured. ``bothways.config`` is the one instance."""

    recompile_limit: int = 8
    """How many programs one function may have. Calls that none of them fits then run as plain Python, with one
    warning."""

    error_on_recompile: bool = False
    """Raise ``errors.RecompileError`` when a guard fails, instead of capturing the function again."""

    automatic_dynamic: bool = True
    """When a size or number has changed, compile the next program for all its values."""

    assume_static: bool = True
    """Compile the first program for the sizes of the first call only. False makes ``dynamic=True`` the default."""

    static_parameters: bool = True
    """Assume that sizes of an ``nn.Parameter`` do not change: other sizes get another program."""

    numbers_from_data: bool = False
    """Capture ``item()``, ``tolist()``, ``int()`` and ``float()`` of tensors as part of the graph. Only code that must
    know such a number's value is a break then."""

    sizes_from_data: bool = False
    """Capture ``nonzero``, ``masked_select``, ``unique`` and ``x[mask]``, whose length depends on data, as part of the
    graph. False makes them breaks."""

    inline_depth_limit: int = 100
    """How many nested calls capture follows before it breaks with code ``too_deep``."""

    wasted_capture_ratio: int = 20
    """How long captures that come to nothing may take, as a multiple of what the calls themselves take. Beyond that the
    function runs as plain Python, with one warning. The first three captures are free; 0 sets no limit."""

    suppress_errors: bool = False
    """When bothways itself goes wrong, run the function as plain Python instead of raising."""

    capture_backward: bool = False
    """Capture every backward as one program, as if inside ``bothways.autograd.capture(bothways.compile)``."""

    recompute: bool = True
    """Let a compiled backward compute cheap operations of the forward again instead of saving their results. False
    saves everything that the backward reads. Applies to what is compiled from then on."""

    exact_random: bool = True
    """Draw exactly eager's random numbers for dropout, one after the other. False lets kernels draw other numbers in
    parallel, from a seed of PyTorch's generator: faster, just as random, and reproducible by ``manual_seed``."""

    kernels_for_small_graphs: bool = False
    """Build kernels for graphs of any size, even for those so small that running them as captured is faster."""

    kernel_cache: bool = True
    """Keep built kernels on disk, below BOTHWAYS_CACHE_DIR or the user's cache folder, for the next process."""

    kernel_cache_megabytes: int = 256
    """About how large that folder may grow; what has not been used for the longest time is removed first."""

    compiler_seconds: int = 120
    """How long the C compiler may run for one graph; after that it is stopped and ATen runs the graph, with one
    warning. 0 sets no limit."""

    guards_in_c: bool = True
    """Check guards by a small C library, if there is a C compiler and there are enough of them."""

    cuda_graphs: bool | str = "auto"
    """Replay what is compiled for a GPU as CUDA graphs from the third call on: "auto" where that pays off, True
    wherever possible, False never."""

    logs: str = field(default_factory=_topics_from_environment)
    """What to print, a comma-separated list of topics (see ``LOG_TOPICS``), or "all".
    Starts as the environment variable BOTHWAYS_LOGS."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, _checked(name, value))
        if name in _listeners:
            _listeners[name](getattr(self, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_unknown(name))

    def __delattr__(self, name: str) -> None:
        if name in FIELD_TYPES:
            raise AttributeError(f"config.{name} cannot be deleted; set it to its default, or call config.reset()")
        super().__delattr__(name)

    def wants_log(self, topic: str) -> bool:
        """Whether ``topic`` is one of ``logs``."""
        return topic in self.logs.split(",")

    def patch(self, **changes: Any) -> Patch:
        """Set values for a ``with`` block, or for each call of a decorated function; then restore them.

        The names and values are checked here, before anything changes.
        """
        return Patch(self, {name: _checked(name, value) for name, value in changes.items()})

    def reset(self) -> None:
        """Set every value back to its default; ``logs`` to what the environment says now."""
        with _lock:
            for name, value in Config().as_dict().items():
                setattr(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """The current values by name."""
        return {name: getattr(self, name) for name in FIELD_TYPES}

    def __repr__(self) -> str:
        width = max(map(len, FIELD_TYPES))
        return "\n".join(f"{name:<{width}} = {value!r}" for name, value in self.as_dict().items())


class Patch:
    """Values that hold inside a ``with`` block or during the calls of a decorated function.

    One patch may be entered several times, nested or one after another. The configuration is one for the
    whole process: other threads see the patched values as well.
    """

    def __init__(self, target: Config, changes: dict[str, Any]) -> None:
        self._target, self._changes = target, changes
        self._saved: list[dict[str, Any]] = []

    def __enter__(self) -> Config:
        with _lock:
            self._saved.append({name: getattr(self._target, name) for name in self._changes})
            self._assign(self._changes)
        return self._target

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _lock:
            self._assign(self._saved.pop())

    def __call__(self, function: F) -> F:
        # The body of a generator or coroutine runs after its call returned: a patch there would do nothing.
        kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if not inspect.isfunction(function) or any(kind(function) for kind in kinds):
            raise TypeError(
                f"config.patch decorates plain functions; use it in a with block inside {function!r}"
            )

        @functools.wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return patched  # type: ignore[return-value]

    def _assign(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._target, name, value)


_lock = Lock()

# Field -> what is told of each value that it gets.
_listeners: dict[str, Callable[[Any], None]] = {}


def listen(name: str, listener: Callable[[Any], None]) -> None:
    """Have a function told of each value that a field of the configuration gets."""
    _listeners[name] = listener


# Field -> what it may be, where its type does not say.
CHOICES: dict[str, tuple[Any, ...]] = {"cuda_graphs": ("auto", True, False)}

# Field -> its type, taken from the annotations above so that there is one list of fields.
FIELD_TYPES: dict[str, Any] = {f.name: get_type_hints(Config)[f.name] for f in fields(Config)}


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, FIELD_TYPES, n=1)
    meant = f" did you mean {close[0]!r}?" if close else ""
    return f"config has no field {name!r};{meant} the fields are {', '.join(FIELD_TYPES)}"


def _checked(name: str, value: Any) -> Any:
    """``value`` as field ``name`` stores it; AttributeError, TypeError or ValueError when it cannot."""
    if name not in FIELD_TYPES:
        raise AttributeError(_unknown(name))
    if name in CHOICES:
        if not any(value is choice or (type(value) is str and value == choice) for choice in CHOICES[name]):
            raise ValueError(f"config.{name} must be one of {', '.join(map(repr, CHOICES[name]))}, not {value!r}")
        return value
    expected = FIELD_TYPES[name]
    # `type(...) is` and not isinstance: True is an int, and a limit of True is a mistake.
    if type(value) is not expected:
        raise TypeError(f"config.{name} must be {with_article(expected.__name__)}, not {value!r}")
    if expected is int and value < 0:
        raise ValueError(f"config.{name} must not be negative: {value}")
    return ",".join(parse_topics(value)) if name == "logs" else value


config = Config()
