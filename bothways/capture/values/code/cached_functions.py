"""``functools.lru_cache``: what a cached function gives for these arguments.

For constants Python itself is asked, which runs the function that one time and remembers the very object; tensors that
it remembers are asked for anew by each call. Sizes that vary, and objects that captured code has made, which no cache
knows, are no keys to ask with: the function is inlined, if it does nothing but compute.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from bothways import ops
from bothways.capture.guards.guards import STAMPED, Guard
from bothways.capture.guards.sources import Attr, Injected, Reading, Source
from bothways.capture.state.computed_again import ResultIsRemembered
from bothways.capture.values.code.looking import fork, undone
from bothways.capture.values.collections.containers import ListValue, TupleValue
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.core.raised import Raised
from bothways.errors import Unsupported
from bothways.symbols import hint

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Guards that say nothing about a state: what kind of object it is, and which code a function has.
OF_DEFINITIONS = frozenset(
    {STAMPED, "type({s0}) is {c0}", "{s0}.__code__ is {c0}", "not {s0}.__defaults__", "{s0} is {s1}"}
)
OF_NAMES = frozenset({"{c0} in {s0}", "{c0} not in {s0}"})
# How Python compares objects that are equal to nothing but themselves.
BY_ITSELF = (object.__hash__, object.__eq__)
DEFINITIONS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


class CachedFunction(Value):
    """A function behind ``functools.lru_cache`` or ``functools.cache``."""

    def __init__(self, obj: Any, source: Source) -> None:
        self.obj, self.source = obj, source

    @classmethod
    def external(cls, tracer: Tracer, obj: Any, source: Source) -> CachedFunction:
        tracer.guard("{s0} is {c0}", source, obj)
        value = cls(obj, source)
        tracer.remember(obj, value)
        return value

    def python_type(self) -> type:
        return type(self.obj)

    def describe(self) -> str:
        return f"the cached function {self.obj.__name__}"

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        if name == "__wrapped__" or name not in self.obj.__dict__:
            return super().get_attr(tracer, name)
        assert self.source is not None
        return tracer.wrap(self.obj.__dict__[name], Attr(self.source, name))

    def call(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        named = {name: arg.realize() for name, arg in kwargs.items()}
        arguments = [*(arg.realize() for arg in args), *named.values()]
        for argument in arguments:
            _check_hashable(tracer, argument)
        if not all(map(_is_key, arguments)):
            return self._asked(tracer, args, kwargs)
        key = (id(self.obj), len(args), *named, *map(_key, arguments))
        known: Value | None = tracer.computed_again.find(key)
        if known is None and tracer.options.computes_again and any(map(_varies, arguments)):
            known = self._computed_again(tracer, args, kwargs, arguments)
        if known is None:
            known = self._asked(tracer, args, kwargs)
        tracer.computed_again.meet(key, arguments, known)
        return known

    def _asked(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """What Python remembers for constants, or remembers from now on."""
        positional = [self._argument(tracer, arg) for arg in args]
        keywords = {name: self._argument(tracer, arg) for name, arg in kwargs.items()}
        if self._gives_tensors(tracer, args, kwargs):
            return self._remembered(tracer, positional, keywords)
        changes, operations = tracer.effects.changes, tracer.graph.op_count
        failure = None
        try:
            result = self._inlined(tracer, args, kwargs)
            if isinstance(result, ConstantValue) and tracer.effects.changes == changes and tracer.effects.changed:
                return result  # what was changed before is not changed for Python yet
        except Unsupported as unsupported:
            failure = unsupported
        if tracer.effects.changes > changes or tracer.graph.op_count > operations:
            if failure is not None:
                raise failure
            tracer.stop("call_unknown", f"{self.describe()} does more than compute a constant")
        if failure is not None and tracer.effects.changed:
            raise failure  # it would run before what is to be changed first
        # To run it now is that one time, or the memory of it.
        return linked.library_value(tracer, tracer.run_const(self.obj, *positional, **keywords))

    def _inlined(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        assert self.source is not None
        wrapped = tracer.wrap(self.obj.__wrapped__, Attr(self.source, "__wrapped__"))
        return protocols.call(tracer, wrapped, args, kwargs).realize()

    # Tensors, which Python remembers.

    def _gives_tensors(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> bool:
        """Whether it makes tensors, which Python remembers, of its arguments alone."""
        looked = self._looked_at(tracer, args, kwargs)
        if looked is None:
            return False
        result, side = looked
        results = [item.realize() for item in result.items] if isinstance(result, TupleValue) else [result]
        tensors = [value for value in results if isinstance(value, linked.TensorValue)]
        if not tensors or not all(isinstance(value, (linked.TensorValue, ConstantValue)) for value in results):
            return False
        makes = not any(ops.of_node(node).draws for node in side.graph.graph.nodes)
        return makes and not side.effects and not side.effects.draws and not any(map(_needs_gradient, tensors))

    def _looked_at(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> tuple[Value, Tracer] | None:
        """What it gives when it is called on the side; None when it ends in another way."""
        side = fork(tracer)
        try:
            with undone(side, tracer, grad_enabled=torch.is_grad_enabled()):
                return self._inlined(side, args, kwargs), side
        except (Unsupported, Raised, NotConstant):
            return None

    def _remembered(self, tracer: Tracer, positional: list[Any], keywords: dict[str, Any]) -> Value:
        """What it has given, or gives now that one time; the program asks it again."""
        texts = [tracer.inject(content, "argument").code("") for content in positional]
        texts += [f"{name}={tracer.inject(content, name).code('')}" for name, content in keywords.items()]
        assert self.source is not None
        path = Reading(self.source, f"{{}}({', '.join(texts)})")
        return tracer.wrap(tracer.run_const(self.obj, *positional, **keywords), path).realize()

    def _argument(self, tracer: Tracer, arg: Value) -> Any:
        """A constant, or an object that is a fact of the program: what another cached function has given."""
        arg = arg.realize()
        if arg.is_constant:
            return arg.constant()
        if not _is_fact(arg):
            tracer.stop("call_unknown", f"{self.describe()} is called with {arg.describe()}")
        return tracer.object_of(arg)

    # Arguments that vary.

    def _computed_again(self, tracer: Tracer, args: Args, kwargs: Kwargs, arguments: list[Value]) -> Value | None:
        """What it gives for a size that varies, or for an object of captured code's own; None where that is unknown."""
        if any(map(_is_new, arguments)):
            result: Value | None = self._new(tracer, args, kwargs)
        elif tracer.effects.changed:
            return None  # what Python would run now does not know of that
        else:
            result = self._alike(tracer, args, kwargs, [_now(tracer, arg) for arg in arguments])
        for part in () if result is None else _parts(result, arguments):
            tracer.computed_again.keep(part, _content)
        return result

    def _new(self, tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
        """What it gives for an object that no cache knows."""
        changes, operations = tracer.effects.changes, tracer.graph.op_count
        try:
            result = self._inlined(tracer, args, kwargs)
        except Unsupported:
            raise ResultIsRemembered from None
        if tracer.effects.changes > changes or tracer.graph.op_count > operations:
            raise ResultIsRemembered
        return result

    def _alike(self, tracer: Tracer, args: Args, kwargs: Kwargs, now: list[Any]) -> Value | None:
        """What it gives for arguments that vary, if it only computes, and what Python remembers is the same ``now``."""
        looked = self._looked_at(tracer, args, kwargs)
        if looked is None or not _only_computes(looked[1], [*args, *kwargs.values()]):
            return None
        result, named = self._inlined(tracer, args, kwargs), dict(zip(kwargs, now[len(args) :], strict=True))
        if not _is_same(result, tracer.run_const(self.obj, *now[: len(args)], **named)):
            raise ResultIsRemembered
        return result


def _needs_gradient(value: Any) -> bool:
    return bool(value.fake.requires_grad)


def _is_fact(arg: Value) -> bool:
    """Whether it is an object that the program holds, as what another cached function has given."""
    return isinstance(arg.source, Injected) and not arg.mutated


def _only_computes(side: Tracer, arguments: list[Value]) -> bool:
    """Whether a look at the function has met no effects and, for a size, nothing but its arguments and definitions: of
    all else Python remembers what it was when the function was called with that size."""
    if side.effects.changes or side.graph.op_count:
        return False
    if not any(map(_has_size, arguments)):
        return True
    roots = {arg.source.root for arg in arguments if arg.source is not None}
    return all(_is_definition(guard) or roots.issuperset(_roots(guard)) for guard in side.assumptions.guards)


def _roots(guard: Guard) -> set[Source]:
    return {source.root for source in guard.sources}


def _is_definition(guard: Guard) -> bool:
    """Whether a guard is about a function, a class or a module, or about which names there are."""
    if guard.template in OF_NAMES:
        return guard.sources[0].base is None
    names_definitions = len(guard.constants) > 0 and all(isinstance(one, DEFINITIONS) for one in guard.constants)
    return guard.template in OF_DEFINITIONS or names_definitions


def _check_hashable(tracer: Tracer, arg: Value) -> None:
    """Raise as Python does that looks for the arguments among its keys."""
    kind = arg.python_type()
    if kind.__hash__ is None:
        tracer.throw(TypeError, f"unhashable type: {kind.__name__!r}")
    if type(arg) is TupleValue:
        for item in arg.items:
            _check_hashable(tracer, item.realize())


def _varies(arg: Value) -> bool:
    return _has_size(arg) or (_is_object(arg) and not _is_fact(arg))


def _has_size(arg: Value) -> bool:
    arg = arg.realize()
    return isinstance(arg, NumberValue) or (type(arg) is TupleValue and any(map(_has_size, arg.items)))


def _is_key(arg: Value) -> bool:
    """Whether Python finds it in a cache by its value, which is known, or by itself."""
    if type(arg) is TupleValue:
        return all(_is_key(item.realize()) for item in arg.items)
    if isinstance(arg, ConstantValue):
        return type(arg.content).__hash__ is not None
    return isinstance(arg, NumberValue) or (_is_object(arg) and not arg.mutated)


def _is_object(arg: Value) -> bool:
    kind: Any = arg.python_type()
    return (kind.__hash__, kind.__eq__) == BY_ITSELF and not isinstance(arg, (ConstantValue, linked.TensorValue))


def _is_new(arg: Value) -> bool:
    """Whether captured code has made it, so that no cache knows it."""
    return _is_object(arg) and arg.source is None


def _key(arg: Value) -> Hashable:
    if type(arg) is TupleValue:
        return (arg.kind, *(_key(item.realize()) for item in arg.items))
    if isinstance(arg, ConstantValue):
        return type(arg.content), arg.content
    return str(arg.content) if isinstance(arg, NumberValue) else id(arg)


def _now(tracer: Tracer, arg: Value) -> Any:
    """The argument of this call."""
    if type(arg) is TupleValue:
        return arg.kind(_now(tracer, item.realize()) for item in arg.items)
    if isinstance(arg, ConstantValue):
        return arg.content
    if isinstance(arg, NumberValue):
        return hint(arg.content)
    obj = tracer.object_of(arg)
    if obj is None:
        raise ResultIsRemembered
    return obj


def _is_same(value: Value, obj: object) -> bool:
    """Whether a Value stands for an object like this one, in this call."""
    value = value.realize()
    kind = value.python_type()
    if kind is not type(obj):
        return False
    if isinstance(value, ConstantValue):
        return value.content is obj or bool(value.content == obj)
    if isinstance(value, NumberValue):
        return bool(hint(value.content) == obj)
    if type(value) in (ListValue, TupleValue):
        return _are_same(value.items, obj)  # type: ignore[attr-defined, arg-type]
    if type(value) is DictValue:
        return _are_same(value.parts(), [part for pair in obj.items() for part in pair])  # type: ignore[attr-defined]
    if isinstance(value, linked.ObjectValue) and value.source is None and set(value.attrs) == set(vars(obj)):
        return all(held is not None and _is_same(held, vars(obj)[name]) for name, held in value.attrs.items())
    return False


def _are_same(values: Iterable[Value], objects: Iterable[object]) -> bool:
    values, objects = list(values), list(objects)
    return len(values) == len(objects) and all(map(_is_same, values, objects))


def _parts(value: Value, arguments: Iterable[Value]) -> Iterable[Value]:
    """The containers and objects that a result is made of, other than the arguments."""
    parts: dict[int, Value] = {}
    own = set(map(id, arguments))
    pending = [value]
    while pending:
        part = pending.pop().realize()
        if isinstance(part, (ConstantValue, NumberValue)) or part.source is not None:
            continue
        if id(part) in parts or id(part) in own:
            continue
        if type(part) not in (ListValue, TupleValue, DictValue, linked.ObjectValue):
            raise ResultIsRemembered  # a generator, say, which is used up
        parts[id(part)] = part
        pending.extend(part.parts())
    return parts.values()


def _content(value: Value) -> list[Any]:
    if isinstance(value, linked.ObjectValue):
        return [part for pair in value.attrs.items() for part in pair]
    return list(value.parts())
