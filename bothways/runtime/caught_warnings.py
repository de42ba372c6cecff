"""``warnings.catch_warnings`` as programs do it: what happened inside is done again, in order, after the graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

Said = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def within_caught(options: dict[str, Any], said: Iterable[Said]) -> None:
    """Change the filters and warn, as inside of one ``with warnings.catch_warnings(**options):``."""
    with warnings.catch_warnings(**options):
        _say(said)


def _say(said: Iterable[Said]) -> None:
    for function, args, kwargs in said:
        function(*args, **kwargs)


class Reopened(warnings.catch_warnings):
    """One that is left in the middle by a program, for the plain Python behind a break to leave.

    Entering it does what happened inside so far; from then on it is like any other.
    """

    def __init__(self, options: dict[str, Any], said: Iterable[Said]) -> None:
        super().__init__(**options)
        self._said = said

    def __enter__(self) -> Any:
        entered = super().__enter__()
        said = self._said
        del self._said
        self.__class__ = warnings.catch_warnings  # type: ignore[assignment]
        try:
            _say(said)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return entered


def with_warnings_ignored(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose warnings are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **kwargs)
