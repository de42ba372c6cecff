"""Custom ``autograd.Function``s: one node of the graph that calls the user's own ``apply``.

``forward`` and ``backward`` are first interpreted on the side, into a graph that is thrown away: that tells the
results' shapes, what the bodies rely on (guarded), and whether they touch the world outside. A body that does
runs as plain Python at its moment, inside the node; a differentiator must then leave the node alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from bothways.capture import protocols
from bothways.capture.fakes import Fake
from bothways.capture.shape_rules import Prediction
from bothways.capture.tracer import Observed
from bothways.capture.values.base import Args, Kwargs, NotConstant, Value
from bothways.capture.values.classes import ClassValue
from bothways.capture.values.constants import ConstantValue
from bothways.capture.values.containers import ListValue, TupleValue
from bothways.capture.values.objects import ObjectValue, lookup
from bothways.capture.values.tensors import TensorValue
from bothways.errors import Unsupported
from bothways.runtime.marks import Mark, mark_of
from bothways.runtime.nodes import ApplyFunction

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


class ContextValue(ObjectValue):
    """The ``ctx`` of a custom function while its bodies are interpreted."""

    def __init__(self, cls: type, needs_input_grad: list[Value]) -> None:
        super().__init__(cls)
        self.needs_input_grad = needs_input_grad
        self.saved: list[Value] = []
        self.dirty: list[Value] = []
        self.fixed: list[Value] = []
        self.originals: dict[int, Value] = {}  # what each argument of forward stands for

    def get_attr(self, tracer: Tracer, name: str) -> Value:
        from bothways.capture.values.builtins import BoundBuiltin

        if name in _CONTEXT_METHODS:
            return BoundBuiltin(self, name)
        if name in ("saved_tensors", "saved_variables"):
            return TupleValue(list(self.saved))
        if name == "needs_input_grad":
            return TupleValue(list(self.needs_input_grad))
        return super().get_attr(tracer, name)

    def call_method(self, tracer: Tracer, name: str, args: Args, kwargs: Kwargs) -> Value:
        if name in _CONTEXT_METHODS:
            _CONTEXT_METHODS[name](self, list(args))
            return ConstantValue(None)
        return super().call_method(tracer, name, args, kwargs)


def _save(context: ContextValue, args: Args) -> None:
    context.saved = args


def _mark_dirty(context: ContextValue, args: Args) -> None:
    context.dirty = args


def _mark_fixed(context: ContextValue, args: Args) -> None:
    context.fixed = args


def _nothing(context: ContextValue, args: Args) -> None:
    """What only matters when the real function runs."""


_CONTEXT_METHODS: dict[str, Callable[[ContextValue, Args], None]] = {
    "save_for_backward": _save,
    "save_for_forward": _nothing,
    "mark_dirty": _mark_dirty,
    "mark_non_differentiable": _mark_fixed,
    "set_materialize_grads": _nothing,
}


@dataclass
class Bodies:
    """What interpreting the bodies told."""

    output: Value
    context: ContextValue
    opaque: bool = False


def apply(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``cls.apply(*args)``."""
    target = args[0].realize()
    assert isinstance(target, ClassValue)
    name = target.cls.__name__
    if kwargs:
        tracer.stop("autograd_function", f"{name}.apply is called with keywords")
    inputs = [_prepared(tracer, arg, name) for arg in args[1:]]
    if mark_of(target.cls) is Mark.IN_GRAPH:
        whole = ApplyFunction(target.cls, True, {})
        return tracer.graph.op("call_function", whole, whole, inputs, {})
    side = tracer.fork()
    grad_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        bodies = _run_forward(side, target.cls, inputs, grad_enabled)
        if side.effects:
            tracer.stop("autograd_function", f"{name}.forward changes something outside of it")
        relied_on = list(side.guards)
        if relied_on and tracer.effects:
            tracer.stop("autograd_function", f"{name}.forward may read what the function has changed before")
        bodies.opaque = bool(side.graph.inputs) or _backward_is_opaque(side, target.cls, bodies)
    finally:
        torch.set_grad_enabled(grad_enabled)
    for guard in relied_on:
        tracer.guards.add(guard)
    # Constants belong to the node itself: a graph's code could not spell out all of them.
    constants = {
        index: value.constant()
        for index, value in enumerate(inputs)
        if not isinstance(value, (TensorValue, ListValue, TupleValue))
    }
    return _record(tracer, ApplyFunction(target.cls, bodies.opaque, constants), inputs, bodies)


def _prepared(tracer: Tracer, value: Value, name: str) -> Value:
    """An argument the graph can hold: tensors, constants, and lists and tuples of them."""
    value = value.realize()
    if isinstance(value, (ListValue, TupleValue)):
        for item in value.items_for_graph(tracer):
            _prepared(tracer, item, name)
    elif not isinstance(value, TensorValue) and not value.is_constant:
        tracer.stop("autograd_function", f"{name}.apply is given {value.describe()}")
    return value


def _run_forward(side: Tracer, cls: Any, inputs: Args, grad_enabled: bool) -> Bodies:
    needs: list[Value] = [
        ConstantValue(grad_enabled and isinstance(value, TensorValue) and value.fake.requires_grad) for value in inputs
    ]
    context = ContextValue(type(f"{cls.__name__}Context", (), {}), needs)
    stand_ins = [_stand_in(value) for value in inputs]
    target = ClassValue.of(side, cls)
    forward = target.get_attr(side, "forward")
    if lookup(cls, "setup_context") is lookup(torch.autograd.Function, "setup_context"):
        output = protocols.call(side, forward, [context, *stand_ins])
    else:
        output = protocols.call(side, forward, list(stand_ins))
        protocols.call(side, target.get_attr(side, "setup_context"), [context, TupleValue(list(stand_ins)), output])
    originals = {id(stand_in): value for stand_in, value in zip(stand_ins, inputs, strict=True)}
    context.dirty = [value for value in context.dirty if id(value.realize()) in originals]
    context.originals = originals
    return Bodies(output.realize(), context)


def _stand_in(value: Value) -> Value:
    """The argument as the bodies see it: outside of autograd, and theirs alone."""
    value = value.realize()
    if isinstance(value, TensorValue):
        return TensorValue(value.node, Fake(value.fake.outline(), value.fake.device), value.cls)
    if isinstance(value, ListValue):
        return ListValue([_stand_in(item) for item in value.items])
    if isinstance(value, TupleValue):
        return TupleValue([_stand_in(item) for item in value.items], value.kind)
    return value


def _backward_is_opaque(side: Tracer, cls: Any, bodies: Bodies) -> bool:
    """Whether the backward must run as the user's Python: it cannot be captured, or reads or changes the world."""
    outputs = bodies.output.items if isinstance(bodies.output, TupleValue) else [bodies.output]
    gradients = [_stand_in(output) for output in outputs]
    guards = len(side.guards)
    try:
        protocols.call(side, _backward_body(side, cls), [bodies.context, *gradients])
    except Unsupported:
        if side.fullgraph:
            raise
        return True
    except Observed:
        return True
    once = _is_once_differentiable(cls)  # only eager's own node refuses to be differentiated again
    return once or bool(side.effects) or bool(side.graph.inputs) or len(side.guards) != guards


def _is_once_differentiable(cls: Any) -> bool:
    static = lookup(cls, "backward")
    if not isinstance(static, staticmethod):
        return False
    function: Any = static.__func__
    return bool(function.__globals__["__name__"] == torch.autograd.function.__name__)


def _backward_body(side: Tracer, cls: Any) -> Value:
    """The user's backward, behind ``once_differentiable`` too."""
    from bothways.capture.wrap import library_value

    if _is_once_differentiable(cls):
        return library_value(side, lookup(cls, "backward").__func__.__wrapped__)
    return ClassValue.of(side, cls).get_attr(side, "backward")


def _record(tracer: Tracer, target: ApplyFunction, inputs: Args, bodies: Bodies) -> Value:
    """The node of the real graph, and Values for what it returns."""
    context = bodies.context
    wants_grad = torch.is_grad_enabled() and any(
        isinstance(value, TensorValue) and value.fake.requires_grad for value in map(Value.realize, inputs)
    )
    fixed = {id(value.realize()) for value in context.fixed}
    dirty = {id(value.realize()) for value in context.dirty}

    def described(value: Value) -> Any:
        value = value.realize()
        if isinstance(value, TupleValue):
            return tuple(described(item) for item in value.items)
        if not isinstance(value, TensorValue):
            return value.constant()
        if id(value) in dirty:
            original = context.originals[id(value)]
            assert isinstance(original, TensorValue)
            return original.fake
        dtype = value.fake.dtype
        moves = wants_grad and id(value) not in fixed and (dtype.is_floating_point or dtype.is_complex)
        device = value.fake.device
        return Fake(None, device, Prediction(value.fake.shape, value.fake.stride, dtype, device, moves))

    try:
        result = described(bodies.output)
    except NotConstant:
        tracer.stop("autograd_function", f"{target.cls.__name__}.forward returns {bodies.output.describe()}")
    given = [value for index, value in enumerate(inputs) if index not in target.constants]
    return tracer.graph.node(target, given, result)
