"""Kernels that reduce across memory: many columns side by side, a vector's worth at a time."""

from __future__ import annotations

from bothways.lower.dialects.c.accumulate import accumulated, combined, initial, partial
from bothways.lower.dialects.c.emit import Block, KernelWriter
from bothways.lower.dialects.c.operators import COMPUTED
from bothways.lower.ir.prims import Reduce
from bothways.lower.ir.sizes import Size
from bothways.lower.schedule.loops import Loop

CHUNK = 32  # how many rows are summed in float before the sum goes on in double
LANES = 64  # how many columns are reduced side by side


def write_columns(w: KernelWriter, body: Block) -> None:
    columns = w.nest.lanes
    assert columns is not None
    blocks = Loop("block", -(-columns.size // LANES), ())
    with w.row_loop(body, [*w.nest.kept, blocks], w.nest.row_length * _width(columns.size)) as block:
        block.add(f"const int64_t first = block * {LANES};")
        block.add(f"const int64_t lanes = first + {LANES} < {columns.size} ? {LANES} : {columns.size} - first;")
        write_row_values(w, block, -1)
        for stage in range(w.stages):
            reduces = [member for member in w.group.members if isinstance(member, Reduce) and w.stage[member] == stage]
            write_stage(w, block, stage, reduces)
            write_row_values(w, block, stage)


def _width(columns: int) -> int:
    return LANES if isinstance(columns, Size) else min(LANES, columns)


def write_stage(w: KernelWriter, block: Block, stage: int, reduces: list[Reduce]) -> None:
    loops = w.nest.reduced
    whole = {reduce: w.fresh(f"{reduce.name}_all") for reduce in reduces}
    for reduce, name in whole.items():
        block.add(f"{accumulated(reduce)} {name}[{LANES}];")
        over_lanes(block, f"{name}[lane] = {initial(reduce, accumulated(reduce))};")
    for loop in loops[:-1]:
        open_loop(block, loop.index, "0", str(loop.size))
    last = loops[-1]
    if reduces:
        parts = {reduce: w.fresh(f"{reduce.name}_part") for reduce in reduces}
        open_loop(block, "chunk", "0", str(last.size), CHUNK)
        block.add(f"const int64_t chunk_end = chunk + {CHUNK} < {last.size} ? chunk + {CHUNK} : {last.size};")
        for reduce, name in parts.items():
            block.add(f"{partial(reduce)} {name}[{LANES}];")
            over_lanes(block, f"{name}[lane] = {initial(reduce, partial(reduce))};")
        open_loop(block, last.index, "chunk", "chunk_end")
        write_lanes(w, block, stage, parts)
        close_loop(block)
        for reduce, name in parts.items():
            text = combined(reduce, accumulated(reduce), f"{whole[reduce]}[lane]", f"{name}[lane]")
            over_lanes(block, f"{whole[reduce]}[lane] = {text};")
        close_loop(block)
    else:
        open_loop(block, last.index, "0", str(last.size))
        write_lanes(w, block, stage, {})
        close_loop(block)
    for _ in loops[:-1]:
        close_loop(block)
    for reduce, name in whole.items():
        keep_for_row(w, block, reduce, f"({COMPUTED[reduce.dtype]}){name}[lane]")


def write_lanes(w: KernelWriter, block: Block, stage: int, parts: dict[Reduce, str]) -> None:
    """One row of the columns."""
    inner = open_lanes(w, block)

    def take(reduce: Reduce, text: str) -> None:
        name = f"{parts[reduce]}[lane]"
        inner.add(f"{name} = {combined(reduce, partial(reduce), name, text)};")

    w.values(inner, stage, take)
    block.add("}")


def write_row_values(w: KernelWriter, block: Block, stage: int) -> None:
    for member in w.group.members:
        if not w.in_loop(member) and w.stage[member] == stage:
            name = w.fresh(member.name)
            block.add(f"{COMPUTED[member.dtype]} {name}[{LANES}];")
            inner = open_lanes(w, block)
            text = w.value(member, w.group.mapping[member], inner)
            inner.add(f"{name}[lane] = {text};")
            if member in w.stored:
                inner.add(w.store(member, text))
            block.add("}")
            w.row_names[member] = f"{name}[lane]"


def keep_for_row(w: KernelWriter, block: Block, reduce: Reduce, text: str) -> None:
    name = w.fresh(reduce.name)
    block.add(f"{COMPUTED[reduce.dtype]} {name}[{LANES}];")
    inner = open_lanes(w, block)
    inner.add(f"{name}[lane] = {text};")
    w.row_names[reduce] = f"{name}[lane]"
    if reduce in w.stored:
        inner.add(w.store(reduce, f"{name}[lane]"))
    block.add("}")


def open_lanes(w: KernelWriter, block: Block) -> Block:
    """A vector loop over the columns of the block; the caller closes it."""
    columns = w.nest.lanes
    assert columns is not None
    inner = block.inside(columns)
    block.add("#pragma omp simd")
    block.add("for (int64_t lane = 0; lane < lanes; ++lane) {")
    inner.add(f"const int64_t {columns.index} = first + lane;")
    return inner


def over_lanes(block: Block, statement: str) -> None:
    block.add("for (int64_t lane = 0; lane < lanes; ++lane)")
    block.add(f"    {statement}")


def open_loop(block: Block, index: str, start: str, stop: str, step: int = 1) -> None:
    move = f"++{index}" if step == 1 else f"{index} += {step}"
    block.add(f"for (int64_t {index} = {start}; {index} < {stop}; {move}) {{")
    block.depth += 1


def close_loop(block: Block) -> None:
    block.depth -= 1
    block.add("}")
