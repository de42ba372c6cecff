"""Python's random numbers: generators, and what they draw.

Each call is one line of the program, made before the graph runs and in the order of the captured code, so that the
generators are left as plain Python leaves them. What is drawn is a symbol whose value is not known beforehand.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from bothways.capture.guards import policy
from bothways.capture.guards.sources import Source, path_step
from bothways.capture.values.core import handlers, linked
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments
from bothways.capture.values.core.numbers import number_value
from bothways.runtime.nodes import ApplyFunction
from bothways.source_text import described
from bothways.symbols.bounds import ANYTHING, Range

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.values.core.protocols import Operator
    from bothways.capture.writing.emit import Emitter

# Methods that draw a number, and those that look at or change where a generator is.
DRAWS = frozenset(
    "random uniform triangular randint randrange getrandbits gauss normalvariate lognormvariate expovariate "
    "vonmisesvariate gammavariate betavariate paretovariate weibullvariate".split()
)
STATE = frozenset({"seed", "getstate", "setstate"})
# Among which numbers those are that these draw: what a graph assumes of them is then known, and need not be checked.
AMONG: dict[str, Callable[..., range]] = {
    "randint": lambda a, b: range(a, b + 1),
    "randrange": lambda start, stop=None, step=1: range(start) if stop is None else range(start, stop, step),
    "getrandbits": lambda k: range(1 << k),
}


@path_step
class Drawn(Source):
    """What a line of the program gave that called a generator; ``index`` counts those lines."""

    index: int

    def code(self, base: str) -> str:
        return f"drawn_{self.index}"

    @property
    def name(self) -> str:
        return "a random number"


@dataclass(frozen=True)
class Draw:
    """One call of a generator, or one that makes a generator; the text has a slot for each argument."""

    source: Drawn
    text: str
    args: tuple[Value, ...]

    def emit(self, emitter: Emitter) -> None:
        line = self.text.format(*(emitter.rebuild(arg) for arg in self.args))
        name = emitter.names.bound[self.source] = emitter.names.fresh(self.source.code(""))
        emitter.loads.append(f"{name} = {line}")


class RandomValue(Value):
    """A ``random.Random``: one from outside, or one that the captured code made."""

    only_registers = False
    draws, state, among = DRAWS, STATE, AMONG
    asks, puts_back = "getstate", "setstate"
    library = "random"

    def __init__(self, source: Source, obj: Any = None) -> None:
        self.source, self.obj = source, obj

    def model(self) -> Any:
        """Another generator of the kind."""
        return random.Random(0)

    @classmethod
    def external(cls, tracer: Tracer, obj: Any, source: Source) -> RandomValue:
        tracer.guard("type({s0}) is {c0}", source, type(obj))
        value = cls(source, obj)
        tracer.remember(obj, value)
        return value

    def python_type(self) -> type:
        return type(self.model())

    def hash_key(self, tracer: Tracer) -> Hashable:
        return self

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name in self.draws or name in self.state:
            if hasattr(self.obj, "__dict__"):
                if name in vars(self.obj):
                    tracer.stop("call_unknown", f"{self.library}.{name} is replaced in one generator")
                tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
            return linked.BoundBuiltin(self, name)
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in self.draws:
            return self._draw(tracer, name, args, kwargs)
        if name in self.state and not kwargs and all(_can_be_passed(arg) for arg in args):
            return self._line(tracer, name, args)
        return super().call_method(tracer, name, args, kwargs)

    def _draw(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        positional, keywords = constant_arguments(tracer, args, kwargs)
        # Another generator tells what kind of number comes out, and whether the arguments are right.
        number = tracer.run_const(getattr(self.model(), name), *positional, **keywords)
        if type(number) not in (int, float):
            tracer.stop("call_unknown", f"{self.library}.{name} draws {described(type(number))}")
        arguments = [*args, *kwargs.values()]
        named = [""] * len(args) + [f"{keyword}=" for keyword in kwargs]
        source = self._record(tracer, name, arguments, named)
        within = self._within(name, positional, keywords) if type(number) is int else ANYTHING
        return number_value(tracer.symbols.from_program(source, type(number), within))

    def _within(self, name: str, positional: Sequence[Any], keywords: Mapping[str, Any]) -> Range:
        """Where the numbers lie that a method draws."""
        try:
            among = self.among[name](*positional, **keywords)
        except (KeyError, TypeError):  # nothing is known of it, or of arguments that are no integers
            return ANYTHING
        return Range(min(among[0], among[-1]), max(among[0], among[-1]))

    def _line(self, tracer: Tracer, name: str, args: Args) -> Value:
        source = self._record(tracer, name, args, [""] * len(args))
        return GeneratorState(source) if name == "getstate" else ConstantValue(None)

    def _record(self, tracer: Tracer, name: str, args: Args, named: list[str]) -> Drawn:
        slots = ", ".join(f"{keyword}{{{index}}}" for index, keyword in enumerate(named, 1))
        if not isinstance(self.source, Drawn):
            tracer.effects.mutated(self)
        return record(tracer, f"{{0}}.{name}({slots})", [self, *args])

    def emit_effects(self, emitter: Emitter) -> None:
        """The lines of the program that call it are all there is."""


class GeneratorState(Value):
    """What ``getstate()`` gave: to be handed on, and to be set."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def python_type(self) -> type:
        return tuple

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        self._looked_into(tracer)

    def iterate(self, tracer: Tracer) -> Value:
        self._looked_into(tracer)

    def length(self, tracer: Tracer) -> int:
        self._looked_into(tracer)

    def binary(self, tracer: Tracer, op: Operator, other: Value, reflected: bool) -> Value | None:
        self._looked_into(tracer)

    def _looked_into(self, tracer: Tracer) -> NoReturn:
        tracer.stop("value_changes", "the state of a random number generator is looked into")


def record(tracer: Tracer, text: str, args: Args) -> Drawn:
    """Have the program make a call before its graph runs."""
    if tracer.symbols.only_looks:
        tracer.stop("call_unknown", "random numbers are drawn where the user's own Python runs")
    if any(isinstance(node.target, ApplyFunction) or _is_users(node.target) for node in tracer.graph.graph.nodes):
        tracer.stop("call_unknown", "random numbers are drawn after a node that runs the user's Python")
    source = Drawn(len(tracer.effects.draws))
    tracer.effects.draw(Draw(source, text, tuple(args)))
    return source


def _is_users(target: Any) -> bool:
    return isinstance(target, types.FunctionType) and not policy.module_of(target).startswith(("torch", "bothways"))


def _can_be_passed(value: Value) -> bool:
    value = value.realize()
    return isinstance(value, (ConstantValue, GeneratorState)) or value.source is not None


def outside(tracer: Tracer) -> list[RandomValue]:
    """The generators from outside that the program uses."""
    generators = (draw.args[0] for draw in tracer.effects.draws if draw.args)
    used = [value for value in generators if isinstance(value, RandomValue) and not isinstance(value.source, Drawn)]
    return list(dict.fromkeys(used))


@handlers.handles(random.Random)
def _make(tracer: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    constant_arguments(tracer, [*args], kwargs)
    if kwargs:
        tracer.stop("call_unknown", "random.Random is called with keywords")
    slots = ", ".join(f"{{{index}}}" for index in range(1, len(args) + 1))
    cls = ConstantValue(random.Random)
    return RandomValue(record(tracer, f"{{0}}({slots})", [cls, *args]))


def _of_method(name: str) -> handlers.Handler:
    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        owner = args[0].realize()
        if not isinstance(owner, RandomValue):
            tracer.stop("call_unknown", f"random.Random.{name} is not looked into")
        return owner.call_method(tracer, name, args[1:], kwargs)

    return handler


def _of_module(function: Any) -> handlers.Handler:
    """A method in C of the generator that the module ``random`` has."""

    def handler(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        owner = linked.library_value(tracer, function.__self__)
        return owner.call_method(tracer, function.__name__, args, kwargs)

    return handler


for _name in (*DRAWS, *STATE):
    _method = getattr(random.Random, _name)
    if isinstance(_method, types.FunctionType):
        handlers.HANDLERS[_method] = _of_method(_name)
    else:
        handlers.HANDLERS[getattr(random, _name)] = _of_module(getattr(random, _name))
