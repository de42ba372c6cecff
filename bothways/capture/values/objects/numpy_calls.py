"""Calls of NumPy's functions and types with constants, which are done at capture time: ``np.sqrt(d)``, ``np.int64(3)``.

What they give of one number that changes is found by a path (``derived.py``). What gives an array, or is given a
tensor, stops the capture. So do several numbers that change: there would be a program for each of their values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.core import linked, numpy_numbers
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.constants import constant_arguments, constant_value
from bothways.capture.values.core.handlers import handles
from bothways.capture.values.core.numbers import NumberValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def _computed(function: Any) -> Callable[..., Value]:
    def handler(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        if not kwargs and (number := linked.derived(tracer, function, args)) is not None:
            return number
        if any(map(_changes, args)) and not tracer.options.fullgraph:
            tracer.stop("call_unknown", f"numpy.{function.__name__} is given a number that changes")
        positional, keywords = constant_arguments(tracer, list(args), kwargs)
        return constant_value(tracer.run_const(function, *positional, **keywords), tracer)

    return handler


def _changes(value: Value) -> bool:
    """Whether it is a number that changes from call to call, or holds one."""
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        return any(map(_changes, value.known_items()))
    return isinstance(value, NumberValue)


for _function in (*numpy_numbers.PURE, *numpy_numbers.SCALARS):
    handles(_function)(_computed(_function))
