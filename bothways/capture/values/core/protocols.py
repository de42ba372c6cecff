"""Python's data model over Values: what an operator, a call, a loop or a test does.

Opcodes and stand-ins come here; each function realizes its operands, asks the kinds for their slots in the
order Python asks, and raises the captured program's own TypeError when no method answers.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.capture.values.core import linked, numpy_numbers
from bothways.capture.values.core.answers import answered
from bothways.capture.values.core.base import Args, Kwargs, LazyValue, NotConstant, Value
from bothways.capture.values.core.constants import SINGLETONS, ConstantValue, constant_value
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.core.wording import cannot_operate, name_in_c
from bothways.symbols import hint

if TYPE_CHECKING:
    from bothways.capture.guards.sources import Source
    from bothways.capture.tracer import Tracer


@dataclass(frozen=True)
class Operator:
    """One operator of the language: the function that does it and the methods that define it."""

    symbol: str
    function: Callable[..., Any]
    method: str
    reflected: str


def _binary(symbol: str, function: Callable[..., Any], name: str) -> tuple[str, Operator]:
    return symbol, Operator(symbol, function, f"__{name}__", f"__r{name}__")


def _inplace(symbol: str, function: Callable[..., Any], name: str) -> tuple[str, Operator]:
    return symbol, Operator(symbol, function, f"__{name}__", "")


BINARY: dict[str, Operator] = dict(
    [
        _binary("+", operator.add, "add"),
        _binary("-", operator.sub, "sub"),
        _binary("*", operator.mul, "mul"),
        _binary("@", operator.matmul, "matmul"),
        _binary("/", operator.truediv, "truediv"),
        _binary("//", operator.floordiv, "floordiv"),
        _binary("%", operator.mod, "mod"),
        _binary("**", operator.pow, "pow"),
        _binary("<<", operator.lshift, "lshift"),
        _binary(">>", operator.rshift, "rshift"),
        _binary("&", operator.and_, "and"),
        _binary("|", operator.or_, "or"),
        _binary("^", operator.xor, "xor"),
    ]
)
INPLACE: dict[str, Operator] = dict(
    [
        _inplace("+=", operator.iadd, "iadd"),
        _inplace("-=", operator.isub, "isub"),
        _inplace("*=", operator.imul, "imul"),
        _inplace("@=", operator.imatmul, "imatmul"),
        _inplace("/=", operator.itruediv, "itruediv"),
        _inplace("//=", operator.ifloordiv, "ifloordiv"),
        _inplace("%=", operator.imod, "imod"),
        _inplace("**=", operator.ipow, "ipow"),
        _inplace("<<=", operator.ilshift, "ilshift"),
        _inplace(">>=", operator.irshift, "irshift"),
        _inplace("&=", operator.iand, "iand"),
        _inplace("|=", operator.ior, "ior"),
        _inplace("^=", operator.ixor, "ixor"),
    ]
)
COMPARE: dict[str, Operator] = {
    "<": Operator("<", operator.lt, "__lt__", "__gt__"),
    "<=": Operator("<=", operator.le, "__le__", "__ge__"),
    "==": Operator("==", operator.eq, "__eq__", "__eq__"),
    "!=": Operator("!=", operator.ne, "__ne__", "__ne__"),
    ">": Operator(">", operator.gt, "__gt__", "__lt__"),
    ">=": Operator(">=", operator.ge, "__ge__", "__le__"),
}
UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
    "abs": (operator.abs, "__abs__"),
}


def binary(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """``left symbol right``; in-place symbols (``+=``) fall back to the plain operator as Python does."""
    left, right = left.realize(), right.realize()
    _leave_arrays_to_numpy(tracer, symbol, left, right)
    if symbol in INPLACE:
        result = left.binary(tracer, INPLACE[symbol], right, False)
        if result is not None:
            return result
    said, symbol = symbol, symbol.removesuffix("=")
    op = BINARY[symbol]
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        function = INPLACE.get(said, op).function
        return constant_value(tracer.run_const(function, left.content, right.content), tracer)
    result = _try_both(tracer, op, left, right)
    if result is None:
        tracer.throw(TypeError, cannot_operate(said, left.python_type(), right.python_type()))
    return result


def _leave_arrays_to_numpy(tracer: Tracer, symbol: str, left: Value, right: Value) -> None:
    """A number of NumPy makes an array of a sequence that it is added to or compared with."""
    kinds = left.python_type(), right.python_type()
    for kind, other in (kinds, kinds[::-1]) if symbol not in ("*", "*=") else ():
        if kind in numpy_numbers.SCALARS and issubclass(other, (list, tuple, deque)):
            tracer.stop("call_unknown", "a number of NumPy makes an array of a sequence")


def _try_both(tracer: Tracer, op: Operator, left: Value, right: Value) -> Value | None:
    kinds = left.python_type(), right.python_type()
    overrides = op.symbol in COMPARE or _overrides(kinds, op.reflected)
    if kinds[0] is not kinds[1] and kinds[0] in kinds[1].__mro__ and overrides:
        result = right.binary(tracer, op, left, True)
        return result if result is not None else left.binary(tracer, op, right, False)
    result = left.binary(tracer, op, right, False)
    if result is None and (kinds[0] is not kinds[1] or op.symbol in COMPARE):
        result = right.binary(tracer, op, left, True)
    return result


def _overrides(kinds: tuple[type, type], method: str) -> bool:
    return getattr(kinds[1], method, None) is not getattr(kinds[0], method, None)


def compare(tracer: Tracer, symbol: str, left: Value, right: Value) -> Value:
    """``left symbol right`` for the six rich comparisons."""
    left, right = left.realize(), right.realize()
    _leave_arrays_to_numpy(tracer, symbol, left, right)
    op = COMPARE[symbol]
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        return constant_value(tracer.run_const(op.function, left.content, right.content), tracer)
    result = _try_both(tracer, op, left, right)
    if result is not None:
        return result
    if symbol in ("==", "!="):
        return ConstantValue(same_object(tracer, left, right) == (symbol == "=="))
    tracer.throw(
        TypeError,
        f"{symbol!r} not supported between instances of "
        f"{name_in_c(left.python_type())!r} and {name_in_c(right.python_type())!r}",
    )


# Equal to itself, and whether two that are equal are one object is Python's own affair: nothing to be assumed of them.
TOLD_BY_VALUE = (int, bool, str)

# Of these there may be several objects that are equal, and Python has one of those that are small, or names.
_LITERALS = (int, float, complex, str, bytes)


def equal(tracer: Tracer, left: Value, right: Value) -> bool:
    """Equality as containers use it: the same object, or ``==`` and its truth."""
    left, right = left.realize(), right.realize()
    if left.python_type() in TOLD_BY_VALUE and right.python_type() in TOLD_BY_VALUE:
        return truth(tracer, compare(tracer, "==", left, right))
    if left.python_type() in _LITERALS and _are_equal_constants(left, right):
        return True
    return same_object(tracer, left, right) or truth(tracer, compare(tracer, "==", left, right))


def same_object(tracer: Tracer, left: Value, right: Value) -> bool:
    """``left is right``; that two objects from outside are two is assumed, like that one is one."""
    if _is_no_singleton(tracer, left, right) or _is_no_singleton(tracer, right, left):
        return False
    left, right = left.realize(), right.realize()
    if left is right:
        return True
    if left.told_later or right.told_later:
        return _same_later(tracer, *((left, right) if left.told_later else (right, left)))
    is_one = _are_one_literal(tracer, left, right)
    if is_one is not None:
        return is_one
    if left.identity() == right.identity():
        return True
    both_outside = left.source is not None and right.source is not None
    if both_outside and left.python_type() is right.python_type() and not isinstance(left, ConstantValue):
        tracer.guard("{s0} is not {s1}", left.source, right.source)
    return False


def _are_one_literal(tracer: Tracer, left: Value, right: Value) -> bool | None:
    """Whether two numbers or texts are one object; None of everything else."""
    if not all(isinstance(value, (ConstantValue, linked.NumberValue)) for value in (left, right)):
        return None
    kind = left.python_type()
    if kind not in _LITERALS or right.python_type() is not kind:
        return None
    one, other = _object(left), _object(right)
    sources = [value.source for value in (left, right) if value.source is not None]
    if len(sources) == 2 and one is not None and other is not None:
        return _guard_that_one(tracer, sources[0], sources[1], one is other)
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        is_guarded = bool(sources) and left.content == right.content
    else:
        if not truth(tracer, compare(tracer, "==", left, right)):
            return False
        if kind is int and _is_small(tracer, left):
            return True
        is_guarded = bool(sources)
    if one is None or other is None:
        return False  # each is made anew
    if is_guarded:
        constant = other if right.source is None else one
        return _guard_that_one(tracer, sources[0], tracer.inject(constant, "constant"), one is other)
    return one is other


def _guard_that_one(tracer: Tracer, left: Source, right: Source, are_one: bool) -> bool:
    tracer.guard("{s0} is {s1}" if are_one else "{s0} is not {s1}", left, right)
    return are_one


def _object(value: Value) -> object:
    """The number or text itself, where capture has it."""
    if isinstance(value, linked.NumberValue):
        return None if value.source is None else value.obj
    return value.content if isinstance(value, ConstantValue) else None


def _are_equal_constants(left: Value, right: Value) -> bool:
    both = isinstance(left, ConstantValue) and isinstance(right, ConstantValue)
    return both and left.content == right.content  # type: ignore[attr-defined]


def _is_small(tracer: Tracer, number: Value) -> bool:
    """Whether a whole number is one of those of which Python has one object each."""
    bounds = {">=": -5, "<=": _LARGEST_SMALL}
    return all(truth(tracer, compare(tracer, symbol, number, ConstantValue(end))) for symbol, end in bounds.items())


# The largest of the whole numbers of which Python has one object each; the smallest is -5.
_LARGEST_SMALL = next(number for number in itertools.count() if int(str(number + 1)) is not int(str(number + 1)))


def _same_later(tracer: Tracer, late: Value, other: Value) -> bool:
    """``late is other`` where only the program finds out which object the one is: of truths there are two."""
    if isinstance(other, ConstantValue) and other.content is None:
        return False
    kind = late.python_type()
    if kind is not other.python_type():
        return False
    if kind is bool and isinstance(other, ConstantValue):
        return truth(tracer, late) is other.content
    tracer.stop("tensor_value", f"a decision depends on whether {late.describe()} is a certain object")


def _is_no_singleton(tracer: Tracer, value: Value, other: Value) -> bool:
    """Whether something that was not looked at yet is not None (or True, …): it need not be looked at for that."""
    if not isinstance(value, LazyValue) or value.if_realized() is not value:
        return False
    if not isinstance(other, ConstantValue) or not isinstance(other.content, SINGLETONS) or value.obj is other.content:
        return False
    tracer.guard("{s0} is not {c0}", value.source, other.content)
    return True


def unary(tracer: Tracer, symbol: str, operand: Value) -> Value:
    operand = operand.realize()
    function, method = UNARY[symbol]
    if isinstance(operand, ConstantValue):
        return constant_value(tracer.run_const(function, operand.content), tracer)
    return operand.unary(tracer, function, method)


def truth(tracer: Tracer, value: Value) -> bool:
    return value.realize().truth(tracer)


def get_attr(tracer: Tracer, value: Value, name: str) -> Value:
    owner = value.realize()
    try:
        return owner.get_attr(tracer, name)
    except Raised as error:
        if issubclass(error.value.python_type(), AttributeError):
            error.value.tell(tracer, name=ConstantValue(name), obj=owner)
        raise


def try_get_attr(tracer: Tracer, value: Value, name: str) -> Value | None:
    """The attribute, or None when the captured program would see an AttributeError."""
    try:
        return get_attr(tracer, value, name)
    except Raised as error:
        if issubclass(error.value.python_type(), AttributeError):
            return None
        raise


def call(tracer: Tracer, function: Value, args: Args, kwargs: Kwargs | None = None) -> Value:
    return function.realize().call(tracer, args, kwargs or {})


def call_attr(tracer: Tracer, value: Value, name: str, *args: Value) -> Value:
    return call(tracer, get_attr(tracer, value, name), list(args))


def iterate(tracer: Tracer, value: Value) -> Value:
    return value.realize().iterate(tracer)


def next_or_none(tracer: Tracer, iterator: Value) -> Value | None:
    """The iterator's next element, or None at its end."""
    try:
        return iterator.realize().next(tracer)
    except Raised as error:
        if issubclass(error.value.python_type(), StopIteration):
            return None
        raise


def elements(tracer: Tracer, iterator: Value) -> Iterator[Value]:
    while (element := next_or_none(tracer, iterator)) is not None:
        yield element


def unpack(tracer: Tracer, value: Value) -> list[Value]:
    """All elements of an iterable."""
    return list(elements(tracer, iterate(tracer, value)))


def length(tracer: Tracer, value: Value) -> int:
    return value.realize().length(tracer)


def contains(tracer: Tracer, container: Value, item: Value) -> bool:
    return container.realize().contains(tracer, item.realize())


def text(tracer: Tracer, value: Value, conversion: str = "str") -> str:
    return value.realize().text(tracer, conversion)


def format_value(tracer: Tracer, value: Value, spec: str) -> str:
    """``format(value, spec)``."""
    value = value.realize()
    if isinstance(value, ConstantValue):
        return str(tracer.run_const(format, value.content, spec))
    formatted = value.format(tracer, spec)
    kind = value.python_type()
    if formatted is None and spec and getattr(kind, "__format__", None) is object.__format__:
        tracer.throw(TypeError, f"unsupported format string passed to {name_in_c(kind)}.__format__")
    return formatted if formatted is not None else str(tracer.run_const(format, text(tracer, value), spec))


def formatted(tracer: Tracer, value: Value, spec: str) -> Value:
    """``format(value, spec)`` as a Value: a text that the program makes, or a constant."""
    late = linked.formatted(tracer, value.realize(), spec)
    return ConstantValue(format_value(tracer, value, spec)) if late is None else late


def shown(tracer: Tracer, value: Value, conversion: str) -> Value:
    """``str(value)`` or ``repr(value)`` as a Value."""
    late = linked.shown(tracer, value.realize(), conversion)
    return ConstantValue(text(tracer, value, conversion)) if late is None else late


def as_string(tracer: Tracer, value: Value) -> str:
    """The content of a string Value, for attribute names and the like."""
    return str(as_constant(tracer, value))


def as_constant(tracer: Tracer, value: Value) -> Any:
    try:
        return value.realize().constant()
    except NotConstant as missing:
        tracer.stop("call_unknown", f"{missing} is not known at capture time")


def as_index(tracer: Tracer, value: Value) -> int:
    """An integer as sequences take it: an int, or what ``__index__`` gives."""
    value = value.realize()
    if isinstance(value, ConstantValue):
        return int(tracer.run_const(operator.index, value.content))
    method = try_get_attr(tracer, value, "__index__")
    if method is None:
        tracer.throw(TypeError, f"{name_in_c(value.python_type())!r} object cannot be interpreted as an integer")
    return int(as_constant(tracer, answered(tracer, value.python_type(), "__index__", call(tracer, method, []))))


def leave_to_python_if_it_varies(tracer: Tracer, number: Value) -> None:
    """The rest of a function that has looked up elements by several numbers will by others: the lookup alone is plain
    Python's then, as in ``self.experts[number]`` of a loop with a break, and what it gives is handed over."""
    if not isinstance(number, linked.NumberValue) or number.source is None or not tracer.options.is_continuation:
        return
    if not tracer.options.fullgraph and tracer.symbols.number_varies(int(hint(number.content)), number.source):
        tracer.stop("value_changes", "after a break the element at another number is asked for at each call")


def index_constant(tracer: Tracer, value: Value) -> Any:
    """A subscript of a sequence: an index or a slice of them."""
    value = value.realize()
    if isinstance(value, linked.SliceValue):
        return slice(*(_bound(tracer, part.realize()) for part in value.bounds))
    return as_index(tracer, value)


def _bound(tracer: Tracer, bound: Value) -> int | None:
    """One of a slice's."""
    if bound.python_type() is types.NoneType:
        return None
    if not hasattr(bound.python_type(), "__index__"):
        tracer.throw(TypeError, "slice indices must be integers or None or have an __index__ method")
    return as_index(tracer, bound)
