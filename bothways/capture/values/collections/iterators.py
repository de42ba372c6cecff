"""Iterators: over containers and ranges, and the lazy ones that ``zip``, ``map`` and their kind give.

``next`` gives one element or raises the captured StopIteration, so a loop consumes exactly what Python would.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from bothways.capture.standins import sequences
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import call_from_table, is_none
from bothways.capture.values.core.wording import name_in_c
from bothways.runtime import iterators as standing

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.collections.deques import DequeValue
    from bothways.capture.values.collections.sets import SetValue
    from bothways.capture.writing.emit import Emitter


class IteratorValue(Value):
    """What all iterators share: they iterate over themselves and have no content but the next element."""

    kind: type

    def python_type(self) -> type:
        return self.kind

    def iterate(self, tracer: Tracer) -> Value:
        return self

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.class_attribute(tracer, self, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return call_from_table(tracer, self, {}, iter(()), name, args, kwargs)

    def hash_key(self, tracer: Tracer) -> IteratorValue:
        return self


_ITERATED: dict[type, type] = {type(iter(kind())): kind for kind in (list, tuple, str, bytes)}


class SequenceIterator(IteratorValue):
    """An iterator over elements that are known from the start and cannot change."""

    def __init__(self, items: list[Value], kind: type) -> None:
        self.items, self.kind = items, kind
        self._position = 0

    def next(self, tracer: Tracer) -> Value:
        if self._position >= len(self.items):
            tracer.throw(StopIteration)
        self._position += 1
        return self.items[self._position - 1]

    def parts(self) -> Iterable[Value]:
        return self.items[self._position :]

    def rebuild(self, emitter: Emitter) -> str:
        iterated = _ITERATED.get(self.kind, list if self.kind is reversed else None)
        rest = self.items[self._position :]
        if iterated is None:
            return super().rebuild(emitter)
        if iterated in (str, bytes):
            constants = [item.constant() for item in rest]
            content = emitter.literal("".join(constants) if iterated is str else bytes(constants))
        elif self.kind is reversed:
            return f"reversed({TupleValue(rest[::-1]).rebuild(emitter)})"
        else:
            content = (ListValue if iterated is list else TupleValue)(rest).rebuild(emitter)
        return f"iter({content})"


class ListIterator(IteratorValue):
    """An iterator over a list, which sees what is appended while it runs."""

    kind: type = type(iter([]))
    two_phase = True

    def __init__(self, owner: ListValue) -> None:
        owner.depend_on_length()
        self.owner: ListValue | None = owner
        self.position = 0

    def next(self, tracer: Tracer) -> Value:
        if self.owner is None or self.position >= len(self.owner.items):
            self.owner = None
            tracer.throw(StopIteration)
        self.position += 1
        return self.owner.items[self.position - 1]

    def parts(self) -> Iterable[Value]:
        return _whole(self.owner)

    def rebuild_empty(self, emitter: Emitter) -> str:
        if self.owner is None:
            return "iter([])"
        owner = emitter.rebuild(self.owner.holder or self.owner)
        return f"iter({owner})" if self.owner.holder is None else f"list.__iter__({owner})"

    def fill(self, emitter: Emitter, name: str) -> None:
        if self.owner is not None and self.position:
            emitter.position(f"{name}.__setstate__({self.position})")


class ReversedListIterator(IteratorValue):
    """An iterator from a list's end to its beginning."""

    kind: type = type(reversed([]))
    two_phase = True

    def __init__(self, owner: ListValue) -> None:
        self._owner: ListValue | None = owner
        self._position = len(owner.known_items()) - 1

    def next(self, tracer: Tracer) -> Value:
        if self._owner is None or not 0 <= self._position < len(self._owner.items):
            self._owner = None
            tracer.throw(StopIteration)
        self._position -= 1
        return self._owner.items[self._position + 1]

    def parts(self) -> Iterable[Value]:
        return _whole(self._owner)

    def rebuild_empty(self, emitter: Emitter) -> str:
        if self._owner is None:
            return "reversed([])"
        if self._position >= len(self._owner.items):
            emitter.tracer.stop("escape", "a list became shorter than the place of an iterator over it")
        owner = emitter.rebuild(self._owner.holder or self._owner)
        return f"reversed({owner})" if self._owner.holder is None else f"list.__reversed__({owner})"

    def fill(self, emitter: Emitter, name: str) -> None:
        if self._owner is not None:
            emitter.position(f"{name}.__setstate__({self._position})")


class RangeIterator(IteratorValue):
    """An iterator over a range."""

    kind = type(iter(range(0)))

    def __init__(self, numbers: range) -> None:
        self.rest = numbers

    def next(self, tracer: Tracer) -> Value:
        if not self.rest:
            tracer.throw(StopIteration)
        number, self.rest = self.rest[0], self.rest[1:]
        return ConstantValue(number)

    def rebuild(self, emitter: Emitter) -> str:
        rest = self.rest
        arguments = f"{rest.start}, {rest.stop}, {rest.step}"
        return f"iter(range({arguments}))"


class SetIterator(IteratorValue):
    """An iterator over a set, which notices when elements come or go."""

    kind: type = type(iter(set()))

    def __init__(self, owner: SetValue) -> None:
        self._items = owner.known_elements()
        self._owner: SetValue | None = owner
        self._version, self._position = owner.version, 0

    def next(self, tracer: Tracer) -> Value:
        if self._owner is None:
            tracer.throw(StopIteration)
        if self._is_changed(tracer, self._owner):
            tracer.throw(RuntimeError, "Set changed size during iteration")
        if self._position >= len(self._items):
            self._owner = None
            tracer.throw(StopIteration)
        self._position += 1
        return self._items[self._position - 1]

    def _is_changed(self, tracer: Tracer, owner: SetValue) -> bool:
        if owner.version == self._version:
            return False
        if len(owner.keys) == len(self._items):
            tracer.stop("call_unknown", "the elements of a set were exchanged during iteration")
        return True

    def parts(self) -> Iterable[Value]:
        return [*_whole(self._owner), *(self._items if self._owner is not None else ())]

    def rebuild(self, emitter: Emitter) -> str:
        owner = self._owner
        over = emitter.inject(standing.over_set, "over_set")
        if owner is None:
            return f"{over}(set())"
        if self._is_changed(emitter.tracer, owner):
            return f"{emitter.inject(standing.over_changed, 'over_changed')}({over}, set)"
        container = emitter.settled(owner)
        if owner.source is not None and not owner.mutated:  # guards say in which order
            kind = owner.kind.__name__
            advanced = emitter.inject(standing.advanced, "advanced")
            return emitter.name(self, f"{advanced}({kind}.__iter__({container}), {self._position})")
        taken, rest = self._items[: self._position], self._items[self._position :]
        texts = [TupleValue(items).rebuild(emitter) for items in (taken, rest)]
        return emitter.name(self, f"{over}({container}, {', '.join(texts)})")


class DequeIterator(IteratorValue):
    """An iterator over a deque in either direction, which notices changes."""

    def __init__(self, owner: DequeValue, backwards: bool) -> None:
        self._backwards = backwards
        self.kind = type(reversed(deque()) if backwards else iter(deque()))
        self._items = list(owner.known_items())[:: -1 if backwards else 1]
        self._owner, self._version, self._position = owner, owner.version, 0

    def next(self, tracer: Tracer) -> Value:
        if self._position >= len(self._items):
            tracer.throw(StopIteration)
        if self._owner.version != self._version:
            self._items = []
            tracer.throw(RuntimeError, "deque mutated during iteration")
        self._position += 1
        return self._items[self._position - 1]

    def parts(self) -> Iterable[Value]:
        return _whole(self._owner)

    def rebuild(self, emitter: Emitter) -> str:
        over, backwards = emitter.inject(standing.over_deque, "over_deque"), self._backwards
        if self._position >= len(self._items):
            return f"{over}({emitter.inject(deque, 'deque')}(), 0, {backwards})"
        if self._owner.version != self._version:
            changed = emitter.inject(standing.over_changed, "over_changed")
            return f"{changed}({over}, {emitter.inject(deque, 'deque')}, 0, {backwards})"
        return emitter.name(self, f"{over}({emitter.settled(self._owner)}, {self._position}, {backwards})")


class ZipIterator(IteratorValue):
    """``zip(*iterables, strict=...)``."""

    kind = zip

    def __init__(self, iterators: list[Value], strict: bool) -> None:
        self.iterators, self.strict = iterators, strict

    def next(self, tracer: Tracer) -> Value:
        items: list[Value] = []
        for number, iterator in enumerate(self.iterators):
            item = protocols.next_or_none(tracer, iterator)
            if item is None:
                if self.strict:
                    self._check_lengths(tracer, number)
                tracer.throw(StopIteration)
            items.append(item)
        if not items:
            tracer.throw(StopIteration)
        return TupleValue(items)

    def _check_lengths(self, tracer: Tracer, ended: int) -> None:
        """Complain unless all ended together: number ``ended`` is the first that did."""
        if ended:
            before = " " if ended == 1 else "s 1-"
            tracer.throw(ValueError, f"zip() argument {ended + 1} is shorter than argument{before}{ended}")
        for number, iterator in enumerate(self.iterators[1:], 1):
            if protocols.next_or_none(tracer, iterator) is not None:
                before = " " if number == 1 else "s 1-"
                tracer.throw(
                    ValueError, f"zip() argument {number + 1} is longer than argument{before}{number}"
                )

    def parts(self) -> Iterable[Value]:
        return self.iterators

    def rebuild(self, emitter: Emitter) -> str:
        strict = ", strict=True" if self.strict else ""
        return f"zip({_all_taken(emitter, self.iterators)}{strict})"


class MapIterator(IteratorValue):
    """``map(function, *iterables)``."""

    kind = map

    def __init__(self, function: Value, iterators: list[Value]) -> None:
        self.function, self.iterators = function, iterators

    def next(self, tracer: Tracer) -> Value:
        return protocols.call(tracer, self.function, [it.realize().next(tracer) for it in self.iterators])

    def parts(self) -> Iterable[Value]:
        return [self.function, *self.iterators]

    def rebuild(self, emitter: Emitter) -> str:
        return f"map({emitter.rebuild(self.function)}, {_all_taken(emitter, self.iterators)})"


class FilterIterator(IteratorValue):
    """``filter(function, iterable)``."""

    kind = filter

    def __init__(self, function: Value, iterator: Value) -> None:
        self.function, self.iterator = function, iterator

    def next(self, tracer: Tracer) -> Value:
        while True:
            item = self.iterator.realize().next(tracer)
            verdict = item if is_none(self.function) else protocols.call(tracer, self.function, [item])
            if protocols.truth(tracer, verdict):
                return item

    def parts(self) -> Iterable[Value]:
        return (self.function, self.iterator)

    def rebuild(self, emitter: Emitter) -> str:
        return f"filter({emitter.rebuild(self.function)}, {taken_along(emitter, self.iterator)})"


class EnumerateIterator(IteratorValue):
    """``enumerate(iterable, start)``."""

    kind = enumerate

    def __init__(self, iterator: Value, start: int) -> None:
        self.iterator, self.count = iterator, start

    def next(self, tracer: Tracer) -> Value:
        item = self.iterator.realize().next(tracer)
        self.count += 1
        return TupleValue([ConstantValue(self.count - 1), item])

    def parts(self) -> Iterable[Value]:
        return (self.iterator,)

    def rebuild(self, emitter: Emitter) -> str:
        return f"enumerate({taken_along(emitter, self.iterator)}, {self.count})"


class CallIterator(IteratorValue):
    """``iter(function, sentinel)``."""

    kind: type = type(iter(int, 1))

    def __init__(self, function: Value, sentinel: Value) -> None:
        self.function: Value | None = function
        self.sentinel = sentinel

    def next(self, tracer: Tracer) -> Value:
        if self.function is None:
            tracer.throw(StopIteration)
        result = protocols.call(tracer, self.function, [])
        if protocols.equal(tracer, self.sentinel, result):
            self.function = None
            tracer.throw(StopIteration)
        return result

    def parts(self) -> Iterable[Value]:
        return () if self.function is None else (self.function, self.sentinel)

    def rebuild(self, emitter: Emitter) -> str:
        if self.function is None:
            return f"{emitter.inject(standing.exhausted_call, 'exhausted_call')}()"
        return f"iter({emitter.rebuild(self.function)}, {emitter.rebuild(self.sentinel)})"


def _whole(owner: Value | None) -> tuple[Value, ...]:
    """What an iterator goes over, as the object that is to be built."""
    return () if owner is None else (owner.holder or owner,)


_SELF = (lambda self: self).__code__.co_code


def taken_along(emitter: Emitter, iterator: Value) -> str:
    """An iterator as an argument of one that takes from it, which asks for its iterator once more."""
    iterator = iterator.realize()
    method = linked.lookup_attribute(iterator.python_type(), "__iter__")
    if isinstance(method, types.FunctionType) and method.__code__.co_code != _SELF:
        what = iterator.describe()
        emitter.tracer.stop("escape", f"cannot rebuild an iterator over {what}, which has an __iter__ of its own")
    return emitter.rebuild(iterator)


def _all_taken(emitter: Emitter, iterators: Iterable[Value]) -> str:
    return ", ".join(taken_along(emitter, each) for each in iterators)


def reversed_iterator(tracer: Tracer, value: Value) -> Value:
    """``reversed(value)``."""
    value = value.realize()
    kind = value.python_type()
    if isinstance(value, TupleValue):
        return SequenceIterator(value.known_items()[::-1], reversed)
    if isinstance(value, ConstantValue) and isinstance(value.content, range):
        return RangeIterator(value.content[::-1])
    if isinstance(value, ConstantValue) and isinstance(value.content, (str, bytes)):
        return SequenceIterator([ConstantValue(item) for item in _backwards(value.content)], reversed)
    if hasattr(kind, "__reversed__"):
        return protocols.call_attr(tracer, value, "__reversed__").realize()
    if hasattr(kind, "__len__") and hasattr(kind, "__getitem__"):
        return tracer.inline(_function(sequences.reverse_by_index), [value], {})
    tracer.throw(TypeError, f"{name_in_c(kind)!r} object is not reversible")


def _backwards(content: Any) -> Any:
    return content[::-1]


def _function(stand_in: Any) -> types.FunctionType:
    assert isinstance(stand_in, types.FunctionType)
    return stand_in
