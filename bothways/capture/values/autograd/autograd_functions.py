"""Custom ``autograd.Function``s: one node of the graph, with a graph of its own for each body where there is one.

``forward`` and ``backward`` are first interpreted on the side: that tells the results' shapes, what the bodies rely on
(guarded), and whether they touch the world outside. Bodies that only compute become graphs (``autograd_bodies``).
Otherwise the node calls the user's own ``apply``; a body that touches the world runs as plain Python at its moment,
inside the node, and a differentiator must then leave the node alone.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
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
from bothways.capture.values.autograd.autograd_backwards import (
    backward_is_opaque,
    is_random,
    is_settled,
    look_at_backward,
    rely_on,
)
from bothways.capture.values.autograd.autograd_bodies import (
    backward_has_graph,
    captured_function,
    forward_has_graph,
    inlined,
)
from bothways.capture.values.autograd.autograd_contexts import FunctionContextValue, check_marks
from bothways.capture.values.autograd.autograd_findings import ForwardFindings, FunctionCall, is_stateful
from bothways.capture.values.autograd.autograd_order import check_order
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.functions import FunctionValue
from bothways.capture.values.code.looking import fork, undone
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Kwargs, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.objects import lookup
from bothways.capture.values.tensors.tensor_attributes import ABOUT_HISTORY
from bothways.capture.values.tensors.tensors import TensorValue, check_history
from bothways.node_facts import facts_of_call
from bothways.runtime.marks import Mark, mark_of
from bothways.runtime.nodes import ApplyFunction, Reads

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def apply(tracer: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """``cls.apply(*args)``."""
    target = args[0].realize()
    assert isinstance(target, ClassValue)
    tracer.graph.levels.refuse_all(f"{target.cls.__name__}.apply is called")
    inputs = _bound(tracer, target, args[1:], kwargs)
    call = FunctionCall(tracer, target.cls, inputs, wants_gradient(inputs))
    if mark_of(call.cls) is Mark.IN_GRAPH:
        return _taken_whole(call)
    grad_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        findings = _look_at_forward(call)
        opaque = call.has_jvp or _runs_as_python(findings)
        opaque = opaque or (call.wants_grad and backward_is_opaque(call, findings))
        has_bodies = _has_bodies(call, findings)
    finally:
        torch.set_grad_enabled(grad_enabled)
    if has_bodies and not call.wants_grad and not _shares_memory(findings):
        results = inlined(call, findings)
        if results is not None:
            return _assembled(call, findings, results)
    if has_bodies and call.wants_grad:
        return _record_bodies(call, findings)
    return _record(call, findings, opaque)


def _has_bodies(call: FunctionCall, findings: ForwardFindings) -> bool:
    """Whether both bodies are graphs; the forward alone where no input wants a gradient."""
    asks = findings.side.assumptions.asked & ABOUT_HISTORY
    if call.has_jvp or asks or any(_keeps(findings, value) for value in findings.held):
        return False
    if not forward_has_graph(findings, _changes_free_tensors(findings.side)):
        return False
    if not call.wants_grad:
        return True
    if call.backward is None:
        present = [isinstance(value, TensorValue) for value in findings.outputs]
        look_at_backward(call, findings, present, False)
    return call.backward is not None and backward_has_graph(call.backward)


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
    """A function that the user allowed in the graph: its forward runs on the fakes, unseen by capture."""
    arguments = NodeArguments(call.tracer, lambda value: False)
    whole = ApplyFunction(call.cls, arguments.add_all(call.inputs), opaque=True)
    if arguments.has_objects:
        call.tracer.stop("autograd_function", f"{call.name}.apply is given an object that is no constant")
    values = [value for value in arguments.given if isinstance(value, Value)]
    return call.tracer.graph.op("call_function", whole, whole, values, {})


# Forward.


def _look_at_forward(call: FunctionCall) -> ForwardFindings:
    side = fork(call.tracer)
    side.torch_state.follow(call.tracer.torch_state)
    stand_ins = StandIns(call.tracer, side)
    try:
        with undone(side, call.tracer, grad_enabled=False):
            context, output = _run_forward(call, side, [stand_ins.of(value) for value in call.inputs])
    except Raised:
        before = call.tracer.effects.left_to_python
        if side.effects or side.effects.left_to_python != before or stand_ins.tensors_changed:
            call.tracer.stop("autograd_function", f"{call.name}.forward changes something and raises")
        raise
    finally:
        side.assumptions.complete()
        call.tracer.assumptions.take_over(side.assumptions.guards)
    findings = ForwardFindings(side, stand_ins, context, output.realize(), _reachable(context), [], [])
    findings.result_nodes = [value.node if isinstance(value, TensorValue) else None for value in findings.outputs]
    findings.saved_nodes = [value.node for value in context.saved if isinstance(value, TensorValue)]
    call.tracer.assumptions.take_over(side.assumptions.guards)
    check_marks(side, context)
    stand_ins.check_kept(f"{call.name}.forward")
    check_order(call.tracer, side, f"{call.name}.forward")
    return findings


def _run_forward(call: FunctionCall, side: Tracer, inputs: Args) -> tuple[FunctionContextValue, Value]:
    needs: Args = [ConstantValue(isinstance(value, TensorValue) and value.fake.requires_grad) for value in inputs]
    context = FunctionContextValue(type(f"{call.name}Context", (), {}), needs)
    target = ClassValue.of(side, call.cls)
    forward = target.get_attr(side, "forward")
    if lookup(call.cls, "setup_context") is lookup(torch.autograd.Function, "setup_context"):
        output = protocols.call(side, forward, [context, *inputs])
    else:
        output = protocols.call(side, forward, inputs)
        protocols.call(side, target.get_attr(side, "setup_context"), [context, TupleValue(list(inputs)), output])
    context.in_forward = False
    return context, output


def _reachable(root: Value) -> list[Value]:
    """Everything a Value holds, as far as captured code made it, looked at: a traced backward has it inside."""
    reached: dict[int, Value] = {}
    pending = list(root.parts())
    while pending:
        value = realized(pending.pop())
        if id(value) not in reached:
            reached[id(value)] = value
            if isinstance(value, TupleValue):
                pending.extend(value.items)
            elif value.source is None:
                pending.extend(value.parts())
    return list(reached.values())


def _runs_as_python(findings: ForwardFindings) -> bool:
    """Whether the function has to stay as it is although its backward could be traced."""
    side, stand_ins, context = findings.side, findings.stand_ins, findings.context
    return (
        is_stateful(side)
        or stand_ins.tensors_changed
        or bool(context.dirty)
        or bool(side.assumptions.asked & ABOUT_HISTORY)
        or any(map(_can_change, findings.held))
        or _shares_memory(findings)
    )


def _can_change(value: Value) -> bool:
    """Whether the user's code outside holds the object as well, and may have changed it when backward runs."""
    is_fixed = isinstance(value, (TensorValue, TupleValue)) or is_plain_constant(value)
    return value.source is not None and not is_fixed


def _keeps(findings: ForwardFindings, value: Value) -> bool:
    """Whether ctx holds an object of the user's that may be another one when backward reads it."""
    is_own = id(value) not in findings.stand_ins.originals or isinstance(value, (TensorValue, TupleValue))
    return _can_change(value) or not (is_own or is_plain_constant(value))


def _shares_memory(findings: ForwardFindings) -> bool:
    """Whether results are views of arguments or of each other: to a trace they would lead past the function."""
    return bool(_sharing(findings))


def _sharing(findings: ForwardFindings) -> list[TensorValue]:
    """The results that are views of arguments or of each other."""
    results = [value for value in findings.outputs if isinstance(value, TensorValue)]
    memory = [torch_compat.storage_identity(value.fake.meta) for value in results]
    return [
        value
        for value, own in zip(results, memory, strict=True)
        if memory.count(own) > 1 or findings.stand_ins.own_memory([own])
    ]


def _may_be_copies(call: FunctionCall, shared: list[TensorValue]) -> bool:
    """Whether results that share memory may be copies, which are laid out as they are."""
    return call.tracer.options.copies_views and all(value.fake.is_contiguous for value in shared)


# The node.


def _record(call: FunctionCall, findings: ForwardFindings, opaque: bool) -> Value:
    """The node of the real graph, and Values for what it returns."""
    stand_ins = findings.stand_ins
    kept = {id(value) for value in [*findings.held, *findings.outputs]}
    arguments = NodeArguments(call.tracer, lambda value: id(stand_ins.stand_in_for(value)) in kept)
    places = arguments.add_all(call.inputs)
    stateful = call.has_jvp or is_stateful(findings.side) or arguments.has_objects
    effects = bool(findings.side.effects) or stand_ins.tensors_changed or _changes_free_tensors(findings.side)
    opaque = opaque or arguments.has_objects
    reads = None if opaque else _reads(call, findings)
    target = ApplyFunction(call.cls, places, opaque=opaque, stateful=stateful, has_effects=effects, reads=reads)
    results = Results(call, findings)
    described = tuple(results.describe(value) for value in findings.outputs)
    single = not isinstance(findings.output, TupleValue)
    value = call.tracer.graph.node(target, arguments.given, described[0] if single else described)
    if _sharing(findings):
        call.tracer.graph.own_views.meet(_node_of(value))
    return results.completed(value)


def _record_bodies(call: FunctionCall, findings: ForwardFindings) -> Value:
    """The same where both bodies are graphs."""
    assert call.backward is not None
    nodes = call.backward.side.graph.graph.nodes
    shared = _sharing(findings)
    copies = shared if _may_be_copies(call, shared) else []
    opaque = bool(shared) and not copies
    opaque = opaque or any(facts_of_call(node.target).opaque or is_random(node) for node in nodes)
    if not call.backward_definitions:
        rely_on(call, call.backward)
    reads = Reads() if opaque else _reads(call, findings)
    target, operands = captured_function(call, findings, call.backward, opaque, reads, copies)
    results = Results(call, findings)
    described = [results.describe(value) for value in findings.outputs if isinstance(value, TensorValue)]
    single = not isinstance(findings.output, TupleValue)
    value = call.tracer.graph.node(target, operands, described[0] if single else tuple(described))
    parts: list[Any] = [value] if single else value.items  # type: ignore[attr-defined]
    if shared:
        views = call.tracer.graph.copied_views if copies else call.tracer.graph.own_views
        views.meet(_node_of(value))
    tensors = iter(parts)
    return _assembled(
        call, findings, [next(tensors) if isinstance(each, TensorValue) else each for each in findings.outputs]
    )


def _node_of(result: Value) -> torch.fx.Node:
    """The node that gives a result, or the several in a tuple."""
    if isinstance(result, TensorValue):
        return result.node
    assert isinstance(result, TupleValue)
    item: Any = next(value.node for value in result.items if isinstance(value, TensorValue))
    node: torch.fx.Node = item.args[0]
    return node


def _assembled(call: FunctionCall, findings: ForwardFindings, results: Args) -> Value:
    """What apply returns, of its results."""
    others = Results(call, findings)
    every = [value if isinstance(value, TensorValue) else others.other(value) for value in results]
    return TupleValue(every) if isinstance(findings.output, TupleValue) else every[0]


def _reads(call: FunctionCall, findings: ForwardFindings) -> Reads:
    assumed = findings.side.assumptions.guards
    of_forward = [guard for guard in assumed if not is_settled(guard) and can_be_checked_later(guard)]
    stamped = [Guard(STAMPED, (), (stamp,)) for defined in call.backward_definitions for stamp in defined.stamps()]
    return Reads(condition(call.tracer, of_forward), condition(call.tracer, [*call.backward_reads, *stamped]))


def _changes_free_tensors(side: Tracer) -> bool:
    metas = [value.fake.meta for value in side.graph.inputs]
    return any(meta.is_inference() or meta._version for meta in metas) or any(
        facts_of_call(node.target).has_effects for node in side.graph.graph.nodes
    )


class Results:
    """What apply returns, from what forward returned."""

    def __init__(self, call: FunctionCall, findings: ForwardFindings) -> None:
        self.call, self.findings = call, findings
        self._fixed = {id(value) for value in findings.context.fixed}
        self._dirty = {id(value) for value in findings.context.dirty}
        inputs = {id(findings.stand_ins.stand_in_for(value)) for value in call.inputs}
        self._given = inputs
        not_returned = self._dirty & inputs - {id(value) for value in findings.outputs}
        if not_returned:
            call.tracer.stop("op_failed", f"{call.name}.forward marks a tensor as dirty and does not return it")

    def describe(self, value: Value) -> Any:
        """A Fake for a tensor, None for anything else."""
        if not isinstance(value, TensorValue):
            return None
        tracer, name = self.call.tracer, self.call.name
        if self.findings.outputs.count(value) > 1:
            tracer.stop("autograd_function", f"{name}.forward returns one tensor twice")
        if id(value) in self._dirty and id(value) in self._given:
            return self._changed_in_place(value)
        if id(value) not in self._given and (
            value.source is not None or id(value) in self.findings.stand_ins.originals
        ):
            tracer.stop("autograd_function", f"{name}.forward returns a tensor that is no argument and not its own")
        return self._fake(value, value)

    def _changed_in_place(self, value: TensorValue) -> Fake:
        original = self.findings.stand_ins.originals[id(value)]
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
        return Fake(None, fake.device, Prediction(fake.shape, fake.stride, fake.dtype, fake.device, self._moves(value)))

    def _moves(self, value: TensorValue) -> bool:
        dtype = value.fake.dtype
        differentiable = dtype.is_floating_point or dtype.is_complex
        return self.call.wants_grad and id(value) not in self._fixed and differentiable

    def completed(self, result: Value) -> Value:
        """Put what is no tensor back in its place."""
        if not isinstance(self.findings.output, TupleValue):
            return result if isinstance(result, TensorValue) else self.other(self.findings.outputs[0])
        assert isinstance(result, TupleValue)
        for index, value in enumerate(self.findings.outputs):
            if not isinstance(value, TensorValue):
                result.items[index] = self.other(value)
        return result

    def other(self, value: Value) -> Value:
        original = self.findings.stand_ins.originals.get(id(value))
        if original is None and not is_plain_constant(value):
            self.call.tracer.stop("autograd_function", f"{self.call.name}.forward returns {value.describe()}")
        return original or value
