"""Kernels that do the same to different tensors become one: an optimizer's hundreds of parameters take a launch or two.

Such a kernel is given one table of words by value: how large each of its members is, and where its memories are. What a
member's text is must not depend on its sizes, only on how its elements lie: all side by side, or one number.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from bothways.building.cuda_build import AS_GIVEN, BEHIND, LITERAL, Argument
from bothways.lower.dialects.cuda.arranging import Phase, index_type, width_along
from bothways.lower.dialects.cuda.emit import Lines, Span, ThreadWriter
from bothways.lower.dialects.cuda.prelude import FEW_WORDS, WORDS
from bothways.lower.ir.prims import Memory
from bothways.lower.ir.sizes import Fraction
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.tree import (
    Apply,
    Computed,
    Convert,
    Element,
    Expression,
    Kernel,
    Lanes,
    Let,
    Literal,
    Load,
    Statement,
    Store,
)

LEAST = 3  # kernels that are worth a table
MOST_MEMORIES = 24  # of one of them
THREADS = 256
TOGETHER, FEW_SLOTS = 4, 8  # blocks on a processor, since quotients wait for each other; memories that leave registers
TURNS = 4  # vectors that a thread takes one after the other
ONE_BY_ONE = 32  # threads of a block whose members are single numbers
SIZE_BITS = 32  # of the word that says where a member begins and how large it is

LANE = Loop("i", 0, (0,))  # whose size is in the table
Slot = tuple[Memory, int]  # a memory, and the element of it that a member begins at


@dataclass(frozen=True)
class Member:
    """What a kernel does to its slots: the same text for all kernels that can be one. ``size`` is 0 for numbers."""

    text: tuple[str, ...]  # that of the pointers, of what is known of them, of what is done to a vector, whole or not
    slots: tuple[Slot, ...]
    numbers: tuple[str, ...]  # names of those that Python computes
    size: int
    width: int

    @property
    def words(self) -> int:
        return bool(self.size) + len(self.slots) + len(self.numbers)

    def is_like(self, other: Member) -> bool:
        return (self.text, self.width, bool(self.size)) == (other.text, other.width, bool(other.size))


@dataclass(frozen=True, eq=False)
class Batch(Kernel):
    """Several kernels in one launch, in no order."""

    members: tuple[Member, ...] = field(default=())

    @property
    def together(self) -> int:
        """How many of its blocks are to fit a processor."""
        return TOGETHER if len(self.members[0].slots) <= FEW_SLOTS else 1

    @property
    def shared(self) -> tuple[int, ...]:
        """Which of their numbers the members have in common."""
        each = zip(*(member.numbers for member in self.members), strict=True)
        return tuple(place for place, names in enumerate(each) if len(set(names)) == 1)

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for member in self.members for name in member.numbers))


def gathered(kernels: Sequence[Kernel], most: int = FEW_WORDS) -> list[Kernel]:
    """Kernels that follow each other, with those that are alike together in the place of the first of them. Their table
    has at most so many words."""
    places: list[_Place] = []
    for kernel in kernels:
        member = member_of(kernel)
        joined = member is not None and _joined(places, kernel, member, most)
        if not joined:
            places.append(_Place.of(kernel, member))
    return [one for place in places for one in place.kernels_or_batch()]


@dataclass
class _Place:
    kernels: list[Kernel]
    members: list[Member]
    used: set[Memory]
    written: set[Memory]

    @classmethod
    def of(cls, kernel: Kernel, member: Member | None) -> _Place:
        return cls([kernel], [member] if member is not None else [], set(kernel.memories), set(kernel.written))

    def add(self, kernel: Kernel, member: Member) -> None:
        self.kernels.append(kernel)
        self.members.append(member)
        self.used.update(kernel.memories)
        self.written.update(kernel.written)

    def kernels_or_batch(self) -> list[Kernel]:
        if len(self.members) < LEAST:
            return self.kernels
        first, written = self.kernels[0], frozenset(self.written)
        used = dict.fromkeys(memory for kernel in self.kernels for memory in kernel.memories)
        memories = (*(memory for memory in used if memory not in written), *(m for m in used if m in written))
        return [Batch(memories, written, first.body, first.hint, first.origins, first.names, tuple(self.members))]

    def conflicts(self, kernel: Kernel) -> bool:
        """Whether one reads what another writes, or both write the same."""
        return not kernel.written.isdisjoint(self.used) or not self.written.isdisjoint(kernel.memories)


def _joined(places: list[_Place], kernel: Kernel, member: Member, most: int) -> bool:
    for place in reversed(places):
        if place.conflicts(kernel):
            return False
        full = (len(place.members) + 1) * member.words > most
        if place.members and member.is_like(place.members[0]) and not full:
            place.add(kernel, member)
            return True
    return False


def member_of(kernel: Kernel) -> Member | None:
    """A kernel as one of many; None where it cannot be."""
    if isinstance(kernel, Phase) or len(kernel.memories) > MOST_MEMORIES or index_type(kernel) != "int":
        return None
    [first, *more] = kernel.body
    if isinstance(first, Lanes):
        if more or type(first.loop.size) is not int or not 0 < first.loop.size < 1 << SIZE_BITS - 1:
            return None
        body: Sequence[Statement] = first.body
        lane: Loop | None = first.loop
    else:
        body, lane = kernel.body, None
    plain = _Plain(lane, kernel.written)
    try:
        statements = [plain.statement(part) for part in body]
    except _NotPlain:
        return None
    width = width_along(LANE, statements, exact=False) if lane is not None else 1
    memories = tuple(plain.slots.values())
    names = {"value": len(plain.values), "number": len(plain.numbers)}
    alike = Kernel(memories, frozenset(plain.written), tuple(statements), kernel.hint, (), names)
    whole = Span(LANE, width, "first") if lane is not None else Span(None, 1, "")
    spans = [whole, replace(whole, count="count")] if width > 1 else [whole]
    writers = [ThreadWriter(alike, "int") for _ in spans]
    blocks = [Lines(depth=2 + (width > 1)) for _ in spans]
    for writer, block, span in zip(writers, blocks, spans, strict=True):
        writer.body(block, statements, span)
    kinds = tuple(writers[0].declared(memory) for memory in memories)
    text = (*kinds, writers[0].aligned(), *("\n".join(block.lines) for block in blocks))
    return Member(text, tuple(plain.slots), tuple(plain.numbers), 0 if lane is None else lane.size, width)


class _NotPlain(Exception):
    pass


class _Plain:
    """Statements with names that are the same for all kernels that do the same, and memories that begin where they are
    read."""

    def __init__(self, lane: Loop | None, changed: Container[Memory]) -> None:
        self.lane, self.changed = lane, changed
        self.slots: dict[Slot, Memory] = {}
        self.written: set[Memory] = set()
        self.values: dict[Computed, Computed] = {}
        self.numbers: dict[str, Computed] = {}

    def statement(self, part: Statement) -> Let | Store:
        match part:
            case Let():
                expression = self.expression(part.expression)
                value = self.values[part.value] = Computed(f"value_{len(self.values)}", part.value.dtype)
                return Let(value, expression)
            case Store():
                value_ = self.expression(part.value)
                element = self.element(part.element)
                self.written.add(element.memory)
                return Store(element, part.dtype, value_, part.is_rounded)
        raise _NotPlain

    def expression(self, value: Expression) -> Expression:
        match value:
            case Computed():
                return self.values[value]
            case Literal():
                return self.literal(value)
            case Load():
                return Load(self.element(value.element), value.dtype)
            case Convert():
                return replace(value, arg=self.expression(value.arg))
            case Apply():
                if value.op == "div" and isinstance(value.args[-1], Literal) and _is_symbol(value.args[-1]):
                    raise _NotPlain  # a quotient by a number is spelled otherwise
                return replace(value, args=tuple(map(self.expression, value.args)))
        raise _NotPlain

    def literal(self, value: Literal) -> Expression:
        if not _is_symbol(value):
            return value
        if not isinstance(value.number, Fraction) or not value.dtype.is_floating_point:
            raise _NotPlain
        name = str(value.number)
        number = self.numbers.setdefault(name, Computed(f"number_{len(self.numbers)}", torch.float64))
        computed = value.dtype if value.dtype.itemsize > 2 or value.as_stored else torch.float32
        return Convert(torch.float64, computed, number) if computed is not torch.float64 else number

    def element(self, element: Element) -> Element:
        if element.taken is not None or any(loop != self.lane or step != 1 for loop, step in element.steps):
            raise _NotPlain
        offset = element.offset
        if type(offset) is not int or offset < 0:
            raise _NotPlain
        if offset and (element.memory.producer is not None or element.memory in self.changed):
            raise _NotPlain  # where it is in a work area is known later; what is written may be what is read
        slot = element.memory, offset
        if slot not in self.slots:
            self.slots[slot] = Memory(f"at_{len(self.slots)}", element.memory.dtype, (), ())
        return Element(self.slots[slot], 0, tuple((LANE, 1) for _ in element.steps))


def _is_symbol(value: Literal) -> bool:
    return type(value.number) not in (int, float, bool)


# What becomes of a batch: a text, and the words of its table.


def batch_lines(batch: Batch) -> tuple[list[str], int, int]:
    """The lines of the kernel, how many blocks there are, and of how many threads. Its table has the numbers that all
    members share, how large each of them is, and then what each has for itself."""
    first, shared = batch.members[0], batch.shared
    pointers, [aligned, *bodies] = first.text[: len(first.slots)], first.text[len(first.slots) :]
    own = [place for place in range(len(first.numbers)) if place not in shared]
    lines = Lines()
    for at, place in enumerate(shared):
        lines.add(f"const double number_{place} = as_double(table.word[{at}]);")
    if first.size:
        _find_member(lines, len(shared), len(batch.members))
    else:
        lines.add(f"const int member = blockIdx.x * {ONE_BY_ONE} + threadIdx.x;")
        lines.add(f"if (member >= {len(batch.members)}) return;")
    lines.add(f"const int row = {_first_row(batch)} + member * {len(first.slots) + len(own)};")
    for at, pointer in enumerate(pointers):
        kind, _, name = pointer.rpartition(" ")
        restrict = "RESTRICT " if kind.startswith("const") else ""
        lines.add(f"{kind} *{restrict}{name} = ({kind} *)table.word[row + {at}];")
    for at, place in enumerate(own):
        lines.add(f"const double number_{place} = as_double(table.word[row + {len(pointers) + at}]);")
    if not first.size:
        return [*lines.lines, *bodies], -(-len(batch.members) // ONE_BY_ONE), ONE_BY_ONE
    _add_turns(lines, first.width, aligned, bodies)
    return lines.lines, _firsts(batch)[-1], THREADS


def _find_member(lines: Lines, at: int, count: int) -> None:
    """Which of the members a block has a part of: the last that begins with it or before."""
    lines.add(f"int member = 0, last = {count - 1};")
    lines.open("while (member < last)")
    lines.add("const int middle = (member + last + 1) / 2;")
    lines.add(f"const uint64_t begin = (uint64_t)table.word[{at} + middle] >> {SIZE_BITS};")
    lines.add("if (begin <= blockIdx.x) member = middle; else last = middle - 1;")
    lines.close()
    lines.add(f"const uint64_t extent = table.word[{at} + member];")
    lines.add(f"const int size = (int)extent, at = blockIdx.x - (int)(extent >> {SIZE_BITS});")


def _add_turns(lines: Lines, width: int, aligned: str, bodies: Sequence[str]) -> None:
    """What a thread does to its vectors, first to whole ones: tests at every access are as many instructions again."""
    if aligned:
        lines.add(f"const int all_aligned = {aligned};")
    lines.open(f"for (int turn = 0; turn < {TURNS}; ++turn)")
    lines.add(f"const int first = ((at * {TURNS} + turn) * {THREADS} + (int)threadIdx.x) * {width};")
    lines.add("if (first >= size) break;")
    if width == 1:
        lines.lines += bodies
    else:
        conditions = [*(["all_aligned"] if aligned else []), f"size - first >= {width}"]
        for head, constants, body in zip(
            (f"if ({' && '.join(conditions)})", "else"),
            (["aligned = 1"], ["aligned = 0", f"count = size - first < {width} ? size - first : {width}"]),
            bodies,
            strict=True,
        ):
            lines.open(head)
            lines.add(f"const int {', '.join(constants)};")
            lines.lines.append(body)
            lines.close()
    lines.close()


def _first_row(batch: Batch) -> int:
    """How many words of a table come before what each member has for itself."""
    return len(batch.shared) + len(batch.members) * bool(batch.members[0].size)


def _firsts(batch: Batch) -> list[int]:
    """The block that each member begins with, and in the end how many there are."""
    firsts, chunk = [0], THREADS * TURNS * batch.members[0].width
    for member in batch.members:
        firsts.append(firsts[-1] + -(-member.size // chunk))
    return firsts


def table_words(batch: Batch) -> int:
    """How many words the table has, or a few more."""
    shared = len(batch.shared)
    needed = shared + len(batch.members) * (batch.members[0].words - shared)
    return next(count for count in WORDS if count >= needed)


def arguments_of(batch: Batch, places: Mapping[object, Argument]) -> tuple[Argument, ...]:
    """The words of the table, by where memories and numbers are."""
    first, shared = batch.members[0], batch.shared
    words: list[Argument] = [places[first.numbers[place]] for place in shared]
    if first.size:
        begins = zip(_firsts(batch), batch.members, strict=False)
        words += [(0, LITERAL, begin << SIZE_BITS | member.size) for begin, member in begins]
    for member in batch.members:
        words += [_behind(places[memory], offset * memory.dtype.itemsize) for memory, offset in member.slots]
        words += [places[name] for place, name in enumerate(member.numbers) if place not in shared]
    return tuple(words)


def _behind(place: Argument, offset: int) -> Argument:
    return (place[0], BEHIND, offset) if offset and place[1] == AS_GIVEN else place
