"""Writes a kernel in C.

A kernel goes over its rows (the kept loops); for each it runs its stages: loops over the reduced dimensions that
take values into accumulators, store results, or both. What a row has computed is there for the next stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bothways.lower.dialects.c import operators as c_ops
from bothways.lower.dialects.c.operators import COMPUTED, IN_MEMORY
from bothways.lower.ir.domain import Mapping, downward
from bothways.lower.ir.prims import Buffer, Map, Memory, Node, Position, Reduce, Scalar, Take, View
from bothways.lower.ir.sizes import Size, SizeNames, is_double, size_hint
from bothways.lower.schedule.fusion import Fusion, Group
from bothways.lower.schedule.loops import Access, Loop, Nest, choose

PARALLEL_FROM = 32768  # operations, below which one thread is faster
SHORT = 256  # elements, up to which the width of vectors has to fit the row


@dataclass(frozen=True)
class Kernel:
    """A C function over the memories it reads and writes. Kernels that do the same have the same text."""

    memories: tuple[Memory, ...]
    head: str  # the parameters
    body: str
    origins: tuple[str, ...]
    hint: str  # what to call it
    sizes: tuple[str, ...] = ()  # the numbers it takes besides, by name


@dataclass
class Block:
    """Lines of C under construction, and the names of the values they have computed."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1
    names: dict[tuple[Node, Mapping], str] = field(default_factory=dict)
    loop: Loop | None = None  # the innermost loop around
    before: int = 0  # where in the lines that loop begins

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if not line.startswith("#") else line)

    def inside(self, loop: Loop) -> Block:
        """The body of a loop that begins here; the caller writes its head and end."""
        return Block(self.lines, self.depth + 1, loop=loop, before=len(self.lines))

    def add_before_loop(self, line: str) -> None:
        """A line that does not change within the loop; compilers that move it themselves may not vectorize it."""
        self.lines.insert(self.before, "    " * (self.depth - 1) + line)
        self.before += 1


class KernelWriter:
    """Writes one group."""

    def __init__(
        self, group: Group, fusion: Fusion, stored: dict[Node, Buffer], sizes: SizeNames | None = None
    ) -> None:
        self.group, self.fusion, self.stored, self.sizes = group, fusion, stored, sizes
        self.members = set(group.members)
        self.writes: dict[Memory, None] = {}
        self._pointers: dict[Memory, str] = {}
        self._used_names: dict[str, int] = {}
        self.row_names: dict[Node, str] = {}
        self.scratch: dict[Node, str] = {}  # values kept for the row
        self.stage_now = 0
        self.accumulators: dict[Reduce, str] = {}
        self.stage: dict[Node, int] = {}
        for member in group.members:
            self.stage[member] = self._stage_of(member)
        self.stages = max((self.stage[member] for member in group.members if self.in_loop(member)), default=0) + 1
        self.nest: Nest = self._choose_loops()

    # Levels and stages.

    def _is_row(self, node: Node) -> bool:
        """Whether a value is one for each row."""
        reduced = self.group.reduced_loops
        loops = {loop for loops in self.group.domain.settled(self.group.mapping[node]) for loop in loops or ()}
        return bool(reduced) and not loops & reduced

    def in_loop(self, node: Node) -> bool:
        return isinstance(node, Reduce) or not self._is_row(node)

    def _stage_of(self, member: Map | Reduce) -> int:
        """The loop a value is computed in; for a value of the row, the loop after which it is known."""
        in_loop = self.in_loop(member)
        found = 0 if in_loop else -1
        for leaf in self.fusion.leaves(member):
            if leaf in self.members:
                later = in_loop and self._is_row(leaf)
                found = max(found, self.stage[leaf] + later)
        return found

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
                case Position():
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

    # Text.

    def write(self) -> Kernel:
        body = Block()
        if self.sizes is not None:
            self.sizes.written.clear()
        self._body(body)
        sizes = tuple(sorted(self.sizes.written)) if self.sizes is not None else ()
        memories = [*(memory for memory in self._pointers if memory not in self.writes), *self.writes]
        head = ", ".join(
            f"{'' if memory in self.writes else 'const '}{IN_MEMORY[memory.dtype]} *{self._pointers[memory]}"
            for memory in memories
        )
        head += "".join(f", {'double' if is_double(name) else 'int64_t'} {name}" for name in sizes)
        hint = "_".join(dict.fromkeys(_plain(member.name) for member in self.group.members[-3:]))
        return Kernel(tuple(memories), head, "\n".join(body.lines), self._origins(), hint, sizes)

    def _body(self, body: Block) -> None:
        from bothways.lower.dialects.c.emit_columns import write_columns
        from bothways.lower.dialects.c.emit_rows import write_rows

        if not self.nest.reduced:
            self._write_pointwise(body)
        elif self.nest.lanes is None:
            write_rows(self, body)
        else:
            write_columns(self, body)

    def _origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.origin for member in self.group.members if member.origin))

    def _write_pointwise(self, body: Block) -> None:
        nest = self.nest
        if nest.lanes is None:
            self.values(body, 0)
            return
        if nest.kept:
            with self.row_loop(body, nest.kept, nest.lanes.size) as inner:
                self.vector_loop(inner, nest.lanes, "", lambda block: self.values(block, 0))
        else:
            self.vector_loop(body, nest.lanes, self.parallel(nest.lanes.size), lambda block: self.values(block, 0))

    def parallel(self, work: int) -> str:
        """How a loop is shared out to threads; for sizes that are not known yet the kernel decides when it runs."""
        work *= 4 if any(self.is_expensive(member) for member in self.group.members) else 1
        if isinstance(work, Size):
            return f"parallel for if(parallel : {work} >= {PARALLEL_FROM})"
        return "parallel for" if work >= PARALLEL_FROM else ""

    @contextmanager
    def row_loop(self, body: Block, loops: Iterable[Loop], row_work: int) -> Iterator[Block]:
        """One loop over all rows, whose indices are worked out from its own."""
        loops = list(loops)
        rows = 1
        for loop in loops:
            rows *= loop.size
        parallel = self.parallel(rows * row_work)
        if parallel:
            body.add(f"#pragma omp {parallel} schedule(static)")
        if len(loops) == 1:
            body.add(f"for (int64_t {loops[0].index} = 0; {loops[0].index} < {loops[0].size}; ++{loops[0].index}) {{")
        else:
            body.add(f"for (int64_t row = 0; row < {rows}; ++row) {{")
        body.depth += 1
        if len(loops) > 1:
            rest = rows
            for number, loop in enumerate(loops):
                rest //= loop.size
                text = "row" if rest == 1 else f"row / {rest}"
                body.add(f"const int64_t {loop.index} = {f'({text}) % {loop.size}' if number else text};")
        yield body
        body.depth -= 1
        body.add("}")

    def vector_loop(
        self, body: Block, loop: Loop, prefix: str, write: Callable[[Block], None], clauses: str = "", bounds: str = ""
    ) -> None:
        length = size_hint(loop.size)
        if length < SHORT and length % 16:
            clauses += " simdlen(8)"  # the widest vectors would leave most of a short row to the scalar end
        prefix, _, condition = prefix.partition(" if(")
        clauses = f"{clauses} if({condition}" if condition else clauses
        simd = f"#pragma omp {prefix} simd {clauses}".replace("  ", " ").rstrip()
        if prefix:
            simd += " schedule(static)"
        inner = body.inside(loop)
        body.add(simd)
        start, stop = bounds.split(":") if bounds else ("0", str(loop.size))
        body.add(f"for (int64_t {loop.index} = {start}; {loop.index} < {stop}; ++{loop.index}) {{")
        write(inner)
        body.add("}")

    def values(self, block: Block, stage: int, take: Callable[[Reduce, str], None] | None = None) -> None:
        """The values of one stage at one index: stored ones are written, reduced ones handed to ``take``."""
        for member in self.group.members:
            if self.stage[member] != stage or not self.in_loop(member):
                continue
            if isinstance(member, Reduce):
                assert take is not None
                self._prepare(member, block)
                take(member, self.value(member.arg, self.group.mapping_of_arg[member], block))
                continue
            if member in self.stored or member in self.scratch:
                self._prepare(member, block)
                text = self.value(member, self.group.mapping[member], block)
                if member in self.stored:
                    block.add(self.store(member, text))
                if member in self.scratch:
                    block.add(f"{self.scratch[member]}[{self.nest.reduced[-1].index}] = {text};")

    def _prepare(self, member: Map | Reduce, block: Block) -> None:
        """Compute the members that one is made of, in the program's order: a long chain is no deep recursion."""
        needed: set[Map] = set()
        waiting: list[Map | Reduce] = [member]
        while waiting:
            for leaf in self.fusion.leaves(waiting.pop()):
                if isinstance(leaf, Map) and leaf in self.members and leaf not in needed and leaf not in self.row_names:
                    needed.add(leaf)
                    if leaf not in self.scratch or self.stage_now == self.stage[leaf]:
                        waiting.append(leaf)
        for leaf in sorted(needed, key=lambda node: node.number):
            self.value(leaf, self.group.mapping[leaf], block)

    def store(self, member: Node, text: str) -> str:
        buffer = self.stored[member]
        self.writes[buffer.memory] = None
        is_rounded = isinstance(member, Map) and member.op == "cast"
        stores = c_ops.STORES_OF_ROUNDED if is_rounded else c_ops.STORES
        text = stores.get(buffer.dtype, "{0}").format(text)
        return f"{self._element(buffer, self.group.mapping[member])} = {text};"

    # Values.

    def value(self, node: Node, mapping: Mapping, block: Block) -> str:
        """The C text of a node's value at the indices of the loops around."""
        if isinstance(node, Scalar):
            text = c_ops.literal(node.value, node.dtype)
            return c_ops.conversion(node.dtype, node.dtype, text) if node.as_stored else text
        if isinstance(node, View):
            return self.value(node.arg, downward(node, mapping, self.group.domain), block)
        if node in self.row_names:
            return self.row_names[node]
        mapping = self.group.domain.settled(mapping)
        key = (node, mapping)
        if key not in block.names:
            block.names[key] = self._computed(node, mapping, block)
        return block.names[key]

    def _computed(self, node: Node, mapping: Mapping, block: Block) -> str:
        match node:
            case Buffer():
                text = self._load(node, mapping)
                moves = block.loop is None or self.group.domain.strides(mapping, node.strides).get(block.loop.inner, 0)
                return self._named(block, node, text, before_loop=not moves)
            case Position():
                return self._index_text(mapping[node.dim] or ())
            case Take():
                return self._named(block, node, self._taken(node, mapping, block))
            case Map() if node in self.members or node in self.fusion.inlined:
                scratch = self.scratch.get(node)
                if scratch is not None and self.stage_now != self.stage[node]:
                    return self._named(block, node, f"{scratch}[{self.nest.reduced[-1].index}]")
                args = [self.value(arg, mapping, block) for arg in node.args]
                return self._named(block, node, self._operation(node, args))
        return self.value(self.stored[node], mapping, block)

    def _operation(self, node: Map, args: list[str]) -> str:
        if node.op == "cast":
            return c_ops.conversion(node.args[0].dtype, node.dtype, args[0])
        dtype = node.args[-1].dtype if node.args else node.dtype
        return c_ops.operation(node.op, dtype, args)

    def _load(self, buffer: Buffer, mapping: Mapping) -> str:
        return c_ops.LOADS.get(buffer.dtype, "{0}").format(self._element(buffer, mapping))

    def _element(self, buffer: Buffer, mapping: Mapping, extra: str = "") -> str:
        steps = self.group.domain.strides(mapping, buffer.strides)
        terms = [str(buffer.offset)] if buffer.offset else []
        for loop in self._all_loops():
            step = steps.get(loop.inner, 0)
            if step:
                terms.append(loop.index if step == 1 else f"{loop.index} * {step}")
        if extra:
            terms.append(extra)
        return f"{self._pointer(buffer.memory)}[{' + '.join(terms) or '0'}]"

    def _pointer(self, memory: Memory) -> str:
        if memory not in self._pointers:
            self._pointers[memory] = self.fresh(f"{_plain(memory.name)}_p")
        return self._pointers[memory]

    def _taken(self, node: Take, mapping: Mapping, block: Block) -> str:
        index = self.value(node.index, mapping, block)
        source = node.source
        size, stride = source.shape[node.dim], source.strides[node.dim]
        wrapped = f"({index} < 0 ? {index} + {size} : {index}) * {stride}"
        steps = tuple(0 if dim == node.dim else step for dim, step in enumerate(source.strides))
        flat = Buffer(source.shape, source.dtype, source.memory, steps, source.offset)
        return c_ops.LOADS.get(source.dtype, "{0}").format(self._element(flat, mapping, wrapped))

    def _all_loops(self) -> list[Loop]:
        lanes = [self.nest.lanes] if self.nest.lanes is not None else []
        return [*self.nest.kept, *self.nest.reduced, *lanes]

    def _index_text(self, loops: Iterable[int]) -> str:
        by_loop = {part: loop for loop in self._all_loops() for part in loop.loops}
        text = ""
        for part in self.group.domain.resolved(loops):
            index = by_loop[part].index
            text = f"({text} * {self.group.domain.sizes[part]} + {index})" if text else index
        return text or "0"

    def _named(self, block: Block, node: Node, text: str, before_loop: bool = False) -> str:
        name = self.fresh(node.name)
        add = block.add_before_loop if before_loop else block.add
        add(f"const {COMPUTED[node.dtype]} {name} = {text};")
        return name

    def fresh(self, hint: str) -> str:
        """A name like ``hint``; without the numbers of the graph, so that kernels of like layers are alike."""
        name = _plain(hint)
        count = self._used_names.get(name, 0)
        self._used_names[name] = count + 1
        return f"{name}_{count}"

    def is_expensive(self, node: Node) -> bool:
        if isinstance(node, Reduce):
            return self.is_expensive(node.arg)
        if isinstance(node, View):
            return self.is_expensive(node.arg)
        if not isinstance(node, Map):
            return False
        return node.op in c_ops.EXPENSIVE or any(
            arg in self.fusion.inlined and self.is_expensive(arg) for arg in map(_behind_views, node.args)
        )


def _behind_views(node: Node) -> Node:
    while isinstance(node, View):
        node = node.arg
    return node


def _plain(name: str) -> str:
    return re.sub(r"(_\d+)+(?=_|$)", "", re.sub(r"\W", "_", name))
