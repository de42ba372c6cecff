"""The one table of callables that capture answers itself instead of recording or inlining a call: object -> handler.

A handler is written as ``handler(tracer, *positional, **keywords)`` and gives a Value. The modules that fill the table
are those of ``features.py``.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.methods import fits

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

Handler = Callable[["Tracer", Args, Kwargs], Value]

HANDLERS: dict[Any, Handler] = {}


def handles(*functions: Any) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Register a handler written as ``handler(tracer, *positional, **keywords)``.

    A call whose arguments do not fit the handler's signature, or that of a function in Python, is made on the real
    function with None for each argument, so that the captured TypeError is Python's own.
    """

    def register(handler: Callable[..., Value]) -> Callable[..., Value]:
        for function in functions:
            HANDLERS[function] = _checked(function, handler)
        return handler

    return register


def _checked(function: Any, handler: Callable[..., Value]) -> Handler:
    def checked(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        own = fits(function, 0, len(args), kwargs) if type(function) is types.FunctionType else True
        if not own or not fits(handler, 1, len(args), kwargs):
            tracer.run_const(function, *[None] * len(args), **dict.fromkeys(kwargs))
            tracer.stop("call_unknown", f"cannot call {function.__name__} with these arguments")
        return handler(tracer, *args, **kwargs)

    return checked
