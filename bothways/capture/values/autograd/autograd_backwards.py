"""The backward of a custom function, looked at: what it computes, what it reads, and whether it may be traced.

It is interpreted with gradients like the results. What it reads from outside is looked at again when it runs.
"""

from __future__ import annotations

import builtins
import itertools
import types
from typing import TYPE_CHECKING

import torch
import torch.fx

from bothways import ops
from bothways.capture.guards import policy
from bothways.capture.guards.guards import Guard
from bothways.capture.program.conditions import can_be_checked_later
from bothways.capture.shapes.fakes import Fake
from bothways.capture.values.autograd.autograd_findings import (
    BackwardFindings,
    ForwardFindings,
    FunctionCall,
    is_stateful,
)
from bothways.capture.values.code.classes import ClassValue
from bothways.capture.values.code.looking import fork, undone
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import protocols
from bothways.capture.values.core.base import Args, Value
from bothways.capture.values.core.constants import ConstantValue
from bothways.capture.values.core.raised import Raised
from bothways.capture.values.objects.objects import lookup
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.capture.writing.object_inputs import outline_of
from bothways.errors import Unsupported
from bothways.node_facts import facts_of_call

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer

# Up to so many results every combination of gradients that are and are not there is looked at.
COMBINED_RESULTS = 3


def backward_is_opaque(call: FunctionCall, forward_findings: ForwardFindings) -> bool:
    """Whether the backward must run as the user's Python: it cannot be captured, or reads or changes the world."""
    places = [isinstance(value, TensorValue) for value in forward_findings.outputs]
    if forward_findings.context.materializes:
        return _reads_the_world(call, forward_findings, places, call.tracer.options.fullgraph)
    if sum(places) > COMBINED_RESULTS:
        return True
    choices = itertools.product(*((True, False) if is_tensor else (False,) for is_tensor in places))
    whole = call.tracer.options.fullgraph
    return any(
        _reads_the_world(call, forward_findings, list(present), whole and list(present) == places)
        for present in choices
    )


def _reads_the_world(
    call: FunctionCall, forward_findings: ForwardFindings, present: list[bool], must_capture: bool
) -> bool:
    """Interpret the backward with gradients for some of the results."""
    findings = look_at_backward(call, forward_findings, present, must_capture)
    if findings is None:
        return True
    side, read, of_forward = findings.side, findings.reads, forward_findings.side.assumptions.guards
    opaque = (
        not all(map(can_be_checked_later, read))
        or (bool(read) and not all(is_settled(guard) or _is_about_code(guard) for guard in of_forward))
        or is_stateful(side)
        or bool(side.assumptions.asked)
        or any(facts_of_call(node.target).opaque or is_random(node) for node in side.graph.graph.nodes)
        or findings.changes_context
        or forward_findings.stand_ins.tensors_changed
        or not findings.fits
    )
    if not opaque:
        rely_on(call, findings)
    return opaque


def look_at_backward(
    call: FunctionCall, forward_findings: ForwardFindings, present: list[bool], must_capture: bool
) -> BackwardFindings | None:
    """What the backward does; None where it cannot be captured."""
    side = fork(call.tracer)
    side.meet_definitions_apart()
    gradients: Args = [
        _gradient(side, value) if there else ConstantValue(None)
        for value, there in zip(forward_findings.outputs, present, strict=True)
    ]
    own = lookup(call.cls, "vjp") is not lookup(torch.autograd.Function, "vjp")
    backward = ClassValue.of(side, call.cls).get_attr(side, "vjp" if own else "backward")
    count, outline = len(side.assumptions.guards), outline_of(forward_findings.context)
    try:
        with undone(side, call.tracer, grad_enabled=False):
            result = protocols.call(side, backward, [forward_findings.context, *gradients]).realize()
    except Unsupported:
        if must_capture:
            raise
        return None
    except Raised:
        return None
    read = [guard for guard in itertools.islice(side.assumptions.guards, count, None) if not is_settled(guard)]
    changes = outline_of(forward_findings.context) != outline
    findings = BackwardFindings(side, gradients, result, read, _fits(call.inputs, result), changes)
    if present == [isinstance(value, TensorValue) for value in forward_findings.outputs]:
        call.backward = findings
    return findings


def rely_on(call: FunctionCall, findings: BackwardFindings) -> None:
    """Let the program assume what the backward assumes, and look again when it runs."""
    call.backward_reads += findings.reads
    call.backward_definitions.append(findings.side.definitions)
    call.tracer.definitions.absorb(findings.side.definitions)
    call.tracer.assumptions.take_over(findings.side.assumptions.guards)


def is_random(node: torch.fx.Node) -> bool:
    """Whether the operation draws random numbers: a backward that is differentiated again may not be run again."""
    return ops.of_node(node).draws


def is_settled(guard: Guard) -> bool:
    """Whether the guard is about the name of a module or a builtin, which stays as it is until the backward runs."""
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


def _gradient(side: Tracer, value: Value) -> Value:
    assert isinstance(value, TensorValue)
    node = side.graph.graph.create_node("placeholder", "gradient")
    node.meta["example_value"] = value.fake.outline()
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
