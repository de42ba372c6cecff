"""Stamps: what a program took from definitions, as it was, to be asked again at every call.

People replace functions of libraries, methods of their classes and the code of functions: in tests, profilers and
quantizers. A stamp remembers the objects; Python compares them one by one, and C (``calls/guard_source.py``) only when
the dictionary that holds them says by its version that something in it is another one, or was seen to be changed.
"""

from __future__ import annotations

import abc
import ctypes
import gc
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

MISSING: Any = object()  # stands for a name that was looked for and is not there

# What is as good as the very same object.
_BY_VALUE = (int, str, bytes)

# Where a dictionary keeps the number that every change to it renews: after its reference count, type and length.
_VERSION_OFFSET = 24


class Stamp(Protocol):
    """One thing that was taken from definitions."""

    def holds(self) -> bool:
        """Whether it is as it was."""

    def changed(self) -> str:
        """What is not as it was, as people read it."""

    def packed(self) -> tuple[str, Any]:
        """The same for C: the kind of its row, and what that reads, a function or numbers in memory."""


@dataclass(eq=False)
class NamesStamp:
    """Names of one dictionary: a module's, a class's, a function's keyword defaults."""

    label: str
    names: dict[str, Any]  # the dictionary as it is at any time
    expected: dict[str, Any]
    is_whole: bool = False  # whether a name that was added counts, too, unless it is one of these:
    ignored: tuple[str, ...] = ()
    _packed: ctypes.Array[Any] | None = field(default=None, repr=False)

    @classmethod
    def of_class(cls, target: type, ignored: tuple[str, ...] = ()) -> NamesStamp:
        """A whole class: an attribute that is added to it may hide one of its bases."""
        ignored = (*CHANGES_BY_ITSELF, *ignored)
        expected = {name: value for name, value in target.__dict__.items() if name not in ignored}
        return cls(target.__qualname__, mapping_behind(target), expected, True, ignored)

    def holds(self) -> bool:
        return next(self._differing(), None) is None

    def changed(self) -> str:
        return ", ".join(f"{self.label}.{name}" for name in self._differing()) or "nothing"

    def _differing(self) -> Iterator[str]:
        for name, value in self.expected.items():
            now = self.names.get(name, MISSING)
            if now is not value and not (type(now) is type(value) and type(value) in _BY_VALUE and now == value):
                yield name
        if self.is_whole:
            known = {*self.expected, *self.ignored}
            yield from (name for name in list(self.names) if name not in known)

    def packed(self) -> tuple[str, ctypes.Array[Any]]:
        if self._packed is None:
            pairs = [
                address
                for name, value in self.expected.items()
                for address in (id(name), 0 if value is MISSING else id(value))
            ]
            head = [id(self.names), 0, len(self.expected), self.is_whole, len(self.ignored)]
            numbers = [*head, *pairs, *map(id, self.ignored)]
            self._packed = (ctypes.c_int64 * len(numbers))(*numbers)
        return "NAMES", self._packed

    def __str__(self) -> str:
        if self.is_whole:
            return f"{self.label} is as it was"
        names = ", ".join(f"{self.label}.{name}" for name in self.expected)
        return f"{names} {'is what it was' if len(self.expected) == 1 else 'are what they were'}"


# Entries of a class that Python itself makes when they are asked for (``__slotnames__`` when an object is first
# pickled or deep-copied), or that no program looks at.
CHANGES_BY_ITSELF: tuple[str, ...] = (
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__doc__", "__abstractmethods__",
    "_abc_impl", "__slotnames__", "__static_attributes__", "__firstlineno__",
)  # fmt: skip


@dataclass(frozen=True)
class Body:
    """What a function does when it is called: its code and the defaults of its parameters."""

    function: types.FunctionType
    code: types.CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None

    @classmethod
    def of(cls, function: types.FunctionType) -> Body:
        return cls(function, function.__code__, function.__defaults__, function.__kwdefaults__)

    def holds(self) -> bool:
        now = Body.of(self.function)
        # None of them can change by itself, keyword defaults aside, which have a stamp of their own.
        return (
            now.code is self.code
            and now.defaults is self.defaults
            and now.keyword_defaults is self.keyword_defaults
        )


@dataclass(eq=False)
class BodiesStamp:
    """The bodies of all functions that a program has inside."""

    bodies: tuple[Body, ...]
    _packed: ctypes.Array[Any] | None = field(default=None, repr=False)

    def holds(self) -> bool:
        return all(body.holds() for body in self.bodies)

    def changed(self) -> str:
        return "the code or the defaults of " + ", ".join(_names(body for body in self.bodies if not body.holds()))

    def packed(self) -> tuple[str, ctypes.Array[Any]]:
        if self._packed is None:
            numbers = [len(self.bodies)]
            for body in self.bodies:
                parts = (body.function, body.code, body.defaults, body.keyword_defaults)
                numbers += [0 if part is None else id(part) for part in parts]
            self._packed = (ctypes.c_int64 * len(numbers))(*numbers)
        return "BODIES", self._packed

    def __str__(self) -> str:
        names = list(_names(self.bodies))
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        return f"the code and the defaults of {shown} are as they were"


@dataclass(eq=False)
class SubclassStamp:
    """Classes that abstract classes do not count among their subclasses: ``register`` may add them."""

    pairs: tuple[tuple[type, type], ...]
    _token: object = None  # Python's own number for "some class was registered somewhere"

    def holds(self) -> bool:
        token = abc.get_cache_token()
        if token != self._token:
            if any(issubclass(cls, parent) for cls, parent in self.pairs):
                return False
            self._token = token
        return True

    def changed(self) -> str:
        return ", ".join(f"issubclass({cls.__name__}, {parent.__name__})" for cls, parent in self.pairs)

    def packed(self) -> tuple[str, Callable[[], bool]]:
        return "HOLDS", self.holds

    def __str__(self) -> str:
        return " and ".join(f"not issubclass({cls.__name__}, {parent.__name__})" for cls, parent in self.pairs)


def rebound_stamp(value: Any, before: types.FunctionType, after: types.FunctionType) -> Any:
    """The stamp that says of one function what ``value`` says of another; ``value`` itself where it says nothing."""
    if isinstance(value, BodiesStamp) and any(body.function is before for body in value.bodies):
        return BodiesStamp(tuple(Body.of(after) if body.function is before else body for body in value.bodies))
    if isinstance(value, NamesStamp) and value.names is before.__kwdefaults__:
        now = after.__kwdefaults__ or {}
        return NamesStamp(f"{after.__qualname__}.__kwdefaults__", now, dict(now), is_whole=True)
    return value


def _names(bodies: Iterable[Body]) -> Iterator[str]:
    return (body.function.__qualname__ for body in bodies)


def mapping_behind(cls: type) -> dict[str, Any]:
    """The dictionary of a class, which Python shows through a proxy."""
    behind: list[Any] = gc.get_referents(cls.__dict__)
    return next(mapping for mapping in behind if isinstance(mapping, dict))  # of ctypes, a kind of its own


def version_offset() -> int:
    """Where a dictionary's version is; 0 where this Python has none."""
    for dictionary, change in sample_changes():
        place = ctypes.c_uint64.from_address(id(dictionary) + _VERSION_OFFSET)
        before = place.value
        "name" in dictionary  # noqa: B015  reading leaves it as it is
        same = place.value == before
        change()
        if not same or place.value == before:
            return 0
    return _VERSION_OFFSET


def sample_changes() -> list[tuple[dict[str, Any], Callable[[], object]]]:
    """Dictionaries, and what changes each of them as people do; one after the other."""
    module = types.ModuleType("example")
    example: Any = type("Example", (), {})
    namespace: dict[str, Any] = {"value": 0}

    def assign(value: object) -> None:
        exec("global value; value = given", namespace, {"given": value})

    return [
        (namespace, lambda: namespace.update(value=1)),
        (namespace, lambda: assign([])),
        (namespace, lambda: namespace.pop("value")),
        (module.__dict__, lambda: setattr(module, "name", 1)),
        (module.__dict__, lambda: setattr(module, "name", 2)),
        (module.__dict__, lambda: delattr(module, "name")),
        (mapping_behind(example), lambda: setattr(example, "name", len)),
        (mapping_behind(example), lambda: setattr(example, "name", max)),
        (mapping_behind(example), lambda: delattr(example, "name")),
    ]
