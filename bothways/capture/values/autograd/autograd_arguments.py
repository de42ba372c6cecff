"""The arguments of a custom function twice: as its bodies see them while they are looked at, and as its node gets them.

The bodies get stand-ins in a graph that is thrown away, so whatever they do to an argument shows there and nowhere
else. The node gets tensors from the graph, constants, containers made for each call, and objects as they are.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from bothways import torch_compat
from bothways.capture.shapes.fakes import Fake, fake_like
from bothways.capture.values.collections.containers import ListValue, TupleValue, make_tuple
from bothways.capture.values.collections.dicts import DictValue
from bothways.capture.values.core.base import Args, LazyValue, Value
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.objects.objects import ObjectValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.writing.object_inputs import ObjectInput, Outline, outline_of
from bothways.errors import Unsupported
from bothways.runtime.nodes import Argument, BuiltContainer, Fixed, FromGraph

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def realized(value: Value) -> Value:
    """The Value behind an argument; what capture cannot look into stays as it is and may still be passed on."""
    if not isinstance(value, LazyValue):
        return value
    try:
        return value.realize()
    except Unsupported as unsupported:
        if unsupported.break_.code != "object_unknown":
            raise
        assert value.source is not None
        value.tracer.guard("type({s0}) is {c0}", value.source, type(value.obj))
        return value


def is_plain_constant(value: Value) -> bool:
    """Whether a Value is nothing but its content: not an object that has a class of the user's or can change."""
    if isinstance(value, NumberValue) and not value.is_unknown:
        return True  # nothing is assumed about which one it is
    return not isinstance(value, (LazyValue, ListValue, DictValue, ObjectValue)) and value.is_constant


class StandIns:
    """What stands for each argument while the bodies are looked at, and whether that was changed."""

    def __init__(self, tracer: Tracer, side: Tracer) -> None:
        self.tracer, self.side = tracer, side
        self.originals: dict[int, Value] = {}  # by the id of the stand-in
        self._made: dict[int, Value] = {}  # by the id of the original
        self._versions: list[tuple[TensorValue, int]] = []
        self._outlines: list[tuple[Value, Outline]] = []

    def of(self, value: Value) -> Value:
        value = realized(value)
        if id(value) not in self._made:
            stand_in = self._make(value)
            self._made[id(value)] = stand_in
            self.originals[id(stand_in)] = value
            if stand_in is not value and stand_in.source is None:
                self._outlines.append((stand_in, outline_of(stand_in)))
        return self._made[id(value)]

    def stand_in_for(self, value: Value) -> Value:
        """The stand-in that was made for an argument."""
        return self._made[id(realized(value))]

    def _make(self, value: Value) -> Value:
        for kind, make in _TWINS:
            if isinstance(value, kind):
                return make(self, value)
        return value if is_plain_constant(value) else self._external(value)

    def _external(self, value: Value) -> Value:
        obj = value.obj if isinstance(value, LazyValue) else self.tracer.object_of(value)
        if obj is None or value.source is None:
            self.tracer.stop("autograd_function", f"a custom function is given {value.describe()} made inside")
        if isinstance(value, LazyValue):
            return LazyValue(self.side, obj, value.source)
        return self.side.look_at(obj, value.source)

    def tensor(self, value: Any) -> Value:
        node = self.side.graph.graph.create_node("placeholder", value.node.name)
        node.meta["example_value"] = value.fake.outline()
        with torch.inference_mode(False):  # a tensor made in inference mode does not count its changes
            fake = Fake(fake_like(value.fake.meta).meta, value.fake.device)
        twin = TensorValue(node, fake, value.cls, value.source)
        twin.attrs = dict(value.attrs)
        if value.obj is not None:
            twin.obj = value.obj
            self.side.remember(value.obj, twin)
        self._versions.append((twin, fake.meta._version))
        return twin

    def list_(self, value: Any) -> Value:
        return ListValue([self.of(item) for item in value.items_for_graph(self.tracer)])

    def tuple_(self, value: Any) -> Value:
        return TupleValue([self.of(item) for item in value.items_for_graph(self.tracer)], value.kind)

    def dict_(self, value: Any) -> Value:
        if value.kind not in (dict, OrderedDict):
            return self._external(value)
        value.depend_on_keys()
        pairs = [(entry.key, self.of(entry.value)) for entry in value.entries.values()]
        return DictValue.from_pairs(self.side, pairs, value.kind)

    def object(self, value: Any) -> Value:
        if value.source is not None or type(value) is not ObjectValue or value.payload is not None or value.new_args:
            return self._external(value)
        twin = ObjectValue(value.cls)
        twin.attrs = {name: self.of(stored) for name, stored in value.attrs.items() if stored is not None}
        return twin

    def tensors(self) -> Iterable[tuple[TensorValue, TensorValue]]:
        """Each stand-in of a tensor, and the tensor."""
        for twin, _ in self._versions:
            original = self.originals[id(twin)]
            assert isinstance(original, TensorValue)
            yield twin, original

    # What the bodies did to them.

    @property
    def tensors_changed(self) -> bool:
        """Whether an argument's data was changed in place."""
        return any(twin.fake.meta._version != version for twin, version in self._versions)

    def own_memory(self, memory: Iterable[int]) -> bool:
        """Whether some of this memory is that of a tensor argument."""
        own = {torch_compat.storage_identity(twin.fake.meta) for twin, _ in self._versions}
        return not own.isdisjoint(memory)

    def check_kept(self, name: str) -> None:
        """Stop when an argument was changed in a way that only its stand-in shows."""
        for twin, outline in self._outlines:
            if outline_of(twin) != outline:
                self.tracer.stop("autograd_function", f"{name} changes an argument it is given")
        for twin, _ in self._versions:
            original = self.originals[id(twin)]
            assert isinstance(original, TensorValue)
            if _shape_of(twin) != _shape_of(original) or twin.attrs != original.attrs:
                self.tracer.stop("autograd_function", f"{name} changes what a tensor it is given is")


def _shape_of(value: TensorValue) -> tuple[object, ...]:
    return value.fake.shape, value.fake.stride, value.fake.dtype, value.fake.requires_grad


_TWINS: tuple[tuple[type, Callable[[StandIns, Any], Value]], ...] = (
    (TensorValue, StandIns.tensor),
    (ListValue, StandIns.list_),
    (TupleValue, StandIns.tuple_),
    (DictValue, StandIns.dict_),
    (ObjectValue, StandIns.object),
)


class NodeArguments:
    """What the node of a custom function is given."""

    def __init__(self, tracer: Tracer, kept: Callable[[Value], bool]) -> None:
        """``kept`` says of a container whether forward keeps it, so that it has to be the user's own."""
        self.tracer, self._kept = tracer, kept
        self.given: list[Value | ObjectInput] = []
        self.has_objects = False

    def add_all(self, values: Args) -> tuple[Argument, ...]:
        return tuple(self.add(value) for value in values)

    def add(self, value: Value) -> Argument:
        value = realized(value)
        if isinstance(value, TensorValue):
            return self._give(value)
        if isinstance(value, TupleValue):
            parts = self._parts(value.items_for_graph(self.tracer))
            if all(isinstance(part, Fixed) for part in parts):
                return Fixed(value.constant())
            return BuiltContainer(functools.partial(make_tuple, value.kind), parts)
        if isinstance(value, ListValue) and not self._kept(value):
            return BuiltContainer(list, self._parts(value.items_for_graph(self.tracer)))
        if isinstance(value, DictValue) and value.kind in (dict, OrderedDict) and not self._kept(value):
            items = value.constant_items(self.tracer)
            make = functools.partial(_mapping, value.kind, tuple(key for key, _ in items))
            return BuiltContainer(make, self._parts(item for _, item in items))
        if is_plain_constant(value):
            return Fixed(value.constant())
        self.has_objects = True
        hint = type(value.obj).__name__.lower() if isinstance(value, LazyValue) else value.name_hint()
        return self._give(self.tracer.graph.add_object(value, hint))

    def _give(self, argument: Value | ObjectInput) -> FromGraph:
        self.given.append(argument)
        return FromGraph(len(self.given) - 1)

    def _parts(self, values: Iterable[Value]) -> tuple[Argument, ...]:
        return tuple(self.add(value) for value in values)


def _mapping(kind: type, keys: tuple[Any, ...], items: list[Any]) -> Any:
    return kind(zip(keys, items, strict=True))


def wants_gradient(values: Args) -> bool:
    """Whether autograd will want a backward of a function that is given these."""
    return torch.is_grad_enabled() and any(
        isinstance(value, TensorValue) and value.fake.requires_grad for value in map(realized, values)
    )
