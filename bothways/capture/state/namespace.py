"""The objects that the generated program reads by names of ours."""

from __future__ import annotations

import weakref

from bothways.capture.guards.sources import Injected, WeakInjected
from bothways.source_text import identifier, printable


class Namespace:
    """The namespace of one program."""

    def __init__(self, tag: str) -> None:
        self.namespace: dict[str, object] = {}
        self._tag = tag
        self._injected: dict[int, Injected] = {}

    def shared(self) -> Namespace:
        """The same names, for code that is only looked at, so that its guards can be taken over."""
        other = Namespace(self._tag)
        other.namespace, other._injected = self.namespace, self._injected
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
