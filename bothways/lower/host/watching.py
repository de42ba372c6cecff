"""Lets a profile look at programs while they run: it puts other functions under the names that a program calls, and
takes them away again.

While nothing looks, programs run exactly as they do without this.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bothways.locks import Lock
from bothways.record import generated
from bothways.record.outcomes import KernelFacts


@dataclass(eq=False)
class WatchedProgram:
    """A program: ``function`` is what of the user's it was compiled for, ``graph`` which half of it.

    ``routines`` are the names it calls kernels by, ``calls`` those of ATen's operations; ``origins`` are the lines of
    the user's by lines of the program's own text, where the text does not say them.
    """

    function: str
    graph: str
    label: str
    source: str
    routines: tuple[str, ...]
    calls: tuple[str, ...]
    kernels: tuple[KernelFacts, ...] = ()
    kernel_text: str = ""
    dialect: Any = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    originals: dict[str, Any] = field(default_factory=dict)  # what the names stand for when nothing looks
    code: types.CodeType | None = None  # that of the program itself, while something looks at it as a whole
    run_name = "run"  # what a look knows the whole program by


# What replaces the functions that a program calls, and what goes around the whole of it, if anything.
Look = Callable[[WatchedProgram, str, Callable[..., Any]], Callable[..., Any]]

# Names of no value in a program.
AROUND, INNER = "at_around", "at_inner"

_programs: weakref.WeakKeyDictionary[types.FunctionType, WatchedProgram] = weakref.WeakKeyDictionary()
_looks: list[Look] = []
_lock = Lock()


def watch(run: types.FunctionType, program: WatchedProgram) -> None:
    """There is one more program."""
    place = generated.current()
    program.function = program.function or ("" if place is None else place.function)
    namespace = run.__globals__
    program.originals = {name: namespace[name] for name in (*program.routines, *program.calls) if name in namespace}
    with _lock:
        _programs[run] = program
        if _looks:
            _arrange(run, program)


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Have programs call what ``look`` makes of the functions they call, those of programs to come as well."""
    _change(_looks.append, look)
    try:
        yield
    finally:
        _change(_looks.remove, look)


def begin_looking(look: Look) -> None:
    """The same, until ``end_looking``."""
    _change(_looks.append, look)


def end_looking(look: Look) -> None:
    if look in _looks:
        _change(_looks.remove, look)


def _change(change: Callable[[Look], object], look: Look) -> None:
    with _lock:
        change(look)
        for run, program in list(_programs.items()):
            _arrange(run, program)


def _arrange(run: types.FunctionType, program: WatchedProgram) -> None:
    """Put under each name what all who look make of it."""
    for name, original in program.originals.items():
        function = original
        for look in _looks:
            function = look(program, name, function)
        run.__globals__[name] = function
    _arrange_whole(run, program)


def _arrange_whole(run: types.FunctionType, program: WatchedProgram) -> None:
    """Have the program itself run in what those who look make of it, which its function does without being another."""
    if program.code is not None:  # unless it was given other code since: after its first call, it may be
        run.__code__ = program.code if run.__code__.co_name == AROUND else run.__code__
        program.code = None
        run.__globals__.pop(INNER, None)
    inner: Callable[..., Any] = types.FunctionType(run.__code__, run.__globals__, run.__name__)
    function = inner
    for look in _looks:
        function = look(program, program.run_name, function)
    if function is inner:
        return
    names = run.__code__.co_varnames[: run.__code__.co_argcount]
    text = f"def {AROUND}({', '.join(names)}): return {INNER}({', '.join(names)})"
    defined: dict[str, Any] = {}
    exec(compile(text, "<bothways around>", "exec"), {}, defined)
    program.code = run.__code__
    run.__globals__[INNER] = function
    run.__code__ = defined[AROUND].__code__
