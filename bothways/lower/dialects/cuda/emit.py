"""Writes the expressions and statements of a loop tree in CUDA C++: what one thread does at a few indices side by side.

A thread takes ``width`` elements along the innermost loop at once. What lies side by side in memory is read and written
as one vector; what does not move along the loop is read once; everything else is read element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from bothways.lower.dialects.c_family import operators as in_c
from bothways.lower.dialects.c_family.operators import COMPUTED, IN_MEMORY
from bothways.lower.dialects.cuda.operators import REDUCTIONS, operation
from bothways.lower.ir.prims import Memory
from bothways.lower.schedule.kernels import fresh_name, plain
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.tree import (
    Accumulate,
    Accumulator,
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
    Let,
    Literal,
    Load,
    Scratch,
    Store,
)


@dataclass
class Lines:
    """Lines under construction."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def open(self, line: str) -> None:
        self.add(f"{line} {{")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.add("}")


@dataclass(frozen=True)
class Span:
    """The elements a thread takes at once: from the index ``first`` of a loop on, ``width`` of them. ``count`` says how
    many there are, where there may be fewer; ``at`` is the number of the span among those that a thread keeps."""

    loop: Loop | None
    width: int
    first: str
    count: str = ""
    at: str = ""


@dataclass(frozen=True)
class Raw:
    """Elements in registers as they are in memory: in an array by name, those of half precision perhaps in pairs."""

    name: str
    dtype: torch.dtype
    in_pairs: bool

    def at(self, index: str) -> str:
        """The value of one of them."""
        if self.in_pairs:
            return f"from_{PAIRED[self.dtype]}_pair({self.name}[({index}) / 2], ({index}) % 2)"
        return _loaded(self.dtype, f"{self.name}[{index}]")

    def declared(self, count: int) -> str:
        if self.in_pairs:
            return f"uint32_t {self.name}[{count // 2}];"
        return f"{IN_MEMORY[self.dtype]} {self.name}[{count}];"


# Dtypes that two of are a word, and how helpers are named for them.
PAIRED = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


class ThreadWriter:
    """Writes the parts of one kernel."""

    def __init__(self, kernel: Kernel, index_type: str) -> None:
        self.kernel, self.index_type = kernel, index_type
        self.pointers: dict[Memory, str] = {}
        self._widest: dict[Memory, int] = {}  # memories that are read or written as vectors, and of how many elements
        self.kept: dict[Element, Raw] = {}  # what is in registers already, for the whole row
        self.lanes: set[Computed] = set()  # values that are arrays, with one element for each column
        self.scratch: dict[Scratch, str] = {}
        self._used_names = dict(kernel.names)

    def fresh(self, hint: str) -> str:
        """A name that no value has, and nothing else."""
        return fresh_name(self._used_names, hint)

    # A body at the indices of a span.

    def body(
        self,
        block: Lines,
        statements: Iterable[Inner],
        span: Span,
        take: Callable[[Lines, Accumulate, str, str], None] | None = None,
        active: str = "",
        last: str = "",
    ) -> None:
        """What is done at the elements of a span. ``take`` is what becomes of reduced values, under a condition;
        nothing is written where ``active`` is false; ``last`` is a line more."""
        statements = list(statements)
        outputs = self._outputs(block, statements, span)
        raw = self._read(block, statements, span)
        if span.loop is not None:
            block.add("UNROLL")
            block.open(f"for (int v = 0; v < {span.width}; ++v)")
            index = f"{span.first} + v" if span.width > 1 else span.first
            if span.count:
                index = f"v < {span.count} ? {index} : {span.first}"
            block.add(f"const {self.index_type} {span.loop.index} = {index};")
        for part in statements:
            match part:
                case Let():
                    if part.value not in raw or raw[part.value]:
                        text = raw.get(part.value) or self.text(part.expression, span)
                        block.add(f"const {COMPUTED[part.value.dtype]} {part.value.name} = {text};")
                case Store():
                    if part.element in outputs:
                        part, array = outputs[part.element]
                        paired = part.dtype in PAIRED
                        text = self.text(part.value, span) if paired else self.stored_text(part, span)
                        block.add(f"{array}[v] = {text};")
                    else:
                        conditions = [condition for condition in (active, _inside(span)) if condition]
                        guard = f"if ({' && '.join(conditions)}) " if conditions else ""
                        block.add(f"{guard}{self.element(part.element)} = {self.stored_text(part, span)};")
                case Keep():
                    block.add(f"{self.scratch[part.scratch]}[{_kept_at(span)}] = {self.text(part.value, span)};")
                case Accumulate():
                    assert take is not None
                    take(block, part, self.text(part.value, span), f"if ({_inside(span)}) " if span.count else "")
        if last:
            block.add(last)
        if span.loop is not None:
            block.close()
        self._write(block, outputs, span, active)

    def _outputs(self, block: Lines, statements: list[Inner], span: Span) -> dict[Element, tuple[Store, str]]:
        """The arrays for what is written as vectors."""
        outputs: dict[Element, tuple[Store, str]] = {}
        lets = {part.value: part.expression for part in statements if isinstance(part, Let)}
        for part in statements:
            if isinstance(part, Store) and self.is_vector(part.element, span):
                array = self.fresh(f"{plain(part.element.memory.name)}_out")
                if part.is_rounded and isinstance(part.value, Computed):
                    part = _rounded_by_storing(part, lets.get(part.value))
                outputs[part.element] = part, array
                kind = COMPUTED[part.dtype] if part.dtype in PAIRED else IN_MEMORY[part.dtype]
                block.add(f"{kind} {array}[{span.width}];")
        return outputs

    def _read(self, block: Lines, statements: list[Inner], span: Span) -> dict[Computed, str]:
        """Read what is read as vectors, or once for all elements. Values that are then there, and how they are spelled;
        nothing for those that have a name already."""
        raw: dict[Computed, str] = {}
        arrays: dict[Element, Raw] = {}
        lets = {part.value: part.expression for part in statements if isinstance(part, Let)}
        for part in statements:
            if not isinstance(part, Let) or not isinstance(part.expression, Load) or span.loop is None:
                continue
            element, dtype = part.expression.element, part.expression.dtype
            if element in self.kept:
                raw[part.value] = self.kept[element].at(_kept_at(span))
            elif not element.moves_along(span.loop):
                block.add(f"const {COMPUTED[dtype]} {part.value.name} = {self.text(part.expression, span)};")
                raw[part.value] = ""
            elif self.is_vector(element, span):
                if element not in arrays:
                    if element.taken is not None:
                        self._index_of_all(block, element.taken.index, lets, raw, span)
                    arrays[element] = self.raw(element, "in", span)
                    block.add(arrays[element].declared(span.width))
                    self.load(block, element, arrays[element], span)
                raw[part.value] = arrays[element].at("v")
        for part in statements:
            if isinstance(part, Let) and part.value not in raw and _is_of_named(part.expression, raw):
                self.let(block, part, span)
                raw[part.value] = ""
        return raw

    def _index_of_all(
        self, block: Lines, index: Expression, lets: Mapping[Computed, Expression], raw: dict[Computed, str], span: Span
    ) -> None:
        """Compute where a vector is, which is the same for all of its elements, and what that is made of."""
        if isinstance(index, Computed):
            if index in lets and index not in raw:
                self._index_of_all(block, lets[index], lets, raw, span)
                self.let(block, Let(index, lets[index]), Span(None, 1, ""))
                raw[index] = ""
        elif isinstance(index, Convert):
            self._index_of_all(block, index.arg, lets, raw, span)
        elif isinstance(index, Apply):
            for arg in index.args:
                self._index_of_all(block, arg, lets, raw, span)
        elif isinstance(index, Load) and index.element.taken is not None:
            self._index_of_all(block, index.element.taken.index, lets, raw, span)

    def raw(self, element: Element, ending: str, span: Span) -> Raw:
        """The array that elements are read into."""
        dtype = element.memory.dtype
        name = self.fresh(f"{plain(element.memory.name)}_{ending}")
        return Raw(name, dtype, dtype in PAIRED and self.is_vector(element, span))

    def load(self, block: Lines, element: Element, array: Raw, span: Span, number: str = "") -> None:
        """Read a vector into an array, or into that part of one that has a number."""
        kind = "pairs" if array.in_pairs else IN_MEMORY[element.memory.dtype]
        place = f"{self.pointer(element.memory)} + {self.index(element, span)}"
        step = span.width // 2 if array.in_pairs else span.width
        target = f"{array.name} + {number} * {step}" if number else array.name
        block.add(
            f"load_{kind}_{span.width}({target}, {place}, {self._whole(element, span)}, {span.count or span.width});"
        )

    def _write(self, block: Lines, outputs: dict[Element, tuple[Store, str]], span: Span, active: str) -> None:
        for part, array in outputs.values():
            kind, element = IN_MEMORY[part.dtype], part.element
            place = f"{self.pointer(element.memory)} + {self.index(element, span)}"
            guard = f"if ({active}) " if active else ""
            extent = f"{self._whole(element, span)}, {span.count or span.width}"
            if part.dtype in PAIRED:
                pair = f"{'rounded_' if part.is_rounded else ''}pair_of_{PAIRED[part.dtype]}"
                words = self.fresh(f"{array}_words")
                block.add(f"uint32_t {words}[{span.width // 2}];")
                block.add("UNROLL")
                each = f"{pair}({array}[2 * v], {array}[2 * v + 1])"
                block.add(f"for (int v = 0; v < {span.width // 2}; ++v) {words}[v] = {each};")
                kind, array = "pairs", words
            block.add(f"{guard}store_{kind}_{span.width}({place}, {array}, {extent});")

    def _whole(self, element: Element, span: Span) -> str:
        """Whether a whole vector may be read or written at once."""
        memory = element.memory
        self._widest[memory] = max(span.width, self._widest.get(memory, 1))
        return f"aligned && {span.count} == {span.width}" if span.count else "aligned"

    def is_vector(self, element: Element, span: Span) -> bool:
        return span.loop is not None and span.width > 1 and lies_as_vector(element, span.loop, span.width)

    # Statements outside of bodies.

    def let(self, block: Lines, part: Let, span: Span) -> None:
        block.add(f"const {COMPUTED[part.value.dtype]} {part.value.name} = {self.text(part.expression, span)};")

    def stored_text(self, part: Store, span: Span) -> str:
        stores = in_c.STORES_OF_ROUNDED if part.is_rounded else in_c.STORES
        return stores.get(part.dtype, "{0}").format(self.text(part.value, span))

    # Expressions.

    def text(self, value: Expression, span: Span) -> str:
        """A value at the indices of the loops around."""
        match value:
            case Computed():
                return f"{value.name}[v]" if value in self.lanes else value.name
            case Literal():
                text = in_c.literal(value.number, value.dtype)
                return in_c.conversion(value.dtype, value.dtype, text) if value.as_stored else text
            case Count():
                return str(value)
            case Load():
                if value.element in self.kept and span.loop is not None:
                    return self.kept[value.element].at(_kept_at(span))
                return _loaded(value.dtype, self.element(value.element))
            case FromScratch():
                return f"{self.scratch[value.scratch]}[{_kept_at(span)}]"
            case Convert():
                return in_c.conversion(value.source, value.target, self.text(value.arg, span))
            case Apply():
                by_number = isinstance(value.args[-1], Literal) if value.args else False
                return operation(value.op, value.dtype, [self.text(arg, span) for arg in value.args], by_number)

    def element(self, element: Element) -> str:
        return f"{self.pointer(element.memory)}[{self.index(element, None)}]"

    def index(self, element: Element, span: Span | None) -> str:
        """Where an element is in its memory; the first of a span, if there is one."""
        is_there = type(element.offset) is not int or element.offset  # a symbol need not be asked whether it is
        terms = [str(element.offset)] if is_there else []
        for loop, step in element.steps:
            name = span.first if span is not None and span.loop is not None and loop == span.loop else loop.index
            terms.append(name if _is_one(step) else f"{name} * {step}")
        if element.taken is not None:
            index, size = self.text(element.taken.index, Span(None, 1, "")), element.taken.size
            terms.append(f"({index} < 0 ? {index} + {size} : {index}) * {element.taken.stride}")
        return " + ".join(terms) or "0"

    def pointer(self, memory: Memory) -> str:
        if memory not in self.pointers:
            self.pointers[memory] = self.fresh(f"{plain(memory.name)}_p")
        return self.pointers[memory]

    def declared(self, memory: Memory) -> str:
        """The kind of elements that a pointer leads to, and its name."""
        kind = IN_MEMORY[memory.dtype]
        return f"{kind if memory in self.kernel.written else f'const {kind}'} {self.pointer(memory)}"

    def aligned(self) -> str:
        """Whether all memories that are read and written as vectors lie where that can be; nothing if none are."""
        rests = [
            f"((uint64_t){self.pointer(memory)} & {min(16, width * memory.dtype.itemsize) - 1})"
            for memory, width in self._widest.items()
        ]
        return f"({' | '.join(rests)}) == 0" if rests else ""


# Reductions: in which type, from what, and how two parts become one.


def accumulated(reduction: Accumulator) -> str:
    if reduction.op in ("any", "all"):
        return "uint8_t"
    return COMPUTED[reduction.dtype if reduction.op in ("sum", "prod") else reduction.of]


def initial(reduction: Accumulator) -> str:
    return REDUCTIONS[reduction.op][0].replace("{T}", accumulated(reduction))


def combined(reduction: Accumulator, one: str, other: str) -> str:
    return REDUCTIONS[reduction.op][1].replace("{T}", accumulated(reduction)).format(one, other)


def memory_dtype(reduction: Accumulator) -> torch.dtype:
    """What a part of a reduction is in memory."""
    kind = accumulated(reduction)
    return next(dtype for dtype in _IN_ORDER if COMPUTED[dtype] == kind)


_IN_ORDER = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)  # fmt: skip


def _is_of_named(value: Expression, named: Mapping[Computed, str]) -> bool:
    """Whether something is computed of what is the same for all elements of a span, and has a name already."""
    match value:
        case Convert():
            return isinstance(value.arg, Computed) and named.get(value.arg) == ""
        case Apply():
            of = [arg for arg in value.args if not isinstance(arg, Literal)]
            return bool(of) and all(isinstance(arg, Computed) and named.get(arg) == "" for arg in of)
    return False


def _rounded_by_storing(part: Store, expression: Expression | None) -> Store:
    """A store of what a value was rounded from, where that is known: two numbers are rounded as one pair."""
    if part.dtype not in PAIRED or not isinstance(expression, Convert) or not isinstance(expression.arg, Computed):
        return part
    rounds = expression.source is torch.float32 and expression.target is part.dtype
    return replace(part, value=expression.arg, is_rounded=False) if rounds else part


# Loops and vectors.


def lies_as_vector(element: Element, loop: Loop, width: int) -> bool:
    """Whether elements lie side by side along a loop, and each span of them where a vector may."""
    others = [step for own, step in element.steps if own != loop]
    if element.taken is not None:
        if loop in element.taken.loops:
            return False
        others.append(element.taken.stride)
    own = [step for own, step in element.steps if own == loop]
    if len(own) != 1 or not _is_one(own[0]):
        return False
    return all(type(number) is int and number % width == 0 for number in (*others, element.offset))


def indices(block: Lines, loops: Iterable[Loop], number: str, kind: str) -> None:
    """Work out the indices of several loops from one number."""
    loops = list(loops)
    rest: int = 1
    for loop in loops:
        rest *= loop.size
    for place, loop in enumerate(loops):
        rest //= loop.size
        text = number if _is_one(rest) else f"{number} / {rest}"
        block.add(f"const {kind} {loop.index} = {f'({text}) % {loop.size}' if place else text};")


def _is_one(number: object) -> bool:
    return type(number) is int and number == 1


def _loaded(dtype: torch.dtype, text: str) -> str:
    return in_c.LOADS.get(dtype, "{0}").format(text)


def counted(block: Lines, size: object, width: int) -> str:
    """The name of how many elements a span has, if that is not always as many as it is wide."""
    if width == 1 or (type(size) is int and size % width == 0):
        return ""
    block.add(f"const int count = {size} - first < {width} ? (int)({size} - first) : {width};")
    return "count"


def _inside(span: Span) -> str:
    return f"v < {span.count}" if span.count else ""


def _kept_at(span: Span) -> str:
    if not span.at:
        return "v"
    return f"{span.at} * {span.width} + v" if span.width > 1 else span.at


def product(loops: Iterable[Loop]) -> int:
    result: int = 1
    for loop in loops:
        result *= loop.size
    return result
