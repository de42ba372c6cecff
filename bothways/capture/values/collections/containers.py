"""Lists and tuples (named ones, sizes and structured results included).

Each knows its elements as Values. External ones are wrapped lazily, remember what they held before the call,
and write back only the difference.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from bothways.capture.guards.sources import Source
from bothways.capture.values.collections.sequences import SequenceValue, content, has_state, unchanged
from bothways.capture.values.collections.sorting import sort_values
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import Method, call_from_table, none
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.core.wording import name_in_c

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter


class ListValue(SequenceValue):
    """A list."""

    WORD = "list"
    _printing = False

    @classmethod
    def external(cls, tracer: Tracer, obj: list[Any], source: Source) -> ListValue:
        value = cls([])
        value._make_external(tracer, obj, source, list)
        return value

    def python_type(self) -> type:
        return list

    def constant(self) -> Any:
        return self.constants()

    def hash_key(self, tracer: Tracer) -> Hashable:
        tracer.throw(TypeError, "unhashable type: 'list'")

    # Reading.

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        index = self.subscript(tracer, key)
        if isinstance(index, slice):
            return ListValue(self.look_at_all(tracer)[index])
        return self.items[self.position(tracer, index, "list index out of range")]

    def iterate(self, tracer: Tracer) -> Value:
        self.look_at_all(tracer)
        return linked.ListIterator(self)

    def text(self, tracer: Tracer, conversion: str) -> str:
        if self._printing:
            return "[...]"
        self._printing = True
        try:
            return f"[{', '.join(self._reprs(tracer))}]"
        finally:
            self._printing = False

    # Changing.

    def append_item(self, tracer: Tracer, item: Value) -> None:
        self.touch(tracer)
        self.items.append(item)

    def extend_with(self, tracer: Tracer, iterable: Value) -> None:
        known = content(iterable)
        if isinstance(known, SequenceValue):
            self.touch(tracer)
            self.items.extend(list(known.look_at_all(tracer)))
            return
        for item in protocols.elements(tracer, protocols.iterate(tracer, iterable)):
            self.append_item(tracer, item)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        index = self.subscript(tracer, key)
        if isinstance(index, slice):
            items = _sliceable(tracer, value)
            tracer.run_const(self._write(tracer).__setitem__, index, items)
            return
        position = self.position(tracer, index, "list assignment index out of range")
        self.touch(tracer)
        self.items[position] = value

    def del_item(self, tracer: Tracer, key: Value) -> None:
        index = self.subscript(tracer, key)
        if isinstance(index, int):
            index = self.position(tracer, index, "list assignment index out of range")
        del self._write(tracer)[index]

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        match op.symbol:
            case "+=":
                self.extend_with(tracer, other)
                return self
            case "*=":
                items = self.repeat(tracer, other)
                if items is not None:
                    self._write(tracer)[:] = items
                return self if items is not None else None
            case "*":
                items = self.repeat(tracer, other)
                return ListValue(items) if items is not None else None
        operand = content(other)
        if isinstance(operand, ListValue):
            left, right = (operand, self) if reflected else (self, operand)
            if op.symbol in protocols.COMPARE:
                return left.compare(tracer, op, right)
            if op.symbol == "+":
                return ListValue(left.known_items() + right.known_items())
        elif op.symbol == "+" and not reflected:
            _cannot_concatenate(tracer, "list", other)
        return None

    # Methods.

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return call_from_table(tracer, self, self.METHODS, [], name, args, kwargs)

    def _append(self, tracer: Tracer, item: Value) -> Value:
        self.append_item(tracer, item)
        return none()

    def _extend(self, tracer: Tracer, iterable: Value) -> Value:
        self.extend_with(tracer, iterable)
        return none()

    def _init(self, tracer: Tracer, iterable: Value | None = None) -> Value:
        self._write(tracer).clear()
        return self._extend(tracer, iterable) if iterable is not None else none()

    def _insert(self, tracer: Tracer, index: Value, item: Value) -> Value:
        where = protocols.as_index(tracer, index)
        self._write(tracer).insert(where, item)
        return none()

    def _pop(self, tracer: Tracer, index: Value | None = None) -> Value:
        where = -1 if index is None else protocols.as_index(tracer, index)
        if not self.known_items():
            tracer.throw(IndexError, "pop from empty list")
        return self._write(tracer).pop(self.position(tracer, where, "pop index out of range"))

    def _remove(self, tracer: Tracer, item: Value) -> Value:
        place = self.find(tracer, item, None, None)
        if place is None:
            tracer.throw(ValueError, "list.remove(x): x not in list")
        del self._write(tracer)[place]
        return none()

    def _clear(self, tracer: Tracer) -> Value:
        self._write(tracer).clear()
        return none()

    def _copy(self, tracer: Tracer) -> Value:
        return ListValue(list(self.look_at_all(tracer)))

    def _reverse(self, tracer: Tracer) -> Value:
        self._write(tracer).reverse()
        return none()

    def _sort(self, tracer: Tracer, *, key: Value | None = None, reverse: Value | None = None) -> Value:
        ordered = sort_values(tracer, list(self.known_items()), key, reverse)
        self._write(tracer)[:] = ordered
        return none()

    def _reversed(self, tracer: Tracer) -> Value:
        return linked.ReversedListIterator(self)

    METHODS: ClassVar[dict[str, Method]] = {
        "append": _append,
        "extend": _extend,
        "insert": _insert,
        "pop": _pop,
        "remove": _remove,
        "index": SequenceValue.index,
        "count": SequenceValue.count,
        "clear": _clear,
        "copy": _copy,
        "reverse": _reverse,
        "sort": _sort,
        "__init__": _init,
        "__reversed__": _reversed,
    }

    # What is left of it.

    def _difference(self) -> tuple[dict[int, Value], list[Value]] | None:
        """The positions that were given something else and what was appended; None for any other change."""
        kept = len(self.original)
        if len(self.items) < kept:
            return None
        pairs = enumerate(zip(self.original, self.items, strict=False))
        assigned = {index: new for index, (old, new) in pairs if not unchanged(old, new)}
        if self._length_known and 2 * len(assigned) > kept:
            return None
        return assigned, self.items[kept:]

    def parts(self) -> Iterable[Value]:
        difference = self._difference() if self.source is not None else None
        return self.items if difference is None else [*difference[0].values(), *difference[1]]

    def rebuild(self, emitter: Emitter) -> str:
        return f"[{emitter.rebuild_all(self.items)}]"

    def rebuild_empty(self, emitter: Emitter) -> str:
        return "[]"

    def fill(self, emitter: Emitter, name: str) -> None:
        emitter.build(f"{name}.extend([{emitter.rebuild_all(self.items)}])")

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        difference = self._difference()
        if difference is None:
            self._effect(emitter, name, "__setitem__", ":", f"[{emitter.rebuild_all(self.items)}]")
            return
        assigned, tail = difference
        for index, item in assigned.items():
            self._effect(emitter, name, "__setitem__", str(index), emitter.rebuild(item))
        if len(tail) == 1:
            self._effect(emitter, name, "append", emitter.rebuild(tail[0]))
        elif tail:
            self._effect(emitter, name, "extend", f"[{emitter.rebuild_all(tail)}]")

    def _effect(self, emitter: Emitter, name: str, method: str, *arguments: str) -> None:
        if self.base is not None:
            spelled = ["slice(None)" if argument == ":" else argument for argument in arguments]
            emitter.effect(f"list.{method}({', '.join([name, *spelled])})")
        elif method == "__setitem__":
            emitter.effect(f"{name}[{arguments[0]}] = {arguments[1]}")
        else:
            emitter.effect(f"{name}.{method}({', '.join(arguments)})")


def _sliceable(tracer: Tracer, value: Value) -> list[Value]:
    try:
        iterator = protocols.iterate(tracer, value)
    except Raised as error:
        if issubclass(error.value.python_type(), TypeError):
            tracer.run_const([].__setitem__, slice(0, 0), None)  # raises what this version of Python says
        raise
    return list(protocols.elements(tracer, iterator))


def _cannot_concatenate(tracer: Tracer, word: str, other: Value) -> None:
    """Raise Python's TypeError, unless the other operand may know how to be added."""
    kind = other.python_type()
    if isinstance(other, ConstantValue) or not hasattr(kind, "__radd__"):
        tracer.throw(TypeError, f'can only concatenate {word} (not "{name_in_c(kind)}") to {word}')


# What joining and repeating sizes gives differs between versions of PyTorch, so it is asked.
_SUM_OF_SIZES = type(torch.Size(()) + ())
_PRODUCT_OF_SIZES = type(torch.Size(()) * 1)


class TupleValue(SequenceValue):
    """A tuple, or an instance of ``kind``: a size, a named tuple, a structured result of PyTorch."""

    WORD = "tuple"

    def __init__(self, items: list[Value], kind: type = tuple, source: Source | None = None) -> None:
        super().__init__(items, source)
        self.kind = kind

    @classmethod
    def external(cls, tracer: Tracer, obj: tuple[Any, ...], source: Source) -> TupleValue:
        value = cls([], tuple if has_state(type(obj)) else type(obj))
        value._make_external(tracer, obj, source, tuple)
        return value

    def python_type(self) -> type:
        return self.kind

    def constant(self) -> Any:
        return make_tuple(self.kind, self.constants())

    def hash_key(self, tracer: Tracer) -> Hashable:
        return tuple(item.realize().hash_key(tracer) for item in self.known_items())

    def identity(self) -> object:
        if self.kind is tuple and not self.items:
            self.depend_on_length()
            return ()  # there is one empty tuple
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the elements, where they have names."""
        if self.kind in (tuple, torch.Size):
            return ()
        names: Any = getattr(self.kind, "_fields", None) or getattr(self.kind, "__match_args__", ())
        return tuple(names)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in self.fields:
            return self.items[self.position(tracer, self.fields.index(name), "tuple index out of range")]
        return super().get_attr(tracer, name)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        index = self.subscript(tracer, key)
        if isinstance(index, slice):
            return TupleValue(self.known_items()[index], torch.Size if self.kind is torch.Size else tuple)
        return self.items[self.position(tracer, index, "tuple index out of range")]

    def iterate(self, tracer: Tracer) -> Value:
        return linked.SequenceIterator(list(self.known_items()), type(iter(())))

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        name = op.reflected if reflected else op.method
        if self.fields and isinstance(getattr(self.kind, name, None), types.FunctionType):
            result = protocols.call_attr(tracer, self, name, other)  # a named tuple with an operator of its own
            declined = isinstance(result, ConstantValue) and result.content is NotImplemented
            return None if declined else result
        if op.symbol == "*":
            items = self.repeat(tracer, other)
            kind = _PRODUCT_OF_SIZES if self.kind is torch.Size else tuple
            return TupleValue(items, kind) if items is not None else None
        operand = content(other)
        if isinstance(operand, TupleValue):
            left, right = (operand, self) if reflected else (self, operand)
            if op.symbol in protocols.COMPARE:
                return left.compare(tracer, op, right)
            if op.symbol == "+":
                kind = _SUM_OF_SIZES if torch.Size in (self.kind, operand.kind) else tuple
                return TupleValue(left.known_items() + right.known_items(), kind)
        elif op.symbol == "+" and not reflected:
            _cannot_concatenate(tracer, "tuple", other)
        return None

    def text(self, tracer: Tracer, conversion: str) -> str:
        if self.kind is tuple:
            reprs = list(self._reprs(tracer))
            return f"({reprs[0]},)" if len(reprs) == 1 else f"({', '.join(reprs)})"
        if self.kind is torch.Size:
            return f"torch.Size([{', '.join(self._reprs(tracer))}])"
        own_str = inspect.getattr_static(self.kind, "__str__") is not object.__str__
        method = "__str__" if conversion == "str" and own_str else "__repr__"
        if isinstance(getattr(self.kind, method), types.FunctionType):
            return protocols.as_string(tracer, protocols.call_attr(tracer, self, method))
        return super().text(tracer, conversion)

    # Methods.

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        sample = torch.Size() if self.kind is torch.Size else ()
        return call_from_table(tracer, self, self.METHODS, sample, name, args, kwargs)

    def _numel(self, tracer: Tracer) -> Value:
        product: Value = ConstantValue(1)
        for item in self.known_items():
            product = protocols.binary(tracer, "*", product, item)
        return product

    def _init(self, tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        return none()  # a tuple has its content since it was made

    METHODS: ClassVar[dict[str, Method]] = {
        "index": SequenceValue.index,
        "count": SequenceValue.count,
        "numel": _numel,
        "__init__": _init,
    }

    # What is left of it.

    def parts(self) -> Iterable[Value]:
        return self.items

    def rebuild(self, emitter: Emitter) -> str:
        items = emitter.rebuild_all(self.items)
        plain = f"({items},)" if len(self.items) == 1 else f"({items})"
        if self.kind is tuple:
            return plain
        name = emitter.inject(self.kind, self.kind.__name__)
        return f"{name}({items})" if hasattr(self.kind, "_fields") else f"{name}({plain})"


def make_tuple(kind: type, items: list[Any]) -> Any:
    """An instance of a kind of tuple from its elements."""
    if hasattr(kind, "_fields"):
        return tuple.__new__(kind, items)
    return kind(items)
