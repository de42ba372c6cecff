"""A function of the user's whose code or defaults were replaced after it was compiled.

The generated function has bound the arguments by the old signature; here they become a call by the new one. An argument
that is the very object of an old default counts as left out.
"""

from __future__ import annotations

import inspect
from typing import Any

from bothways.runtime.stamps import MISSING, Body


def passed(before: Body, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
    """What was passed in a call whose values are bound to the parameters of ``before``."""
    code, defaults = before.code, _defaults(before)
    names = code.co_varnames
    count, cursor = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    rest: tuple[Any, ...] = values[cursor] if code.co_flags & inspect.CO_VARARGS else ()
    for index, (name, value) in enumerate(zip(names[:cursor], values, strict=False)):
        is_left_out = defaults.get(name, MISSING) is value and not (rest and index < count)
        if is_left_out:
            continue
        if index < count and len(args) == index:
            args.append(value)
        else:
            kwargs[name] = value
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[-1])
    return [*args, *rest], kwargs


def _defaults(body: Body) -> dict[str, Any]:
    names = body.code.co_varnames[: body.code.co_argcount]
    positional = body.defaults or ()
    return {
        **dict(zip(names[len(names) - len(positional) :], positional, strict=True)),
        **(body.keyword_defaults or {}),
    }
