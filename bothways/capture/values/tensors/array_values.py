"""Arrays of NumPy from outside: their type, shape and dtype are known, their numbers are NumPy's.

What PyTorch makes tensors of them is in ``arrays.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from bothways.capture.guards.sources import Attr, Source
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.source_text import described

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

KNOWN = frozenset({"shape", "ndim", "size", "dtype", "itemsize", "nbytes"})


class ArrayValue(Value):
    """An array from outside. What looks at its numbers stops the capture there."""

    def __init__(self, tracer: Tracer, array: Any, source: Source) -> None:
        self._tracer, self.obj, self.source = tracer, array, source

    @classmethod
    def external(cls, tracer: Tracer, array: Any, source: Source) -> ArrayValue:
        tracer.guard("type({s0}) is {c0}", source, type(array))
        value = cls(tracer, array, source)
        tracer.remember(array, value)
        return value

    def python_type(self) -> type:
        return type(self.obj)

    def describe(self) -> str:
        return "an array of NumPy's"

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in KNOWN:
            assert self.source is not None
            return tracer.wrap(getattr(self.obj, name), Attr(self.source, name))
        if not hasattr(self.obj, name):
            tracer.throw(AttributeError, f"'numpy.ndarray' object has no attribute {name!r}")
        return self._looked_at()

    def length_value(self, tracer: Tracer) -> Value | None:
        if not self.obj.ndim:
            tracer.throw(TypeError, "len() of unsized object")
        return self.get_attr(tracer, "shape").realize().get_item(tracer, ConstantValue(0))

    def _looked_at(self, *args: Any, **kwargs: Any) -> NoReturn:
        shown = f"{self.source} is {described(self.python_type())}"
        self._tracer.stop("object_unknown", f"{shown}, and only C code knows what it holds")

    set_attr = del_attr = call_method = get_item = set_item = del_item = iterate = length = contains = _looked_at
    truth = binary = unary = format = text = hash_key = constant = _looked_at

    def rebuild(self, emitter: Emitter) -> str:
        assert self.source is not None
        return emitter.read(self.source)
