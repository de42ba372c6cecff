"""Cuts a captured graph where people outside can look at what autograd does in between.

A tensor that has a hook, keeps its gradient, or is returned although other results are computed from it, must be a
tensor of autograd's own: the graph is cut after it, and the parts are differentiated apart. An operation whose node
is looked at, or that runs the user's Python in its backward, runs as it was captured, between the parts.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.grad.cutting.moving import followed, mark_data, may_write, nodes_without_grad
from bothways.grad.cutting.parts import CompilePart
from bothways.grad.cutting.sections import OpenContexts, Section, begins_or_ends, chained
from bothways.grad.cutting.sinking import with_data_set_late
from bothways.grad.tracing.checked import is_in_trace
from bothways.grad.tracing.overlaps import is_view_in_secret
from bothways.grad.tracing.results import has_known_history
from bothways.grad.tracing.sizes import is_size
from bothways.node_facts import Region, Watched, facts_of_call, facts_of_node
from bothways.runtime.gradients import gradients
from bothways.runtime.nodes import set_data_

# Calls that decide what kind of tensors the operations after them make: those are compiled in that very mode.
MODES = (torch_compat.enter_inference_mode, torch_compat.exit_inference_mode)


def split(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compile_part: CompilePart,
    *,
    grad: bool,
    apart: bool = False,
    inside: bool = False,
) -> torch.fx.GraphModule | None:
    """The graph as a chain of parts, each compiled when it first runs; None when it can stay whole.

    Without ``grad`` autograd does not look, and only what runs the user's Python is taken apart; what autograd does
    ``inside`` the caller cannot look at, the leaves that are made there included. ``apart`` is for what
    was refused as it is: it is cut around whatever happens without gradients or to detached tensors, and ``.data`` is
    read as captured.
    """
    sections = sections_of(graph.graph, inputs, grad, apart, inside)
    if len(sections) == 1 and not sections[0].as_captured:
        return None
    if apart and all(section.as_captured for section in sections):
        return None
    mark_data(graph.graph)
    return chained(graph, sections, compile_part)


def sections_of(
    graph: torch.fx.Graph, inputs: Sequence[Any], grad: bool, apart: bool = False, inside: bool = False
) -> list[Section]:
    """The nodes in sections; a backward that leaves its section is PyTorch's, through the autograd nodes of others."""
    alone: set[torch.fx.Node] = set()
    seen = _seen(graph, inputs) if grad else set()
    pairs = zip((node for node in graph.nodes if node.op == "placeholder"), inputs, strict=False)
    tensors = ((node, value) for node, value in pairs if isinstance(value, torch.Tensor) and has_known_history(value))
    leaves = {node for node, tensor in tensors if tensor.requires_grad and tensor.is_leaf}
    while True:
        sections = _sections(graph, grad, apart, alone, seen, inside, leaves)
        leaving = {node for section in sections for node in section.nodes if _leaves(node, section)} - alone
        asked = {node for section in sections if section.as_captured for node in _asked_for(section.nodes)} - seen
        if not leaving and not asked:
            return sections
        alone |= leaving
        seen |= asked


def _with_casts(sections: list[Section], leaves: Container[torch.fx.Node]) -> list[Section]:
    """The sections, those of an autocast joined as captured where a parameter is changed in it, or where another dtype
    is cast to inside: autocast keeps what it has cast of parameters until it is left, whatever they are by then."""
    joined: list[Section] = []
    group: list[Section] = []
    for section in sections:
        group.append(section)
        if section.after.entered:
            continue
        several = len([one for one in group if not all(map(begins_or_ends, one.nodes))]) > 1
        changes = several and any(_changes_leaf(node, leaves) for one in group for node in one.nodes)
        if changes or _casts_to_several(group):
            group = _as_captured_inside(group)
        joined += group
        group = []
    return joined + group


def _as_captured_inside(group: list[Section]) -> list[Section]:
    """Sections around a context as three: what comes before, what is inside of it, as captured, and what is behind."""
    nodes = [(node, section.as_captured) for section in group for node in section.nodes]
    states = list(itertools.accumulate((node for node, _ in nodes), OpenContexts.behind, initial=group[0].before))
    inside = [place for place in range(len(nodes)) if states[place].entered or states[place + 1].entered]
    first, last = inside[0], inside[-1] + 1
    spans = ((0, first, nodes[0][1]), (first, last, True), (last, len(nodes), nodes[-1][1]))
    return [
        Section([node for node, _ in nodes[begin:end]], as_captured, states[begin], states[end])
        for begin, end, as_captured in spans
        if begin < end
    ]


def _casts_to_several(group: list[Section]) -> bool:
    """Whether an autocast is inside of one with another dtype, the caller's included."""
    nodes = [node for section in group for node in section.nodes]
    states = itertools.accumulate(nodes, OpenContexts.behind, initial=group[0].before)
    entering = [
        (node, state)
        for node, state in zip(nodes, states, strict=False)
        if node.target is torch_compat.enter_autocast
    ]
    return any(_casts_otherwise(node, dtype) for node, state in entering for dtype in _casting(state, node))


def _casting(state: OpenContexts, node: torch.fx.Node) -> list[Any]:
    """The dtypes that are cast to where a node enters another autocast, on the same kind of device."""
    kind: Any = node.args[0]
    outside = [torch.get_autocast_dtype(kind)] if torch.is_autocast_enabled(kind) else []
    return [*outside, *(one.args[1] for one in state.entered if one.args[0] == kind and one.args[2])]


def _casts_otherwise(node: torch.fx.Node, dtype: Any) -> bool:
    """Whether an autocast is on, and casts to another dtype; without one of its own it casts as those around it."""
    return bool(node.args[2]) and None not in (node.args[1], dtype) and node.args[1] != dtype


def _changes_leaf(node: torch.fx.Node, leaves: Container[torch.fx.Node]) -> bool:
    return may_write(node) and any(_origin(argument) in leaves for argument in node.all_input_nodes)


def _origin(node: torch.fx.Node) -> torch.fx.Node:
    """What a value may be a view of, by first arguments."""
    while node.op != "placeholder" and (first := _first(node)) is not None:
        node = first
    return node


def _leaves(node: torch.fx.Node, section: Section) -> bool:
    """Whether a node runs a backward through what other sections compute."""
    if node.target is not gradients or section.as_captured:
        return False
    roots: Any = node.args[0]
    inputs: Any = node.args[1]
    behind = _computed_from(roots)
    leading = set(inputs)
    for step in node.graph.nodes:  # those that gradients of the inputs go through
        if step in behind and not leading.isdisjoint(step.all_input_nodes):
            leading.add(step)
    return not leading.intersection(behind).difference(inputs).issubset(section.nodes)


def _asked_for(nodes: Sequence[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """What PyTorch's own backwards among the nodes are asked for: it finds the way where a part begins with that."""
    for node in nodes:
        if node.target is gradients:
            inputs: Any = node.args[1]
            yield from (one for one in inputs if one.op != "placeholder")


def _computed_from(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    computed: set[torch.fx.Node] = set()
    pending = list(nodes)
    while pending:
        step = pending.pop()
        if step.op != "placeholder" and step not in computed:
            computed.add(step)
            pending.extend(step.all_input_nodes)
    return computed


def _sections(
    graph: torch.fx.Graph,
    grad: bool,
    apart: bool,
    alone: Container[torch.fx.Node],
    seen: Container[torch.fx.Node],
    inside: bool,
    leaves: Container[torch.fx.Node],
) -> list[Section]:
    nodes = _with_results([
        node for node in graph.nodes if node.op not in ("placeholder", "output") and not is_size(node)
    ])  # fmt: skip
    nodes = with_data_set_late(nodes)
    places = _places(nodes, grad, apart)
    hooked = {node.args[0] for node in nodes if _is_hooked(node) and _is_one_of_several(node)} if grad else set()
    captured = [
        _goes_around_autograd(place, grad, apart, inside) or place.node in hooked or place.node in alone
        for place in places
    ]
    if places and places[-1].after.entered:  # a context that a part cannot leave open
        return [Section(nodes, as_captured=True)]
    first = _beginnings(places, grad, apart)
    sections: list[Section] = []
    base = state = OpenContexts.now()
    cut = True
    for index, (place, around) in enumerate(zip(places, captured, strict=True)):
        as_captured = around or _is_taken_from(place.node, sections)
        if sections and grad and place.grad and not cut and _is_come_around(place.node, sections[-1]):
            cut = True
        put_off = cut and bool(sections) and _is_result(place.node, sections[-1].nodes)
        if (cut and not put_off) or index in first or sections[-1].as_captured != as_captured:
            sections.append(Section(as_captured=as_captured, before=state))
        state = place.after
        sections[-1].nodes.append(place.node)
        sections[-1].after = state
        cut = put_off or (place.grad and place.node in seen and not as_captured)
    return _joined(_with_casts(sections, leaves)) + ([] if state == base else [_last_switch(nodes)])


class NodePlace(NamedTuple):
    """A node, and the state it runs in: after it, where it changes that itself."""

    node: torch.fx.Node
    after: OpenContexts
    is_plain: bool  # whether neither the node nor what is around it is a context
    in_region: bool
    reads_data: bool  # where autograd does not look in between
    of_data: bool  # whether it reads ``.data``, or detaches, while autograd may look, or works on what comes of that
    ends_plain: bool  # whether no context is open behind it

    @property
    def grad(self) -> bool:
        return self.after.grad


def _places(nodes: Sequence[torch.fx.Node], grad: bool, apart: bool) -> list[NodePlace]:
    base = state = OpenContexts.now()
    regions = 0
    around = _is_detached if apart else _is_data
    places: list[NodePlace] = []
    data: set[torch.fx.Node] = set()
    for node in nodes:
        before, region = state, regions > 0
        state = state.behind(node)
        facts = facts_of_call(node.target)
        regions += (facts.region is Region.BEGIN) - (facts.region is Region.END)
        if grad and state.grad and not state.entered and (around(node) or _first(node) in data):
            data.add(node)
        places.append(
            NodePlace(
                node,
                after=state,
                is_plain=before == state == base,
                in_region=region or regions > 0,
                reads_data=_is_data(node) and not (grad and (state.grad or state.entered)),
                of_data=node in data,
                ends_plain=state == base,
            )
        )
    return places


def _beginnings(places: list[NodePlace], grad: bool, apart: bool) -> set[int]:
    """Where sections begin that are to stand alone: what happens without gradients, and what is done to data."""
    beginnings: set[int] = set()
    start: int | None = None
    for index, place in enumerate(places):
        if place.of_data != (index > 0 and places[index - 1].of_data):
            beginnings.add(index)
        if not place.is_plain and start is None:
            start = index
        if start is not None and place.ends_plain:
            inside = places[start : index + 1]
            if grad and any(not each.grad and (apart or each.reads_data) for each in inside):
                beginnings |= {start, index + 1}
            start = None
    return beginnings


def _joined(sections: list[Section]) -> list[Section]:
    """Sections that run as captured one after the other are one; those that only begin or end contexts are none."""
    joined: list[Section] = []
    for section in sections:
        if all(map(begins_or_ends, section.nodes)):
            continue
        if joined and joined[-1].as_captured and section.as_captured and joined[-1].after == section.before:
            joined[-1].nodes += section.nodes
            joined[-1].after = section.after
        else:
            joined.append(section)
    return joined


def _last_switch(nodes: Sequence[torch.fx.Node]) -> Section:
    """What turns gradients on or off for good, beyond the graph: each part leaves them as they were."""
    switch = next(node for node in reversed(nodes) if node.target is torch_compat.set_grad_enabled)
    return Section([switch], as_captured=True)


def _goes_around_autograd(place: NodePlace, grad: bool, apart: bool, inside: bool) -> bool:
    """Whether the node has to be autograd's own: it is looked at, runs the user's Python, or reads data behind it."""
    node, call = place.node, facts_of_call(place.node.target)
    if is_in_trace(node) and not (place.in_region or facts_of_node(node).as_captured or _sets_data(node.graph)):
        return False
    if _is_data(node):
        return apart or not (place.reads_data or place.of_data)
    return bool(
        place.in_region
        or facts_of_node(node).watched is Watched.NODE
        or (call.opaque and (grad or not call.traced))
        or node.target in MODES
        or node.target is torch_compat.SDPAParams
        or facts_of_node(node).as_captured
        or (makes_leaf(node) and not (inside and node.target is not torch.nn.Parameter))  # which leaves as one
        or is_view_in_secret(node)
    )


def _sets_data(graph: torch.fx.Graph) -> bool:
    """Whether tensors are given other data, of which a second derivative would compute again what it was."""
    return any(node.target is set_data_ for node in graph.nodes)


def _is_taken_from(node: torch.fx.Node, before: list[Section]) -> bool:
    """Whether the node takes one of the results of something that runs as captured just before."""
    return bool(before) and before[-1].as_captured and _is_result(node, before[-1].nodes)


def _is_result(node: torch.fx.Node, nodes: Sequence[torch.fx.Node]) -> bool:
    """Whether the node takes one of the results of a node among these: a part gives tensors, not tuples of them."""
    producer = _first(node) if node.target is operator.getitem else None
    return producer is not None and not _is_tensor(producer) and producer in nodes


def _with_results(nodes: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes, each that gives several tensors with those behind it that take them."""
    taken: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in nodes:
        producer = _first(node) if node.target is operator.getitem else None
        if producer is not None and producer.op != "placeholder" and not _is_tensor(producer):
            taken.setdefault(producer, []).append(node)
    moved = {node for each in taken.values() for node in each}
    ordered: list[torch.fx.Node] = []

    def add(node: torch.fx.Node) -> None:
        ordered.append(node)
        for result in taken.get(node, ()):
            add(result)

    for node in nodes:
        if node not in moved:
            add(node)
    return ordered


def _first(node: torch.fx.Node) -> torch.fx.Node | None:
    return node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None


def _is_data(node: torch.fx.Node) -> bool:
    return node.target is getattr and node.args[1] == "data"


def makes_leaf(node: torch.fx.Node) -> bool:
    """Whether the node makes a tensor that asks for its own gradient, as ``torch.zeros(3, requires_grad=True)``."""
    return bool(node.kwargs.get("requires_grad")) or node.target in ("requires_grad_", torch.nn.Parameter)


def is_of_leaf(node: torch.fx.Node) -> bool:
    """Whether the tensor is one that the graph makes and that asks for its own gradient, or a view of such a one."""
    step: torch.fx.Node | None = node
    while step is not None and not makes_leaf(step):
        operation = ops.of_node(step)
        step = _first(step) if operation.is_view or operation.writes else None
    return step is not None


def _is_detached(node: torch.fx.Node) -> bool:
    return node.target in ("detach", torch.detach)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _is_hooked(node: torch.fx.Node) -> bool:
    return facts_of_node(node).watched is Watched.GRADIENT


def _is_one_of_several(node: torch.fx.Node) -> bool:
    """Whether the node takes one of the results of an operation, which have one autograd node."""
    producer = _first(node)
    return node.target is operator.getitem and producer is not None and not _is_tensor(producer)


def _seen(graph: torch.fx.Graph, inputs: Sequence[Any]) -> set[torch.fx.Node]:
    """The tensors of autograd's that people outside see while others are computed from them."""
    hooked = {node for node in graph.nodes if _is_hooked(node)}
    seen = hooked | {node for node in graph.nodes if facts_of_node(node).is_last_write}
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    left = [node for node in output.all_input_nodes if node.op != "placeholder"]
    read = {node for node in left if len(node.users) > 1}
    off = nodes_without_grad(graph)
    read |= {_made(node, off) for node in (*left, *hooked) if _is_changed(node, off)} - {None}
    return seen | (read & followed(graph, inputs) if read else set())


def _is_changed(node: torch.fx.Node, off: Container[torch.fx.Node]) -> bool:
    """Whether a node gives what it has changed in place while gradients were off: to autograd, nothing has happened."""
    return node in off and facts_of_node(node).is_in_place and _changed(node) is not None


def _changed(node: torch.fx.Node) -> torch.fx.Node | None:
    out = node.kwargs.get("out")
    return out if isinstance(out, torch.fx.Node) else _first(node)


def _made(node: torch.fx.Node, off: Container[torch.fx.Node]) -> torch.fx.Node | None:
    """The node that has made what others have changed since; None where nothing else is computed of it."""
    names = [node]
    while _is_changed(names[-1], off) and (before := _changed(names[-1])) is not None:
        names.append(before)
    users = {user for name in names for user in name.users}.difference(names)
    return names[-1] if any(user.op != "output" for user in users) else None


def _is_come_around(node: torch.fx.Node, before: Section) -> bool:
    """Whether a backward may come to what a watched tensor would be computed with, and not to the tensor itself.

    One autograd node for both would call the tensor's hooks, with None for a gradient.
    """
    if not _is_hooked(node) or _is_one_of_several(node):
        return False
    own = {*before.nodes, node}
    return any(user not in own for other in before.nodes for user in other.users)
