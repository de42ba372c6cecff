"""What programs that break need when they run: going on, one step in the user's name, and callees compiled."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from bothways.errors import Position
from bothways.runtime.code_tables import one_line
from bothways.runtime.tracebacks import HIDDEN

__tracebackhide__ = True  # pytest shows none of its frames
# What a loop that asks an iterator for one more gets at its end.
END = type("End", (), {"__repr__": lambda self: "END"})()


class Next:
    """A continuation to be called: what a continuation returns that breaks again.

    Calling it there would stack a frame for every turn of a loop that breaks.
    """

    __slots__ = ("args", "function")

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, [args]


def go_on(after: Any) -> Any:
    """Call continuations until one returns what the user's function returns.

    The arguments are the continuation's alone: an exception that passes here would keep them with this frame.
    """
    while type(after) is Next:
        after = after.function(*after.args.pop())
    return after


def entering(enter: Callable[..., Any], *slots: Any) -> Callable[[], Any]:
    """A function that the user has made, of no arguments, as its code entered at the beginning."""

    def closure() -> Any:
        return go_on(enter(*slots))

    return closure


def later(function: Callable[..., Any], *args: Any) -> Next:
    """A plain function to be called, so that it alone holds what it is given.

    What is passed as a tuple is held by the caller until the function returns.
    """
    return Next(_opening(len(args)), function, [*reversed(args)])


@functools.cache
def _opening(count: int) -> Callable[..., Any]:
    text = f"lambda function, args: function({', '.join(['args.pop()'] * count)})"
    call: Callable[..., Any] = eval(compile(text, "<bothways call>", "eval"), {HIDDEN: True})
    return call


def step_function(
    line: str, operands: int, where: Position, globals_: dict[str, Any]
) -> Callable[..., Any]:
    """A function of the operands that runs one line, at the place of the user's source it is for."""
    operand = "_operand"
    while operand in line:  # a variable of the user's
        operand += "_"
    names = [f"{operand}_{index}" for index in range(operands)]
    text = f"def step({', '.join(names)}): {line.format(*names)}\n"
    module = compile(text, "<step>", "exec", dont_inherit=True)
    code = next(const for const in module.co_consts if isinstance(const, types.CodeType))
    name = where.function.rpartition(".")[2]
    # The columns would be those of the generated line.
    lines = one_line(len(code.co_code) // 2)
    code = code.replace(
        co_filename=where.filename, co_firstlineno=where.line, co_linetable=lines, co_name=name,
        co_qualname=where.function,
    )  # fmt: skip
    return types.FunctionType(code, globals_, name)


def while_handling(error: BaseException, step: Callable[..., Any], *operands: Any) -> Any:
    """Run a step inside an ``except`` clause: what it raises has the exception that is handled as its context."""
    traceback, context = error.__traceback__, error.__context__
    try:
        raise error
    except BaseException:
        error.__traceback__, error.__context__ = traceback, context
        return step(*operands)


def made_traceback(
    passed: Sequence[Position], traceback: types.TracebackType | None = None
) -> types.TracebackType | None:
    """The traceback of an exception that a captured program raised and caught: the user's places, innermost first,
    before those it had already."""
    for where in passed:
        frame = step_function("return {0}()", 1, where, {})(sys._getframe)
        traceback = types.TracebackType(traceback, frame, frame.f_lasti, where.line)
    return traceback


# The methods of a context manager, in the order in which Python looks for them, and those it names when missing.
ENTERING, NAMED_WHEN_MISSING = (
    (("__exit__", "__enter__"), ("__exit__", "__enter__"))
    if sys.version_info >= (3, 14)
    else (("__enter__", "__exit__"), ("__exit__",))
)


def enter_context(manager: Any) -> tuple[Any, Any]:
    """Begin a ``with`` statement: the method that ends it, and what ``__enter__`` gave."""
    kind = type(manager)
    methods = {}
    for method in ENTERING:
        attribute = next((vars(base)[method] for base in kind.__mro__ if method in vars(base)), None)
        if attribute is None:
            raise TypeError(not_a_manager(kind, method))
        bind = getattr(type(attribute), "__get__", None)
        methods[method] = attribute if bind is None else bind(attribute, manager, kind)
    return methods["__exit__"], methods["__enter__"]()


def not_a_manager(kind: type, missing: str) -> str:
    """What Python says of a type whose objects ``with`` does not take."""
    text = f"{_shown(kind)!r} object does not support the context manager protocol"
    if missing in NAMED_WHEN_MISSING:
        text += f" (missed {missing} method)"
    if sys.version_info >= (3, 14) and hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
        text += " but it supports the asynchronous context manager protocol. Did you mean to use 'async with'?"
    return text


def _shown(kind: type) -> str:
    """The name of a type, with its module since 3.14."""
    is_short = sys.version_info < (3, 14) or kind.__module__ in ("builtins", "__main__")
    return kind.__name__ if is_short else f"{kind.__module__}.{kind.__qualname__}"


_templatelib = importlib.import_module("string.templatelib") if sys.version_info >= (3, 14) else None
Interpolation: Any = getattr(_templatelib, "Interpolation", None)
Template: Any = getattr(_templatelib, "Template", None)


def template(strings: tuple[str, ...], interpolations: tuple[Any, ...]) -> Any:
    """A template string, of which every field stands between two strings."""
    fields = itertools.zip_longest(strings, interpolations, fillvalue="")
    return Template(*itertools.chain.from_iterable(fields))


def import_name(globals_: dict[str, Any], name: str, names: Sequence[str] | None, level: int) -> Any:
    """What the ``import`` statement does in a module with these globals."""
    return __import__(name, globals_, None, names or (), level)
