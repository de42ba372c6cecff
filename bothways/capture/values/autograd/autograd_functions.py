"""Custom ``autograd.Function``s: one node of the graph that calls the user's own ``apply``.

``forward`` and ``backward`` are first interpreted on the side, into graphs that are thrown away: that tells the
results' shapes, what the bodies rely on (guarded), and whether they touch the world outside. A body that does
runs as plain Python at its moment, inside the node; a differentiator must then leave the node alone.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.guards import policy
from bothways.capture.guards.guards import STAMPED, Guard
from bothways.capture.program.conditions import can_be_checked_later, condition
from bothways.capture.shapes.fakes import Fake
from bothways.capture.shapes.shape_rules import Prediction
from bothways.capture.values.autograd.autograd_arguments import (
    NodeArguments,
    StandIns,
    is_plain_constant,
    realized,
    wants_gradient,
)
from bothways.capture.values.autograd.autograd_contexts import FunctionContextValue, check_marks
from bothways.capture.values.autograd.autograd_order import check_order
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.functions import FunctionValue
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked, protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.objects import lookup
from bothways.capture.values.tensors.tensors import TensorValue, check_history
from bothways.capture.writing.definitions import Definitions
from bothways.capture.writing.object_inputs import outline_of
from bothways.errors import Unsupported
from bothways.node_facts import facts_of_call
from bothways.runtime.marks import Mark, mark_of
from bothways.runtime.nodes import ApplyFunction, Reads

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Up to so many results every combination of gradients that are and are not there is looked at.
COMBINED_RESULTS = 3

# Operations that draw random numbers, beside those whose name says it.
RANDOM = frozenset(
    "bernoulli multinomial normal poisson binomial uniform exponential geometric cauchy log_normal rrelu "
    "gumbel_softmax scaled_dot_product_attention fractional_max_pool2d fractional_max_pool3d".split()
)

# Questions whose answer in forward differs between a tensor and the leaf that stands for it in a trace.
ABOUT_HISTORY = frozenset({"grad_fn", "is_leaf", "grad", "output_nr"})


@dataclass
class FunctionCall:
    """One call of ``cls.apply`` while it is captured."""

    tracer: Tracer
    cls: Any
    inputs: Args
    wants_grad: bool
    backward_reads: list[Guard] = field(default_factory=list)  # to be checked when the backward runs
    backward_definitions: list[Definitions] = field(default_factory=list)  # likewise

    @property
    def name(self) -> str:
        return str(self.cls.__name__)

    @property
    def has_jvp(self) -> bool:
        """Whether the user gives the forward-mode derivative, which only the real function has."""
        return lookup(self.cls, "jvp") is not lookup(torch.autograd.Function, "jvp")


@dataclass
class ForwardFindings:
    """What interpreting forward told."""

    side: Tracer
    stand_ins: StandIns
    context: FunctionContextValue
    output: Value
    held: list[Value]  # what ctx holds

    @property
    def outputs(self) -> Args:
        items = self.output.items if isinstance(self.output, TupleValue) else [self.output]
        return [item.realize() for item in items]


def apply(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``cls.apply(*args)``."""
    target = args[0].realize()
    assert isinstance(target, ClassValue)
    inputs = _bound(tracer, target, args[1:], kwargs)
    call = FunctionCall(tracer, target.cls, inputs, wants_gradient(inputs))
    if mark_of(call.cls) is Mark.IN_GRAPH:
        return _taken_whole(call)
    grad_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        looked = _look_at_forward(call)
        opaque = call.has_jvp or _runs_as_python(looked) or (call.wants_grad and _backward_is_opaque(call, looked))
    finally:
        torch.set_grad_enabled(grad_enabled)
    return _record(call, looked, opaque)


def _bound(tracer: Tracer, target: ClassValue, args: Args, kwargs: Kwargs) -> Args:
    """The arguments of forward: functions with a ``setup_context`` may be called with keywords and defaults."""
    plain = lookup(target.cls, "setup_context") is lookup(torch.autograd.Function, "setup_context")
    if kwargs and (plain or not torch_compat.apply_binds_keywords()):
        tracer.stop("op_failed", f"{target.cls.__name__}.apply takes no keywords")
    if plain:
        return list(args)
    forward = target.get_attr(tracer, "forward").realize()
    if not isinstance(forward, FunctionValue) or "__wrapped__" in forward.instance_dict():
        if kwargs or len(inspect.signature(target.cls.forward).parameters) != len(args):  # type: ignore[attr-defined]
            tracer.stop("autograd_function", f"{target.cls.__name__}.apply leaves arguments to a decorated forward")
        return list(args)
    if forward.code.co_kwonlyargcount:
        tracer.stop("op_failed", f"{target.cls.__name__}.forward has arguments that only keywords can name")
    bound = forward.bind(tracer, args, kwargs)
    return [bound[name] for name in forward.code.co_varnames[: forward.code.co_argcount]] + list(
        args[forward.code.co_argcount :]
    )


def _taken_whole(call: FunctionCall) -> Value:
    """A function that the user allowed in the graph: its forward runs on the fakes, nobody looks at its bodies."""
    arguments = NodeArguments(call.tracer, lambda value: False)
    whole = ApplyFunction(call.cls, arguments.add_all(call.inputs), opaque=True)
    if arguments.has_objects:
        call.tracer.stop("autograd_function", f"{call.name}.apply is given an object that is no constant")
    given = [value for value in arguments.given if isinstance(value, Value)]
    return call.tracer.graph.op("call_function", whole, whole, given, {})


# Forward.


def _look_at_forward(call: FunctionCall) -> ForwardFindings:
    side = _fork(call.tracer)
    side.torch_state.follow(call.tracer.torch_state)
    stand_ins = StandIns(call.tracer, side)
    try:
        with _undone(side, call.tracer):
            context, output = _run_forward(call, side, [stand_ins.of(value) for value in call.inputs])
    except Raised:
        before = call.tracer.effects.left_to_python
        if side.effects or side.effects.left_to_python != before or stand_ins.tensors_changed:
            call.tracer.stop("autograd_function", f"{call.name}.forward changes something and raises")
        raise
    finally:
        side.assumptions.complete()
        call.tracer.assumptions.take_over(side.assumptions.guards)
    looked = ForwardFindings(side, stand_ins, context, output.realize(), _reachable(context))
    call.tracer.assumptions.take_over(side.assumptions.guards)
    check_marks(side, context)
    stand_ins.check_kept(f"{call.name}.forward")
    check_order(call.tracer, side, f"{call.name}.forward")
    return looked


def _run_forward(call: FunctionCall, side: Tracer, given: Args) -> tuple[FunctionContextValue, Value]:
    needs: Args = [ConstantValue(isinstance(value, TensorValue) and value.fake.requires_grad) for value in given]
    context = FunctionContextValue(type(f"{call.name}Context", (), {}), needs)
    target = ClassValue.of(side, call.cls)
    forward = target.get_attr(side, "forward")
    if lookup(call.cls, "setup_context") is lookup(torch.autograd.Function, "setup_context"):
        output = protocols.call(side, forward, [context, *given])
    else:
        output = protocols.call(side, forward, given)
        protocols.call(side, target.get_attr(side, "setup_context"), [context, TupleValue(list(given)), output])
    context.in_forward = False
    return context, output


def _fork(tracer: Tracer) -> Tracer:
    side = tracer.fork()
    side.effects.follow(tracer.effects)
    return side


@contextmanager
def _undone(side: Tracer, tracer: Tracer) -> Iterator[None]:
    """Leave the contexts a body had entered when looking at it ended early."""
    try:
        yield
    finally:
        for context in reversed(side.torch_state.open_contexts):
            if context not in tracer.torch_state.open_contexts:
                context.leave()
        for setting in reversed(side.torch_state.changed_settings):
            setting.leave()
        torch_compat.set_grad_enabled(False)


def _reachable(root: Value) -> list[Value]:
    """Everything a Value holds, as far as captured code made it, looked at: a traced backward has it inside."""
    found: dict[int, Value] = {}
    pending = list(root.parts())
    while pending:
        value = realized(pending.pop())
        if id(value) not in found:
            found[id(value)] = value
            if isinstance(value, TupleValue):
                pending.extend(value.items)
            elif value.source is None:
                pending.extend(value.parts())
    return list(found.values())


def _runs_as_python(looked: ForwardFindings) -> bool:
    """Whether the function has to stay as it is although its backward could be traced."""
    side, stand_ins, context = looked.side, looked.stand_ins, looked.context
    return (
        _is_stateful(side)
        or stand_ins.tensors_changed
        or bool(context.dirty)
        or bool(side.assumptions.asked & ABOUT_HISTORY)
        or any(map(_can_change, looked.held))
        or _shares_memory(looked)
    )


def _is_stateful(side: Tracer) -> bool:
    """Whether the code reads tensors that it was not given, changes something, or runs the user's Python itself."""
    return (
        bool(side.graph.inputs)
        or bool(side.effects)
        or linked.COMPILED in side.assumptions.asked
        or any(getattr(node.target, "stateful", False) for node in side.graph.graph.nodes)
    )


def _can_change(value: Value) -> bool:
    """Whether somebody outside holds the object as well, and may have changed it when backward runs."""
    is_fixed = isinstance(value, (TensorValue, TupleValue)) or is_plain_constant(value)
    return value.source is not None and not is_fixed


def _shares_memory(looked: ForwardFindings) -> bool:
    """Whether results are views of arguments or of each other: to a trace they would lead past the function."""
    results = [value for value in looked.outputs if isinstance(value, TensorValue)]
    memory = [torch_compat.storage_identity(value.fake.meta) for value in results]
    return len(set(memory)) < len(memory) or looked.stand_ins.own_memory(memory)


# Backward.


def _backward_is_opaque(call: FunctionCall, looked: ForwardFindings) -> bool:
    """Whether the backward must run as the user's Python: it cannot be captured, or reads or changes the world."""
    places = [isinstance(value, TensorValue) for value in looked.outputs]
    if looked.context.materializes:
        return _reads_the_world(call, looked, places, call.tracer.options.fullgraph)
    if sum(places) > COMBINED_RESULTS:
        return True
    choices = itertools.product(*((True, False) if is_tensor else (False,) for is_tensor in places))
    return any(
        _reads_the_world(call, looked, list(given), call.tracer.options.fullgraph and list(given) == places)
        for given in choices
    )


def _reads_the_world(call: FunctionCall, looked: ForwardFindings, given: list[bool], must_capture: bool) -> bool:
    """Interpret the backward with gradients for some of the results."""
    side = _fork(call.tracer)
    side.meet_definitions_apart()
    gradients: Args = [
        _gradient(looked, value) if there else ConstantValue(None)
        for value, there in zip(looked.outputs, given, strict=True)
    ]
    own = lookup(call.cls, "vjp") is not lookup(torch.autograd.Function, "vjp")
    backward = ClassValue.of(side, call.cls).get_attr(side, "vjp" if own else "backward")
    count, outline = len(side.assumptions.guards), outline_of(looked.context)
    try:
        with _undone(side, call.tracer):
            result = protocols.call(side, backward, [looked.context, *gradients])
    except Unsupported:
        if must_capture:
            raise
        return True
    except Raised:
        return True
    of_forward = looked.side.assumptions.guards
    read = [guard for guard in itertools.islice(side.assumptions.guards, count, None) if not _is_settled(guard)]
    opaque = (
        not all(map(can_be_checked_later, read))
        or (bool(read) and not all(_is_settled(guard) or _is_about_code(guard) for guard in of_forward))
        or _is_stateful(side)
        or bool(side.assumptions.asked)
        or any(facts_of_call(node.target).opaque or is_random(node) for node in side.graph.graph.nodes)
        or outline_of(looked.context) != outline
        or looked.stand_ins.tensors_changed
        or not _fits(call.inputs, result.realize())
    )
    if not opaque:
        call.backward_reads += read
        call.backward_definitions.append(side.definitions)
        call.tracer.definitions.absorb(side.definitions)
        call.tracer.assumptions.take_over(side.assumptions.guards)
    return opaque


def is_random(node: torch.fx.Node) -> bool:
    """Whether the operation draws random numbers: a backward that is differentiated again may not be run again."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.strip("_") in RANDOM or any(part in name for part in ("rand", "dropout"))


def _is_settled(guard: Guard) -> bool:
    """Whether the guard is about the name of a module or a builtin, which nobody changes before the backward runs."""
    if len(guard.constants) != 1:
        return False
    (constant,) = guard.constants
    if guard.template == "{c0} not in {s0}":
        return isinstance(constant, str) and hasattr(builtins, constant)
    is_fact = isinstance(constant, (types.ModuleType, types.BuiltinFunctionType)) or (
        isinstance(constant, type) and policy.is_library_module(constant.__module__)
    )
    return guard.template == "{s0} is {c0}" and is_fact


def _is_about_code(guard: Guard) -> bool:
    """Whether the guard says which code runs. A forward that reads more cannot be run again after a change."""
    return any(isinstance(constant, (types.CodeType, types.FunctionType, type)) for constant in guard.constants)


def _gradient(looked: ForwardFindings, value: Value) -> Value:
    assert isinstance(value, TensorValue)
    node = looked.side.graph.graph.create_node("placeholder", "gradient")
    return TensorValue(node, Fake(value.fake.outline(), value.fake.device))


def _fits(inputs: Args, result: Value) -> bool:
    """Whether the gradients are such as autograd accepts; its complaint comes when the backward really runs."""
    gradients = [value.realize() for value in result.items] if isinstance(result, TupleValue) else [result]
    while len(gradients) > len(inputs) and _is_none(gradients[-1]):
        gradients.pop()
    if len(gradients) != len(inputs):
        return False
    return all(_fits_one(value.realize(), gradient) for value, gradient in zip(inputs, gradients, strict=True))


def _fits_one(value: Value, gradient: Value) -> bool:
    if not isinstance(value, TensorValue) or not isinstance(gradient, TensorValue):
        return _is_none(gradient)
    return value.fake.shape == gradient.fake.shape and value.fake.device == gradient.fake.device


def _is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.content is None


# The node.


def _record(call: FunctionCall, looked: ForwardFindings, opaque: bool) -> Value:
    """The node of the real graph, and Values for what it returns."""
    stand_ins = looked.stand_ins
    kept = {id(value) for value in [*looked.held, *looked.outputs]}
    arguments = NodeArguments(call.tracer, lambda value: id(stand_ins.made(value)) in kept)
    given = arguments.add_all(call.inputs)
    stateful = call.has_jvp or _is_stateful(looked.side) or arguments.has_objects
    effects = bool(looked.side.effects) or stand_ins.tensors_changed or _changes_free_tensors(looked.side)
    opaque = opaque or arguments.has_objects
    reads = None if opaque else _reads(call, looked)
    target = ApplyFunction(call.cls, given, opaque=opaque, stateful=stateful, has_effects=effects, reads=reads)
    results = Results(call, looked)
    described = tuple(results.describe(value) for value in looked.outputs)
    single = not isinstance(looked.output, TupleValue)
    value = call.tracer.graph.node(target, arguments.given, described[0] if single else described)
    return results.completed(value)


def _reads(call: FunctionCall, looked: ForwardFindings) -> Reads:
    assumed = looked.side.assumptions.guards
    of_forward = [guard for guard in assumed if not _is_settled(guard) and can_be_checked_later(guard)]
    stamped = [Guard(STAMPED, (), (stamp,)) for defined in call.backward_definitions for stamp in defined.stamps()]
    return Reads(condition(call.tracer, of_forward), condition(call.tracer, [*call.backward_reads, *stamped]))


def _changes_free_tensors(side: Tracer) -> bool:
    metas = [value.fake.meta for value in side.graph.inputs]
    return any(meta.is_inference() or meta._version for meta in metas) or any(
        facts_of_call(node.target).has_effects for node in side.graph.graph.nodes
    )


class Results:
    """What apply returns, from what forward returned."""

    def __init__(self, call: FunctionCall, looked: ForwardFindings) -> None:
        self.call, self.looked = call, looked
        self._fixed = {id(value) for value in looked.context.fixed}
        self._dirty = {id(value) for value in looked.context.dirty}
        given = {id(looked.stand_ins.made(value)) for value in call.inputs}
        self._given = given
        not_returned = self._dirty & given - {id(value) for value in looked.outputs}
        if not_returned:
            call.tracer.stop("op_failed", f"{call.name}.forward marks a tensor as dirty and does not return it")

    def describe(self, value: Value) -> Any:
        """A Fake for a tensor, None for anything else."""
        if not isinstance(value, TensorValue):
            return None
        tracer, name = self.call.tracer, self.call.name
        if self.looked.outputs.count(value) > 1:
            tracer.stop("autograd_function", f"{name}.forward returns one tensor twice")
        if id(value) in self._dirty and id(value) in self._given:
            return self._changed_in_place(value)
        if id(value) not in self._given and (value.source is not None or id(value) in self.looked.stand_ins.originals):
            tracer.stop("autograd_function", f"{name}.forward returns a tensor that is no argument and not its own")
        return self._fake(value, value)

    def _changed_in_place(self, value: TensorValue) -> Fake:
        original = self.looked.stand_ins.originals[id(value)]
        assert isinstance(original, TensorValue)
        if id(value) in self._fixed:
            self.call.tracer.stop("autograd_function", "a tensor is marked as dirty and as not differentiable")
        check_history(self.call.tracer, original)
        if original.fake.requires_grad and original.fake.meta.is_leaf and torch.is_grad_enabled():
            self.call.tracer.stop("op_failed", f"{self.call.name}.forward changes a leaf that needs a gradient")
        if not original.fake.requires_grad and self._moves(value):
            original.fake = self._fake(value, original)  # from now on it has a history
        return original.fake

    def _fake(self, value: TensorValue, like: TensorValue) -> Fake:
        fake = like.fake
        return Fake(
            None, fake.device, Prediction(fake.shape, fake.stride, fake.dtype, fake.device, self._moves(value))
        )

    def _moves(self, value: TensorValue) -> bool:
        dtype = value.fake.dtype
        differentiable = dtype.is_floating_point or dtype.is_complex
        return self.call.wants_grad and id(value) not in self._fixed and differentiable

    def completed(self, result: Value) -> Value:
        """Put what is no tensor back in its place."""
        if not isinstance(self.looked.output, TupleValue):
            return result if isinstance(result, TensorValue) else self._other(self.looked.outputs[0])
        assert isinstance(result, TupleValue)
        for index, value in enumerate(self.looked.outputs):
            if not isinstance(value, TensorValue):
                result.items[index] = self._other(value)
        return result

    def _other(self, value: Value) -> Value:
        original = self.looked.stand_ins.originals.get(id(value))
        if original is None and not is_plain_constant(value):
            self.call.tracer.stop("autograd_function", f"{self.call.name}.forward returns {value.describe()}")
        return original or value
