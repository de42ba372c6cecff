"""Lets kernels write results straight into the inputs they are meant for: parameters that an optimizer updates.

That is legal when nothing needs the old value any more: every other reader of the input has run before, and the
kernel itself reads, at each index, just the element it then writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bothways.lower.ir.builder import Builder
from bothways.lower.ir.domain import NoMapping
from bothways.lower.ir.prims import Buffer, Map, Memory, Node
from bothways.lower.schedule.fusion import Call, Fusion, Group, Unit


def write_in_place(
    outputs: list[Buffer | None], writes: Mapping[int, int], inputs: list[Memory], fusion: Fusion, builder: Builder
) -> None:
    """Redirect results to inputs, where it is legal; ``writes`` maps positions of outputs to those of inputs."""
    readers = _readers(fusion)
    for position, index in writes.items():
        output, target = outputs[position], inputs[index]
        if output is None or not _is_whole(output, target) or sum(other is output for other in outputs) > 1:
            continue
        node = output.memory.producer
        if not isinstance(node, Map) or builder.buffers.get(node) is not output or readers.get(output.memory):
            continue
        if any(other is not None and other.memory is target for other in outputs):
            continue
        group = fusion.group_of[node]
        if _may_write(group, node, target, readers.get(target, set()), fusion):
            builder.buffers[node] = outputs[position] = Buffer(
                target.shape, target.dtype, target, target.strides, name=node.name, origin=node.origin
            )


def _is_whole(output: Buffer, target: Memory) -> bool:
    return (output.shape, output.dtype) == (target.shape, target.dtype) and output.shape == output.memory.shape


def _readers(fusion: Fusion) -> dict[Memory, set[Unit]]:
    readers: dict[Memory, set[Unit]] = {}
    for unit in fusion.units:
        nodes: Iterable[Node] = []
        if isinstance(unit, Group):
            nodes = [leaf for member in unit.members for leaf in fusion.leaves(member)]
        elif isinstance(unit, Call):
            nodes = unit.extern.sources()
        for node in nodes:
            if isinstance(node, Buffer):
                readers.setdefault(node.memory, set()).add(unit)
    return readers


def _may_write(group: Group, node: Map, target: Memory, readers: set[Unit], fusion: Fusion) -> bool:
    if any(isinstance(unit, Call) and unit.extern.is_view for unit in readers):
        return False  # who reads the view is not known here
    others = [unit for unit in readers if unit is not group]
    # What raises leaves the inputs as they were.
    others += [unit for unit in fusion.units if isinstance(unit, Call) and unit.extern.may_fail]
    if any(unit.reach & group.bit for unit in others):
        return False
    if group in readers and not _reads_own_element(group, node, target, fusion):
        return False
    fusion.depend(group, others)
    return True


def _reads_own_element(group: Group, node: Map, target: Memory, fusion: Fusion) -> bool:
    """Whether the kernel reads the memory only at the element that it writes at the same time."""
    if group.reduced is not None:
        own = {loop for loops in group.domain.settled(group.mapping[node]) for loop in loops or ()}
        in_loop = own == set(group.domain.loops)
        if not (_reads_alone if in_loop else _reads_last)(group, node, target, fusion):
            return False
    elif any(_reads(member, target, fusion) for member in group.members[group.members.index(node) + 1 :]):
        return False  # what comes after it in the kernel would read the new value
    written = group.domain.strides(group.mapping[node], target.strides)
    try:
        reads = list(fusion.reads_of(group, target))
    except NoMapping:
        return False
    return all(
        buffer.offset == 0 and group.domain.strides(mapping, buffer.strides) == written for buffer, mapping in reads
    )


def _reads(member: Node, target: Memory, fusion: Fusion) -> bool:
    return any(isinstance(leaf, Buffer) and leaf.memory is target for leaf in fusion.leaves(member))


def _reads_alone(group: Group, node: Map, target: Memory, fusion: Fusion) -> bool:
    """Whether nothing else in a kernel of several loops reads the memory, which might be in another of them.

    Nor may anything read the value itself: a later loop computes it again.
    """
    others = (leaf for member in group.members if member is not node for leaf in fusion.leaves(member))
    return not any(leaf is node or (isinstance(leaf, Buffer) and leaf.memory is target) for leaf in others)


def _reads_last(group: Group, node: Map, target: Memory, fusion: Fusion) -> bool:
    """Whether what else reads the memory in a kernel has done so when a value of the row is there: the gradient of a
    bias is summed, and the bias updated.

    What the value is computed from was computed before, once: sums and other values of the row.
    """
    before: set[Node] = set()
    pending: list[Node] = [node]
    while pending:
        added = {leaf for leaf in fusion.leaves(pending.pop()) if leaf in group.mapping} - before
        before |= added
        pending += added
    reduced = group.reduced_loops
    for member in group.members:
        if member is node or not any(
            isinstance(leaf, Buffer) and leaf.memory is target for leaf in fusion.leaves(member)
        ):
            continue
        loops = {loop for loops in group.domain.settled(group.mapping[member]) for loop in loops or ()}
        if member not in before or (isinstance(member, Map) and loops & reduced):
            return False
    return True
