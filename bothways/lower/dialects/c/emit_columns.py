"""Kernels that reduce across memory: many columns side by side, a vector's worth at a time."""

from __future__ import annotations

from bothways.lower.dialects.c.accumulate import accumulated, combined, initial, partial
from bothways.lower.dialects.c.emit import Block, KernelWriter
from bothways.lower.dialects.c_family.operators import COMPUTED
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.tree import Accumulate, Accumulator, Columns, RowValue, Sweep, Total

CHUNK = 32  # how many rows are summed in float before the sum goes on in double

Names = dict[Accumulator, str]


def write_columns(w: KernelWriter, body: Block, part: Columns) -> None:
    size, width = part.lanes.size, part.width
    blocks = Loop("block", -(-size // width), ())
    with w.row_loop(body, [*part.loops, blocks], part.threads) as block:
        block.add(f"const int64_t first = block * {width};")
        block.add(f"const int64_t lanes = first + {width} < {size} ? {width} : {size} - first;")
        wholes: Names = {}
        for inside in part.body:
            match inside:
                case RowValue():
                    write_row_value(w, block, part, inside)
                case Sweep():
                    wholes = write_sweep(w, block, part, inside)
                case Total():
                    write_total(w, block, part, inside, wholes[inside.accumulator])


def write_sweep(w: KernelWriter, block: Block, columns: Columns, sweep: Sweep) -> Names:
    """Returns the names of what was accumulated, an element for each lane."""
    loops, width = sweep.loops, columns.width
    wholes = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in sweep.accumulators}
    for reduction, name in wholes.items():
        block.add(f"{accumulated(reduction)} {name}[{width}];")
        over_lanes(block, f"{name}[lane] = {initial(reduction, accumulated(reduction))};")
    for loop in loops[:-1]:
        open_loop(block, loop.index, "0", str(loop.size))
    last = loops[-1]
    if sweep.accumulators:
        parts = {reduction: w.fresh(f"{reduction.hint}_part") for reduction in sweep.accumulators}
        open_loop(block, "chunk", "0", str(last.size), CHUNK)
        block.add(f"const int64_t chunk_end = chunk + {CHUNK} < {last.size} ? chunk + {CHUNK} : {last.size};")
        for reduction, name in parts.items():
            block.add(f"{partial(reduction)} {name}[{width}];")
            over_lanes(block, f"{name}[lane] = {initial(reduction, partial(reduction))};")
        open_loop(block, last.index, "chunk", "chunk_end")
        write_lanes(w, block, columns, sweep, parts)
        close_loop(block)
        for reduction, name in parts.items():
            text = combined(reduction, accumulated(reduction), f"{wholes[reduction]}[lane]", f"{name}[lane]")
            over_lanes(block, f"{wholes[reduction]}[lane] = {text};")
        close_loop(block)
    else:
        open_loop(block, last.index, "0", str(last.size))
        write_lanes(w, block, columns, sweep, {})
        close_loop(block)
    for _ in loops[:-1]:
        close_loop(block)
    return wholes


def write_lanes(w: KernelWriter, block: Block, columns: Columns, sweep: Sweep, parts: Names) -> None:
    """One row of the columns."""
    inner = open_lanes(block, columns)

    def take(part: Accumulate, text: str) -> None:
        name = f"{parts[part.into]}[lane]"
        inner.add(f"{name} = {combined(part.into, partial(part.into), name, text)};")

    w.statements(inner, sweep.body, take)
    block.add("}")


def write_row_value(w: KernelWriter, block: Block, columns: Columns, part: RowValue) -> None:
    name = part.kept.name
    block.add(f"{COMPUTED[part.kept.dtype]} {name}[{columns.width}];")
    inner = open_lanes(block, columns)
    w.statements(inner, part.body)
    inner.add(f"{name}[lane] = {w.text(part.result)};")
    if part.store is not None:
        inner.add(w.store(part.store))
    block.add("}")
    w.lanes.add(part.kept)


def write_total(w: KernelWriter, block: Block, columns: Columns, part: Total, whole: str) -> None:
    name, kind = part.value.name, COMPUTED[part.value.dtype]
    block.add(f"{kind} {name}[{columns.width}];")
    inner = open_lanes(block, columns)
    inner.add(f"{name}[lane] = ({kind}){whole}[lane];")
    w.lanes.add(part.value)
    if part.store is not None:
        inner.add(w.store(part.store))
    block.add("}")


def open_lanes(block: Block, columns: Columns) -> Block:
    """A vector loop over the columns of the block; the caller closes it."""
    inner = block.inside(columns.lanes)
    block.add("#pragma omp simd")
    block.add("for (int64_t lane = 0; lane < lanes; ++lane) {")
    inner.add(f"const int64_t {columns.lanes.index} = first + lane;")
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
