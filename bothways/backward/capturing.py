"""``capture``: the context, or decorator, inside of which backwards are captured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from bothways.backward.engine import CapturingEngine, state
from bothways.backward.programs import Compiler, forget_all
from bothways.config import config, listen
from bothways.errors import InvalidOption
from bothways.locks import Lock
from bothways.record.backwards import backwards
from bothways.torch_compat import backward_engine

F = TypeVar("F", bound=Callable[..., Any])

_lock = Lock()
_users: list[object] = []  # who needs the engine to be ours


def begin(user: object) -> None:
    with _lock:
        if not _users:
            backward_engine.set_engine(CapturingEngine(backward_engine.engine()))
        _users.append(user)


def end(user: object) -> None:
    with _lock:
        _users.remove(user)
        engine = backward_engine.engine()
        if not _users and isinstance(engine, CapturingEngine):
            backward_engine.set_engine(engine.real)


def use_always(is_wanted: bool) -> None:
    """Have every thread's backwards come here, or no longer."""
    with _lock:
        if is_wanted and config not in _users:
            begin(config)
        elif not is_wanted and config in _users:
            end(config)


listen("capture_backward", use_always)


class capture:
    """Capture each backward of this thread as one program; a context manager and a decorator.

    Hooks and the backwards of custom functions are part of the program, which may go through several compiled functions
    and the code between them. ``bothways.autograd.history()`` tells what became of each backward.

    - ``compiler``: called once for each structure of the autograd graph, with the captured module; it returns a
      callable. ``bothways.compile`` is one. With None nothing is captured, which switches an outer ``capture`` off.
    - ``dynamic``: True makes all sizes inputs of the first program; otherwise only those that change become inputs.

    >>> weight = torch.ones(3, requires_grad=True)
    >>> with bothways.autograd.capture(bothways.compile):
    ...     (weight * 2).sum().backward()
    >>> weight.grad
    tensor([2., 2., 2.])
    """

    def __init__(self, compiler: Compiler | None, *, dynamic: bool = False) -> None:
        if compiler is not None and not callable(compiler):
            raise InvalidOption(f"capture({compiler!r}): a function that compiles a module is expected")
        self.compiler, self.dynamic = compiler, dynamic

    def __enter__(self) -> capture:
        begin(self)
        state.compilers.append(None if self.compiler is None else (self.compiler, self.dynamic))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state.compilers.pop()
        end(self)

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def capturing(*args: Any, **kwargs: Any) -> Any:
            with capture(self.compiler, dynamic=self.dynamic):
                return function(*args, **kwargs)

        return capturing  # type: ignore[return-value]


def reset() -> None:
    """Forget every captured backward."""
    backward_engine.forget_structures()
    forget_all()
    backwards.clear()
