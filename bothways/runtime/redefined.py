"""A function of the user's whose code or defaults are replaced after it was compiled.

The generated function has bound the arguments by the signature of before. What is bound to a default of before, to the
very object, was not passed; everything else was.
"""

from __future__ import annotations

import inspect
import types
from typing import Any

from bothways.runtime.stamps import MISSING, Body


def is_called_alike(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether arguments that are bound to the parameters of one code are bound to those of the other, too."""
    return _parameters(one) == _parameters(other)


def with_defaults(before: Body, after: Body, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of the parameters, with today's defaults in the place of those of before."""
    old, new = _defaults(before), _defaults(after)
    names = before.code.co_varnames
    return tuple(
        new.get(name, value) if old.get(name, MISSING) is value else value
        for name, value in zip(names, values, strict=False)
    )


def _parameters(code: types.CodeType) -> tuple[object, ...]:
    kinds = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    count = code.co_argcount + code.co_kwonlyargcount
    count += sum(bool(code.co_flags & kind) for kind in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    shape = code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount, code.co_flags & kinds
    return (*shape, *code.co_varnames[:count])


def _defaults(body: Body) -> dict[str, Any]:
    names = body.code.co_varnames[: body.code.co_argcount]
    positional = body.defaults or ()
    return {
        **dict(zip(names[len(names) - len(positional) :], positional, strict=True)),
        **(body.keyword_defaults or {}),
    }
