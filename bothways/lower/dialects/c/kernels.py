"""Spells kernels as C functions, and those that run together as one function that Python enters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bothways.building.build import CSource, Function
from bothways.lower.dialects.c.adding import write_added
from bothways.lower.dialects.c.emit import Block, KernelWriter
from bothways.lower.dialects.c.emit_columns import write_columns
from bothways.lower.dialects.c.emit_rows import write_rows
from bothways.lower.dialects.c.prelude import HELPERS
from bothways.lower.dialects.c.products import BINDING, named, written
from bothways.lower.dialects.c_family.operators import IN_MEMORY
from bothways.lower.ir.sizes import SizeNames, has_fraction
from bothways.lower.schedule.memory import ALIGNMENT
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import Added, Columns, Kernel, Product, Rows, Sweep
from bothways.source_text import in_comment


@dataclass(frozen=True)
class KernelText:
    """A C function over the memories of a kernel, and the numbers it takes besides, by name.

    Kernels that do the same have the same text.
    """

    head: str  # the parameters
    body: str
    sizes: tuple[str, ...]


def spell_kernel(kernel: Kernel, names: SizeNames | None) -> KernelText:
    """Write a kernel; ``names`` are those of sizes that are known only when it runs."""
    writer, body = KernelWriter(kernel), Block()
    if names is not None:
        names.written.clear()
    _write(writer, body, kernel)
    sizes = tuple(sorted(names.written)) if names is not None else ()
    head = ", ".join(
        f"{'' if memory in kernel.written else 'const '}{IN_MEMORY[memory.dtype]} *{writer.pointers[memory]}"
        for memory in kernel.memories
    )
    head += "".join(f", {'double' if has_fraction(name) else 'int64_t'} {name}" for name in sizes)
    return KernelText(head, "\n".join([*writer.opening(), *body.lines]), sizes)


def _write(writer: KernelWriter, body: Block, kernel: Kernel) -> None:
    first = kernel.body[0]
    if isinstance(first, Product):
        writer.pointers |= named(first)
        body.lines += written(first, writer.pointers)
    elif isinstance(first, Added):
        write_added(writer, body, first)
    elif isinstance(first, Columns):
        write_columns(writer, body, first)
    elif any(isinstance(part, Sweep) for part in (first.body if isinstance(first, Rows) else kernel.body)):
        write_rows(writer, body, kernel.body)
    else:
        writer.pointwise(body, kernel.body)


def spell(routines: Sequence[Routine], names: SizeNames | None) -> tuple[CSource, dict[str, tuple[str, ...]]]:
    """The C of a program, and the names of the numbers that each routine takes besides its memories."""
    texts = {kernel: spell_kernel(kernel, names) for routine in routines for kernel in routine.kernels}
    functions: dict[tuple[str, str], str] = {}  # kernels of the same text are one function
    kernels: list[Function] = []
    for kernel, text in texts.items():
        key = (text.head, text.body)
        if key not in functions:
            functions[key] = f"kernel_{len(functions)}_{kernel.hint}"
            comment = "".join(f"// {in_comment(line)}\n" for line in kernel.origins)
            kernels.append(Function(comment, f"void {functions[key]}({text.head})", text.body))
    entries: list[str] = []
    sizes: dict[str, tuple[str, ...]] = {}
    for routine in routines:
        own = [(kernel, texts[kernel]) for kernel in routine.kernels]
        calls = [(functions[text.head, text.body], kernel, text) for kernel, text in own]
        entry, sizes[routine.name] = _entry(routine, calls, names)
        entries.append(entry)
    if any(isinstance(kernel.body[0], Product) for kernel in texts):
        entries[-1] = f"{BINDING}{entries[-1]}"
    return CSource(tuple(kernels), tuple(entries), HELPERS), sizes


def _entry(
    routine: Routine, calls: list[tuple[str, Kernel, KernelText]], names: SizeNames | None
) -> tuple[str, tuple[str, ...]]:
    """A C function that runs kernels in order; what only they need is in its work area."""
    area = routine.area
    if names is not None:
        names.written.clear()
    # Each pointer is taken where it is first used: compilers would have to keep hundreds of them over every call.
    pointers = {memory: f"given[{index}].pointer" for index, memory in enumerate(routine.memories)}
    pointers |= {memory: f"area + {offset}" for memory, offset in area.offsets.items()}
    written = () if names is None else tuple(names.written)
    sizes = tuple(dict.fromkeys([*written, *(name for _, _, text in calls for name in text.sizes)]))
    taken = ["char *area = given[{}].pointer;"] if area.size else []
    for name in sizes:
        kind, member = ("double", "fraction") if has_fraction(name) else ("int64_t", "number")
        taken.append(f"{kind} {name} = given[{{}}].{member};")
    lines = [f"    {line.format(index)}" for index, line in enumerate(taken, len(routine.memories))]
    if area.own:
        lines.insert(0, f"    char area[{area.own}] __attribute__((aligned({ALIGNMENT})));")
    for function, kernel, text in calls:
        memories = [memory for memory in kernel.memories if memory in pointers]
        lines += [f"    void *{_pointer(memory.name)} = {pointers.pop(memory)};" for memory in memories]
        arguments = [*(_pointer(memory.name) for memory in kernel.memories), *text.sizes]
        lines.append(f"    {function}({', '.join(arguments)});")
    return "\n".join([f"void {routine.name}(const Given *given) {{", *lines, "}\n"]), sizes


def _pointer(name: str) -> str:
    """The pointer to a value in C, where ``double``, ``linux`` and ``exp`` mean something else."""
    return f"{name}_p"
