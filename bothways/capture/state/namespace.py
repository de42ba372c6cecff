"""The objects that the generated program reads by names of ours."""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass

from bothways.capture.guards.sources import Injected, WeakInjected
from bothways.source_text import identifier, printable


@dataclass
class CapturedFunction:
    """The function that is captured: how the program reads it, and whether the program is for it alone."""

    source: Injected | None = None
    is_bound: bool = False


class Namespace:
    """The namespace of one program."""

    def __init__(self, tag: str) -> None:
        self.namespace: dict[str, object] = {}
        self._tag = tag
        self._injected: dict[int, Injected] = {}
        self._captured = CapturedFunction()

    @property
    def root(self) -> Injected | None:
        """The captured function."""
        return self._captured.source

    @property
    def is_bound(self) -> bool:
        """Whether the program is for this very function, and for no other of the same code."""
        return self._captured.is_bound

    def begin(self, function: types.FunctionType) -> Injected:
        """Keep the function that is captured."""
        self._captured.source = self.inject(function, function.__qualname__)
        return self._captured.source

    def bind(self) -> None:
        """Something that the program runs knows the function in a way of its own."""
        self._captured.is_bound = True

    def let_go_of_root(self) -> None:
        """The program has nothing to do with the function."""
        assert self._captured.source is not None
        del self.namespace[self._captured.source.key]

    def shared(self) -> Namespace:
        """The same names, for code that is only looked at, so that its guards can be taken over."""
        other = Namespace(self._tag)
        other.namespace, other._injected, other._captured = self.namespace, self._injected, self._captured
        return other

    def inject(self, obj: object, label: str) -> Injected:
        """Keep an object and give the source that reads it."""
        source = self._injected.get(id(obj))
        if source is None:
            hint = identifier(label.rpartition(".")[2], "object")
            source = Injected(f"_{hint[:30]}_{self._tag}{len(self._injected)}", printable(label))
            self._injected[id(obj)] = source
            self.namespace[source.key] = obj
        return source

    def inject_weakly(self, obj: object, label: str) -> Injected:
        """The same for an object that the program must not keep alive."""
        source = self._injected.get(id(obj))
        if source is None:
            source = WeakInjected(self.inject(weakref.ref(obj), label).key, label)
            self._injected[id(obj)] = source
        return source

    def put(self, name: str, obj: object) -> None:
        """Keep an object under a name that is its own."""
        self.namespace[name] = obj

    def leave(self) -> None:
        """Let go of the objects: the program has them."""
        self.namespace = {}
