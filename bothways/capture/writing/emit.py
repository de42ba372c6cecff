"""Writes the body of a Program: read the inputs, run the graph, build what the call created, replay effects.

Values describe themselves through ``rebuild`` (one expression) or, when they can refer to themselves,
through ``rebuild_empty`` and ``fill``. An object that is used twice is built once and named.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.fx

from bothways.capture.guards.sources import Attr, Cell, Injected, Item, Local, Source, Together, spelled_with
from bothways.capture.values.core.base import LazyValue, Value
from bothways.capture.writing.dropping import is_iterator
from bothways.runtime.gradients import spent
from bothways.source_text import identifier, is_plain_name

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.tensors.tensors import TensorValue
    from bothways.capture.writing.effects import GlobalWrite, Mutable


class FreeNames:
    """Hands out variable names that collide with nothing, and remembers which Source has one."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self.bound: dict[Source, str] = {}

    def fresh(self, hint: str) -> str:
        base = identifier(hint)
        name, count = base, 0
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def hint(self, source: Source) -> str:
        """A readable name for what a source leads to: its last attribute, key or variable."""
        match source:
            case Attr(_, attribute):
                return attribute
            case Item(_, key):
                return key if isinstance(key, str) else f"{self.hint(source.origin)}_{key}"
            case Cell(_, _, variable):
                return variable
            case Together(parts):
                return self.hint(parts[0])
            case _ if source.base is not None:
                return self.hint(source.base)
        return source.code("")

    def expression(self, source: Source) -> str:
        """The cheapest text that reads a source now, given what is bound already."""
        if source in self.bound:
            return self.bound[source]
        return spelled_with(source, self.expression)


class Emitter:
    """The body of one Program under construction."""

    def __init__(self, tracer: Tracer, names: FreeNames) -> None:
        self.tracer = tracer
        self.names = names
        self.loads: list[str] = []
        self.loaded: list[Source] = []
        self.builds: list[str] = []
        self.effects: list[str] = []
        self.positions: list[str] = []
        self.iterators: list[str] = []  # the names of those that clean up when they go, or hold one that does
        self.tensors: dict[torch.fx.Node, str] = {}
        self.spent: dict[torch.fx.Node, str] = {}  # tensors whose backward the graph has run
        self._built: dict[int, str] = {}
        self._uses: dict[int, int] = {}
        self._kept: list[Value] = []  # Values are known by id here, so none may go away in between
        self._cyclic: set[int] = set()
        self._unfilled: list[tuple[Value, str]] = []
        self._filling: list[Value] = []
        self._replayed: dict[int, list[str]] = {}  # who was changed, and the effects that tell it
        self._open = 0  # how many objects are named but not made yet

    @property
    def met(self) -> list[Value]:
        """The Values that the program builds, or reads."""
        return self._kept

    # First pass: who is used more than once, who refers to itself.

    def survey(self, roots: Iterable[Value]) -> None:
        for root in roots:
            self._survey(root, set())

    def _survey(self, value: Value, path: set[int]) -> None:
        value = resolve(value)
        if value.source is not None and not value.mutated:
            return
        key = id(value)
        self._kept.append(value)
        self._uses[key] = self._uses.get(key, 0) + 1
        if key in path:
            self._cyclic.add(key)
        if self._uses[key] > 1:
            return
        for part in value.parts():
            self._survey(part, path | {key})

    # Second pass: text.

    def read(self, source: Source) -> str:
        """The name of an external object, read before anything is changed."""
        if isinstance(source, (Local, Injected)) or source in self.names.bound:
            return self.names.expression(source)
        expression = self.names.expression(source)
        name = self.names.fresh(self.names.hint(source))
        self.names.bound[source] = name
        self.loads.append(f"{name} = {expression}")
        self.loaded.append(source)
        return name

    def rebuild(self, value: Value) -> str:
        """The expression that gives a Value's object."""
        value = resolve(value)
        key = id(value)
        if key in self._built:
            return self._built[key]
        self._kept.append(value)
        if value.source is not None and not value.is_constant_content:
            return self.read(value.source)
        if key in self._cyclic or value.two_phase:
            name = self.names.fresh(value.name_hint())
            self._built[key] = name
            self._open += 1
            self.build(f"{name} = {value.rebuild_empty(self)}")
            self._open -= 1
            self._unfilled.append((value, name))
            self._fill()
            return name
        expression = value.rebuild(self)
        if self._uses.get(key, 0) > 1 and not value.is_constant_content and not expression.isidentifier():
            expression = self.built(value, expression)
            if is_iterator(value):
                self.iterators.append(expression)
        self._built[key] = expression
        return expression

    def _fill(self) -> None:
        """Fill what was made empty, once nothing is half made: a function's cell may hold the function."""
        while self._unfilled and not self._open:
            value, name = self._unfilled.pop(0)
            self._filling.append(value)
            value.fill(self, name)
            self._filling.pop()

    def settled(self, container: Value) -> str:
        """The expression of a container as the call leaves it: an iterator notices what changes after it was made."""
        whole = resolve(container.holder or container)
        text = self.rebuild(whole)
        if any(whole is value for value in (*self._filling, *(value for value, _ in self._unfilled))):
            self.tracer.stop("escape", f"cannot rebuild an iterator over {container.describe()} that contains it")
        if container.source is not None and container.mutated:
            self.replay(cast("Mutable", container))
            early = self._replayed[id(container)]
            self.builds += early
            self.effects = [line for line in self.effects if not any(line is each for each in early)]
            early.clear()
        return text

    def name(self, value: Value, expression: str) -> str:
        """A name for an iterator, which is made now: what comes later must not change it."""
        name = self.built(value, expression)
        self.iterators.append(name)
        return name

    def replay(self, effect: Mutable | GlobalWrite) -> None:
        """Write what was changed outside, once."""
        if id(effect) not in self._replayed:
            self._replayed[id(effect)] = []
            before = len(self.effects)
            effect.emit_effects(self)
            self._replayed[id(effect)] += self.effects[before:]

    def rebuild_all(self, values: Iterable[Value]) -> str:
        return ", ".join(self.rebuild(value) for value in values)

    def build(self, statement: str) -> None:
        """A statement that makes something new; all of them run before the first effect."""
        self.builds.append(statement)

    def built(self, value: Value, expression: str) -> str:
        """A name for what an expression gives now, be it changed later what it is made of."""
        name = self.names.fresh(value.name_hint())
        self.build(f"{name} = {expression}")
        return name

    def effect(self, statement: str) -> None:
        """A statement that changes something which existed before the call."""
        self.effects.append(statement)

    def position(self, statement: str) -> None:
        """A statement that puts an iterator where it stands, when what it goes over is as it will be."""
        self.positions.append(statement)

    def tensor(self, value: TensorValue) -> str:
        """The name of a tensor the graph computes; asking makes it an output of the graph."""
        if value.node in self.spent:
            return self.spent[value.node]
        self.tracer.graph.levels.use(value.node)
        autograd = self.tracer.graph.autograd
        history = autograd.spent(value)
        if history is None:
            if autograd.is_cut_off(value):
                self.tracer.stop("hook", "a tensor leaves whose gradient goes through a tensor that is hooked")
            return self.result(value.node)
        result = self.result(self.tracer.graph.detached(value))
        self.spent[value.node] = self.names.fresh("spent")
        name, behind = history
        others = "".join(f", {self.read(tensor.source)}" for tensor in behind if tensor.source is not None)
        self.build(f"{self.spent[value.node]} = {self.inject(spent, 'spent')}({result}, {name!r}{others})")
        if any(event.retains is value for event in self.tracer.effects.registrations):
            self.build(f"{self.spent[value.node]}.retain_grad()")
        return self.spent[value.node]

    def result(self, node: torch.fx.Node) -> str:
        """The same for whatever a node gives."""
        if node not in self.tensors:
            self.tensors[node] = self.names.fresh(node.name)
        return self.tensors[node]

    def inject(self, obj: object, label: str) -> str:
        return self.tracer.inject(obj, label).key

    def literal(self, content: Any) -> str:
        """A constant as source text, or as a name of the namespace when it has no literal."""
        kind = type(content)
        if content is None or kind in (bool, int, str, bytes) or content is Ellipsis:
            return repr(content)
        if kind is float and math.isfinite(content):
            return repr(content)
        if kind is torch.dtype:
            return self.inject(content, str(content))
        return self.inject(content, getattr(content, "__name__", None) or kind.__name__)


def resolve(value: Value) -> Value:
    """What to build for a Value: the one behind a lazy one, if it was looked at by this very path."""
    return value.if_realized() if isinstance(value, LazyValue) else value


def store(target: str, attribute: str, value: str) -> str:
    """The statement that sets an attribute; names such as ``class`` cannot follow a dot."""
    if is_plain_name(attribute):
        return f"{target}.{attribute} = {value}"
    return f"setattr({target}, {attribute!r}, {value})"


def stores(emitter: Emitter, target: str, attrs: Mapping[str, Value | None]) -> Iterator[str]:
    """The statements that give an object made inside its attributes; None stands for a deleted one."""
    for attribute, value in attrs.items():
        if value is not None:
            yield store(target, attribute, emitter.rebuild(value))


def changes(
    emitter: Emitter, target: str, attrs: Mapping[str, Value | None], before: Container[str], moved: Container[str]
) -> Iterator[str]:
    """The statements that bring an object from outside, which had the attributes ``before``, up to date.

    Those that were ``moved`` are deleted first, which puts them last.
    """
    for attribute, value in attrs.items():
        if attribute in before and (value is None or attribute in moved):
            yield f"delattr({target}, {attribute!r})"
        if value is not None:
            yield store(target, attribute, emitter.rebuild(value))
