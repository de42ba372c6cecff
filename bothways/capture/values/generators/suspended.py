"""Generators that leave the captured function before their end, as the real objects that go on from there.

One that was not asked for an element yet is made by calling its function. Those that stand for ``itertools`` are made
as the objects of that module, from what is left of their iterators. Any other is a generator of the same code that is
put behind the ``yield`` where it stands, with its variables and its stack.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.capture.bytecode.frame_state import stack_texts, stack_values
from bothways.capture.bytecode.instructions import free_names
from bothways.capture.bytecode.liveness import live_variables
from bothways.capture.bytecode.opcodes.generators import delegate_of
from bothways.capture.standins import combinatorics, iteration, sequences
from bothways.capture.values.code.cells import CellValue
from bothways.capture.values.collections.iterators import taken_along
from bothways.capture.values.core.base import Value
from bothways.capture.values.core.methods import is_none
from bothways.runtime import iterators as standing
from bothways.runtime.generators import begun, suspended
from bothways.runtime.resume import ResumePoint, slots_of

if TYPE_CHECKING:
    from bothways.capture.bytecode.interpreter import Frame
    from bothways.capture.writing.emit import Emitter


@dataclass(frozen=True)
class Remade:
    """How one kind of iterator is made again: what is called, and the arguments over the stand-in's variables.

    ``begun`` is the same when an element was taken; ``delegate`` is what the stand-in takes elements from at the time.
    Without it one that was begun goes on as the stand-in.
    """

    make: Callable[..., Any]
    fresh: str
    begun: tuple[Callable[..., Any], str] | None = None

    def when(self, started: bool) -> tuple[Callable[..., Any], str] | None:
        return self.begun if started else (self.make, self.fresh)


def _same(make: Callable[..., Any], arguments: str) -> Remade:
    """For those that keep nothing but their iterators."""
    return Remade(make, arguments, (make, arguments))


def _counted(make: Callable[..., Any], arguments: str) -> Remade:
    """For those that hold all their elements: made anew, and so many are taken."""
    return Remade(make, arguments, (functools.partial(standing.begun_anew, make), f"{{taken}}, {arguments}"))


ITERATORS: dict[types.CodeType, Remade] = {
    function.__code__: remade
    for function, remade in {
        iteration._accumulate: Remade(
            itertools.accumulate, "{iterator}, {func}, initial={initial}",
            (standing.begun_accumulate, "{iterator}, {func}, {total}"),
        ),
        iteration._chain: Remade(
            itertools.chain.from_iterable, "{iterators}", (standing.begun_chain, "{delegate}, {iterators}")
        ),
        iteration._compress: _same(itertools.compress, "{data}, {selectors}"),
        iteration._count: Remade(itertools.count, "{number}, {step}", (itertools.count, "{number} + {step}, {step}")),
        iteration._cycle: Remade(
            itertools.cycle, "{iterator}",
            (standing.begun_cycle, "{iterator}, {saved}, {element}, {taken}, {delegates}"),
        ),
        iteration._dropwhile: Remade(
            itertools.dropwhile, "{predicate}, {iterator}", (standing.begun_dropwhile, "{iterator}")
        ),
        iteration._filterfalse: _same(itertools.filterfalse, "{function}, {iterator}"),
        iteration._islice: Remade(
            itertools.islice, "{iterator}, {start}, {stop}, {step}",
            (standing.begun_islice, "{iterator}, {position}, {wanted}, {stop}, {step}"),
        ),
        iteration._repeat: _same(itertools.repeat, "{obj}"),
        iteration._pairwise: Remade(
            itertools.pairwise, "{iterator}", (standing.begun_pairwise, "{iterator}, {element}")
        ),
        iteration._starmap: _same(itertools.starmap, "{function}, {iterator}"),
        iteration._takewhile: _same(itertools.takewhile, "{predicate}, {iterator}"),
        iteration._zip_longest: _same(standing.begun_zip_longest, "{iterators}, {fillvalue}"),
        combinatorics._product: _counted(itertools.product, "*{pools}"),
        combinatorics._permutations: _counted(itertools.permutations, "{pool}, {r}"),
        combinatorics._combinations: _counted(itertools.combinations, "{pool}, {r}"),
        combinatorics._combinations_with_replacement: _counted(itertools.combinations_with_replacement, "{pool}, {r}"),
        sequences.iterate_by_index: Remade(
            standing.over_items, "{sequence}, 0", (standing.over_items, "{sequence}, {index} + 1")
        ),
    }.items()
}  # fmt: skip
REPEAT = iteration._repeat.__code__
SHARED = iteration._branch.__code__  # what the others have not taken yet is kept by C code
# How often a ``repeat`` that ends goes on.
SO_MANY_TIMES = Remade(itertools.repeat, "{obj}, {times}", (itertools.repeat, "{obj}, {times} - {done} - 1"))
# What an iterator that is made again asks for its iterator, which it is already.
ITERATED = frozenset("iterator data selectors delegate".split())


def parts(frame: Frame, started: bool) -> Iterable[Value]:
    """What a suspended generator is made of."""
    called = _called(frame, started)
    if called is not None:
        return [value for name, value in _variables(frame).items() if f"{{{name}}}" in called[1]]
    if not started:
        return [frame.function, *frame.locals.values()]
    return [*stack_values(frame.stack), *(value for value in _live(frame).values() if value is not None)]


def made_again(frame: Frame, taken: int, emitter: Emitter) -> str:
    """The expression that gives the generator as it stands, after so many elements."""
    started = taken > 0
    called = _called(frame, started)
    if called is not None:
        make, arguments = called
        texts = {
            name: taken_along(emitter, value) if name in ITERATED else emitter.rebuild(value)
            for name, value in _variables(frame).items()
            if f"{{{name}}}" in arguments
        }
        text = arguments.format(**texts, taken=taken, delegates=delegate_of(frame) is not None)
        return f"{emitter.inject(make, getattr(make, '__name__', 'begun'))}({text})"
    if started and frame.code is SHARED:
        emitter.tracer.stop("generator_escapes", "a branch of itertools.tee was begun")
    if started:
        return _in_the_middle(frame, emitter)
    texts = {name: emitter.rebuild(value) for name, value in frame.locals.items()}
    return f"{emitter.rebuild(frame.function)}({', '.join(_arguments(frame.code, texts))})"


def _called(frame: Frame, started: bool) -> tuple[Callable[..., Any], str] | None:
    remade = ITERATORS.get(frame.code)
    if frame.code is REPEAT and not is_none(frame.locals["times"]):
        remade = SO_MANY_TIMES
    return None if remade is None else remade.when(started)


def _variables(frame: Frame) -> dict[str, Value]:
    """What the variables hold, and what the frame takes elements from."""
    variables = {**frame.locals, **({"delegate": frame.stack[-1]} if frame.stack else {})}
    held = {name: value.content if isinstance(value, CellValue) else value for name, value in variables.items()}
    return {name: value for name, value in held.items() if value is not None}


def _live(frame: Frame) -> dict[str, Value | None]:
    """The variables that the rest of a generator may read, and those of the functions around it; None if unbound."""
    live = live_variables(frame.code, frame.globals)[frame.index]
    cells = dict(zip(frame.code.co_freevars, frame.function.closure, strict=True))
    own = {name: frame.locals.get(name) for name in slots_of(frame.code) if name in live}
    return {**own, **{name: cell for name, cell in cells.items() if name in live}}


def _in_the_middle(frame: Frame, emitter: Emitter) -> str:
    """A real generator of the same code, behind the same ``yield``."""
    code = frame.code
    if free_names(code) != code.co_freevars:  # two parameters would have one name
        emitter.tracer.stop("generator_escapes", "a generator has two variables of one name")
    variables = _live(frame)
    entries, texts = stack_texts(emitter, frame.stack)
    offset = frame.decoded.instructions[frame.index].offset
    unbound = tuple(name for name, value in variables.items() if value is None)
    make = suspended(code, ResumePoint(offset, tuple(entries), unbound), frame.globals, frame.function.name)
    shift = len(make.__code__.co_code) - len(code.co_code)
    values = [variables.get(name) for name in slots_of(code) + code.co_freevars]
    slots = ["None" if value is None else emitter.rebuild(value) for value in values]
    # A number on the stack is the place of an instruction, for an exception that passes a ``finally``.
    places = [frame.decoded.instructions[text].offset if isinstance(text, int) else text for text in texts]
    stack = [str((place + shift) // 2) if isinstance(place, int) else place for place in places]
    return f"{emitter.inject(begun, 'begun')}({emitter.inject(make, code.co_name)}({', '.join([*slots, *stack])}))"


def _arguments(code: types.CodeType, texts: dict[str, str]) -> list[str]:
    """The arguments of a call, from the variables they were bound to."""
    count, keywords = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    arguments = [texts[name] for name in names[:count]]
    cursor = count + keywords
    if code.co_flags & inspect.CO_VARARGS:
        arguments.append(f"*{texts[names[cursor]]}")
        cursor += 1
    arguments += [f"{name}={texts[name]}" for name in names[count : count + keywords]]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        arguments.append(f"**{texts[names[cursor]]}")
    return arguments
