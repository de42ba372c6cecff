"""Writes the expressions and statements of a loop tree in C, and the loops that kernels of every kind have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from bothways.building.declarations import SHARED
from bothways.lower.dialects.c_family import operators
from bothways.lower.dialects.c_family.operators import COMPUTED
from bothways.lower.ir.prims import Memory
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.kernels import fresh_name, plain
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.tree import (
    Accumulate,
    Apply,
    Computed,
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
    Scratch,
    Statement,
    Store,
    Threads,
    place_in_row,
)

SHORT = 256  # elements, up to which the width of vectors has to fit the row


@dataclass
class Block:
    """Lines of C under construction."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1
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
    """Writes the parts of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.pointers: dict[Memory, str] = {}
        self.lanes: set[Computed] = set()  # values that are arrays, with one element for each lane
        self.scratch: dict[Scratch, str] = {}
        self._used_names = dict(kernel.names)
        self._nothing: str | None = None  # the variable that is 0, though no compiler knows

    def fresh(self, hint: str) -> str:
        """A name that no value has, and nothing else."""
        return fresh_name(self._used_names, hint)

    # Loops.

    def pointwise(self, body: Block, statements: Iterable[Statement]) -> None:
        for part in statements:
            match part:
                case Rows():
                    with self.row_loop(body, part.loops, part.threads) as inner:
                        self.pointwise(inner, part.body)
                case Lanes():
                    loop, inside = part.loop, part.body
                    self.vector_loop(body, loop, shared(part.threads), lambda block: self.statements(block, inside))
                case Let() | Store():
                    self.statements(body, (part,))

    @contextmanager
    def row_loop(self, body: Block, loops: Iterable[Loop], threads: Threads | None) -> Iterator[Block]:
        """One loop over all rows, whose indices are worked out from its own."""
        loops = list(loops)
        rows = 1
        for loop in loops:
            rows *= loop.size
        parallel = shared(threads)
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

    # Statements.

    def statements(
        self, block: Block, body: Iterable[Inner], take: Callable[[Accumulate, str], None] | None = None
    ) -> None:
        """What is done at one index; ``take`` is what becomes of reduced values."""
        for part in body:
            match part:
                case Let():
                    self.let(block, part)
                case Store():
                    block.add(self.store(part))
                case Keep():
                    block.add(f"{self.scratch[part.scratch]}[{place_in_row(part.loops)}] = {self.text(part.value)};")
                case Accumulate():
                    assert take is not None
                    take(part, self.text(part.value))

    def let(self, block: Block, part: Let) -> None:
        text = self.text(part.expression)
        add = block.add
        if isinstance(part.expression, Load) and block.loop is not None:
            add = block.add if part.expression.element.moves_along(block.loop) else block.add_before_loop
        add(f"const {COMPUTED[part.value.dtype]} {part.value.name} = {text};")

    def store(self, part: Store) -> str:
        stores = operators.STORES_OF_ROUNDED if part.is_rounded else operators.STORES
        text = stores.get(part.dtype, "{0}").format(self.text(part.value))
        return f"{self.element(part.element)} = {text};"

    # Expressions.

    def text(self, value: Expression) -> str:
        """The C of a value at the indices of the loops around."""
        match value:
            case Computed():
                return f"{value.name}[lane]" if value in self.lanes else value.name
            case Literal():
                text = operators.literal(value.number, value.dtype)
                return operators.conversion(value.dtype, value.dtype, text) if value.as_stored else text
            case Count():
                return str(value)
            case Load():
                return operators.LOADS.get(value.dtype, "{0}").format(self.element(value.element))
            case FromScratch():
                return f"{self.scratch[value.scratch]}[{place_in_row(value.loops)}]"
            case Convert():
                return self._converted(value)
            case Apply():
                return operators.operation(value.op, value.dtype, [self.text(arg) for arg in value.args])

    def _converted(self, value: Convert) -> str:
        """A value as another dtype; an integer that a number was made is one whatever is done with it next.

        gcc takes a number that becomes an integer and then a number again for one that loses its fraction, and leaves
        out the integer: with it that -0.0 and -0.5 become 0.0, and NaN and what is too large some integer.
        """
        text = operators.conversion(value.source, value.target, self.text(value.arg))
        if not value.source.is_floating_point or value.target.is_floating_point or value.target == torch.bool:
            return text
        if self._nothing is None:
            self._nothing = self.fresh("nothing")
        kind = COMPUTED[value.target]
        return f"({kind})({text} | ({kind}){self._nothing})"

    def opening(self) -> list[str]:
        """The lines that a kernel begins with, once it is written."""
        return [] if self._nothing is None else [f"    const int64_t {self._nothing} = unknown_zero();"]

    def element(self, element: Element) -> str:
        is_there = type(element.offset) is not int or element.offset  # a symbol need not be asked whether it is
        terms = [str(element.offset)] if is_there else []
        terms += [loop.index if step == 1 else f"{loop.index} * {step}" for loop, step in element.steps]
        if element.taken is not None:
            index, size = self.text(element.taken.index), element.taken.size
            terms.append(f"({index} < 0 ? {index} + {size} : {index}) * {element.taken.stride}")
        return f"{self.pointer(element.memory)}[{' + '.join(terms) or '0'}]"

    def pointer(self, memory: Memory) -> str:
        if memory not in self.pointers:
            self.pointers[memory] = self.fresh(f"{plain(memory.name)}_p")
        return self.pointers[memory]


def shared(threads: Threads | None) -> str:
    """How a loop is shared out to threads."""
    if threads is None:
        return ""
    if isinstance(threads.work, Size):
        return f"parallel for {SHARED} {threads.work} >= {threads.least})"
    return "parallel for"
