"""Spells kernels in CUDA C++, and routines as what they launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bothways.building.cuda_build import AS_GIVEN, BEHIND, BEHIND_NUMBER, Argument, CudaKernel, CudaSource, Launch
from bothways.lower.dialects.c_family.operators import IN_MEMORY
from bothways.lower.dialects.cuda.arranging import index_type, statements_of_row
from bothways.lower.dialects.cuda.batching import Batch, arguments_of, batch_lines, table_words
from bothways.lower.dialects.cuda.emit import Lines, ThreadWriter
from bothways.lower.dialects.cuda.emit_columns import write_columns
from bothways.lower.dialects.cuda.emit_pointwise import write_pointwise
from bothways.lower.dialects.cuda.emit_rows import write_rows
from bothways.lower.dialects.cuda.prelude import HEAD, HELPERS
from bothways.lower.dialects.cuda.rows_and_columns import RowsAndColumns, write_both
from bothways.lower.ir.sizes import Size, SizeNames, has_fraction
from bothways.lower.schedule.routines import Routine
from bothways.lower.schedule.tree import Columns, Kernel, Sweep
from bothways.source_text import in_comment

RESIDENT = 1024  # threads of a kernel that reduces, on one processor at once


@dataclass(frozen=True)
class LaunchedText:
    """A kernel over its memories, the numbers it takes besides, by name, and how it is launched."""

    parameters: str
    body: str
    aligned: str  # whether it may read and write vectors
    sizes: tuple[str, ...]
    blocks: int
    threads: int
    together: int  # blocks that are to fit a processor


def spell_kernel(kernel: Kernel, names: SizeNames | None) -> LaunchedText:
    """Write a kernel; ``names`` are those of sizes that are known only when it runs."""
    if isinstance(kernel, Batch):
        lines, blocks, threads = batch_lines(kernel)
        parameters = f"BY_VALUE Words_{table_words(kernel)} table"
        return LaunchedText(parameters, "\n".join(lines), "", kernel.numbers, blocks, threads, kernel.together)
    writer, block = ThreadWriter(kernel, index_type(kernel)), Lines()
    if names is not None:
        names.written.clear()
    first = kernel.body[0]
    together = 0
    if isinstance(kernel, RowsAndColumns):
        blocks, threads, together = write_both(writer, block, kernel)
    elif isinstance(first, Columns):
        blocks, threads = write_columns(writer, block, kernel, first)
    elif any(isinstance(part, Sweep) for part in statements_of_row(kernel)):
        blocks, threads = write_rows(writer, block, kernel)
    else:
        blocks, threads = write_pointwise(writer, block, kernel)
        together = 1
    # A reduction waits for its slowest thread, so others have to be there that go on.
    together = together or max(1, RESIDENT // threads)
    sizes = tuple(sorted(names.written)) if names is not None else ()
    taken = [
        f"{IN_MEMORY[memory.dtype]} *{writer.pointer(memory)}"
        if memory in kernel.written
        else f"const {IN_MEMORY[memory.dtype]} *RESTRICT {writer.pointer(memory)}"
        for memory in kernel.memories
    ]
    taken += [f"{'double' if has_fraction(name) else 'int64_t'} {name}" for name in sizes]
    body, aligned = "\n".join(block.lines), writer.aligned()
    return LaunchedText(", ".join(taken), body, aligned, sizes, max(blocks, 1), threads, together)


def spell(
    routines: Sequence[Routine], names: SizeNames | None, head: str = HEAD, helpers: dict[str, str] = HELPERS
) -> tuple[CudaSource, dict[str, tuple[str, ...]]]:
    """The kernels of a program and what each routine launches, and the names of the numbers that each takes besides its
    memories."""
    texts = {kernel: spell_kernel(kernel, names) for routine in routines for kernel in routine.kernels}
    functions: dict[LaunchedText, str] = {}  # kernels of the same text are one function
    kernels: list[CudaKernel] = []
    for kernel, text in texts.items():
        if text not in functions:
            functions[text] = name = f"kernel_{len(functions)}_{kernel.hint}"
            comment = "".join(f"// {in_comment(line)}\n" for line in kernel.origins)
            kernel_text = CudaKernel(
                name, comment, text.parameters, text.body, text.threads, text.together, text.aligned
            )
            kernels.append(kernel_text)
    sizes: dict[str, tuple[str, ...]] = {}
    launches: dict[str, tuple[Launch, ...]] = {}
    for routine in routines:
        own = [texts[kernel] for kernel in routine.kernels]
        places, sizes[routine.name] = _places(routine, own, names)
        launches[routine.name] = tuple(
            Launch(
                functions[text],
                text.blocks,
                text.threads,
                0,
                _arguments(kernel, text, places),
            )
            for kernel, text in zip(routine.kernels, own, strict=True)
        )
    return CudaSource(tuple(kernels), launches, helpers, head), sizes


def _arguments(kernel: Kernel, text: LaunchedText, places: dict[object, Argument]) -> tuple[Argument, ...]:
    if isinstance(kernel, Batch):
        return arguments_of(kernel, places)
    return tuple(places[key] for key in (*kernel.memories, *text.sizes))


def _places(
    routine: Routine, texts: Sequence[LaunchedText], names: SizeNames | None
) -> tuple[dict[object, Argument], tuple[str, ...]]:
    """Where each memory and each number is among what a routine is given."""
    area = routine.area
    if names is not None:
        names.written.clear()
    # An offset that is no constant is a number that Python computes.
    offsets = {
        memory: str(names.as_value(offset)) if isinstance(offset, Size) and names is not None else offset
        for memory, offset in area.offsets.items()
    }
    written = () if names is None else tuple(names.written)
    sizes = tuple(dict.fromkeys([*written, *(name for text in texts for name in text.sizes)]))
    at_area = len(routine.memories)
    first = at_area + bool(area.size)
    places: dict[object, Argument] = {memory: (index, AS_GIVEN, 0) for index, memory in enumerate(routine.memories)}
    places |= {name: (first + index, AS_GIVEN, 0) for index, name in enumerate(sizes)}
    for memory, offset in offsets.items():
        kind, other = (BEHIND_NUMBER, places[offset][0]) if isinstance(offset, str) else (BEHIND, offset)
        places[memory] = at_area, kind, other
    return places, sizes
