"""Tensors: a node of the graph, and the fake that knows its metadata.

Metadata (shape, dtype, device, …) is answered from the fake and becomes a constant of the program, which is
sound because every input's metadata is guarded. Work on data becomes a node; reading data breaks.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.capture.guards.guards import WeakIdentity
from bothways.capture.guards.sources import Attr, Source
from bothways.capture.overrides.overrides import (
    PASSED,
    PLAIN_CLASSES,
    call_special,
    call_tensor_method,
    get_tensor_attr,
    overrides_functions,
    set_tensor_attr,
    slot,
)
from bothways.capture.shapes.fakes import Fake, fake_like
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.held_attributes import keep_attribute
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked, numpy_numbers, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue, constant_arguments, constant_value
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.objects.caught_warnings import innermost, is_ignored
from bothways.capture.values.tensors.places import selected, written
from bothways.capture.values.tensors.strides import check_strides
from bothways.capture.values.tensors.tensor_attributes import (
    HOOK_METHODS,
    LATER,
    METADATA,
    METADATA_METHODS,
    NEEDS_HISTORY,
    STATE_QUERIES,
    STATIC_ADDRESS,
    STOPS,
    TENSOR_PROPERTIES,
)
from bothways.capture.writing.emit import changes, stores
from bothways.node_facts import note_of_node
from bothways.runtime.warning_nodes import Warns

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer
    from bothways.capture.writing.emit import Emitter

# Attributes that can be set and methods that are more than an operation; ``tensor_state`` fills both.
SETTERS: dict[str, Callable[[Tracer, TensorValue, Value], None]] = {}
SPECIAL_METHODS: dict[str, Callable[[Tracer, TensorValue, Args, Kwargs], Value]] = {}
# The dtype of a tensor that is an index -> a way to take elements by it; ``data_sizes`` fills it.
INDICES: dict[torch.dtype, Callable[[Tracer, TensorValue, TensorValue], Value | None]] = {}


class TensorValue(Value):
    """A tensor the graph computes or takes in."""

    def __init__(self, node: torch.fx.Node, fake: Fake, cls: type = torch.Tensor, source: Source | None = None) -> None:
        self.node, self.fake, self.cls, self.source = node, fake, cls, source
        self.placeholder = node
        self.obj: torch.Tensor | None = None
        self.attrs: dict[str, Value | None] = {}
        self.moved: set[str] = set()
        self.asked_for_grad = False  # whether captured code has looked at the gradient from outside

    @classmethod
    def external(cls, tracer: Tracer, tensor: torch.Tensor, source: Source) -> TensorValue:
        """A tensor from outside: an input of the graph, guarded by everything metadata can tell."""
        tracer.guard("type({s0}) is {c0}", source, type(tensor))
        tracer.guard("{s0}.dtype is {c0}", source, tensor.dtype)
        outline = tracer.symbols.outline(tensor, source)
        if outline is None:
            _guard_sizes(tracer, tensor, source)
        _guard_place(tracer, tensor, source)
        tracer.guard("{c0}({s0})", source, torch_compat.has_plain_memory)
        value = cls(tracer.graph.add_input(tensor, source), fake_like(tensor, outline), type(tensor), source)
        value.obj = tensor
        value.node.meta["example_value"] = value.fake.meta
        value.node.meta["tensor_dict"] = dict(tensor.__dict__)  # where PyTorch's backends look for marks
        memory = torch_compat.storage_of(tensor) if tensor.layout is torch.strided else None
        note_of_node(value.node, is_view=tensor._is_view(), memory=memory)
        if tensor.__dict__.get(STATIC_ADDRESS) == "guarded":
            tracer.guard("{s0} is {c0}", source, WeakIdentity(tensor))
        tracer.graph.take(value)
        tracer.graph.written.check_input(value)
        tracer.remember(tensor, value)
        return value

    def python_type(self) -> type:
        return self.cls

    def overrides_functions(self) -> bool:
        return overrides_functions(self.cls)

    def describe(self) -> str:
        return f"a {self.fake.dtype} tensor of shape {tuple(self.fake.shape)}"

    def hash_key(self, tracer: Tracer) -> Hashable:
        return self

    # Attributes.

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        tracer.graph.levels.refuse(name)
        if name in LATER:
            tracer.assumptions.ask(name)
        if name in NEEDS_HISTORY:
            check_history(tracer, self)
        if not tracer.overrides.leaves_tensors_alone:
            overridden = get_tensor_attr(tracer, self, name)
            if overridden is not PASSED:
                return overridden
        if name in self.attrs:
            stored = self.attrs[name]
            if stored is not None:
                return stored
        elif self.obj is not None and self.source is not None and name in self.obj.__dict__:
            return tracer.member(self.obj.__dict__[name], Attr(self.source, name), "{c0} in {s0}.__dict__")
        if name in METADATA:
            return constant_value(METADATA[name](self.fake))
        if name in TENSOR_PROPERTIES:
            return tracer.graph.op("call_function", getattr, getattr, [self, ConstantValue(name)], {})
        if name in _ATTRIBUTES:
            return _ATTRIBUTES[name](tracer, self)
        if name == "__class__":
            return ClassValue.of(tracer, self.cls)
        if name in STOPS or callable(getattr(torch.Tensor, name, None)):
            return linked.BoundBuiltin(self, name)
        if hasattr(torch.Tensor, name):
            tracer.stop("attribute_unknown", f"cannot read Tensor.{name}")
        if hasattr(self.cls, name):
            tracer.stop("attribute_unknown", f"cannot read {name!r} of a {self.cls.__name__}")
        if self.source is not None and name not in self.attrs:  # else the function itself has deleted it
            tracer.guard("{c0} not in {s0}.__dict__", self.source, name)
        tracer.throw(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def set_attr(self, tracer: Tracer, name: str, value: Value) -> None:
        if not tracer.overrides.leaves_tensors_alone and set_tensor_attr(tracer, self, name, value):
            return
        if name in SETTERS and self.is_stripped:
            tracer.stop("mutation_unknown", f"cannot set {name!r} of a {self.cls.__name__}")
        if name in SETTERS:
            tracer.graph.levels.refuse(name)
            check_history(tracer, self)
            SETTERS[name](tracer, self, value)
            return
        if hasattr(torch.Tensor, name):
            tracer.stop("mutation_unknown", f"cannot set Tensor.{name}")
        self.store(tracer, name, value)

    def del_attr(self, tracer: Tracer, name: str) -> None:
        if name not in self.attrs and tracer.overrides.may_apply_to([self]):
            tracer.stop("mutation_unknown", f"cannot delete {name!r} of a tensor whose class overrides operations")
        if hasattr(torch.Tensor, name):
            tracer.stop("mutation_unknown", f"cannot delete Tensor.{name}")
        self.get_attr(tracer, name)
        self.store(tracer, name, None)

    def store(self, tracer: Tracer, name: str, value: Value | None) -> None:
        keep_attribute(tracer, self, name, value)

    def instance_dict(self) -> dict[str, Any]:
        return {} if self.obj is None else self.obj.__dict__

    # Operations.

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        tracer.graph.levels.refuse(name)
        if name in LATER:
            tracer.assumptions.ask(name)
        if name in tracer.definitions.patched:
            return protocols.call(tracer, self.get_attr(tracer, name), args, kwargs)
        if tracer.overrides.may_apply_to([self, *args, *kwargs.values()]):
            result = call_tensor_method(tracer, name, [self, *args], kwargs)
            if result is not PASSED:
                return result
        if self.is_stripped and (name in HOOK_METHODS or name == "requires_grad_"):
            tracer.stop("tensor_subclass", f"Tensor.{name} is called on a {self.cls.__name__}")
        if name in METADATA_METHODS:
            positional, keywords = constant_arguments(tracer, args, kwargs)
            answer = tracer.run_const(METADATA_METHODS[name], self.fake, *positional, **keywords)
            if name == "stride" and self.source is None:
                check_strides(tracer, self, *positional, **keywords)
            return constant_value(answer, tracer)
        if name == "__len__":
            return constant_value(self.first_size(tracer))
        if name in SPECIAL_METHODS:
            return SPECIAL_METHODS[name](tracer, self, args, kwargs)
        if name in STOPS:
            tracer.stop(*STOPS[name])
        if name in HOOK_METHODS:
            return linked.register_on_tensor(tracer, self, name, [*args, *kwargs.values()])
        if name in STATE_QUERIES:
            return _state_query(tracer, self, name)
        if name in _SLOT_METHODS:
            return _SLOT_METHODS[name](tracer, self, args)
        own = vars(torch.Tensor).get(name)
        if isinstance(own, types.FunctionType) and not tracer.definitions.is_pristine(own):
            return tracer.inline(own, [self, *args], kwargs)
        args, kwargs = _with_factor(tracer, self, name, args, kwargs)
        return tracer.graph.op("call_method", name, getattr(torch.Tensor, name), [self, *args], kwargs)

    def binary(self, tracer: Tracer, op: protocols.Operator, other: Value, reflected: bool) -> Value | None:
        is_object = isinstance(other, linked.ObjectValue) and other.payload is None
        if not tracer.overrides.leaves_tensors_alone or is_object:
            result = call_special(tracer, self, op.reflected if reflected else op.method, [other])
            if result is not PASSED:
                declined = isinstance(result, ConstantValue) and result.content is NotImplemented
                return None if declined else result
        if is_object or not hasattr(torch.Tensor, op.method):  # nothing is "y @= w" but "y = y @ w"
            return None
        operands: list[Value] = [other, self] if reflected else [self, other]
        if op.symbol in ("==", "!=") and isinstance(other, ConstantValue) and not _is_number(other):
            return None
        return tracer.graph.op("call_function", op.function, op.function, operands, {})

    def unary(self, tracer: Tracer, function: Callable[[Any], Any], method: str) -> Value:
        result = PASSED if tracer.overrides.leaves_tensors_alone else call_special(tracer, self, method, [])
        if result is not PASSED:
            return result  # type: ignore[return-value]
        return tracer.graph.op("call_function", function, function, [self], {})

    @slot("__getitem__")
    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(key, (NumberValue, TupleValue)) and (at_places := selected(tracer, self, key)) is not None:
            return at_places
        if isinstance(key, TensorValue) and key.fake.dtype in INDICES:
            result = INDICES[key.fake.dtype](tracer, self, key)
            if result is not None:
                return result
        return tracer.graph.op("call_function", operator.getitem, operator.getitem, [self, key], {})

    @slot("__setitem__")
    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        value = value.realize()
        if isinstance(key, (NumberValue, TupleValue)) and written(tracer, self, key, value):
            return
        tracer.graph.op("call_function", operator.setitem, operator.setitem, [self, key, value], {})

    @slot("__iter__")
    def iterate(self, tracer: Tracer) -> Value:
        if self.fake.meta.dim() == 0:
            tracer.throw(TypeError, "iteration over a 0-d tensor")
        # Not one by one: autograd does not let people change one of several views that were made together.
        return protocols.iterate(tracer, self.call_method(tracer, "unbind", [ConstantValue(0)], {}))

    @slot("__bool__", protocols.truth)
    def truth(self, tracer: Tracer) -> bool:
        known = linked.known_truth(tracer, self)
        usual = linked.usually(tracer, self) if known is None else known
        if usual is None:
            tracer.stop("tensor_branch", f"a decision depends on the data of {self.describe()}")
        return usual

    @slot("__len__", protocols.as_index)
    def length(self, tracer: Tracer) -> int:
        return int(self.first_size(tracer))

    def first_size(self, tracer: Tracer) -> Any:
        """``len`` of the tensor, which may be a symbol."""
        if not self.fake.shape:
            tracer.throw(TypeError, "len() of a 0-d tensor")
        return self.fake.shape[0]

    @property
    def is_single(self) -> bool:
        """Whether it has one element, whatever symbols are."""
        return all(type(size) is int and size == 1 for size in self.fake.shape)

    @slot("__contains__", protocols.truth)
    def contains(self, tracer: Tracer, item: Value) -> bool:
        tracer.stop("tensor_value", "looking for an element reads the tensor's data")

    def text(self, tracer: Tracer, conversion: str) -> str:
        tracer.stop("tensor_value", f"a tensor is turned into text (builtin: {conversion})")

    def format(self, tracer: Tracer, spec: str) -> str | None:
        tracer.stop("tensor_value", "a tensor is formatted as text")

    # After the call.

    def name_hint(self) -> str:
        return str(self.node.name)

    def parts(self) -> Iterable[Value]:
        return [value for value in self.attrs.values() if value is not None]

    @property
    def two_phase(self) -> bool:  # type: ignore[override]
        return bool(self.attrs) or self._is_reclassed

    @property
    def _is_reclassed(self) -> bool:
        """Whether it is a result that has to be given its class."""
        return self.source is None and self.cls not in PLAIN_CLASSES

    @property
    def is_stripped(self) -> bool:
        """Whether the graph is given a view of it without the class, whose handlers would see the backward."""
        return self.source is not None and overrides_functions(self.cls)

    def rebuild(self, emitter: Emitter) -> str:
        return emitter.tensor(self)

    rebuild_empty = rebuild

    def fill(self, emitter: Emitter, name: str) -> None:
        if self._is_reclassed:
            emitter.build(f"{name}.__class__ = {emitter.inject(self.cls, self.cls.__name__)}")
        for statement in stores(emitter, name, self.attrs):
            emitter.build(statement)

    def emit_effects(self, emitter: Emitter) -> None:
        assert self.source is not None and self.obj is not None
        name = emitter.read(self.source)
        for statement in changes(emitter, name, self.attrs, self.obj.__dict__, self.moved):
            emitter.effect(statement)


def _with_factor(tracer: Tracer, value: TensorValue, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a method with its factor, where that is a tensor, multiplied in."""
    keyword = ops.named(name.rstrip("_")).factor
    factor = kwargs[keyword].realize() if keyword in kwargs else None
    if not isinstance(factor, TensorValue) or not value.fake.dtype.is_floating_point or factor.fake.shape:
        return args, kwargs
    number = protocols.call_attr(tracer, factor, "detach")
    scaled = protocols.binary(tracer, "*", args[0], number)
    return [scaled, *args[1:]], {name: kwargs[name] for name in kwargs if name != keyword}


def _guard_sizes(tracer: Tracer, tensor: torch.Tensor, source: Source) -> None:
    """Assume sizes and strides, by the cheapest checks that say the same.

    Sparse and nested tensors fail the stride check by raising, which is a miss.
    """
    tracer.guard("{s0}.shape == {c0}", source, tuple(tensor.shape))
    if tensor.is_contiguous() and all(size > 1 for size in tensor.shape):
        tracer.guard("{s0}.is_contiguous()", source)  # no dimension of size 0 or 1: strides follow from the shape
    else:
        tracer.guard("{s0}.stride() == {c0}", source, tensor.stride())


def _guard_place(tracer: Tracer, tensor: torch.Tensor, source: Source) -> None:
    if tensor.device.type == "cpu":
        tracer.guard("{s0}.is_cpu", source)
    else:
        tracer.guard("{s0}.device == {c0}", source, tensor.device)
    tracer.guard("{s0}.requires_grad" if tensor.requires_grad else "not {s0}.requires_grad", source)


def check_history(tracer: Tracer, value: TensorValue) -> None:
    """Stop where autograd refuses to say how a tensor was computed: of a view whose base was changed, for one."""
    if (refusal := value.fake.refusal) is not None:
        tracer.stop("op_failed", f"autograd refuses a tensor: {refusal}")
    if tracer.graph.own_views.was_changed(value.node):
        tracer.stop("op_failed", "autograd refuses a view by a custom function whose memory was changed")


def _is_number(value: ConstantValue) -> bool:
    return isinstance(value.content, (int, float, complex, *numpy_numbers.SCALARS))


def _grad(tracer: Tracer, value: TensorValue) -> Value:
    if value.obj is not None and value.source is not None:
        if not value.obj.is_leaf and not value.obj.retains_grad and not tracer.options.fullgraph:
            tracer.stop("attribute_unknown", "PyTorch warns of asking for the grad of a tensor that is no leaf")
        value.asked_for_grad = True
        return tracer.wrap(value.obj.grad, Attr(value.source, "grad"))
    if not value.fake.meta.is_leaf and not any(event.retains is value for event in tracer.effects.registrations):
        ignored = is_ignored(tracer, UserWarning)
        if not ignored and innermost(tracer) is not None:
            tracer.stop("attribute_unknown", "PyTorch warns, where filters are changed, of asking for a grad")
        warns = Warns(getattr, tracer.where(), tracer.running.frames[-1].globals, ignored=ignored)
        tracer.graph.call(warns, (value.node, "grad"))
    return ConstantValue(None)


def _grad_fn(tracer: Tracer, value: TensorValue) -> Value:
    return linked.grad_fn_of(tracer, value)


def _is_leaf(tracer: Tracer, value: TensorValue) -> Value:
    if value.source is not None and value.node is value.placeholder:
        tracer.guard("{s0}.is_leaf" if value.fake.meta.is_leaf else "not {s0}.is_leaf", value.source)
    return ConstantValue(value.fake.meta.is_leaf)


def _data(tracer: Tracer, value: TensorValue) -> Value:
    # Not detach(): changes through ``x.data`` leave the version counter alone, which backward looks at.
    return tracer.graph.op("call_function", getattr, getattr, [value, ConstantValue("data")], {})


_ATTRIBUTES: dict[str, Callable[[Tracer, TensorValue], Value]] = {
    "grad": _grad,
    "grad_fn": _grad_fn,
    "is_leaf": _is_leaf,
    "data": _data,
}


def _state_query(tracer: Tracer, value: TensorValue, name: str) -> Value:
    if value.obj is None or value.source is None:
        known = _made_for_inference(tracer, value) if name == "is_inference" else None
        if known is not None:
            return ConstantValue(known)
        tracer.stop("attribute_unknown", f"cannot ask Tensor.{name} of a tensor made inside the function")
    answer = bool(getattr(value.obj, name)())
    tracer.guard(f"{{s0}}.{name}()" if answer else f"not {{s0}}.{name}()", value.source)
    return ConstantValue(answer)


def _made_for_inference(tracer: Tracer, value: TensorValue) -> bool | None:
    """Whether a tensor that was made inside is one of inference mode; None where that has to be asked of itself: what
    is no new tensor is what its memory was made as, and the mode may have been another one then."""
    if any(node.target is torch_compat.enter_inference_mode for node in tracer.graph.graph.nodes):
        return None
    return torch.is_inference_mode_enabled() if ops.of_node(value.node).gives is ops.Gives.FRESH else None


def _set_item_method(tracer: Tracer, value: TensorValue, args: Args) -> Value:
    value.set_item(tracer, args[0].realize(), args[1])
    return ConstantValue(None)


_SLOT_METHODS: dict[str, Callable[[Tracer, TensorValue, Args], Value]] = {
    "__getitem__": lambda tracer, value, args: value.get_item(tracer, args[0].realize()),
    "__setitem__": _set_item_method,
    "__iter__": lambda tracer, value, args: value.iterate(tracer),
    "__hash__": lambda tracer, value, args: tracer.stop("hash_unknown", "the hash of a tensor is its address"),
}
