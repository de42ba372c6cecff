"""Arguments bound to the parameters of a Python function as Python binds them, with Python's own complaints."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.code.functions import FunctionValue


def bound_arguments(tracer: Tracer, function: FunctionValue, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """The locals that a call of the function begins with."""
    code = function.code
    names = code.co_varnames
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:count], args, strict=False))
    cursor = count + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[cursor]] = linked.TupleValue(list(args[count:]))
        cursor += 1
    extra: list[tuple[Value, Value]] = []
    accepts_extra = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    by_keyword = names[code.co_posonlyargcount : count + keyword_only]
    for name, value in kwargs.items():
        if name in by_keyword:
            if name in bound:
                tracer.throw(TypeError, f"{function.qualname}() got multiple values for argument {name!r}")
            bound[name] = value
        elif accepts_extra:
            extra.append((ConstantValue(name), value))
        else:
            _complain_unknown(tracer, function, name)
    if accepts_extra:
        bound[names[cursor]] = linked.DictValue.from_pairs(tracer, extra)
    if len(args) > count and not code.co_flags & inspect.CO_VARARGS:
        by_keyword_only = kwargs.keys() & names[count : count + keyword_only]
        _complain_too_many(tracer, function, len(args), len(by_keyword_only))
    _add_defaults(tracer, function, bound)
    return bound


def _add_defaults(tracer: Tracer, function: FunctionValue, bound: dict[str, Value]) -> None:
    """What is left out has its default; positional parameters are complained of first."""
    names, count = function.code.co_varnames, function.code.co_argcount
    first_default = count - len(function.defaults)
    missing = []
    for index, name in enumerate(names[:count]):
        if name not in bound:
            if index >= first_default:
                bound[name] = function.defaults[index - first_default]
            else:
                missing.append(name)
    if missing:
        _complain_missing(tracer, function, missing, "positional")
    for name in names[count : count + function.code.co_kwonlyargcount]:
        if name not in bound:
            if name in function.keyword_defaults:
                bound[name] = function.keyword_defaults[name]
            else:
                missing.append(name)
    if missing:
        _complain_missing(tracer, function, missing, "keyword-only")


def _complain_unknown(tracer: Tracer, function: FunctionValue, name: str) -> None:
    if name in function.code.co_varnames[: function.code.co_posonlyargcount]:
        complaint = f"got some positional-only arguments passed as keyword arguments: {name!r}"
    else:
        complaint = f"got an unexpected keyword argument {name!r}"
    tracer.throw(TypeError, f"{function.qualname}() {complaint}")


def _complain_missing(tracer: Tracer, function: FunctionValue, names: list[str], kind: str) -> None:
    quoted = [repr(name) for name in names]
    comma = "," * (len(quoted) > 2)
    listed = quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + f"{comma} and {quoted[-1]}"
    plural = "s" if len(names) > 1 else ""
    tracer.throw(
        TypeError, f"{function.qualname}() missing {len(names)} required {kind} argument{plural}: {listed}"
    )


def _complain_too_many(tracer: Tracer, function: FunctionValue, positional: int, keyword_only: int) -> None:
    count, optional = function.code.co_argcount, len(function.defaults)
    takes = f"from {count - optional} to {count}" if optional else str(count)
    plural = "s" if count != 1 or optional else ""
    passed = str(positional)
    if keyword_only:
        passed += f" positional argument{'s' * (positional != 1)}"
        passed += f" (and {keyword_only} keyword-only argument{'s' * (keyword_only != 1)})"
    verb = "was" if positional == 1 and not keyword_only else "were"
    tracer.throw(
        TypeError, f"{function.qualname}() takes {takes} positional argument{plural} but {passed} {verb} given"
    )
