"""The ways back through a graph that are differentiated in turn: by its twin, or by running its forward again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.fx

from bothways import torch_compat
from bothways.grad.again import (
    REFUSALS,
    Gradients,
    Tangents,
    Wanted,
    backward_function,
    check_differentiable,
    connected_graph,
    is_told_of_none,
    partly_reached,
    visible,
)
from bothways.grad.backwards import MOST_BACKWARDS
from bothways.grad.differentiate import differentiate
from bothways.grad.differentiated import DifferentiatedGraph, Inputs
from bothways.grad.halves.facts import facts_of
from bothways.grad.halves.kept import connections
from bothways.grad.halves.partition import NotRepeatable, check_takes, extract
from bothways.grad.nodes.node import Own, Unchanged
from bothways.grad.nodes.renewed import Renewing
from bothways.grad.nodes.running import as_traced, strides_of
from bothways.grad.tracing.joint import trace_joint
from bothways.grad.tracing.origins import noting_origins
from bothways.grad.tracing.sizes import FIXED, Sizes
from bothways.grad.tracing.traced import Moment, NotDifferentiable
from bothways.record import generated
from bothways.runtime.compiled_graph import known_of
from bothways.runtime.listening import listening
from bothways.symbols import Undecided

# Of whether the gradients are plain memory, and of what a backward takes.
Connected = Callable[[bool, Sequence[Any]], Sequence[torch.Tensor | None]]


def twin_of(
    graph: DifferentiatedGraph, function: Callable[..., Any], examples: Sequence[torch.Tensor], sizes: Sizes
) -> DifferentiatedGraph:
    """A graph like another, of its function, whose node keeps what second derivatives go through."""
    plan = replace(graph.plan, memo=None, sizes=sizes)
    moment = Moment(None, torch_compat.autocast_now(), True)
    trace = partial(trace_joint, function, examples, True, moment, sizes, decompositions=plan.decompositions)
    connected = connections(trace(hidden=()), graph.needs_grad)
    joint = trace(hidden=connected.hidden)
    saved = connected.saved_nodes(joint)
    constant = saved[len(connected.saved) :]
    forward = extract(joint, joint.primals, [*joint.results, *joint.updates.values(), *constant], joint.kept_nodes)
    facts = facts_of(joint, forward, saved, True)
    if facts.live:
        raise NotDifferentiable("a custom function holds a tensor that it has not saved")
    inputs = [*(joint.primals[index] for index in facts.needed_inputs), *saved, *joint.tangents]
    moving = {*joint.results, *joint.tangents, *itertools.compress(joint.primals, graph.needs_grad)}
    check_differentiable(joint, inputs, moving)
    compiled = as_traced(plan.fw_compiler(forward, [*sizes.now, *examples]))
    twin = DifferentiatedGraph(function, facts, examples, compiled, plan, joint, connected)
    twin.joints.clear()
    twin.base, twin.leaf_hooks = graph.again, graph.leaf_hooks
    twin.partly_reached = partly_reached(joint)
    return twin


def connected_backward(
    twin: DifferentiatedGraph,
    values: list[torch.Tensor],
    tangents: Tangents,
    inputs: Inputs,
    wanted: Wanted,
    plain: bool,
) -> Sequence[torch.Tensor | None]:
    """The backward of a twin from what its node saved and gradients; to autograd it is a function of those."""
    moment = strides_of(tangents), torch_compat.autocast_now(), True  # equal to the Moment, and made faster
    values += [tangent for tangent in tangents if tangent is not None]
    of = wanted, tuple([value.requires_grad for value in values])
    backward = twin.at_hand.get((moment, of))
    if backward is None:

        def make() -> tuple[Connected, torch.fx.GraphModule, Any]:
            joint = twin.joint(Moment(*moment), tangents, inputs())
            takes = twin.backward_inputs(joint)
            graph = connected_graph(joint, takes, wanted)
            check_takes(graph, values)
            sizes = twin.sizes.about([node.meta["val"] for node in takes])
            return _compile_connected(twin, graph, values, sizes), graph, joint.moment.strides

        backward = twin.find_backward(Moment(*moment), of, make)
    if plain and twin.may_be_usual:
        run, all_tangents = partial(_run_usual, twin.numbers, backward.run), (*tangents, *[None] * len(twin.changed))
        twin.usuals.note((moment, of), all_tangents, run, *of)
    gradients: Sequence[torch.Tensor | None] = backward.run(plain, [*twin.numbers, *values])
    return gradients


def _run_usual(numbers: tuple[int, ...], run: Connected, values: list[Any]) -> Sequence[torch.Tensor | None]:
    """A backward that was found once, for gradients in plain memory."""
    return run(True, [*numbers, *values])


def _compile_connected(
    twin: DifferentiatedGraph, graph: torch.fx.GraphModule, tensors: Sequence[torch.Tensor], sizes: Sizes
) -> Connected:
    """A backward graph of a twin, compiled and differentiated."""
    plan, count = twin.plan, len(twin.needed_inputs)
    hidden = frozenset(range(count, count + len(twin.connected or ())))
    # The graph holds the casts already.
    with torch_compat.without_autocast(), generated.kept_in(twin.generated), listening():
        refusals: tuple[type[Exception], ...] = (NotDifferentiable, Undecided, *torch_compat.fake_tensor_errors())
        try:
            compiled = differentiate(
                noting_origins(graph), tensors, plan.fw_compiler, plan.bw_compiler, plan.reads, sizes=sizes,
                ours=hidden, kernels=plan.kernels,
            )  # fmt: skip
        except refusals as error:
            raise NotRepeatable(str(error)) from error

    def run(plain: bool, values: Sequence[Any]) -> Sequence[torch.Tensor | None]:
        twin.base.wanted()
        way: Callable[..., Sequence[torch.Tensor | None]] = compiled if plain else graph.forward
        if not torch_compat.is_any_autocast_enabled():
            return way(*values)
        with torch_compat.without_autocast():
            return way(*values)

    return run


def _twin_of_now(graph: DifferentiatedGraph, inputs: Sequence[torch.Tensor]) -> DifferentiatedGraph | None:
    """A twin for the sizes of this call alone: PyTorch follows some second derivatives for plain sizes only. Without
    one, what goes through the graph's own results would go past them, and past their hooks."""
    twins = graph.twins_of_sizes
    if graph.numbers not in twins and len(twins) < MOST_BACKWARDS:
        try:
            with graph.as_at_first(inputs) as examples, generated.kept_in(graph.generated), listening():
                twins[graph.numbers] = twin_of(graph, graph.function, examples, FIXED)
        except (*REFUSALS, *torch_compat.fake_tensor_errors()):
            twins[graph.numbers] = None  # nor will there be one at the next call
    return twins.get(graph.numbers)


def differentiable_backward(
    graph: DifferentiatedGraph,
    inputs: Sequence[torch.Tensor],
    tangents: Tangents,
    unchanged: Unchanged,
    wanted: Wanted,
    own: Own,
    hooked: bool,
) -> Gradients:
    """The backward of a graph that has kept nothing for second derivatives: what it needs of the forward runs again.

    By the twin, which is used from then on; else by a function of inputs and gradients that is compiled as a whole.
    What the backward reads of the graph's ``own`` results is read of those, not of what the twin gives in their place.
    Where those are ``hooked`` there is no other way than the twin: inputs that notice a None get zeros in its place.
    """
    tangents = visible(graph, tangents)
    there = [tangent for tangent in tangents if tangent is not None]
    moves = [tangent is not None for tangent in tangents]
    twin = graph.again.use(partial(graph.twin, inputs))
    run: Any = None if twin is None else graph.bound(twin)
    if run is None and own and graph.sizes:
        run = _twin_of_now(graph, inputs)
    told = [place for place in (() if run is None else run.partly_reached) if is_told_of_none([inputs[place]])]
    if told and not (hooked and own):
        twin = run = None
    if run is not None and _are_unchanged(unchanged, run.read_inputs):
        if graph.plan.renewed:  # here it is a function of what they were
            run = Renewing(run, graph.plan.renewed, skipped=0)
        return backward_function(graph, moves, wanted, run, own, told)(*inputs, *there)
    values = [*inputs, *there]
    moment = Moment(strides_of(tangents), torch_compat.autocast_now())
    shapes = tuple(value.shape for value in values)
    key = graph.numbers, moment, shapes, wanted, torch.is_grad_enabled(), tuple(value.requires_grad for value in values)
    backward = graph.differentiable_backwards.get(key)
    if backward is None:
        backward = backward_function(graph, moves, wanted)
        if len(graph.differentiable_backwards) >= MOST_BACKWARDS:
            return tuple(backward(*values))
        if twin is not None or not graph.sizes:  # a function with symbols would be compiled for each size
            backward = _compiled(backward, values, graph)
        graph.differentiable_backwards[key] = backward
    known = known_of(backward).read_inputs
    read: Sequence[int] = range(len(inputs)) if known is None else known
    unchanged([index for index in read if index < len(inputs)])
    return tuple(backward(*values))


def _compiled(
    backward: Callable[..., Any], values: list[torch.Tensor], graph: DifferentiatedGraph
) -> Callable[..., Any]:
    try:
        with listening():
            plan = graph.plan
            return differentiate(
                backward, values, plan.fw_compiler, plan.bw_compiler, plan.reads,
                decompositions=plan.decompositions, kernels=plan.kernels,
            )
    except NotDifferentiable as error:
        graph.tell("second derivative", str(error))
        return backward


def _are_unchanged(unchanged: Unchanged, read: Sequence[int]) -> bool:
    try:
        unchanged(read)
    except RuntimeError:
        return False
    return True
