"""Generators that leave the captured function before their end, as the real objects that go on from there.

One that nobody has asked for an element is made by calling its function. Those that stand for ``itertools`` are made
as the objects of that module, from what is left of their iterators.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.capture.standins import iteration
from bothways.capture.values.base import Value
from bothways.capture.values.methods import is_none

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.interpreter import Frame


@dataclass(frozen=True)
class Remade:
    """How one kind of iterator is made again: what is called, and the arguments over the stand-in's variables.

    ``begun`` are the arguments when an element was taken; without it only an untouched one can be made.
    """

    make: Callable[..., Any]
    fresh: str
    begun: str | None = None

    def arguments(self, started: bool) -> str:
        return self.begun if started and self.begun is not None else self.fresh


def _same(make: Callable[..., Any], arguments: str) -> Remade:
    """For those that keep nothing but their iterators."""
    return Remade(make, arguments, arguments)


ITERATORS: dict[types.CodeType, Remade] = {
    function.__code__: remade
    for function, remade in {
        iteration._accumulate: Remade(itertools.accumulate, "{iterator}, {func}, initial={initial}"),
        iteration._chain: Remade(itertools.chain.from_iterable, "{iterators}"),
        iteration._compress: _same(itertools.compress, "{data}, {selectors}"),
        iteration._count: Remade(itertools.count, "{number}, {step}", "{number} + {step}, {step}"),
        iteration._cycle: Remade(itertools.cycle, "{iterator}"),
        iteration._dropwhile: Remade(itertools.dropwhile, "{predicate}, {iterator}"),
        iteration._filterfalse: _same(itertools.filterfalse, "{function}, {iterator}"),
        iteration._islice: Remade(itertools.islice, "{iterator}, {start}, {stop}, {step}"),
        iteration._repeat: _same(itertools.repeat, "{obj}"),
        iteration._pairwise: Remade(itertools.pairwise, "{iterator}"),
        iteration._starmap: _same(itertools.starmap, "{function}, {iterator}"),
        iteration._takewhile: _same(itertools.takewhile, "{predicate}, {iterator}"),
    }.items()
}
REPEAT = iteration._repeat.__code__
# How often a ``repeat`` that ends goes on.
SO_MANY_TIMES = Remade(itertools.repeat, "{obj}, {times}", "{obj}, {times} - {done} - 1")


def parts(frame: Frame, started: bool) -> Iterable[Value]:
    """What a suspended generator is made of, as far as it can be made again."""
    remade = _remade(frame)
    if remade is None:
        return () if started else [frame.function, *frame.locals.values()]
    named = remade.arguments(started)
    return [value for name, value in frame.locals.items() if f"{{{name}}}" in named]


def made_again(frame: Frame, started: bool, emitter: Emitter) -> str:
    """The expression that gives the generator as it stands."""
    remade = _remade(frame)
    if started and (remade is None or remade.begun is None):
        emitter.tracer.stop("generator_escapes", "a generator leaves the function before it is consumed")
    needed = set(map(id, parts(frame, started)))
    texts = {name: emitter.rebuild(value) for name, value in frame.locals.items() if id(value) in needed}
    if remade is None:
        return f"{emitter.rebuild(frame.function)}({', '.join(_arguments(frame.code, texts))})"
    return f"{emitter.inject(remade.make, remade.make.__name__)}({remade.arguments(started).format(**texts)})"


def _remade(frame: Frame) -> Remade | None:
    if frame.code is REPEAT and not is_none(frame.locals["times"]):
        return SO_MANY_TIMES
    return ITERATORS.get(frame.code)


def _arguments(code: types.CodeType, texts: dict[str, str]) -> list[str]:
    """The arguments of a call, from the variables they were bound to."""
    count, keywords = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    given = [texts[name] for name in names[:count]]
    cursor = count + keywords
    if code.co_flags & inspect.CO_VARARGS:
        given.append(f"*{texts[names[cursor]]}")
        cursor += 1
    given += [f"{name}={texts[name]}" for name in names[count : count + keywords]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        given.append(f"**{texts[names[cursor]]}")
    return given
