"""Makes the loop tree of a kernel: chooses its loops, and what is computed in which of them.

Comes in: a group of nodes that fusion put together, and where those of them are that are stored. Values are named here,
after the nodes; everything else about how they are written is for dialects.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from bothways.lower.ir.domain import Mapping, downward
from bothways.lower.ir.prims import Buffer, IndexAlong, Map, Memory, Node, Reduce, Scalar, Take, View
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.fusion import Fusion, Group
from bothways.lower.schedule.inlining import without_views
from bothways.lower.schedule.loops import Access, Loop, Nest, choose
from bothways.lower.schedule.tree import (
    Accumulate,
    Accumulator,
    Apply,
    Columns,
    Computed,
    ComputedIndex,
    Convert,
    Count,
    Element,
    Expression,
    FromScratch,
    Inner,
    Keep,
    Kernel,
    Lanes,
    Let,
    Literal,
    Load,
    Rows,
    RowValue,
    Scratch,
    Statement,
    Store,
    Sweep,
    Threads,
    Total,
)
from bothways.ops import PRIMITIVES

PARALLEL_FROM = 32768  # operations, below which one thread is faster
SCRATCH = 8192  # elements of a row that may be kept for its next sweep
MOST_SCRATCH = 8  # values of each of them
WIDTH = 64  # how many columns are reduced side by side


@dataclass
class Scope:
    """Statements under construction, and the values they have computed."""

    body: list[Inner] = field(default_factory=list)
    values: dict[tuple[Node, Mapping], Expression] = field(default_factory=dict)


class KernelScheduler:
    """Makes the kernel of one group."""

    def __init__(self, group: Group, fusion: Fusion, stored: dict[Node, Buffer]) -> None:
        self.group, self.fusion, self.stored = group, fusion, stored
        self.members = set(group.members)
        self._memories: dict[Memory, None] = {}
        self._written: dict[Memory, None] = {}
        self._used_names: dict[str, int] = {}
        self._row_values: dict[Node, Computed] = {}
        self._scratch: dict[Node, Scratch] = {}  # values kept for the row
        self._stage_now = 0
        self._stage: dict[Node, int] = {}
        for member in group.members:
            self._stage[member] = self._stage_of(member)
        self._stages = max((self._stage[member] for member in group.members if self._in_loop(member)), default=0) + 1
        self.nest: Nest = self._choose_loops()

    def kernel(self) -> Kernel:
        if not self.nest.reduced:
            body = self._pointwise()
        elif self.nest.lanes is None:
            body = self._rows()
        else:
            body = self._columns(self.nest.lanes)
        memories = [*(memory for memory in self._memories if memory not in self._written), *self._written]
        hint = "_".join(dict.fromkeys(plain(member.name) for member in self.group.members[-3:]))
        return Kernel(tuple(memories), frozenset(self._written), body, hint, self._origins(), self._used_names)

    def _origins(self) -> tuple[str, ...]:
        """The operations that it computes, those included that it computes for another one on the way."""
        origins: dict[str, None] = {}
        seen: set[Node] = set()

        def visit(node: Node, top: bool = False) -> None:
            if node in seen or (node in self.members and not top):
                return
            seen.add(node)
            match node:
                case View() | Reduce() if top or isinstance(node, View):
                    visit(node.arg)
                case Take():
                    visit(node.index)
                case Map() if top or node in self.fusion.inlined:
                    for arg in node.args:
                        visit(arg)
                case _:
                    return
            if node.origin and not isinstance(node, View):
                origins[node.origin] = None

        for member in self.group.members:
            visit(member, top=True)
        return tuple(origins)

    def worth_keeping(self) -> list[Map]:
        """What one sweep over columns should store for the next, since there is more to read to compute it again."""
        if self._stages == 1 or self.nest.lanes is None or not self.fusion.spreads:
            return []
        kept: list[Map] = []
        for member in reversed(self.group.members):
            if not isinstance(member, Map) or not self._in_loop(member):
                continue
            size = size_hint(member.numel) * member.dtype.itemsize
            saved = -size if member not in self.stored else 0
            for stage in range(self._stage[member] + 1, self._stages):
                readers = [one for one in self.group.members if self._in_loop(one) and self._stage[one] == stage]
                if any(member in self.fusion.leaves(one) for one in readers):
                    others = self._reads(readers, {member, *kept}, stage)
                    again = self._reads([member], set(kept), stage)
                    saved += sum(again[one] for one in again.keys() - others.keys()) - size
            if saved > 0:
                kept.append(member)
        return kept

    def _reads(self, members: Iterable[Node], kept: Container[Node], stage: int) -> dict[Node | Memory, int]:
        """What one sweep reads to compute some members, in bytes; what is ``kept`` need not be computed again."""
        sizes: dict[Node | Memory, int] = {}
        pending = [source for member in members for source in member.sources()]
        seen: set[Node] = set()
        while pending:
            node = pending.pop()
            if node in seen or node in kept or isinstance(node, (Scalar, IndexAlong)):
                continue
            seen.add(node)
            size = size_hint(node.numel) * node.dtype.itemsize
            if isinstance(node, Buffer):
                if 0 not in node.strides:
                    sizes[node.memory] = size
            elif isinstance(node, Take):
                sizes[node] = size
                pending.append(node.index)
            elif isinstance(node, View) or node in self.fusion.inlined:
                pending += node.sources()
            elif node not in self.members:
                sizes[node] = size
            elif self._in_loop(node) and isinstance(node, Map):
                pending += node.sources()
        return sizes

    # Levels and stages.

    def _is_row(self, node: Node) -> bool:
        """Whether a value is one for each row."""
        reduced = self.group.reduced_loops
        loops = {loop for loops in self.group.domain.settled(self.group.mapping[node]) for loop in loops or ()}
        return bool(reduced) and not loops & reduced

    def _in_loop(self, node: Node) -> bool:
        return isinstance(node, Reduce) or not self._is_row(node)

    def _stage_of(self, member: Map | Reduce) -> int:
        """The sweep a value is computed in; for a value of the row, the sweep after which it is known."""
        in_loop = self._in_loop(member)
        stage = 0 if in_loop else -1
        for leaf in self.fusion.leaves(member):
            if leaf in self.members:
                later = in_loop and self._is_row(leaf)
                stage = max(stage, self._stage[leaf] + later)
        return stage

    # Loops.

    def _choose_loops(self) -> Nest:
        accesses: list[Access] = []
        separate: set[int] = set()

        def visit(node: Node, mapping: Mapping, top: bool = False) -> None:
            if node in self.members and not top:
                return
            match node:
                case View():
                    visit(node.arg, downward(node, mapping, self.group.domain))
                case Buffer():
                    accesses.append(Access(self.group.domain.strides(mapping, node.strides), 0))
                case IndexAlong():
                    separate.update(self.group.domain.resolved(mapping[node.dim] or ()))
                case Take():
                    visit(node.index, mapping)
                    steps = tuple(0 if dim == node.dim else stride for dim, stride in enumerate(node.source.strides))
                    accesses.append(Access(self.group.domain.strides(mapping, steps), 0))
                case Map() if top or node in self.fusion.inlined:
                    for arg in node.args:
                        if not isinstance(arg, Scalar):
                            visit(arg, mapping)
                case Map() | Reduce():
                    visit(self.stored[node], mapping)

        # Reshapes may still split loops, so everything is looked at once before the steps are taken.
        for _ in range(2):
            accesses.clear()
            for member in self.group.members:
                mapping = self.group.mapping[member]
                if isinstance(member, Reduce):
                    visit(member.arg, self.group.mapping_of_arg[member])
                else:
                    visit(member, mapping, top=True)
                if member in self.stored:
                    steps = self.group.domain.strides(mapping, self.stored[member].strides)
                    accesses.append(Access(steps, 1))
        return choose(self.group, accesses, frozenset(separate))

    def _threads(self, work: int) -> Threads | None:
        """Whether a loop is worth several threads; for sizes that are not known yet the kernel decides when it runs."""
        work *= 4 if any(self._is_expensive(member) for member in self.group.members) else 1
        return Threads(work, PARALLEL_FROM) if isinstance(work, Size) or work >= PARALLEL_FROM else None

    def _is_expensive(self, node: Node) -> bool:
        if isinstance(node, Reduce):
            return self._is_expensive(node.arg)
        if isinstance(node, View):
            return self._is_expensive(node.arg)
        if not isinstance(node, Map):
            return False
        return PRIMITIVES[node.op].is_expensive or any(
            arg in self.fusion.inlined and self._is_expensive(arg) for arg in map(without_views, node.args)
        )

    # The three kinds of kernels.

    def _pointwise(self) -> tuple[Statement, ...]:
        nest = self.nest
        if nest.lanes is None:
            return self._values(0, {})
        if not nest.kept:
            threads = self._threads(nest.lanes.size)
            return (Lanes(nest.lanes, self._values(0, {}), threads),)
        threads = self._threads(nest.rows * nest.lanes.size)
        return (Rows(nest.kept, (Lanes(nest.lanes, self._values(0, {})),), threads),)

    def _rows(self) -> tuple[Statement, ...]:
        """Reduces along memory: each row is gone through once for every stage."""
        nest = self.nest
        self._plan_scratch()
        row = Scope()  # values of the row are there for all that comes after them
        if nest.kept:
            threads = self._threads(nest.rows * nest.row_length)
            return (Rows(nest.kept, self._row(row, None), threads),)
        return self._row(row, self._threads(nest.row_length))

    def _columns(self, lanes: Loop) -> tuple[Columns, ...]:
        """Reduces across memory: many columns side by side."""
        width = WIDTH if isinstance(lanes.size, Size) else min(WIDTH, lanes.size)
        blocks = -(-lanes.size // WIDTH)
        threads = self._threads(self.nest.rows * blocks * (self.nest.row_length * width))
        return (Columns(self.nest.kept, lanes, WIDTH, self._row(None, None), threads),)

    def _row(self, row: Scope | None, threads: Threads | None) -> tuple[Statement, ...]:
        """What is done for one row; without a scope of the row, each of its values has one of its own."""
        statements: list[Statement] = [*self._scratch.values(), *self._values_of_row(row, -1)]
        for stage in range(self._stages):
            self._stage_now = stage
            reduces = [m for m in self.group.members if isinstance(m, Reduce) and self._stage[m] == stage]
            into = {m: Accumulator(plain(m.name), m.op, m.dtype, m.arg.dtype) for m in reduces}
            statements.append(Sweep(self.nest.reduced, tuple(into.values()), self._values(stage, into), threads))
            statements += [self._total(reduce, accumulator) for reduce, accumulator in into.items()]
            statements += self._values_of_row(row, stage)
        return tuple(statements)

    def _total(self, reduce: Reduce, accumulator: Accumulator) -> Total:
        value = self._row_values[reduce] = self._named(reduce)
        return Total(value, accumulator, self._store(reduce, value) if reduce in self.stored else None)

    def _values_of_row(self, row: Scope | None, stage: int) -> Iterable[RowValue]:
        for member in self.group.members:
            if self._in_loop(member) or self._stage[member] != stage:
                continue
            kept = self._named(member) if row is None else None
            scope = Scope() if row is None else row
            begin = len(scope.body)
            result = self._value(member, self.group.mapping[member], scope)
            assert isinstance(result, Computed)
            lets = tuple(part for part in scope.body[begin:] if isinstance(part, Let))
            self._row_values[member] = kept or result
            yield RowValue(kept or result, lets, result, self._store(member, result) if member in self.stored else None)

    def _plan_scratch(self) -> None:
        """Values that cost much and are read in a later stage again are kept for the row."""
        nest = self.nest
        if not nest.kept or (self.fusion.spreads and len(nest.reduced) != 1):
            return
        length = SCRATCH if isinstance(nest.row_length, Size) else nest.row_length
        readers: dict[Node, list[Node]] = {}
        for member in self.group.members:
            for leaf in self.fusion.leaves(member):
                readers.setdefault(leaf, []).append(member)
        costly: set[Node] = set()  # what has to be computed once more, which costs much
        for member in self.group.members:
            if not isinstance(member, Map) or not self._in_loop(member):
                continue
            if not self._is_expensive(member) and costly.isdisjoint(self._computed_with(member)):
                continue
            later = any(self._stage[reader] > self._stage[member] for reader in readers.get(member, ()))
            if later and len(self._scratch) < MOST_SCRATCH and nest.row_length <= SCRATCH:
                self._scratch[member] = Scratch(f"{plain(member.name)}_row", member.dtype, length)
            elif not self.fusion.spreads:  # registers, which such values are kept in there, are few
                costly.add(member)

    def _computed_with(self, member: Map) -> Iterable[Node]:
        """The members of its own stage that a value is computed from."""
        return (leaf for leaf in self.fusion.leaves(member) if self._stage.get(leaf) == self._stage[member])

    def _values(self, stage: int, into: dict[Reduce, Accumulator]) -> tuple[Inner, ...]:
        """The values of one stage at one index: stored ones are written, reduced ones accumulated."""
        scope = Scope()
        for member in self.group.members:
            if self._stage[member] != stage or not self._in_loop(member):
                continue
            if isinstance(member, Reduce):
                self._prepare(member, scope)
                value = self._value(member.arg, self.group.mapping_of_arg[member], scope)
                scope.body.append(Accumulate(into[member], value))
            elif member in self.stored or member in self._scratch:
                self._prepare(member, scope)
                value = self._value(member, self.group.mapping[member], scope)
                if member in self.stored:
                    scope.body.append(self._store(member, value))
                if member in self._scratch:
                    scope.body.append(Keep(self._scratch[member], self.nest.reduced, value))
        return tuple(scope.body)

    def _prepare(self, member: Map | Reduce, scope: Scope) -> None:
        """Compute the members that one is made of, in the program's order: a long chain is no deep recursion."""
        needed: set[Map] = set()
        waiting: list[Map | Reduce] = [member]
        while waiting:
            for leaf in self.fusion.leaves(waiting.pop()):
                known = leaf in needed or leaf in self._row_values
                if isinstance(leaf, Map) and leaf in self.members and not known:
                    needed.add(leaf)
                    is_kept = leaf in self._scratch or leaf in self.group.kept
                    if not is_kept or self._stage_now == self._stage[leaf]:
                        waiting.append(leaf)
        for leaf in sorted(needed, key=lambda node: node.number):
            self._value(leaf, self.group.mapping[leaf], scope)

    # Values.

    def _value(self, node: Node, mapping: Mapping, scope: Scope) -> Expression:
        """A node's value at the indices of the loops around."""
        if isinstance(node, Scalar):
            return Literal(node.value, node.dtype, node.as_stored)
        if isinstance(node, View):
            return self._value(node.arg, downward(node, mapping, self.group.domain), scope)
        if node in self._row_values:
            return self._row_values[node]
        mapping = self.group.domain.settled(mapping)
        key = (node, mapping)
        if key not in scope.values:
            scope.values[key] = self._computed(node, mapping, scope)
        return scope.values[key]

    def _computed(self, node: Node, mapping: Mapping, scope: Scope) -> Expression:
        match node:
            case Buffer():
                return self._let(scope, node, Load(self._element(node, mapping), node.dtype))
            case IndexAlong():
                return self._count(mapping[node.dim] or ())
            case Take():
                return self._let(scope, node, self._taken(node, mapping, scope))
            case Map() if node in self.members or node in self.fusion.inlined:
                if node in self.group.kept and self._stage_now != self._stage[node]:
                    return self._value(self.stored[node], mapping, scope)
                scratch = self._scratch.get(node)
                if scratch is not None and self._stage_now != self._stage[node]:
                    return self._let(scope, node, FromScratch(scratch, self.nest.reduced))
                args = tuple(self._value(arg, mapping, scope) for arg in node.args)
                return self._let(scope, node, _operation(node, args))
        return self._value(self.stored[node], mapping, scope)

    def _element(self, buffer: Buffer, mapping: Mapping, taken: ComputedIndex | None = None) -> Element:
        self._memories[buffer.memory] = None
        steps = self.group.domain.strides(mapping, buffer.strides)
        moving = tuple((loop, steps[loop.inner]) for loop in self._loops() if steps.get(loop.inner, 0))
        return Element(buffer.memory, buffer.offset, moving, taken)

    def _taken(self, node: Take, mapping: Mapping, scope: Scope) -> Load:
        source = node.source
        index = self._value(node.index, mapping, scope)
        loops = loops_of(index, {part.value: part.expression for part in scope.body if isinstance(part, Let)})
        along = tuple(loop for loop in self._loops() if loops is None or loop in loops)
        taken = ComputedIndex(index, source.shape[node.dim], source.strides[node.dim], along)
        steps = tuple(0 if dim == node.dim else step for dim, step in enumerate(source.strides))
        flat = Buffer(source.shape, source.dtype, source.memory, steps, source.offset)
        return Load(self._element(flat, mapping, taken), source.dtype)

    def _store(self, member: Node, value: Expression) -> Store:
        buffer = self.stored[member]
        self._written[buffer.memory] = None
        is_rounded = isinstance(member, Map) and member.op == "cast"
        return Store(self._element(buffer, self.group.mapping[member]), buffer.dtype, value, is_rounded)

    def _loops(self) -> list[Loop]:
        lanes = [self.nest.lanes] if self.nest.lanes is not None else []
        return [*self.nest.kept, *self.nest.reduced, *lanes]

    def _count(self, loops: Iterable[int]) -> Count:
        by_loop = {part: loop for loop in self._loops() for part in loop.loops}
        return Count(
            tuple((by_loop[part], self.group.domain.sizes[part]) for part in self.group.domain.resolved(loops))
        )

    def _let(self, scope: Scope, node: Node, expression: Expression) -> Computed:
        value = self._named(node)
        scope.body.append(Let(value, expression))
        return value

    def _named(self, node: Node) -> Computed:
        """A name like the node's; without the numbers of the graph, so that kernels of like layers are alike."""
        return Computed(fresh_name(self._used_names, node.name), node.dtype)


def _operation(node: Map, args: tuple[Expression, ...]) -> Expression:
    if node.op == "cast":
        return Convert(node.args[0].dtype, node.dtype, args[0])
    return Apply(node.op, node.args[-1].dtype if node.args else node.dtype, args)


def loops_of(value: Expression, known: dict[Computed, Expression]) -> set[Loop] | None:
    """The loops that a value is another one along; None where it is made of something that is not ``known`` here."""
    loops: set[Loop] = set()
    seen: set[Expression] = set()
    pending: list[Expression] = [value]
    while pending:
        part = pending.pop()
        if part in seen:
            continue
        seen.add(part)
        match part:
            case Computed():
                if part not in known:
                    return None
                pending.append(known[part])
            case Count():
                loops.update(loop for loop, _ in part.parts)
            case Load():
                loops.update(loop for loop, _ in part.element.steps)
                loops.update(() if part.element.taken is None else part.element.taken.loops)
            case Convert():
                pending.append(part.arg)
            case Apply():
                pending += part.args
            case FromScratch():
                loops.update(part.loops)
    return loops


def fresh_name(used: dict[str, int], hint: str) -> str:
    """A name like ``hint`` that is not among those counted in ``used``."""
    name = plain(hint)
    count = used.get(name, 0)
    used[name] = count + 1
    return f"{name}_{count}"


def plain(name: str) -> str:
    return re.sub(r"(_\d+)+(?=_|$)", "", re.sub(r"\W", "_", name))
