"""Splits a joint graph into a forward graph and a backward graph, and chooses what is saved between them.

Saved is the cheapest set of values from which cheap operations give everything the backward reads. Whatever is
chosen, the backward uses the inputs and results that eager's uses and no others: people may change in place, between
forward and backward, exactly what they may change in eager.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.fx

from bothways import ops, torch_compat
from bothways.config import config
from bothways.grad.halves.mincut import UNLIMITED, Network
from bothways.grad.tracing.results import geometry
from bothways.grad.tracing.sizes import SizeArguments
from bothways.grad.tracing.traced import Joint, NotDifferentiable
from bothways.ops import Gives
from bothways.runtime.graph_module import graph_module
from bothways.symbols import hint

Node = torch.fx.Node

_LIFTED, _LIFTED_ANEW = torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default


@dataclass(frozen=True)
class Prices:
    """What it costs to run an operation again, in bytes that might as well be saved: a byte for so many that it reads
    and writes, ``of_long`` if it computes for longer, and ``call``, what one on small tensors takes. Chains of what is
    run again end after so many."""

    of_short: int
    of_long: int
    call: int
    longest_chain: int


# On a CPU an operation takes as long as memory does to read and write: four in a row, each from one tensor to another,
# cost as much as saving one; ``exp`` computes for longer than that. On a GPU a chain is part of the kernel that reads
# what it comes to, and only what is read first is read again: there 8 of those that take long are worth one tensor.
PRICES = {"cpu": Prices(8, 1, 4096, 8), "cuda": Prices(64, 16, 4096, 32)}


class NotRepeatable(Exception):
    """A backward reads what can only be had by drawing random numbers again."""


def check_takes(graph: torch.fx.GraphModule, values: Sequence[torch.Tensor]) -> None:
    """A backward that was traced by itself takes what the forward has saved, or it does not run: memory that is read
    as what it is not gives any numbers."""
    taken = [node for node in graph.graph.nodes if node.op == "placeholder"][-len(values) :]
    for node, value in zip(taken, values, strict=False):
        expected = node.meta.get("val")
        if isinstance(expected, torch.Tensor) and expected.dtype is not value.dtype:
            raise NotRepeatable(f"{node.name} is traced as {expected.dtype}, and saved as {value.dtype}")


def saved_values(joint: Joint, recompute: bool = True) -> tuple[Node, ...]:
    """The forward values that the backward gets besides the inputs; without ``recompute`` those that eager saves.

    Views are never among them, only what they are views of: taking a view again costs nothing, and saving one keeps
    all of the memory behind it.
    """
    owners = owners_of(joint)
    needed = _needed(joint, owners)
    saved = {node for node in needed if node.op == "call_function"}
    if recompute and config.recompute:
        # What the user holds as well is saved where eager saves it and nowhere else, so that a change to it is an
        # error when it is one in eager, and only then.
        live = live_values(joint, owners)
        results = {owners[node] for node in joint.results} | new_values(joint, owners).keys() | live
        wanted = saved - results
        free = needed - wanted - live | {node for node in owners if node.op == "get_attr"}
        saved = (saved & results) | _cheapest(owners, wanted, free, results)
    return tuple(node for node in owners if node in saved)


def needed_inputs(joint: Joint) -> tuple[int, ...]:
    """The inputs that the backward reads, the same whatever is saved."""
    needed = _needed(joint, owners_of(joint))
    return tuple(index for index, node in enumerate(joint.primals) if node in needed)


def window_inputs(joint: Joint) -> tuple[int, ...]:
    """The inputs of which the backward reads windows alone, which eager has saved: not the tensors, whose memory may
    be replaced, but the memory that they had."""
    owners = owners_of(joint)
    read = set(_read(joint))
    shown = {owners[node] for node in read if node is not owners[node]}
    left = shown - _read_whole(joint, read)
    return tuple(index for index, node in enumerate(joint.primals) if node in left and index not in joint.updates)


def windows_beside(joint: Joint, leaves: Sequence[bool]) -> tuple[Node, ...]:
    """Windows on inputs, those that are leaves, that the backward reads whole as well: eager has saved both."""
    owners, read = owners_of(joint), set(_read(joint))
    inputs = [node for index, node in enumerate(joint.primals) if leaves[index] and index not in joint.updates]
    whole = _read_whole(joint, read).intersection(inputs)
    return tuple(node for node in owners if node in read and node is not owners[node] and owners[node] in whole)


def _read_whole(joint: Joint, read: set[Node]) -> set[Node]:
    return read | joint.keeping.asked.keys() | joint.keeping.held | set(joint.stand_ins.values())


def owners_of(joint: Joint) -> dict[Node, Node]:
    """For each node of the forward, in order, the one that made the memory it is a view of; mostly itself."""
    owners: dict[Node, Node] = {}
    memory: dict[Node, int | None] = {}
    for node in joint.recorder.graph.nodes:
        if node in joint.forward_nodes:
            memory[node] = own = _memory(node)
            shared = (owners[source] for source in _sources(node) if own is not None and memory[source] == own)
            owners[node] = next(shared, node)
    return owners


def _memory(node: Node) -> int | None:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return torch_compat.storage_identity(value)
    return None


def _sources(node: Node) -> Iterable[Node]:
    """The arguments of a node; for one that picks from several results, those of the operation that gave them."""
    for argument in node.all_input_nodes:
        yield from [argument] if isinstance(argument.meta.get("val"), torch.Tensor) else argument.all_input_nodes


def _needed(joint: Joint, owners: dict[Node, Node]) -> set[Node]:
    """The owners of what backward operations read, which is what eager saves."""
    needed = {owners[node] for node in _read(joint)}
    asked = {owners[node] for node in joint.keeping.asked if node in owners}
    # Of what lies in another way than in eager, the user may hold the original, and change it.
    held = {*joint.primals, *(owners[node] for node in joint.results)}
    originals = {owners[own] for turned, own in joint.stand_ins.items() if owners[turned] in needed | asked}
    new = {owners[joint.updates[place]] for place in joint.keeping.changed if place in joint.updates}
    return needed | ((originals | asked) & held) | new


def asked_owners(joint: Joint, results: int, inputs: int) -> set[Node]:
    """What eager's nodes between some results and some inputs look at, read or not."""
    owners = owners_of(joint)
    asked = joint.keeping.asked_between(results, inputs)
    return asked | {owners[node] for node in asked if node in owners}


def _read(joint: Joint) -> Iterator[Node]:
    """What backward operations read of the forward, and gradients that are values of it."""
    gradients = [node for node in joint.gradients if node is not None]
    backward = reachable(gradients, stop=joint.forward_nodes)
    read = itertools.chain(gradients, *(node.all_input_nodes for node in backward))
    return (node for node in read if node in joint.forward_nodes)


def new_values(joint: Joint, owners: dict[Node, Node]) -> dict[Node, int]:
    """The new values of changed inputs that are kept for the backward as what those inputs are then, with the places of
    the inputs."""
    places = sorted(joint.keeping.changed | joint.keeping.changed_held)
    updates = {place: joint.updates[place] for place in places if place in joint.updates}
    if any(not _lie_alike(node, owners[node]) for node in updates.values()):
        raise NotDifferentiable("an input is changed through a view of another shape, and its backward reads that")
    return {owners[node]: place for place, node in updates.items()}


def _lie_alike(node: Node, owner: Node) -> bool:
    """Whether a value may stand for the memory that it is in: it is no transposed or reshaped view of that."""
    return node is owner or geometry(node.meta["val"]) == geometry(owner.meta["val"])


def live_values(joint: Joint, owners: dict[Node, Node]) -> set[Node]:
    """What the backward reads as it is then: the user's function has not saved it, and people may change it until then.
    Nor is it freed: where nothing else is kept, the backward can be gone through again."""
    keeping = joint.keeping
    held, saved = ({owners[node] for node in nodes if node in owners} for nodes in (keeping.held, keeping.saved))
    changed = {owners[joint.updates[place]] for place in keeping.changed_held if place in joint.updates}
    if joint.pieces:
        held &= {*joint.primals, *(owners[node] for node in joint.results)}
    return (held - saved) | changed


def _cheapest(owners: dict[Node, Node], wanted: set[Node], free: set[Node], unsaved: set[Node]) -> set[Node]:
    """What to save for a backward that reads ``wanted`` and has ``free`` anyway, without saving any of ``unsaved``.

    It is a minimum cut. Each value is an edge of its size, and those whose end is on the sink's side of the cut are
    the ones the backward has. If the edge is cut, the value is saved. If not, the value is computed again: the edge
    from the source, its price, is cut instead, and edges without limit put its arguments on the sink's side, too.
    """
    repeatable = _repeatable(owners, free)
    network = Network()
    source, sink = network.node(), network.node()
    edges: dict[Node, tuple[int, int]] = {}
    pending: list[Node] = []

    def edge_of(node: Node) -> tuple[int, int]:
        if node not in edges:
            edges[node] = network.node(), network.node()
            pending.append(node)
        return edges[node]

    for node in wanted:
        network.connect(edge_of(node)[1], sink, UNLIMITED)
    while pending:
        node = pending.pop()
        start, end = edges[node]
        network.connect(start, end, UNLIMITED if node in unsaved else _size(node))
        network.connect(source, start, _price(node) if node in repeatable else UNLIMITED)
        if node in repeatable:
            for argument in {owners[argument] for argument in node.all_input_nodes} - free:
                network.connect(edge_of(argument)[1], start, UNLIMITED)
    had = network.cut(source, sink)
    return {node for node, (start, end) in edges.items() if end in had and start not in had}


def _repeatable(owners: dict[Node, Node], free: set[Node]) -> set[Node]:
    """The nodes that may be computed again in the backward.

    Chains of them end after so many: a backward that starts by computing thousands of values again, because it reads
    all of them, has them all in memory then, and has saved nothing.
    """
    lengths: dict[Node, int] = {}
    for node in owners:
        if node is owners[node] and node not in free and ops.of(node.target).is_cheap:
            arguments = {owners[argument] for argument in node.all_input_nodes} - free
            length = 1 + max((lengths.get(argument, 0) for argument in arguments), default=0)
            is_short = length <= prices_of(node).longest_chain
            if is_short and not any(argument.op == "placeholder" for argument in arguments):
                lengths[node] = length
    return set(lengths)


def prices_of(node: Node) -> Prices:
    return PRICES.get(node.meta["val"].device.type, PRICES["cpu"])


def _price(node: Node) -> int:
    """What it costs to run a cheap operation again, in bytes that might as well be saved."""
    traffic, prices = sum(map(_traffic, node.all_input_nodes)) + _traffic(node), prices_of(node)
    return prices.call + traffic // (prices.of_long if _takes_long(node) else prices.of_short)


def _takes_long(node: Node) -> bool:
    """Whether the operation computes for long: ``exp`` does."""
    name = torch_compat.operation_name(node.target) or ""
    return ops.named(name.removesuffix("_backward").removesuffix("_").removeprefix("special_")).takes_long


def _traffic(node: Node) -> int:
    value = node.meta["val"]
    return min(hint(value.numel()) * value.element_size(), _size(node))


def _size(node: Node) -> int:
    """The bytes that the node's memory takes."""
    value = node.meta["val"]
    if value.layout == torch.strided:
        return int(hint(value.untyped_storage().nbytes()))
    return int(hint(value.numel()) * value.element_size())


def reachable(roots: Iterable[Node], stop: frozenset[Node]) -> set[Node]:
    """The nodes that the roots are computed from, up to and without those in ``stop``."""
    reached: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node in reached or node in stop:
            continue
        reached.add(node)
        pending.extend(node.all_input_nodes)
    return reached


def extract(
    joint: Joint, inputs: Sequence[Node], outputs: Sequence[Node | None], kept: Sequence[Node] = ()
) -> torch.fx.GraphModule:
    """The part of the joint graph that computes ``outputs`` from ``inputs``; None stays None.

    ``kept`` are operations that must run even if nothing reads them: those that draw random numbers or check. With
    tangents among its inputs the part is a backward: what it computes again it computes when it first needs it, so
    that it does not lie in memory from the start.
    """
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    numbers = SizeArguments(graph, joint.sizes) if joint.sizes else None
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    roots = [*(node for node in outputs if node is not None), *kept]
    needed = reachable(roots, stop=frozenset(inputs))
    order = [node for node in joint.recorder.graph.nodes if node in needed]
    if not joint.forward_nodes.issuperset(inputs):
        if again := needed.intersection(joint.random_nodes):
            raise NotRepeatable(f"{min(node.name for node in again)} would draw other numbers in the backward")
        order = _as_late_as_possible([*(node for node in order if node not in joint.forward_nodes), *roots], needed)
    constants = {}
    seen = {*joint.results, *joint.updates.values(), *joint.gradients}  # what is only saved, no one else has
    leaving = _constants_behind(node for node in outputs if node in seen)
    for node in order:
        if node.op == "placeholder":
            raise NotRepeatable(f"{node.name} is needed, and may have been changed since the forward")
        if numbers is not None:
            numbers.prepare(node)
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node in leaving:
            copies[node].target = _LIFTED_ANEW
        if numbers is not None:
            numbers.replace(copies[node])
        if node.op == "get_attr":
            constants[str(node.target)] = joint.recorder.constants[str(node.target)]
    graph.output(tuple(None if node is None else copies[node] for node in outputs))
    root = torch.nn.Module()
    for name, tensor in constants.items():
        root.register_buffer(name, tensor)
    return graph_module(graph, root)


def _constants_behind(outputs: Iterable[Node | None]) -> set[Node]:
    """The nodes that make tensors of the constants which leave a graph: each call makes new ones, as who gets one may
    change it."""
    behind: set[Node] = set()
    for node in outputs:
        while node is not None and node.op == "call_function" and node.target is not _LIFTED:
            is_view = ops.of_node(node).is_view or ops.of_node(node).gives is Gives.SECRET_VIEW
            node = node.args[0] if is_view and isinstance(node.args[0], Node) else None
        if node is not None and node.target is _LIFTED:
            behind.add(node)
    return behind


def _as_late_as_possible(order: Iterable[Node], needed: set[Node]) -> list[Node]:
    """``order`` with the nodes of ``needed`` that are missing in it, each before the first that reads it."""
    placed: dict[Node, None] = {}
    for node in order:
        pending = [node] if node in needed else []
        while pending:
            missing = [
                argument for argument in pending[-1].all_input_nodes if argument in needed and argument not in placed
            ]
            if missing:
                pending.extend(missing)
            else:
                placed[pending.pop()] = None
    return list(placed)
