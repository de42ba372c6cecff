"""The two bodies of a custom function as graphs, made of what looking at them has recorded.

Tensors that the bodies reach otherwise than as arguments are inputs of both graphs. A body that does more than to
compute with tensors, or whose backward may be another one when it runs, has no graph: the node then calls the user's
own function.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.capture.recording.graph import MODE_STATEMENTS
from bothways.capture.shapes.changes import changes_something, root_of
from bothways.capture.values.autograd.autograd_arguments import realized
from bothways.capture.values.autograd.autograd_findings import BackwardFindings, ForwardFindings, FunctionCall
from bothways.capture.values.collections.containers import TupleValue
from bothways.capture.values.core import linked
from bothways.capture.values.core.base import Args, Value
from bothways.capture.values.core.derived import is_size
from bothways.capture.values.core.numbers import NumberValue
from bothways.capture.values.tensors.tensors import TensorValue
from bothways.node_facts import NO_CALL_FACTS, facts_of_call, facts_of_node, note_body
from bothways.runtime.captured_functions import CapturedFunction, FunctionBody
from bothways.runtime.function_bodies import FunctionFacts
from bothways.runtime.graph_module import graph_module
from bothways.runtime.nodes import ApplyFunction, Reads
from bothways.symbols import Symbol
from bothways.symbols.node import symbol_number

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


@dataclass
class Lifted:
    """What the graphs take beside a function's tensor arguments: nodes of the side graph, and the real Values; tensors
    that it was not given, and numbers that change."""

    nodes: list[torch.fx.Node]
    values: list[Value]


def computes_only(side: Tracer) -> bool:
    """Whether code that was looked at did nothing but to compute with tensors, in ways that a graph repeats."""
    nodes = list(side.graph.graph.nodes)
    return not (
        side.effects
        or side.effects.registrations
        or side.effects.draws
        or linked.COMPILED in side.assumptions.asked
        or side.graph.objects
        or side.graph.left_behind
        or not _takes_only_numbers(side)
        or any(map(_is_python, nodes))
    )


def _takes_only_numbers(side: Tracer) -> bool:
    """Whether the symbols of a body are numbers that it was given, and none is a size."""
    taken, places = side.graph.sizes.symbols, side.symbols.sources
    return all(symbol in taken and symbol in places and not is_size(places[symbol]) for symbol in side.graph.symbols())


def _is_python(node: torch.fx.Node) -> bool:
    """Whether a node runs the user's Python, or a callable that is no operation."""
    if isinstance(node.target, CapturedFunction):
        return False
    facts, call = facts_of_node(node), facts_of_call(node.target)
    return facts.is_number or call != NO_CALL_FACTS or isinstance(node.target, ApplyFunction)


def forward_has_graph(forward_findings: ForwardFindings, changes: bool) -> bool:
    """Whether the forward that was looked at can be a graph; ``changes`` says whether it changes an object outside."""
    context = forward_findings.context
    tensors = [value for value in forward_findings.outputs if isinstance(value, TensorValue)]
    return (
        computes_only(forward_findings.side)
        and not changes
        and not forward_findings.stand_ins.tensors_changed
        and not context.dirty
        and context.materializes
        and bool(tensors)
        and not any(value.attrs for value in tensors)
    )


def backward_has_graph(findings: BackwardFindings) -> bool:
    """Whether the backward that was looked at can be a graph, and is the same one whenever it runs."""
    side = findings.side
    own = set(side.graph.graph.nodes)
    return (
        findings.fits
        and not findings.reads
        and not findings.changes_context
        and not side.assumptions.asked
        and not side.graph.inputs
        and computes_only(side)
        and not side.graph.statements & {torch_compat.set_grad_enabled}
        and not any(changes_something(node) and root_of(node) not in own for node in own)
    )


def lifted(call: FunctionCall, forward_findings: ForwardFindings) -> Lifted:
    """What the bodies read beside the tensors among the arguments, in the order in which it was met."""
    stand_ins, side = forward_findings.stand_ins, forward_findings.side
    real_of: dict[torch.fx.Node, TensorValue] = {twin.placeholder: real for twin, real in stand_ins.tensors()}
    for value in side.graph.inputs:
        if value.placeholder not in real_of:
            assert value.obj is not None and value.source is not None
            real = call.tracer.look_at(value.obj, value.source)
            assert isinstance(real, TensorValue)
            real_of[value.placeholder] = real
    arguments = set(argument_nodes(call, forward_findings))
    nodes = [node for node in side.graph.graph.nodes if node in real_of and node not in arguments]
    numbers = side.graph.sizes.symbols
    values = [NumberValue(symbol_number(side.symbols.environment, symbol)) for symbol in numbers]
    return Lifted([*nodes, *numbers.values()], [*(real_of[node] for node in nodes), *values])


def _number_input(side: Tracer, symbol: Symbol) -> torch.fx.Node:
    """The node that stands for a number that changes."""
    node: torch.fx.Node = side.graph.sizes.node(symbol_number(side.symbols.environment, symbol))
    return node


def argument_nodes(call: FunctionCall, forward_findings: ForwardFindings) -> list[torch.fx.Node]:
    """The nodes of the side graph that stand for tensor arguments."""
    twins = [forward_findings.stand_ins.stand_in_for(value) for value in call.inputs]
    return [twin.placeholder for twin in twins if isinstance(twin, TensorValue)]


def captured_function(
    call: FunctionCall,
    forward_findings: ForwardFindings,
    findings: BackwardFindings,
    opaque: bool,
    reads: Reads,
    copies: Sequence[TensorValue],
) -> tuple[CapturedFunction, list[Value]]:
    """The node's target, and what the node is given; of the results, ``copies`` are copied."""
    # A number that the backward reads is kept by the forward.
    numbers = {
        node: _number_input(forward_findings.side, symbol)
        for symbol, node in findings.side.graph.sizes.symbols.items()
    }
    read_as = {kept: node for node, kept in numbers.items()}
    extra = lifted(call, forward_findings)
    arguments = argument_nodes(call, forward_findings)
    backward, needed = _backward(call, forward_findings, findings, numbers)
    # Where it is not unpacked, whatever the backward reads is held by an attribute.
    saved = forward_findings.saved_nodes if forward_findings.context.is_unpacked else []
    kept = list(dict.fromkeys([*needed, *saved]))
    outputs = [node for node in forward_findings.result_nodes if node is not None]
    single = not isinstance(forward_findings.output, TupleValue)
    facts = _facts(call, forward_findings, kept, saved, opaque, reads)
    used = [node for node in extra.nodes if node.users or node in kept or node in outputs]
    names = _argument_names(call)
    parameters = list(zip([*arguments, *used], [*names, *(node.name for node in used)], strict=True))
    body = _body(
        forward_findings.side.graph.graph.nodes, parameters, (outputs[0] if single else tuple(outputs), kept),
        {value.node for value in copies},
    )  # fmt: skip
    known = dict(reversed(parameters))
    gradient_names = [*backward.names, *(known.get(node) or facts_of_node(node).variable or node.name for node in kept)]
    taken = list(zip([*backward.gradients, *(read_as.get(node, node) for node in kept)], gradient_names, strict=True))
    bodies = [body, _body(findings.side.graph.graph.nodes, taken, tuple(backward.results))]
    for each in bodies:
        note_body(each, FunctionBody(facts))
    values = dict(zip(extra.nodes, extra.values, strict=True))
    real: list[Value] = [value for value in map(realized, call.inputs) if isinstance(value, TensorValue)]
    real += [values[node] for node in used]
    return CapturedFunction(facts, bodies[0], bodies[1], len(real)), real


def _facts(
    call: FunctionCall,
    forward_findings: ForwardFindings,
    kept: Sequence[torch.fx.Node],
    saved: Sequence[torch.fx.Node],
    opaque: bool,
    reads: Reads,
) -> FunctionFacts:
    """What the node's target says of itself; of what the forward has ``kept``, its context has ``saved`` some."""
    places = {node: place for place, node in enumerate(kept)}
    of_context = {places[node] for node in saved}
    fixed = {id(value) for value in forward_findings.context.fixed}
    tensors = [value for value in forward_findings.outputs if isinstance(value, TensorValue)]
    return FunctionFacts(
        call.cls,
        tuple(isinstance(realized(value), TensorValue) for value in call.inputs),
        tuple(place for place, value in enumerate(tensors) if id(value) in fixed),
        tuple(sorted(of_context)),
        tuple(place for place in range(len(kept)) if place not in of_context),
        opaque,
        reads,
    )


@dataclass
class _Backward:
    gradients: list[torch.fx.Node]
    names: list[str]
    results: list[Any]


def _backward(
    call: FunctionCall,
    forward_findings: ForwardFindings,
    findings: BackwardFindings,
    numbers: Mapping[torch.fx.Node, torch.fx.Node],
) -> tuple[_Backward, list[torch.fx.Node]]:
    """The interface of the backward, and the nodes of the forward that it needs, in the order of their use; ``numbers``
    are those of the forward for numbers that the backward reads."""
    gradients = [value.placeholder for value in findings.gradients if isinstance(value, TensorValue)]
    result = findings.result
    every = [value.realize() for value in result.items] if isinstance(result, TupleValue) else [result]
    pairs = zip(map(realized, call.inputs), every, strict=False)
    results = [
        gradient.node if isinstance(gradient, TensorValue) else None
        for value, gradient in pairs
        if isinstance(value, TensorValue)
    ]
    own = {*findings.side.graph.graph.nodes}
    reads = (node for user in findings.side.graph.graph.nodes for node in user.all_input_nodes)
    read = [numbers.get(node, node) for node in reads]
    needed = [node for node in [*read, *(node for node in results if node is not None)] if node not in own]
    names = _names(lookup_function(call.cls, "backward"), 1)
    if len(names) != len(forward_findings.outputs):
        names = [f"grad_{place}" for place in range(len(forward_findings.outputs))]
    tensors = [isinstance(value, TensorValue) for value in forward_findings.outputs]
    kept = [name for name, is_tensor in zip(names, tensors, strict=True) if is_tensor]
    return _Backward(gradients, kept, results), list(dict.fromkeys(needed))


def _argument_names(call: FunctionCall) -> list[str]:
    """What the forward calls its tensor arguments."""
    plain = lookup_function(call.cls, "setup_context") is lookup_function(torch.autograd.Function, "setup_context")
    names = _names(lookup_function(call.cls, "forward"), int(plain))
    are_tensors = [isinstance(realized(value), TensorValue) for value in call.inputs]
    if len(names) != len(are_tensors):
        names = [f"arg_{place}" for place in range(len(are_tensors))]
    return [name for name, is_tensor in zip(names, are_tensors, strict=True) if is_tensor]


def lookup_function(cls: Any, name: str) -> Any:
    return inspect.getattr_static(cls, name, None)


def _names(function: Any, skipped: int) -> list[str]:
    function = getattr(function, "__func__", function)
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS:
        return []
    return list(code.co_varnames[skipped : code.co_argcount])


def _body(
    nodes: Iterable[torch.fx.Node],
    parameters: Sequence[tuple[torch.fx.Node, str]],
    outputs: Any,
    copied: Collection[torch.fx.Node] = (),
) -> torch.fx.GraphModule:
    """The operations among ``nodes`` as a module that takes a context and the tensors of the nodes given."""
    graph = torch.fx.Graph()
    graph.placeholder("ctx", torch.autograd.function.Function)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    names = {"self", "ctx"}
    for node, name in parameters:
        while name in names:
            name += "_"
        names.add(name)
        placeholder = graph.placeholder(name)
        if "example_value" in node.meta:
            placeholder.meta["example_value"] = node.meta["example_value"]
        copies.setdefault(node, placeholder)
    for node in nodes:
        if node.op not in ("placeholder", "output"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    if copied:
        results, kept = outputs
        apart = {node: _copy_of(graph, copies[node]) for node in copied}
        results = torch.fx.map_arg(results, lambda node: apart.get(node) or copies[node])
        graph.output((results, torch.fx.map_arg(kept, copies.__getitem__)))
    else:
        graph.output(torch.fx.map_arg(outputs, copies.__getitem__))
    return graph_module(graph)


def _copy_of(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    copy = graph.call_method("clone", (node,))
    copy.meta = dict(node.meta)
    return copy


def inlined(call: FunctionCall, forward_findings: ForwardFindings) -> Args | None:
    """The results of a function without a gradient, its operations being those of the graph itself.

    None where they would be others: autograd is off inside, and what reads it must not notice.
    """
    extra = lifted(call, forward_findings)
    builder = call.tracer.graph
    tensors = [value for value in extra.values if isinstance(value, TensorValue)]
    if torch.is_grad_enabled() and any(value.fake.requires_grad for value in tensors):
        return None
    if forward_findings.side.graph.statements & MODE_STATEMENTS:
        return None
    real = [value for value in map(realized, call.inputs) if isinstance(value, TensorValue)]
    pairs = zip([*argument_nodes(call, forward_findings), *extra.nodes], [*real, *extra.values], strict=True)
    copies = {
        node: value.node if isinstance(value, TensorValue) else builder.sizes.node(value.content)  # type: ignore[attr-defined]
        for node, value in pairs
    }
    for node in forward_findings.side.graph.graph.nodes:
        if node.op != "placeholder":
            copies[node] = builder.graph.node_copy(node, copies.__getitem__)
    results: list[Value] = []
    for value, node in zip(forward_findings.outputs, forward_findings.result_nodes, strict=True):
        results.append(TensorValue(copies[node], value.fake) if isinstance(value, TensorValue) and node else value)
    return results
