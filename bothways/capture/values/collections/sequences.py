"""What lists, tuples and deques have in common: elements, the guard on their number, comparison and search.

An external sequence wraps its elements lazily and guards its length only when the program depends on it;
reading one element by a known position only guards that the position exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from bothways.capture.guards.sources import BaseItem, Item, Length, Reading, Source
from bothways.capture.values.core import linked, protocols, wording
from bothways.capture.values.core.base import LazyValue, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import reject_attribute
from bothways.capture.values.core.numbers import NumberValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator


def content(value: Value) -> Value:
    """The built-in container inside an instance of a user's subclass of one; else the Value itself."""
    value = value.realize()
    return getattr(value, "payload", None) or value


def unchanged(before: Value, after: Value) -> bool:
    """Whether two Values are surely the same object: the same Value, or what was found behind it."""
    return before is after or _seen(before) is _seen(after)


def _seen(value: Value) -> Value:
    return value.if_realized() if isinstance(value, LazyValue) else value


def length_of(source: Source, base: type | None) -> Source:
    """Where a container's length is found, of the built-in kind ``base`` when its own class is a subclass of that."""
    return Length(source) if base is None else Reading(source, f"{base.__name__}.__len__({{}})")


def length_since(tracer: Tracer, source: Source | None, before: int, added: int) -> Value | None:
    """The length of a container that had another one at other calls, and of which nothing else is known; else None."""
    symbol = None if source is None else tracer.symbols.number(before, source)
    if symbol is None:  # then nothing is guarded here: the length follows from what is guarded of the elements or keys
        return None
    length = linked.NumberValue(symbol, source)
    return protocols.binary(tracer, "+", length, ConstantValue(added)) if added else length


def class_text(tracer: Tracer, kind: type) -> str:
    """A built-in class as generated code names it."""
    return kind.__name__ if kind.__module__ == "builtins" else tracer.inject(kind, kind.__name__).key


def has_state(kind: type) -> bool:
    """Whether instances of a kind of sequence carry attributes beside the elements: a user's subclass."""
    return kind.__dictoffset__ != 0


class SequenceValue(Value):
    """Elements in order; ``base`` is the built-in type to go through when the object is of a subclass."""

    WORD: ClassVar[str]  # what messages call it
    base: type | None = None
    tracer: Tracer | None = (
        None  # of external sequences, whose guards may be asked for where no tracer is passed
    )

    def __init__(self, items: list[Value], source: Source | None = None) -> None:
        self.items = items
        self.source = source
        self.original: list[Value] = []
        self.version = 0
        self._length_known = True
        self._reach = 0  # positions below it are known to exist

    def _make_external(self, tracer: Tracer, obj: Any, source: Source, builtin: Any) -> None:
        """Take over the elements of an object that existed before the call."""
        self.source, self.tracer = source, tracer
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        if (not isinstance(obj, tuple) and type(obj) is not builtin) or has_state(type(obj)):
            self.base = builtin
            name = class_text(tracer, builtin)
            elements = builtin.__iter__(obj)
            self.items = [tracer.wrap(x, BaseItem(source, name, i)) for i, x in enumerate(elements)]
        else:
            self.items = [tracer.wrap(x, Item(source, i)) for i, x in enumerate(obj)]
            tracer.remember(obj, self)
        self.original = list(self.items)
        self._length_known = False

    # Guards.

    def depend_on_length(self) -> None:
        if self._length_known:
            return
        self._length_known = True
        assert self.tracer is not None and self.source is not None
        if self.base is not None:
            self.tracer.guard("{c0}.__len__({s0}) == {c1}", self.source, self.base, len(self.original))
        elif self.original:
            self.tracer.guard("len({s0}) == {c0}", self.source, len(self.original))
        else:
            self.tracer.guard("not {s0}", self.source)

    def depend_on_index(self, index: int) -> None:
        """Rely on the element at ``index``, and on the length only if the index alone does not decide."""
        if self._length_known or not 0 <= index < len(self.original):
            self.depend_on_length()
        elif index >= self._reach:
            self._reach = index + 1
            assert self.tracer is not None and self.source is not None
            if self.base is not None:
                self.tracer.guard("{c0}.__len__({s0}) > {c1}", self.source, self.base, index)
            else:
                self.tracer.guard("len({s0}) > {c0}", self.source, index)

    def known_items(self) -> list[Value]:
        """The elements, when the program depends on how many there are."""
        self.depend_on_length()
        return self.items

    def overrides_functions(self) -> bool:
        return bool([item for item in self.items if item.overrides_functions()])

    def items_for_graph(self, tracer: Tracer) -> list[Value]:
        return self.look_at_all(tracer)

    def _write(self, tracer: Tracer) -> list[Value]:
        """The elements, for a change that depends on how many there are."""
        self.look_at_all(tracer)
        self.touch(tracer)
        return self.items

    def touch(self, tracer: Tracer) -> None:
        """Note that the sequence is about to change."""
        self.version += 1
        self.note_change(tracer)

    def _added(self) -> int:
        """How many elements the call has put behind those that were there."""
        return len(self.items) - len(self.original)

    def look_at_all(self, tracer: Tracer) -> list[Value]:
        """The elements, for code that goes through them; what grows from call to call is not for a program."""
        before = self._own_length()
        grows = before is not None and tracer.symbols.length_changes(len(self.original), before)
        if grows and not tracer.options.fullgraph:
            tracer.stop("value_changes", f"{self.source} has another length at each call")
        return self.known_items()

    def _own_length(self) -> Source | None:
        """Where the length before the call is found, as long as nothing depends on it."""
        return length_of(self.source, self.base) if self.source and not self._length_known else None

    # Slots.

    def length(self, tracer: Tracer) -> int:
        return len(self.known_items())

    def length_value(self, tracer: Tracer) -> Value | None:
        return length_since(tracer, self._own_length(), len(self.original), self._added())

    def truth(self, tracer: Tracer) -> bool:
        if self._length_known or not self.items:
            return bool(self.known_items())
        if self.original and not self._added():
            self.depend_on_index(0)
        return True

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return any(protocols.equal(tracer, element, item) for element in self.known_items())

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return linked.class_attribute(tracer, self, name)

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        reject_attribute(tracer, self, name)

    def subscript(self, tracer: Tracer, key: Value) -> int | slice:
        """A subscript as Python's sequences take it."""
        key = key.realize()
        known = isinstance(key, ConstantValue) and hasattr(key.content, "__index__")
        if not known and not isinstance(key, linked.SliceValue) and not hasattr(key.python_type(), "__index__"):
            tracer.throw(TypeError, self._bad_index(wording.name_in_c(key.python_type())))
        if isinstance(key, NumberValue) and self.source is not None and tracer.options.is_turn:
            tracer.stop("value_changes", f"each turn of a loop asks {self.describe()} for another element")
        index: int | slice = protocols.index_constant(tracer, key)
        return index

    def _bad_index(self, kind: str) -> str:
        return f"{self.WORD} indices must be integers or slices, not {kind}"

    def position(self, tracer: Tracer, index: int, message: str) -> int:
        """A valid position for an index, or the captured IndexError."""
        if index < -self._added():
            self.look_at_all(tracer)
        elif index >= 0:
            self.depend_on_index(index)
        position = index + len(self.items) if index < 0 else index
        if not 0 <= position < len(self.items):
            tracer.throw(IndexError, message)
        return position

    def repeat(self, tracer: Tracer, other: Value) -> list[Value] | None:
        """The elements ``other`` times; None when the other operand may know better."""
        kind = other.python_type()
        is_number = isinstance(other, (ConstantValue, NumberValue))
        if not hasattr(kind, "__index__"):
            if is_number or not hasattr(kind, "__rmul__"):
                tracer.throw(TypeError, f"can't multiply sequence by non-int of type {wording.name_in_c(kind)!r}")
            return None
        if not is_number and hasattr(kind, "__rmul__"):
            return None  # a tensor takes a sequence as an operand of its own
        return self.known_items() * protocols.as_index(tracer, other)

    def compare(self, tracer: Tracer, op: Operator, other: SequenceValue) -> Value:
        """Lexicographic comparison: the first elements that differ decide, else the lengths."""
        mine, theirs = self.known_items(), other.known_items()
        if op.symbol in ("==", "!=") and len(mine) != len(theirs):
            return ConstantValue(op.symbol == "!=")
        for left, right in zip(mine, theirs, strict=False):
            if not protocols.equal(tracer, left, right):
                if op.symbol in ("==", "!="):
                    return ConstantValue(op.symbol == "!=")
                return protocols.compare(tracer, op.symbol, left, right)
        return ConstantValue(op.function(len(mine), len(theirs)))

    def find(self, tracer: Tracer, item: Value, start: Value | None, stop: Value | None) -> int | None:
        """The position of an element equal to ``item`` between two bounds, as ``index`` methods take them."""
        items = self.known_items()
        bounds = slice(
            *(None if part is None else protocols.as_index(tracer, part) for part in (start, stop))
        )
        for position in range(*bounds.indices(len(items))):
            if position < len(items) and protocols.equal(tracer, items[position], item):
                return position
        return None

    def index(self, tracer: Tracer, item: Value, start: Value | None = None, stop: Value | None = None) -> Value:
        place = self.find(tracer, item, start, stop)
        if place is None:
            tracer.throw(ValueError, wording.not_found(tracer, f"{self.WORD}.index", item))
        return ConstantValue(place)

    def count(self, tracer: Tracer, item: Value) -> Value:
        return ConstantValue(sum(protocols.equal(tracer, element, item) for element in self.known_items()))

    def _reprs(self, tracer: Tracer) -> Iterator[str]:
        return (protocols.text(tracer, element, "repr") for element in self.known_items())

    def constants(self) -> list[Any]:
        return [item.realize().constant() for item in self.known_items()]
