"""What cached functions gave: the same for the same arguments, and some of it is computed again by the program.

Where arguments vary from call to call, the function is inlined. Python gives the very object that it remembers; a new
one cannot be told from that as long as it is not changed and does not leave the program. Where it does, the capture
begins again and leaves the function to Python.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any


class ResultIsRemembered(Exception):
    """The result of a cached function could be told from the one that Python remembers."""


class ComputedAgain:
    """The results of one capture, by function and arguments."""

    def __init__(self) -> None:
        self._results: dict[Hashable, Any] = {}
        self._contents: list[tuple[Any, list[Any], Callable[[Any], list[Any]]]] = []
        self._alive: list[Any] = []  # arguments are known by id here, so none may go away in between

    def fork(self) -> ComputedAgain:
        """For code that is only looked at: what it is given is none of the program's, and must not be seen either."""
        other = ComputedAgain()
        other._contents, other._alive = self._contents, self._alive
        return other

    def find(self, key: Hashable) -> Any | None:
        return self._results.get(key)

    def meet(self, key: Hashable, arguments: Collection[Any], result: Any) -> None:
        self._results[key] = result
        self._alive.extend(arguments)

    def keep(self, value: Any, content: Callable[[Any], list[Any]]) -> None:
        """A part of a result that could be changed: ``content`` lists what it holds."""
        self._contents.append((value, content(value), content))

    def check(self, built: Collection[Any]) -> None:
        """Begin again where one of them was changed, or is ``built`` by the program."""
        if not self._contents:
            return
        seen = set(map(id, built))
        for value, before, content in self._contents:
            now = content(value)
            is_same = len(now) == len(before) and all(map(_is_part, now, before))
            if id(value) in seen or not is_same:
                raise ResultIsRemembered


def _is_part(now: Any, before: Any) -> bool:
    return now is before
