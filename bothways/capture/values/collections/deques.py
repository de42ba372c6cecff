"""Deques: elements in order with a bounded length, changed at both ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from bothways.capture.guards.sources import Source
from bothways.capture.values.collections.iterators import DequeIterator
from bothways.capture.values.collections.sequences import SequenceValue, content, unchanged
from bothways.capture.values.core import protocols, wording
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.methods import Method, call_from_table, none

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter


class DequeValue(SequenceValue):
    """A ``collections.deque``."""

    WORD = "deque"
    _printing = False

    def __init__(self, items: list[Value], maxlen: int | None = None, source: Source | None = None) -> None:
        super().__init__(items[-maxlen:] if maxlen else [] if maxlen == 0 else items, source)
        self.maxlen = maxlen
        self._maxlen_known = True

    @classmethod
    def external(cls, tracer: Tracer, obj: deque[Any], source: Source) -> DequeValue:
        value = cls([], obj.maxlen)
        value._make_external(tracer, obj, source, deque)
        value._maxlen_known = False
        return value

    def python_type(self) -> type:
        return deque

    def constant(self) -> Any:
        return deque(self.constants(), self._bound())

    def hash_key(self, tracer: Tracer) -> Hashable:
        tracer.throw(TypeError, "unhashable type: 'collections.deque'")

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        return ConstantValue(self._bound()) if name == "maxlen" else super().get_attr(tracer, name)

    def _bound(self) -> int | None:
        """The maximal length, when the program depends on it."""
        if not self._maxlen_known:
            self._maxlen_known = True
            assert self.tracer is not None and self.source is not None
            self.tracer.guard("{s0}.maxlen == {c0}", self.source, self.maxlen)
        return self.maxlen

    def _bad_index(self, kind: str) -> str:
        return f"sequence index must be integer, not {kind!r}"

    def _position(self, tracer: Tracer, key: Value) -> int:
        index = self.subscript(tracer, key)
        if isinstance(index, slice):
            tracer.throw(TypeError, self._bad_index("slice"))
        return self.position(tracer, index, "deque index out of range")

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return self.items[self._position(tracer, key)]

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        position = self._position(tracer, key)
        self.depend_on_length()
        self.touch(tracer)
        self.version -= 1  # iterators do not mind
        self.items[position] = value

    def del_item(self, tracer: Tracer, key: Value) -> None:
        position = self._position(tracer, key)
        del self._write(tracer)[position]

    def iterate(self, tracer: Tracer) -> Value:
        self.look_at_all(tracer)
        return DequeIterator(self, backwards=False)

    def text(self, tracer: Tracer, conversion: str) -> str:
        if self._printing:
            return "[...]"
        self._printing = True
        try:
            bound = "" if self._bound() is None else f", maxlen={self.maxlen}"
            return f"deque([{', '.join(self._reprs(tracer))}]{bound})"
        finally:
            self._printing = False

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        match op.symbol:
            case "+=":
                self._extend(tracer, other)
                return self
            case "*" | "*=":
                items = self.repeat(tracer, other)
                if items is None or op.symbol == "*":
                    return None if items is None else DequeValue(items, self._bound())
                self._write(tracer)[:] = DequeValue(items, self._bound()).items
                return self
        operand = content(other)
        if isinstance(operand, DequeValue):
            if op.symbol in protocols.COMPARE:
                left, right = (operand, self) if reflected else (self, operand)
                return left.compare(tracer, op, right)
            if op.symbol == "+" and not reflected:
                return DequeValue(self.known_items() + operand.known_items(), self._bound())
        elif op.symbol == "+" and not reflected and not hasattr(other.python_type(), "__radd__"):
            name = wording.name_in_c(other.python_type())
            tracer.throw(TypeError, f'can only concatenate deque (not "{name}") to deque')
        return None

    # Methods.

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        return call_from_table(tracer, self, self.METHODS, deque(), name, args, kwargs)

    def _append(self, tracer: Tracer, item: Value) -> Value:
        if self._bound() is not None:
            self.look_at_all(tracer)
        self.touch(tracer)
        self.items.append(item)
        if self.maxlen is not None and len(self.items) > self.maxlen:
            del self.items[0]
        return none()

    def _appendleft(self, tracer: Tracer, item: Value) -> Value:
        self._write(tracer).insert(0, item)
        if self._bound() is not None and len(self.items) > (self.maxlen or 0):
            del self.items[-1]
        return none()

    def _extend(self, tracer: Tracer, iterable: Value) -> Value:
        return self._each(tracer, iterable, DequeValue._append)

    def _extendleft(self, tracer: Tracer, iterable: Value) -> Value:
        return self._each(tracer, iterable, DequeValue._appendleft)

    def _each(self, tracer: Tracer, iterable: Value, add: Method) -> Value:
        known = content(iterable)
        items: Iterable[Value] = (
            list(known.look_at_all(tracer))
            if isinstance(known, SequenceValue)
            else protocols.elements(tracer, protocols.iterate(tracer, iterable))
        )
        for item in items:
            add(self, tracer, item)
        return none()

    def _init(self, tracer: Tracer, iterable: Value | None = None, maxlen: Value | None = None) -> Value:
        bound = None if maxlen is None else protocols.as_constant(tracer, maxlen)
        tracer.run_const(deque, (), bound)  # complains about what is no length
        if self.source is not None and bound != self._bound():
            tracer.stop("mutation_unknown", "cannot give an existing deque another maximal length")
        self.maxlen = bound
        self._write(tracer).clear()
        return self._extend(tracer, iterable) if iterable is not None else none()

    def _pop(self, tracer: Tracer) -> Value:
        return self._popped(tracer, -1)

    def _popleft(self, tracer: Tracer) -> Value:
        return self._popped(tracer, 0)

    def _popped(self, tracer: Tracer, position: int) -> Value:
        if not self.known_items():
            tracer.throw(IndexError, "pop from an empty deque")
        return self._write(tracer).pop(position)

    def _clear(self, tracer: Tracer) -> Value:
        self._write(tracer).clear()
        return none()

    def _copy(self, tracer: Tracer) -> Value:
        return DequeValue(list(self.known_items()), self._bound())

    def _insert(self, tracer: Tracer, index: Value, item: Value) -> Value:
        where = protocols.as_index(tracer, index)
        if self._bound() is not None and len(self.known_items()) == self.maxlen:
            tracer.throw(IndexError, "deque already at its maximum size")
        self._write(tracer).insert(where, item)
        return none()

    def _remove(self, tracer: Tracer, item: Value) -> Value:
        place = self.find(tracer, item, None, None)
        if place is None:
            tracer.throw(ValueError, wording.not_found(tracer, "deque.remove", item))
        del self._write(tracer)[place]
        return none()

    def _reverse(self, tracer: Tracer) -> Value:
        self._write(tracer).reverse()
        return none()

    def _rotate(self, tracer: Tracer, steps: Value | None = None) -> Value:
        count = 1 if steps is None else protocols.as_index(tracer, steps)
        turned = deque(self.known_items())
        turned.rotate(count)
        self._write(tracer)[:] = turned
        return none()

    def _reversed(self, tracer: Tracer) -> Value:
        return DequeIterator(self, backwards=True)

    METHODS: ClassVar[dict[str, Method]] = {
        "append": _append,
        "appendleft": _appendleft,
        "extend": _extend,
        "extendleft": _extendleft,
        "pop": _pop,
        "popleft": _popleft,
        "clear": _clear,
        "copy": _copy,
        "__copy__": _copy,
        "insert": _insert,
        "index": SequenceValue.index,
        "count": SequenceValue.count,
        "remove": _remove,
        "reverse": _reverse,
        "rotate": _rotate,
        "__init__": _init,
        "__reversed__": _reversed,
    }

    # What is left of it.

    def _tail(self) -> list[Value] | None:
        """What was appended, when that is all that happened to an external deque."""
        kept = len(self.original)
        if len(self.items) >= kept and all(map(unchanged, self.original, self.items)):
            return self.items[kept:]
        return None

    def parts(self) -> Iterable[Value]:
        tail = self._tail() if self.source is not None else None
        return self.items if tail is None else tail

    def rebuild(self, emitter: Emitter) -> str:
        bound = "" if self.maxlen is None else f", {self.maxlen}"
        return f"{emitter.inject(deque, 'deque')}([{emitter.rebuild_all(self.items)}]{bound})"

    def rebuild_empty(self, emitter: Emitter) -> str:
        bound = "" if self.maxlen is None else f"(), {self.maxlen}"
        return f"{emitter.inject(deque, 'deque')}({bound})"

    def fill(self, emitter: Emitter, name: str) -> None:
        emitter.build(f"{name}.extend([{emitter.rebuild_all(self.items)}])")

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None
        name = emitter.read(self.source)
        method = f"{name}.{{}}(" if self.base is None else f"{emitter.inject(deque, 'deque')}.{{}}({name}, "
        tail = self._tail()
        if tail is None:
            emitter.effect(method.format("clear").removesuffix(", ") + ")")
        added = self.items if tail is None else tail
        if added:
            emitter.effect(f"{method.format('extend')}[{emitter.rebuild_all(added)}])")
