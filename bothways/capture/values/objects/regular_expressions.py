"""Regular expressions on texts that capture knows: Python's own ``re`` runs, and what it finds is a constant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothways.capture.values.collections.iterators import SequenceIterator
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import constant_arguments, constant_value
from bothways.capture.values.core.handlers import HANDLERS, Handler

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

FUNCTIONS: tuple[Callable[..., Any], ...] = (
    re.compile, re.escape, re.findall, re.finditer, re.fullmatch, re.match, re.search, re.split, re.sub, re.subn,
)  # fmt: skip


def look_for(tracer: Tracer, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Value:
    """Call a function of ``re``, or a method of a pattern, with constants."""
    positional, keywords = constant_arguments(tracer, args, kwargs)
    if any(map(callable, [*positional, *keywords.values()])):
        tracer.stop("call_unknown", "what replaces a match is worked out by a function")
    answer = tracer.run_const(function, *positional, **keywords)
    if function.__name__ == "finditer":
        return SequenceIterator([constant_value(match, tracer) for match in answer], type(answer))
    return constant_value(answer, tracer)


def _looks(function: Callable[..., Any]) -> Handler:
    return lambda tracer, args, kwargs: look_for(tracer, function, args, kwargs)


HANDLERS.update({function: _looks(function) for function in FUNCTIONS})
