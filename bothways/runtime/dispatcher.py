"""The function a compiled function is: guards in order, the program, else a miss.

The dispatcher is one Python function with the user's signature whose code is generated anew for each program
that is added and swapped in place, so that the user's reference stays valid and a call costs no indirection.
The program that was hit last is tried first.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import types
from collections.abc import Callable
from typing import Any

from bothways.runtime.program import Program

_serial = itertools.count()
MISS, PROMOTE = "_bothways_miss", "_bothways_promote"


class Dispatcher:
    """The programs of one function and the generated function that chooses between them."""

    def __init__(self, function: types.FunctionType, miss: Callable[..., Any], rename: Callable[[str], str]) -> None:
        code = function.__code__
        self.parameters = parameters_of(code)
        self._original, self._rename = function, rename
        self.programs: list[Program] = []
        self._codes: dict[int, types.CodeType] = {}
        self._forwards = False  # whether a miss is a plain call instead of a capture
        self.namespace: dict[str, Any] = {
            MISS: miss,
            PROMOTE: self._promote,
            "__builtins__": __builtins__,
            "__name__": function.__module__,
        }
        self.function = types.FunctionType(self._code(first=None), self.namespace, function.__name__)
        copy_face(function, self.function)

    def add(self, program: Program) -> None:
        """Put a program first."""
        self.namespace.update(program.namespace)
        self.programs.append(program)
        self._codes.clear()
        self._promote(len(self.programs) - 1)

    def drop_last(self) -> None:
        self.programs.pop()
        self._codes.clear()
        self._promote_first()

    def clear(self) -> None:
        """Forget every program; the next call is a miss."""
        for program in self.programs:
            for key in program.namespace:
                self.namespace.pop(key, None)
        self.programs.clear()
        self._codes.clear()
        self.function.__code__ = self._code(first=None)

    def stop_capturing(self, target: Callable[..., Any]) -> None:
        """Keep the programs there are; every other call goes straight to ``target`` from now on."""
        self.namespace[MISS] = target
        self._forwards = True
        self._codes.clear()
        self._promote_first()

    def start_again(self, miss: Callable[..., Any]) -> None:
        """Forget everything and capture again."""
        self.namespace[MISS] = miss
        self._forwards = False
        self.clear()

    def run_first(self, values: tuple[Any, ...], otherwise: Callable[..., Any]) -> Any:
        """Run the program just added on the values it was captured from; its guards must hold."""
        code = self._code(first=len(self.programs) - 1)
        flat = types.FunctionType(code, {**self.namespace, MISS: otherwise}, self.function.__name__)
        flat.__defaults__ = self.function.__defaults__
        flat.__kwdefaults__ = self.function.__kwdefaults__
        return call_bound(flat, self._original.__code__, values)

    def renamed(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """Parameter values under the names they have in generated code."""
        return {self._rename(name): value for name, value in zip(self.parameters, values, strict=True)}

    def _promote(self, index: int) -> None:
        self.function.__code__ = self._code(first=index)

    def _promote_first(self) -> None:
        self.function.__code__ = self._code(first=len(self.programs) - 1 if self.programs else None)

    def _code(self, first: int | None) -> types.CodeType:
        key = -1 if first is None else first
        if key not in self._codes:
            self._codes[key] = self._generate(self.text(first))
        return self._codes[key]

    def text(self, first: int | None) -> str:
        """The dispatcher's source with the given program tried first."""
        order = [] if first is None else [first, *(i for i in range(len(self.programs)) if i != first)]
        lines = []
        for position, index in enumerate(order):
            promote = f"{PROMOTE}({index})" if position else None
            lines += [f"# program {index}", *self.programs[index].lines(MISS, promote)]
        inner = [self._rename(name) for name in self.parameters]
        lines.append(f"return {MISS}({self._forward(inner) if self._forwards else ', '.join(inner)})")
        body = "\n".join(f"    {line}".rstrip() for chunk in lines for line in chunk.split("\n"))
        return f"def {_identifier(self._original.__name__)}({self._signature()}):\n{body}\n"

    def _signature(self) -> str:
        code = self._original.__code__
        names = [self._rename(name) for name in self.parameters]
        positional_only, count, keyword_only = code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount
        parts: list[str] = names[:count]
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

    def _forward(self, inner: list[str]) -> str:
        """The arguments of a call that passes everything on as it came."""
        code = self._original.__code__
        count, keyword_only = code.co_argcount, code.co_kwonlyargcount
        parts = inner[:count]
        cursor = count + keyword_only
        if code.co_flags & inspect.CO_VARARGS:
            parts.append("*" + inner[cursor])
            cursor += 1
        parts += [
            f"{name}={text}"
            for name, text in zip(self.parameters[count : count + keyword_only], inner[count:], strict=False)
        ]
        if code.co_flags & inspect.CO_VARKEYWORDS:
            parts.append("**" + inner[cursor])
        return ", ".join(parts)

    def _generate(self, text: str) -> types.CodeType:
        filename = f"<bothways {self._original.__qualname__} {next(_serial)}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        module = compile(text, filename, "exec", dont_inherit=True)
        code = next(const for const in module.co_consts if isinstance(const, types.CodeType))
        # Parameters that share a builtin's name were renamed in the text; callers may pass them by keyword.
        count = len(self.parameters)
        return code.replace(
            co_varnames=(*self.parameters, *code.co_varnames[count:]),
            co_name=self._original.__name__,
            co_qualname=self._original.__qualname__,
        )


def parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """All parameters in the order CPython keeps them: positional, keyword-only, ``*args``, ``**kwargs``."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def call_bound(function: Callable[..., Any], code: types.CodeType, values: tuple[Any, ...]) -> Any:
    """Call a function with the values its parameters are bound to."""
    count, keyword_only = code.co_argcount, code.co_kwonlyargcount
    args = list(values[:count])
    kwargs = dict(zip(code.co_varnames[count : count + keyword_only], values[count:], strict=False))
    cursor = count + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        args += values[cursor]
        cursor += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kwargs.update(values[cursor])
    return function(*args, **kwargs)


def copy_face(original: types.FunctionType, target: types.FunctionType) -> None:
    """Make a generated function look like the user's: name, signature, docstring, attributes."""
    target.__defaults__ = original.__defaults__
    target.__kwdefaults__ = original.__kwdefaults__
    target.__module__ = original.__module__
    target.__qualname__ = original.__qualname__
    target.__doc__ = original.__doc__
    target.__annotations__ = original.__annotations__
    target.__dict__.update(original.__dict__)
    target.__wrapped__ = original  # type: ignore[attr-defined]


def _identifier(name: str) -> str:
    return name if name.isidentifier() else "function"
