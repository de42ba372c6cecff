"""The symbols of one capture: which sizes and numbers they stand for, and the guards on them.

A dimension or number that the history of the function calls moving gets a symbol. Whatever the environment has to
assume about symbols becomes a guard, in terms of the places where they are found.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture.guards import Guard
from bothways.capture.sources import Attr, Item, Local, Source
from bothways.config import config
from bothways.runtime.size_history import LARGEST, SizeHistory
from bothways.symbols import Condition, Environment, Expression, Real, Symbol, expression_of, size, spelled
from bothways.symbols.layouts import symbolic_strides

if TYPE_CHECKING:
    from bothways.capture.emit import Emitter
    from bothways.capture.tracer import Tracer

Sizes = tuple[Any, ...]  # of plain numbers and torch.SymInts


class Symbols:
    """What a capture knows as a symbol."""

    def __init__(self, tracer: Tracer, history: SizeHistory) -> None:
        self._tracer, self._history = tracer, history
        self._late: list[Guard] | None = None  # what is assumed after the program was written
        self.environment = Environment()
        self.environment.on_condition = _weakly(self._note)
        self.sources: dict[Symbol, Source] = {}
        self._sizes: dict[Source, Any] = {}

    def without_new_ones(self, tracer: Tracer) -> Symbols:
        """For code that is only looked at, and runs as the user's Python: what it finds outside are constants."""
        made = copy.copy(self)
        made._tracer, made._history = tracer, SizeHistory(dynamic=False)
        return made

    # What becomes a symbol.

    def outline(self, tensor: torch.Tensor, source: Source) -> tuple[Sizes, Sizes] | None:
        """Sizes and strides of a tensor from outside, guarded, where some are symbols; None where none is."""
        # Parameters change their sizes with the module they belong to, which is another program anyway.
        if type(tensor) is torch.nn.Parameter and config.static_parameters:
            return None
        dims = self._history.dims(source.name, tensor)
        if not dims:
            return None
        shape_source = Attr(source, "shape")
        self._tracer.guard("len({s0}) == {c0}", shape_source, tensor.dim())
        shape = []
        for dim, value in enumerate(tensor.shape):
            place = Item(shape_source, dim)
            if dim in dims:
                self._tracer.guard("{s0} >= 2", place)
                shape.append(self._symbol(value, 2, place))
            else:
                self._tracer.guard("{s0} == {c0}", place, value)
                shape.append(value)
        strides = symbolic_strides(shape, tensor.shape, tensor.stride())
        if tensor.is_contiguous() and all(value > 1 for value in tensor.shape):
            self._tracer.guard("{s0}.is_contiguous()", source)  # strides follow from the sizes
        else:
            self._guard_strides(source, strides)
        return tuple(shape), strides

    def number(self, value: int | float, source: Source) -> Any:
        """A number from outside as a symbol, guarded; None where it is a constant."""
        if not self._history.moves(source.name, value, is_argument=is_argument(source)):
            return None
        self._tracer.guard("type({s0}) is {c0}", source, type(value))
        if type(value) is float:
            return self._symbol(value, -math.inf, source)
        least = 2 if value > 1 else -LARGEST
        self._tracer.guard("{c0} <= {s0} < {c1}", source, least, LARGEST)
        return self._symbol(value, least, source)

    def text_changes(self, value: str, source: Source) -> bool:
        """Whether a text that the call is given was another one before."""
        return is_argument(source) and self._history.changes(source.name, value)

    def _symbol(self, value: int | float, least: float, source: Source) -> Any:
        known = self._sizes.get(source)
        if known is None:
            symbol = self.environment.symbol(value, least)
            self.sources[symbol] = source
            known = self._sizes[source] = size(self.environment, Expression.atom(symbol))
        return known

    def _guard_strides(self, source: Source, strides: Sizes) -> None:
        texts, sources = [], [source]
        for stride in strides:
            text, sources = _template(expression_of(stride), self.sources, sources)
            texts.append(text)
        self._tracer.guard(f"{{s0}}.stride() == ({', '.join(texts)},)", *sources)

    # What is assumed about them.

    def guard_of(self, condition: Condition) -> Guard:
        left, sources = _template(condition.left, self.sources, [])
        right, sources = _template(condition.right, self.sources, sources)
        text = f"{left} {condition.symbol} {right}"
        return Guard(text if condition.holds else f"not {text}", tuple(sources), (), self._tracer.where())

    def _note(self, condition: Condition) -> None:
        guard = self.guard_of(condition)
        self._tracer.guards.add(guard) if self._late is None else self._late.append(guard)

    def finish(self) -> list[Guard]:
        """The program is written: what is assumed from now on is collected, for those who make the program."""
        self._late = []
        return self._late

    def settle(self) -> None:
        """The program is in use: nothing more can be assumed for all of it."""
        self.environment.on_condition = _refuse

    # How they are written.

    def text(self, expression: Expression | Real, emitter: Emitter) -> str:
        """The Python that computes an expression in the body of the program."""
        return spelled(expression, lambda symbol: emitter.read(self.sources[symbol]))


def _refuse(condition: Condition) -> None:
    raise AssertionError(f"{condition} is assumed after the guards were written")


def _weakly(note: Callable[[Condition], None]) -> Callable[[Condition], None]:
    """A method that does not keep its object: sizes that tensors have in C++ lead to the environment, and from there
    to what holds these tensors, on a road that no garbage collector sees. A capture that was given up would stay."""
    found = weakref.WeakMethod(note)
    return lambda condition: (found() or _refuse)(condition)


def is_argument(source: Source) -> bool:
    """Whether the call is given it, as an argument or inside one."""
    step = source
    while isinstance(step, Item):
        step = step.origin
    return isinstance(step, Local)


def _template(
    expression: Expression | Real, places: dict[Symbol, Source], sources: Sequence[Source]
) -> tuple[str, list[Source]]:
    """An expression as the text of a guard over sources, which go on from those given."""
    found = list(sources)

    def slot(symbol: Symbol) -> str:
        source = places[symbol]
        if source not in found:
            found.append(source)
        return f"{{s{found.index(source)}}}"

    return spelled(expression, slot), found
