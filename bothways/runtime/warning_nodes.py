"""Operations that warn, as nodes of a graph: they run at the user's line, which PyTorch then blames as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bothways.errors import Position
from bothways.node_facts import in_graphs
from bothways.runtime.caught_warnings import with_warnings_ignored
from bothways.runtime.continuations import step_function


@in_graphs(opaque=True, warns=True)
class Warns:
    """Calls a function, or a method of its first argument, from the user's file, line and module.

    The module remembers what was warned about, so each warning comes as often as without us; where it is an error, the
    graph fails and the call goes back to Python. Where captured code has its warnings ignored, they are.
    """

    def __init__(
        self, target: Callable[..., Any] | str, where: Position, globals_: dict[str, Any], *, ignored: bool = False
    ) -> None:
        self.target, self._ignored = target, ignored
        method = target if isinstance(target, str) else None
        self.__name__ = self.__qualname__ = method or getattr(target, "__name__", type(target).__name__)
        self.__module__ = __name__
        line = f"return {{0}}.{method}(*{{1}}, **{{2}})" if method else "return {0}(*{1}, **{2})"
        self._run = step_function(line, 3, where, globals_)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return with_warnings_ignored(self._call, *args, **kwargs) if self._ignored else self._call(*args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.target, str):
            return self._run(args[0], args[1:], kwargs)
        return self._run(self.target, args, kwargs)

    def __repr__(self) -> str:
        return f"{self.__name__} (which warns)"
