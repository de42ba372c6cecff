"""Values whose content capture computes with directly: numbers, strings, dtypes, enum members, ranges.

Operations on them are done at capture time by Python itself, so their semantics are Python's. They are
immutable; two of them are the same object only where Python promises it.
"""

from __future__ import annotations

import enum
import math
import re
import types
import typing
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.attention

from bothways.capture.guards.sources import Attr
from bothways.capture.values.core import linked, numpy_numbers
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.source_text import with_article

if TYPE_CHECKING:
    from bothways.capture.guards.sources import Source
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

# Types whose instances are immutable and compare by content: the tensor library's own literals included.
LITERALS: tuple[type, ...] = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
TORCH_LITERALS: tuple[type, ...] = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
    torch.nn.attention.SDPBackend,
)
OTHERS: tuple[type, ...] = (
    range, re.Pattern, types.CodeType, types.GenericAlias, types.UnionType, *numpy_numbers.SCALARS,
    *numpy_numbers.DTYPES, *numpy_numbers.LIMITS,
)  # fmt: skip
CONSTANT_TYPES: frozenset[type] = frozenset(LITERALS + TORCH_LITERALS + OTHERS)
SINGLETONS: tuple[type, ...] = (bool, type(None), type(Ellipsis), type(NotImplemented))


def is_constant_type(kind: type) -> bool:
    general = issubclass(kind, (enum.Enum, types.GenericAlias))
    is_hint = kind.__module__ == "typing" and not issubclass(kind, type)  # and no class of the user's, as Protocols are
    return kind in CONSTANT_TYPES or general or is_hint


class ConstantValue(Value):
    """A Python object of a constant type."""

    def __init__(self, content: object, source: Source | None = None) -> None:
        self.content = content
        self.source = source

    def python_type(self) -> type:
        return type(self.content)

    def constant(self) -> Any:
        return self.content

    def hash_key(self, tracer: Tracer) -> Hashable:
        return tracer.run_const(lambda: (hash(self.content), self.content)[1])

    def identity(self) -> object:
        return _ByContent(self.content)

    def describe(self) -> str:
        text = repr(self.content)
        return text if len(text) <= 60 else with_article(type(self.content).__name__)

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if isinstance(self.content, enum.Enum):
            return _member_attribute(tracer, self, self.content, name)
        attribute = tracer.run_const(getattr, self.content, name)
        if isinstance(attribute, (types.BuiltinMethodType, types.MethodWrapperType)):
            return linked.BoundBuiltin(self, name)
        return constant_value(attribute, tracer)

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        origin = typing.get_origin(self.content)
        if not isinstance(origin, type):
            return super().call(tracer, args, kwargs)
        # ``Stack[int](…)`` makes a Stack and, where it can, notes on it what it was made from.
        instance = library_class(tracer, origin).call(tracer, args, kwargs).realize()
        if instance.python_type().__dictoffset__ and not isinstance(self.content, types.GenericAlias):
            instance.set_attr(tracer, "__orig_class__", self)
        return instance

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if isinstance(self.content, str) and name in ("format", "format_map"):
            return linked.format_text(tracer, self.content, name, args, kwargs)
        if isinstance(self.content, (str, bytes)) and name == "join" and len(args) == 1:
            parts = [part.realize() for part in linked.protocols.unpack(tracer, args[0])]
            kinds = {part.python_type() for part in (self, *parts)}
            if kinds == {str} and any(isinstance(part, linked.LateText) for part in parts):
                return linked.joined(tracer, [one for part in parts for one in (self, part)][1:])
            contents = [linked.protocols.as_constant(tracer, part) for part in parts]
            return ConstantValue(tracer.run_const(self.content.join, contents))
        if isinstance(self.content, torch.device) and name in ("__enter__", "__exit__"):
            return linked.call_device(tracer, self, name)
        method = tracer.run_const(getattr, self.content, name)
        if isinstance(self.content, re.Pattern):
            return linked.look_for(tracer, method, args, kwargs)
        positional, keywords = constant_arguments(tracer, args, kwargs)
        return constant_value(tracer.run_const(method, *positional, **keywords), tracer)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(self.content, (str, bytes, range, re.Match)) or type(self.content).__module__ == "typing":
            return constant_value(tracer.run_const(lambda: self.content[key_constant(tracer, key)]), tracer)  # type: ignore[index]
        return super().get_item(tracer, key)

    def iterate(self, tracer: Tracer) -> Value:
        if isinstance(self.content, range):
            return linked.RangeIterator(self.content)
        if isinstance(self.content, (str, bytes)):
            return linked.SequenceIterator([constant_value(item) for item in self.content], type(iter(self.content)))
        if isinstance(self.content, enum.Flag):
            return linked.SequenceIterator([ConstantValue(member) for member in self.content], types.GeneratorType)
        return super().iterate(tracer)

    def truth(self, tracer: Tracer) -> bool:
        return bool(tracer.run_const(bool, self.content))

    def length(self, tracer: Tracer) -> int:
        return int(tracer.run_const(len, self.content))

    def contains(self, tracer: Tracer, item: Value) -> bool:
        wanted = key_constant(tracer, item)
        return bool(tracer.run_const(lambda: wanted in self.content))  # type: ignore[operator]

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        if type(self.content) in (int, float, *numpy_numbers.NUMBERS) and not reflected:
            return self._with_size(tracer, op, other)
        if type(self.content) in numpy_numbers.DTYPES and op.symbol in linked.protocols.COMPARE:
            asked = linked.protocols.as_constant(tracer, other)  # a class or a text, which NumPy takes for the dtype
            return ConstantValue(tracer.run_const(op.function, *((asked, self.content)[:: 1 if reflected else -1])))
        if reflected or not isinstance(self.content, (str, bytes)):
            return None
        extended = getattr(other, "payload", None)
        if isinstance(extended, ConstantValue) and op.symbol != "%":  # a user's subclass of str, int, …
            return None if _has_own_reflection(other, op) else self._with(tracer, op, extended)
        return linked.text_binary(tracer, self.content, op, other)

    def _with_size(self, tracer: Tracer, op: Operator, other: Value) -> Value | None:
        """A number and a symbol: Python does not ask the second of two numbers of one type."""
        asked = isinstance(other, (linked.NumberValue, linked.LateNumber))
        return other.binary(tracer, op, self, True) if asked else None

    def _with(self, tracer: Tracer, op: Operator, other: ConstantValue) -> Value:
        return constant_value(tracer.run_const(op.function, self.content, other.content), tracer)

    def text(self, tracer: Tracer, conversion: str) -> str:
        return str(tracer.run_const(repr if conversion == "repr" else str, self.content))

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.literal(self.content)


NONE = ConstantValue(None)


def _has_own_reflection(other: Value, op: Operator) -> bool:
    method = getattr(other.python_type(), op.reflected, None) if op.reflected else None
    return isinstance(method, types.FunctionType)


def library_class(tracer: Tracer, cls: type) -> Value:
    return linked.ClassValue.of(tracer, cls)


def _member_attribute(tracer: Tracer, value: ConstantValue, member: enum.Enum, name: str) -> Value:
    """An attribute of an enum member: its name and value, what ``__init__`` gave it, or one of its class."""
    attribute = linked.lookup_attribute(type(member), name)
    if name in ("name", "value") and attribute is enum.Enum.__dict__[name]:
        return linked.library_value(tracer, getattr(member, name))
    if name in vars(member) and not linked.is_data_descriptor(attribute):
        source = Attr(tracer.inject(member, str(member)), name)
        return tracer.member(vars(member)[name], source, "hasattr({s0}, {c0})")
    return linked.class_attribute(tracer, value, name)


class _ByContent:
    """Compares as ``is`` does on constants: by identity, or by content where content decides it."""

    def __init__(self, content: object) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByContent) or type(self.content) is not type(other.content):
            return False
        if self.content is other.content:
            return True
        # CPython interns small numbers and most strings; programs that rely on it compare equal contents.
        return isinstance(self.content, (int, str, bytes)) and self.content == other.content

    def __hash__(self) -> int:
        return hash(type(self.content))


def constant_value(obj: object, tracer: Tracer | None = None) -> Value:
    """The Value of a result computed at capture time; containers of constants become container Values."""
    kind = type(obj)
    if is_constant_type(kind) or kind is re.Match:  # a match of captured code's own, found in constants
        return ConstantValue(obj)
    if kind is tuple or kind is torch.Size:
        return linked.TupleValue([constant_value(item, tracer) for item in obj], kind)  # type: ignore[attr-defined]
    if kind is list:
        return linked.ListValue([constant_value(item, tracer) for item in obj])  # type: ignore[attr-defined]
    if kind is dict and tracer is not None:
        return linked.DictValue.from_pairs(
            tracer, [(constant_value(k, tracer), constant_value(v, tracer)) for k, v in obj.items()]  # type: ignore[attr-defined]
        )
    if kind in (set, frozenset) and tracer is not None:
        return linked.SetValue.of(tracer, [constant_value(item, tracer) for item in obj], kind)  # type: ignore[attr-defined]
    if kind is slice:
        return linked.SliceValue([constant_value(part) for part in (obj.start, obj.stop, obj.step)])  # type: ignore[attr-defined]
    if kind is torch.SymInt or kind is torch.SymFloat:
        return linked.NumberValue(obj)
    if isinstance(obj, tuple) and hasattr(kind, "_fields"):
        return linked.TupleValue([constant_value(item, tracer) for item in obj], kind)
    if tracer is not None:
        return linked.library_value(tracer, obj)
    raise NotConstant(with_article(kind.__name__))


def constant_arguments(tracer: Tracer, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    """All arguments as Python objects, or a break that names the one which is none."""
    try:
        return [arg.realize().constant() for arg in args], {k: v.realize().constant() for k, v in kwargs.items()}
    except NotConstant as missing:
        tracer.stop("call_unknown", f"cannot compute with {missing} at capture time")


def key_constant(tracer: Tracer, key: Value) -> Any:
    return constant_arguments(tracer, [key], {})[0][0]


def guard_constant(tracer: Tracer, content: object, source: Source) -> None:
    """Assume that the object at ``source`` is this constant: type and content, signs of zero and NaN included."""
    kind = type(content)
    if kind in SINGLETONS or isinstance(content, (enum.Enum, torch.dtype, torch.layout, torch.memory_format)):
        tracer.guard("{s0} is {c0}", source, content)
        return
    tracer.guard("type({s0}) is {c0}", source, kind)
    if kind is float and content == 0.0:
        sign = math.copysign(1.0, content)
        tracer.guard("{s0} == 0.0 and {c0}(1.0, {s0}) == {c1}", source, math.copysign, sign)
    elif isinstance(content, (float, complex, *numpy_numbers.NUMBERS)) and _needs_bits(content):
        # Equality cannot tell 0.0 from -0.0 nor NaN from itself; the repr can.
        tracer.guard("repr({s0}) == {c0}", source, repr(content))
    elif isinstance(content, (torch.finfo, torch.iinfo)) or kind in numpy_numbers.LIMITS:
        tracer.guard("{s0}.dtype == {c0}", source, getattr(content, "dtype"))  # noqa: B009
    else:
        tracer.guard("{s0} == {c0}", source, content)


def _needs_bits(number: Any) -> bool:
    parts = (number.real, number.imag) if isinstance(number, complex) else (number,)
    return any(part == 0.0 or math.isnan(part) for part in parts)
