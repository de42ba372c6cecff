"""The symbols of one capture: which sizes and numbers they stand for, and the guards on them.

A dimension or number that the history of the function calls moving gets a symbol. Whatever the environment has to
assume about symbols becomes a guard, in terms of the places where they are found.

Numbers that are found only when the program runs are symbols, too: no guard can be about them. What the shapes of an
operation's results need to know of them is assumed, and a node of the graph checks it; any other question stops the
capture.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways.capture.guards.guards import Guard
from bothways.capture.guards.sources import Attr, Item, Local, Reading, Source
from bothways.config import config
from bothways.errors import Position
from bothways.runtime.size_history import LARGEST, STATIC_MARK, SizeHistory
from bothways.symbols import (
    Applied,
    Condition,
    Environment,
    Expression,
    Real,
    Symbol,
    expression_of,
    hint,
    size,
    spelled,
)
from bothways.symbols.bounds import Range
from bothways.symbols.environment import INVERSE, NEGATIVE, VALUE, readable, refuse
from bothways.symbols.layouts import loose_dims, symbolic_strides

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

Sizes = tuple[Any, ...]  # of plain numbers and torch.SymInts
# What numbers are taken for that are known only when the program runs: a small size, or a fraction.
GUESSES: dict[type, Any] = {int: 2, float: 0.5}


class Symbols:
    """What a capture knows as a symbol."""

    def __init__(self, tracer: Tracer, history: SizeHistory) -> None:
        self._tracer, self._history = tracer, history
        self._late: list[Guard] | None = None  # what is assumed after the program was written
        self.environment = Environment()
        self.environment.on_condition = _weakly(self._note, _assumed_too_late)
        self.environment.on_unknown = _weakly(self._answer, refuse)
        self.environment.on_value = _weakly(self._becomes_constant, lambda symbol: None)
        self.sources: dict[Symbol, Source] = {}
        self.nodes: dict[Symbol, torch.fx.Node] = {}  # those that the graph finds
        self._sizes: dict[Source, Any] = {}
        self._static: dict[Source, bool] = {}  # whether the class of the module there is marked, once one is
        self._alike: dict[str, dict[Source, str]] = {}  # places that people read alike, by what the history knows each
        self._assumes = False
        self.guessed_at: set[Position] = set()
        self.only_looks = False

    def without_new_ones(self, tracer: Tracer) -> Symbols:
        """For code that is only looked at, and runs as the user's Python: what it finds outside are constants."""
        other = copy.copy(self)
        other._tracer, other._history, other.only_looks = tracer, SizeHistory(dynamic=False), True
        return other

    def meet_module(self, cls: type, source: Source) -> None:
        """Whether what modules of this class hold are constants, as ``mark_static`` of the class says."""
        is_marked = getattr(cls, STATIC_MARK, None) is True
        if is_marked or self._static:
            self._static[source] = is_marked

    def _is_static(self, source: Source) -> bool:
        """Whether the nearest module that holds what is found there is of a marked class."""
        step: Source | None = source if self._static else None
        while step is not None and step not in self._static:
            step = step.base
        return step is not None and self._static[step]

    def _known_as(self, source: Source) -> str:
        """The name of a place in the history. What an optimizer keeps of its parameters reads alike for all of them,
        and that one is of another size than the next is no change."""
        alike = self._alike.setdefault(source.name, {})
        if source not in alike:
            alike[source] = f"{source.name} ({len(alike) + 1})" if alike else source.name
        return alike[source]

    # What becomes a symbol.

    def outline(self, tensor: torch.Tensor, source: Source) -> tuple[Sizes, Sizes] | None:
        """Sizes and strides of a tensor from outside, guarded, where some are symbols; None where none is."""
        # Parameters change their sizes with the module they belong to, which is another program anyway.
        if type(tensor) is torch.nn.Parameter and config.static_parameters:
            return None
        known_as, is_static = self._known_as(source), self._is_static(source)
        dims = self._history.dims(known_as, tensor, is_static=is_static)
        steps = self._history.steps(known_as, tensor, is_static=is_static)
        steps = steps and steps & loose_dims(tensor.shape, tensor.stride())
        if not dims and not steps:
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
        taken = Reading(source, "{}.stride()")

        def moving(dim: int) -> Any:
            value = tensor.stride(dim)
            if dim not in steps:
                return value
            self._tracer.guard("{s0} >= 2", Item(taken, dim))
            return self._symbol(value, 2, Item(taken, dim))

        strides = symbolic_strides(shape, tensor.shape, tensor.stride(), moving)
        if tensor.is_contiguous() and all(value > 1 for value in tensor.shape):
            self._tracer.guard("{s0}.is_contiguous()", source)  # strides follow from the sizes
        else:
            self._guard_strides(source, strides)
        return tuple(shape), strides

    def number(self, value: int | float, source: Source) -> Any:
        """A number from outside as a symbol, guarded; None where it is a constant."""
        is_schedule = type(value) is float and is_learning_rate(source)
        is_small = type(value) is int and self._history.is_small(self._known_as(source), value)
        if self._is_static(source) or not self._history.moves(
            self._known_as(source), value, is_argument=is_argument(source), is_schedule=is_schedule
        ):
            return None
        if type(value) is float:
            return self._fraction(value, source)
        self._tracer.guard("type({s0}) is {c0}", source, type(value))
        least = -LARGEST if is_small else 2
        self._tracer.guard("{c0} <= {s0} < {c1}", source, least, LARGEST)
        return self._symbol(value, least, source)

    def number_varies(self, value: Any, source: Source) -> bool:
        """Whether a number that can be no symbol was many others before."""
        return self._history.varies(self._known_as(source), value)

    def _becomes_constant(self, symbol: Symbol) -> None:
        """A fraction has to be known; where it was many others before, plain Python runs what has to know it."""
        source = self.sources.get(symbol)
        options = self._tracer.options
        if source is None or self._late is not None or options.fullgraph:
            return
        if self.number_varies(self.environment.values[symbol], source) or self._tracer.where() in options.disbelieved:
            self._tracer.stop("value_changes", f"{source} has to be known here, and is another number at each call")

    def key_varies(self, number: Any) -> bool:
        """Whether a number that keys are made of was many others before; it is known by how it is worked out."""
        return self._history.varies(f"the key {expression_of(number)!r}", hint(number))

    def computed(self, value: int | float, source: Source) -> Any:
        """A number that a path computes from another one, guarded; None where kernels could not take it."""
        if not -LARGEST < value < LARGEST:
            return None
        if type(value) is float:
            return self._fraction(value, source)
        self._tracer.guard("type({s0}) is {c0}", source, type(value))
        if value == 0:  # which means more than others do
            self._history.is_small(self._known_as(source), value)
            self._tracer.guard("{s0} == {c0}", source, value)
            return value
        least = -LARGEST if self._history.is_small(self._known_as(source), value) else 2
        self._tracer.guard("{c0} <= {s0} < {c1}", source, least, LARGEST)
        return self._symbol(value, least, source)

    def _fraction(self, value: float, source: Source) -> Any:
        """A float, of which no kernel asks whether it is none, or too large for single precision."""
        self._tracer.guard("type({s0}) is {c0}", source, float)
        self._tracer.guard("{c0} < {s0} < {c1}", source, -LARGEST, LARGEST)
        return self._symbol(value, -math.inf, source)

    def from_graph(self, node: torch.fx.Node, kind: type, least: float) -> Any:
        """A number that a node of the graph gives."""
        symbol = self.environment.unknown_symbol(GUESSES[kind], Range(least))
        self.nodes[symbol] = node
        number = node.meta["example_value"] = size(self.environment, Expression.atom(symbol))
        return number

    def from_program(self, source: Source, kind: type, within: Range) -> Any:
        """A number that the program finds before the graph runs, and has at ``source``."""
        symbol = self.environment.unknown_symbol(GUESSES[kind], within)
        self.sources[symbol] = source
        return size(self.environment, Expression.atom(symbol))

    def length_changes(self, length: int, source: Source) -> bool:
        """Whether going through this list would make a program for each call."""
        return self._history.grows(source.name, length)

    def text_changes(self, value: str, source: Source) -> bool:
        """Whether a text that the call is given was another one before."""
        return is_argument(source) and self._history.changes(source.name, value)

    def object_changes(self, obj: object, source: Source) -> bool:
        """Whether there was another object at this place before."""
        return self._history.replaces(source.name, obj)

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

    # What is assumed about those that are not known yet.

    @contextmanager
    def assuming(self) -> Iterator[None]:
        """Inside, questions of an operation are answered by what is likely, which the graph checks before it."""
        before, self._assumes = self._assumes, True
        try:
            yield
        finally:
            self._assumes = before

    def _answer(self, asked: Expression | Real, question: str) -> bool:
        options, where = self._tracer.options, self._tracer.where()
        guesses = self._assumes and options.assumes and where not in options.disbelieved
        if question == VALUE or not guesses or isinstance(asked, Real):
            self._tracer.stop("tensor_value", f"a decision depends on {self.known_as(asked)}, known only when it runs")
        answer = _is_likely(asked, question, self.environment)
        self.guessed_at.add(where)
        self._check(asked, question, answer)
        return answer

    def known_as(self, asked: Expression | Real) -> str:
        """What people know a number by whose value is not known yet."""
        return " and ".join(dict.fromkeys(self._origin(symbol) for symbol in sorted(asked.symbols())))

    def _origin(self, symbol: Symbol) -> str:
        node = self.nodes.get(symbol)
        if node is None:
            return self.sources[symbol].name
        return "a size that depends on data" if node.target == "size" else "a number read from a tensor"

    def assume(self, difference: Expression, question: str, answer: bool) -> None:
        """Go on as if the answer were this one."""
        self._check(difference, question, answer)
        self.environment.learn(difference, question, answer)

    def _check(self, difference: Expression, question: str, answer: bool) -> None:
        condition = readable(difference, question if answer else INVERSE[question])
        left, right = (size(self.environment, side) for side in (condition.left, condition.right))
        self._tracer.graph.require(left, condition.symbol, right)

    # What is assumed about the others.

    def guard_of(self, condition: Condition) -> Guard:
        left, sources = _template(condition.left, self.sources, [])
        right, sources = _template(condition.right, self.sources, sources)
        return Guard(condition.compared(left, right), tuple(sources), (), self._tracer.where())

    def _note(self, condition: Condition) -> None:
        guard = self.guard_of(condition)
        self._tracer.assumptions.add(guard) if self._late is None else self._late.append(guard)

    def finish(self) -> list[Guard]:
        """The program is written: what is assumed from now on is collected, for those who make the program."""
        self._late = []
        self.environment.on_unknown = refuse
        return self._late

    def settle(self) -> None:
        """The program is in use: nothing more can be assumed for all of it."""
        self.environment.on_condition = _assumed_too_late

    # How they are written.

    def text(self, expression: Expression | Real, emitter: Emitter) -> str:
        """The Python that computes an expression in the body of the program."""

        def name(symbol: Symbol) -> str:
            node = self.nodes.get(symbol)
            return emitter.read(self.sources[symbol]) if node is None else emitter.result(node)

        return spelled(expression, name)


def _is_likely(difference: Expression, question: str, environment: Environment) -> bool:
    """What is assumed about numbers that sizes and indices are computed from: sizes that an operation compares are
    equal, but none is 0 or 1; the numbers are small and not negative."""
    if question == NEGATIVE:
        return difference.value(environment.values) < 0
    products = [product for product in difference.terms if product]
    plain = len(products) == 1 and not any(isinstance(atom, Applied) for atom in products[0])
    return not (plain and difference.terms.get((), 0) in (-1, 0, 1))


def _assumed_too_late(condition: Condition) -> None:
    raise AssertionError(f"{condition} is assumed after the guards were written")


def _weakly(method: Callable[..., Any], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does not keep its object: sizes that tensors have in C++ lead to the environment, and from there
    to what holds these tensors, on a road that no garbage collector sees. A capture that was given up would stay."""
    reference = weakref.WeakMethod(method)
    return lambda *args: (reference() or fallback)(*args)


def is_argument(source: Source) -> bool:
    """Whether the call is given it, as an argument or inside one."""
    step = source
    while isinstance(step, Item):
        step = step.origin
    return isinstance(step, Local)


def is_learning_rate(source: Source) -> bool:
    """Whether a number is found where an optimizer keeps the learning rate of some parameters."""
    match source:
        case Item(Item(Attr(_, "param_groups"), _), "lr"):
            return True
    return False


def _template(
    expression: Expression | Real, places: dict[Symbol, Source], sources: Sequence[Source]
) -> tuple[str, list[Source]]:
    """An expression as the text of a guard over sources, which go on from those given."""
    listed = list(sources)

    def slot(symbol: Symbol) -> str:
        source = places[symbol]
        if source not in listed:
            listed.append(source)
        return f"{{s{listed.index(source)}}}"

    return spelled(expression, slot), listed
