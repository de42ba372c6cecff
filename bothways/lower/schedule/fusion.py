"""Puts computed nodes together into kernels.

Maps with one reader are part of their reader. The others, and the Reduces, join the kernel of something they read
when the loops agree and no cycle arises: a kernel has one domain and at most one set of reduced loops, so a softmax
or a layer norm is one kernel, with everything pointwise around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bothways.lower.ir.domain import Domain, Mapping, NoMapping, downward, unified, upward
from bothways.lower.ir.prims import (
    Buffer,
    Extern,
    Join,
    Map,
    Memory,
    Node,
    Reduce,
    Scalar,
    Take,
    View,
)
from bothways.lower.ir.sizes import size_hint
from bothways.lower.schedule.inlining import MANY, inlined
from bothways.lower.schedule.waiting import calls_before

# What keeps kernels at a size people can read and compilers like.
MAX_MEMBERS, MAX_MEMORIES = 48, 48
LARGE = 1 << 23  # elements that no cache holds


@dataclass(eq=False)
class Unit:
    """Something that runs at one time: an ATen call or a kernel."""

    bit: int
    reach: int = 0  # the units it depends on, itself not included, as bits


@dataclass(eq=False)
class Call(Unit):
    extern: Extern = field(kw_only=True)


@dataclass(eq=False)
class Group(Unit):
    """A kernel under construction."""

    domain: Domain = field(default_factory=Domain)
    members: list[Map | Reduce] = field(default_factory=list)
    mapping: dict[Node, Mapping] = field(default_factory=dict)
    mapping_of_arg: dict[Reduce, Mapping] = field(default_factory=dict)  # of what is reduced
    reduced: frozenset[int] | None = None
    kept: set[Node] = field(default_factory=set)  # what one sweep stores and the next ones read
    memories: set[Memory] = field(default_factory=set)

    @property
    def reduced_loops(self) -> frozenset[int]:
        return frozenset(self.domain.resolved(self.reduced or ()))


class Fusion:
    """Assigns every computed node to a kernel. With ``spreads``, what is cheap is computed wherever it is read, though
    once would do for many indices: where a kernel of its own costs more."""

    def __init__(self, roots_needed: Iterable[Node], externs: Sequence[Extern], spreads: bool = False) -> None:
        self.units: list[Unit] = []
        self.group_of: dict[Node, Group] = {}
        self._call_of: dict[Extern, Call] = {}
        self._last_impure: Call | None = None
        self._readers_of_memory: dict[Memory, list[Group]] = {}
        self._readers_of_value: dict[Node, list[Group]] = {}
        self._reducing: dict[tuple[Any, Any, int], list[Group]] = {}  # those that add up columns, by what and when
        self.spreads = spreads
        needed = live(roots_needed, externs)
        self.stored: set[Node] = {
            memory.producer
            for memory in (node.memory for node in needed if isinstance(node, Buffer))
            if memory.producer is not None and not isinstance(memory.producer, (Extern, Join))
        }
        self.stored |= {node for node in needed if isinstance(node, Map) and node.into is not None}
        self.inlined = inlined(needed, self.stored, spreads)
        self._calls_before = calls_before(needed)
        self._soonest = self._soonest_readers(needed)
        for node in sorted(needed, key=lambda node: node.number):
            if isinstance(node, Extern):
                self._add_call(node)
            elif isinstance(node, (Map, Reduce)) and node not in self.inlined:
                self._place(node)

    def _add_call(self, extern: Extern) -> None:
        unit = Call(1 << len(self.units), extern=extern)
        self.units.append(unit)
        self._call_of[extern] = unit
        self.depend(unit, self._units_of(extern.sources()))
        if not extern.is_pure:
            # Random numbers are drawn, and checks made, in the order of the program.
            if self._last_impure is not None:
                self.depend(unit, [self._last_impure])
            self._last_impure = unit

    # Which kernel.

    def _place(self, node: Map | Reduce) -> None:
        leaves = list(self.leaves(node))
        needed = self._units_of(leaves)
        # What is read through memory must be complete: its elements are at other indices.
        complete = self._units_of(leaf for leaf in leaves if isinstance(leaf, Buffer))
        for group in self._candidates(leaves):
            if group in complete or any(unit is not group and unit.reach & group.bit for unit in needed):
                continue
            if self._is_wanted_later(group, node, leaves):
                continue
            if self._join(group, node, leaves):
                self.depend(group, needed)
                return
        for group in self._alike(node):
            if group in complete or any(unit is not group and unit.reach & group.bit for unit in needed):
                continue
            if self._join(group, node, leaves, (None,) * len(node.shape)):
                self.depend(group, needed)
                return
        group = Group(1 << len(self.units))
        self.units.append(group)
        joined = self._join(group, node, leaves)
        assert joined, "a node fits a kernel of its own"
        self.depend(group, needed)

    def _candidates(self, leaves: list[Node]) -> list[Group]:
        """Kernels that compute something the node reads, the latest first, then those that read the same memory."""
        producers = {self.group_of[leaf] for leaf in leaves if leaf in self.group_of}
        beside: dict[Group, None] = {}
        for leaf in leaves:
            if self.spreads and leaf.numel == 1:
                continue  # all parameters are updated by one rate: there each is better off by itself
            if isinstance(leaf, Buffer):
                beside.update(dict.fromkeys(self._readers_of_memory.get(leaf.memory, ())))
            elif self.spreads:
                beside.update(dict.fromkeys(self._readers_of_value.get(leaf, ())))
        ordered = sorted(producers, key=lambda group: -group.bit)
        return ordered + sorted((group for group in beside if group not in producers), key=lambda group: -group.bit)[:4]

    def _alike(self, node: Map | Reduce) -> list[Group]:
        """Kernels that add up as many columns of other memory at the same time: one launch instead of two, or of four.
        Of what is large, what a norm's backward adds up is better off with its rows."""
        if not self.spreads or not isinstance(node, Reduce) or len(node.shape) - 1 in node.axes:
            return []
        if type(node.arg.numel) is not int or node.arg.numel >= LARGE:
            return []
        lanes, when = node.arg.shape[-1], self._calls_before[node]
        return [
            group
            for group in reversed(self._reducing.get((node.arg.numel, lanes, when), ()))
            if all(self._calls_before[member] == when for member in group.members)
        ]

    def _soonest_readers(self, needed: Iterable[Node]) -> dict[Node, int]:
        """How many calls of ATen lie before the first who reads a value; who is read later itself reads it later."""
        soonest: dict[Node, int] = {}
        for node in sorted(needed if self.spreads else (), key=lambda node: -node.number):
            if isinstance(node, (Map, Reduce)) and node not in self.inlined:
                when = self._calls_before[node]
                if isinstance(node, Map) and node not in self.stored:
                    when = soonest.get(node, when)
                for leaf in self.leaves(node):
                    soonest[leaf] = min(when, soonest.get(leaf, when))
        return soonest

    def _is_wanted_later(self, group: Group, node: Map | Reduce, leaves: list[Node]) -> bool:
        """Whether a kernel would compute a value only because it reads the same memory, and write it for readers that
        come behind a call of ATen: the tanh of a gelu's gradient beside the gelu. They compute it as well themselves,
        of what takes no more to read than the value takes to be written and read."""
        if not isinstance(node, Map) or node in self.stored or node not in self._soonest:
            return False
        if self._soonest[node] <= max(self._calls_before[member] for member in group.members):
            return False
        size = size_hint(node.numel)
        large = {leaf for leaf in leaves if size_hint(leaf.numel) * MANY > size}
        if any(not isinstance(leaf, Buffer) for leaf in large):
            return False  # what it reads would be in memory instead
        return sum(size_hint(leaf.numel) * leaf.dtype.itemsize for leaf in large) <= 2 * size * node.dtype.itemsize

    def _join(self, group: Group, node: Map | Reduce, leaves: list[Node], unknown: Mapping | None = None) -> bool:
        memories = {leaf.memory for leaf in leaves if isinstance(leaf, Buffer)}
        if len(group.members) >= MAX_MEMBERS or len(group.memories | memories) > MAX_MEMORIES:
            return False
        try:
            mapping = self._mapping_in(group, node)
            if mapping is None and unknown is not None:
                mapping = self._without_unknown(group, node.arg if isinstance(node, Reduce) else node, unknown)
            if mapping is None or not self._fits(group, node, mapping):
                return False
        except NoMapping:
            return False
        if isinstance(node, Reduce):
            group.mapping_of_arg[node] = mapping
            if self.spreads and len(node.shape) - 1 not in node.axes:
                key = node.arg.numel, node.arg.shape[-1], self._calls_before[node]
                self._reducing.setdefault(key, []).append(group)
            group.reduced = frozenset(_loops_of(group, [mapping[axis] for axis in node.axes]))
            mapping = tuple(() if axis in node.axes else loops for axis, loops in enumerate(mapping))
        group.members.append(node)
        group.mapping[node] = mapping
        self.group_of[node] = group
        for memory in memories - group.memories:
            group.memories.add(memory)
            self._readers_of_memory.setdefault(memory, []).append(group)
        for leaf in leaves if self.spreads else ():
            if not isinstance(leaf, Buffer):
                self._readers_of_value.setdefault(leaf, []).append(group)
        return True

    def _mapping_in(self, group: Group, node: Map | Reduce) -> Mapping | None:
        """The mapping of the node (of what it reduces, for a Reduce) in the group's loops."""
        space = node.arg if isinstance(node, Reduce) else node
        if not group.members:
            return group.domain.identity(space.shape)
        mapping = self._upward(group, space)
        if mapping is None:
            mapping = self._like(group, space)
        return None if mapping is None else self._without_unknown(group, space, mapping)

    @staticmethod
    def _like(group: Group, node: Node) -> Mapping | None:
        """The mapping of something else in the group that has the node's shape."""
        for member in group.members:
            if member.shape == node.shape:
                return group.mapping[member]
            if isinstance(member, Reduce) and member.arg.shape == node.shape:
                return group.mapping_of_arg[member]
        return None

    def _upward(self, group: Group, node: Node) -> Mapping | None:
        """What the group's own values say about a node that reads them."""
        known = group.mapping.get(node)
        if known is not None:
            return group.domain.settled(known)
        if isinstance(node, View):
            below = self._upward(group, node.arg)
            return None if below is None else upward(node, below, group.domain)
        if isinstance(node, Map) and (node in self.inlined or node not in self.group_of):
            return unified(
                [self._upward(group, arg) for arg in node.args if not isinstance(arg, Scalar)], group.domain
            )
        if isinstance(node, Take):
            return self._upward(group, node.index)
        return None

    def _without_unknown(self, group: Group, node: Node, mapping: Mapping) -> Mapping | None:
        """Expanded dimensions run over the loops that no other dimension uses, when the sizes agree."""
        settled = list(group.domain.settled(mapping))
        used = {loop for loops in settled for loop in loops or ()}
        free = [loop for loop in group.domain.loops if loop not in used]
        for dim, loops in enumerate(settled):
            if loops is None:
                taken: list[int] = []
                size = 1
                while free and size != node.shape[dim]:
                    taken.append(free.pop(0))
                    size *= group.domain.sizes[taken[-1]]
                if size != node.shape[dim]:
                    return None
                settled[dim] = tuple(taken)
        return tuple(settled)

    def _fits(self, group: Group, node: Map | Reduce, mapping: Mapping) -> bool:
        """Whether everything the node reads in the group is at the same index, and its loops are whole."""
        if isinstance(node, Reduce):
            self._check_downward(group, node.arg, mapping)
        else:
            self._check_downward(group, node, mapping, top=True)
        mapping = group.domain.settled(mapping)
        loops = _loops_of(group, mapping)
        every = set(group.domain.loops)
        if isinstance(node, Reduce):
            axes = set(_loops_of(group, [mapping[axis] for axis in node.axes]))
            same = group.reduced is None or group.reduced_loops == axes
            return loops == every and same and bool(axes)
        return loops == every or (group.reduced is not None and loops == every - group.reduced_loops)

    def _check_downward(self, group: Group, node: Node, mapping: Mapping, top: bool = False) -> None:
        own = group.mapping.get(node)
        if own is not None and not top:
            if group.domain.settled(own) != group.domain.settled(mapping):
                raise NoMapping
            return
        if isinstance(node, View):
            self._check_downward(group, node.arg, downward(node, mapping, group.domain))
        elif isinstance(node, Map) and (top or node in self.inlined):
            for arg in node.args:
                if not isinstance(arg, Scalar):
                    self._check_downward(group, arg, mapping)
        elif isinstance(node, Reduce) and own is not None:
            raise NoMapping  # read as what it reduces
        elif isinstance(node, Take):
            self._check_downward(group, node.index, mapping)

    def reads_of(self, group: Group, memory: Memory) -> Iterator[tuple[Buffer, Mapping]]:
        """Where a group reads a memory, in terms of its loops."""
        for member in group.members:
            if isinstance(member, Reduce):
                yield from self._reads(group, member.arg, group.mapping_of_arg[member], memory)
            else:
                for arg in member.args:
                    yield from self._reads(group, arg, group.mapping[member], memory)

    def _reads(self, group: Group, node: Node, mapping: Mapping, memory: Memory) -> Iterator[tuple[Buffer, Mapping]]:
        if isinstance(node, Buffer) and node.memory is memory:
            yield node, mapping
        elif isinstance(node, View):
            yield from self._reads(group, node.arg, downward(node, mapping, group.domain), memory)
        elif isinstance(node, Map) and node in self.inlined:
            for arg in node.args:
                yield from self._reads(group, arg, mapping, memory)
        elif isinstance(node, Take):
            if node.source.memory is memory:
                raise NoMapping  # anywhere
            yield from self._reads(group, node.index, mapping, memory)

    # Bookkeeping.

    def leaves(self, node: Node) -> Iterator[Node]:
        """What a node reads that is not part of it."""
        for source in node.sources():
            yield from self._ends(source)

    def _ends(self, node: Node) -> Iterator[Node]:
        if isinstance(node, (View, Take)) or node in self.inlined:
            for source in node.sources():
                yield from self._ends(source)
        elif isinstance(node, (Buffer, Map, Reduce)):
            yield node

    def _units_of(self, nodes: Iterable[Node]) -> set[Unit]:
        units: set[Unit] = set()
        for node in nodes:
            producer = node.memory.producer if isinstance(node, Buffer) else node
            if isinstance(producer, Extern):
                units.add(self._call_of[producer])
            elif producer is not None:
                units.update(self._units_of_computed(producer))
        return units

    def _units_of_computed(self, node: Node) -> set[Unit]:
        if node in self.group_of:
            return {self.group_of[node]}
        return self._units_of(self.leaves(node))

    def depend(self, unit: Unit, needed: Iterable[Unit]) -> None:
        added = 0
        for other in needed:
            if other is not unit:
                added |= other.bit | other.reach
        if added & ~unit.reach:
            unit.reach |= added
            for later in self.units:
                if later.reach & unit.bit:
                    later.reach |= added


def _loops_of(group: Group, mapping: Iterable[tuple[int, ...] | None]) -> set[int]:
    return set(group.domain.resolved(loop for loops in mapping for loop in loops or ()))


def live(roots: Iterable[Node], externs: Sequence[Extern]) -> set[Node]:
    """Everything that is needed; externs that nothing reads are dropped where they are listed."""
    reached: set[Node] = set()
    pending: list[Node] = [*roots, *externs]
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending.extend(node.sources())
    return reached
