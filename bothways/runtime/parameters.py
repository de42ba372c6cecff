"""The parameters of a code object: which there are, how generated code spells them, and how it passes them on.

The values that parameters are bound to come in, and a call that binds them again goes out.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

from bothways.source_text import is_plain_name

__tracebackhide__ = True  # pytest shows none of its frames


def parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """All parameters in the order CPython keeps them: positional, keyword-only, ``*args``, ``**kwargs``."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def spelled_signature(code: types.CodeType, names: Sequence[str]) -> str:
    """The parameters as a ``def`` lists them, under other names."""
    positional_only, count, keyword_only = code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount
    parts: list[str] = list(names[:count])
    if positional_only:
        parts.insert(positional_only, "/")
    cursor = count + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        parts.append("*" + names[cursor])
        cursor += 1
    elif keyword_only:
        parts.append("*")
    parts += names[count : count + keyword_only]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append("**" + names[cursor])
    return ", ".join(parts)


def spelled_call(code: types.CodeType, parameters: Sequence[str], names: Sequence[str]) -> str:
    """The arguments of a call that passes on everything as it came; ``names`` are what the parameters are called."""
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    parts = list(names[:count])
    cursor = count + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        parts.append("*" + names[cursor])
        cursor += 1
    by_keyword = zip(parameters[count : count + keyword_only], names[count:], strict=False)
    parts += [f"{key}={text}" if is_plain_name(key) else f"**{{{key!r}: {text}}}" for key, text in by_keyword]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append("**" + names[cursor])
    return ", ".join(parts)


def call_bound(function: Callable[..., Any], code: types.CodeType, values: tuple[Any, ...]) -> Any:
    """Call a function with the values its parameters are bound to; an exception leaves none of them here."""
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    args = list(values[:count])
    kwargs = dict(zip(code.co_varnames[count : count + keyword_only], values[count:], strict=False))
    cursor = count + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        args += values[cursor]
        cursor += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[cursor])
    try:
        return function(*args, **kwargs)
    finally:
        del values, args, kwargs
