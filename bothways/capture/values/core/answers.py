"""What special methods answer. Python looks at it before it goes on: a length is no text, and what ``__bool__`` gives
is True or False. Whatever is not plainly right is given to Python itself, which says what it thinks of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothways.capture.values.core import linked
from bothways.capture.values.core.base import NotConstant, Value
from bothways.capture.values.core.constants import constant_value

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# The method -> what asks it, and the type of an answer that is taken as it is.
ASKED: dict[str, tuple[Callable[..., Any], type]] = {
    "__bool__": (bool, bool),
    "__bytes__": (bytes, bytes),
    "__complex__": (complex, complex),
    "__float__": (float, float),
    "__format__": (format, str),
    "__hash__": (hash, int),
    "__index__": (operator.index, int),
    "__int__": (int, int),
    "__len__": (len, int),
    "__repr__": (repr, str),
    "__str__": (str, str),
}
# Of these not every number will do: a length is not negative, and hashes are cut to their size.
LIMITED = frozenset({"__hash__", "__len__"})


def _is_length(method: str, answer: Value) -> bool:
    """Whether an answer is a number that changes from call to call, and a length."""
    return method == "__len__" and isinstance(answer, linked.NumberValue) and bool(answer.content >= 0)


def answered(tracer: Tracer, kind: type, method: str, answer: Value) -> Value:
    """What Python makes of what a method of a class has answered."""
    answer = answer.realize()
    ask, wanted = ASKED[method]
    if answer.python_type() is wanted and (method not in LIMITED or _is_length(method, answer)):
        return answer
    try:
        content = answer.constant()
    except NotConstant:
        tracer.stop("call_unknown", f"{method} of a {kind.__name__} gives {answer.describe()}")
    asked = type(kind.__name__, (), {method: lambda self, *args: content})()
    return constant_value(tracer.run_const(ask, asked), tracer)
