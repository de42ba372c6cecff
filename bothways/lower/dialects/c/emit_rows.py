"""Kernels that reduce along memory: each row is swept over; sums of floats go on in double after every few of them."""

from __future__ import annotations

from collections.abc import Iterable

from bothways.lower.dialects.c.accumulate import accumulated, combined, initial, partial
from bothways.lower.dialects.c.emit import Block, KernelWriter, shared
from bothways.lower.dialects.c_family.operators import COMPUTED, REDUCTIONS
from bothways.lower.ir.sizes import size_hint
from bothways.lower.schedule.loops import Loop
from bothways.lower.schedule.tree import Accumulate, Accumulator, Rows, RowValue, Scratch, Statement, Sweep, Total

CHUNK = 256  # how many values are summed in float before the sum goes on in double; short chains overlap, too

Names = dict[Accumulator, str]


def write_rows(w: KernelWriter, body: Block, statements: Iterable[Statement]) -> None:
    """Rows that are reduced, or one that is all there is."""
    for part in statements:
        if isinstance(part, Rows):
            name_scratch(w, part.body)
            with w.row_loop(body, part.loops, part.threads) as inner:
                write_stages(w, inner, part.body)
            return
    write_stages(w, body, statements)


def name_scratch(w: KernelWriter, statements: Iterable[Statement]) -> None:
    for part in statements:
        if isinstance(part, Scratch):
            w.scratch[part] = w.fresh(part.hint)


def write_stages(w: KernelWriter, block: Block, statements: Iterable[Statement]) -> None:
    wholes: Names = {}
    for part in statements:
        match part:
            case Scratch():
                block.add(f"{COMPUTED[part.dtype]} {w.scratch[part]}[{part.length}];")
            case RowValue():
                w.statements(block, part.body)
                if part.store is not None:
                    block.add(w.store(part.store))
            case Sweep():
                wholes = write_sweep(w, block, part)
            case Total():
                kind = COMPUTED[part.value.dtype]
                block.add(f"const {kind} {part.value.name} = ({kind}){wholes[part.accumulator]};")
                if part.store is not None:
                    block.add(w.store(part.store))


def write_sweep(w: KernelWriter, block: Block, sweep: Sweep) -> Names:
    """Returns the names of what was accumulated."""
    wholes = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in sweep.accumulators}
    for reduction, name in wholes.items():
        block.add(f"{accumulated(reduction)} {name} = {initial(reduction, accumulated(reduction))};")
    if sweep.threads is not None:
        write_slices(w, block, sweep, wholes)
        return wholes
    for loop in sweep.loops[:-1]:
        block.add(f"for (int64_t {loop.index} = 0; {loop.index} < {loop.size}; ++{loop.index}) {{")
        block.depth += 1
    write_chunks(w, block, sweep, sweep.loops[-1], wholes, f"0:{sweep.loops[-1].size}")
    for _ in sweep.loops[:-1]:
        block.depth -= 1
        block.add("}")
    return wholes


def write_slices(w: KernelWriter, block: Block, sweep: Sweep, wholes: Names) -> None:
    """One long row, shared out to the threads in slices whose results are put together in order."""
    outer, reductions = sweep.loops[0], sweep.accumulators
    single = len(sweep.loops) == 1
    step = CHUNK * 64 if single else 1
    count = -(-outer.size // step)
    parts = {reduction: w.fresh(f"{reduction.hint}_slices") for reduction in reductions}
    for reduction, name in parts.items():
        block.add(f"{accumulated(reduction)} *{name} = malloc({count} * sizeof(*{name}));")
    block.add(f"#pragma omp {shared(sweep.threads)} schedule(static)")
    block.add(f"for (int64_t slice = 0; slice < {count}; ++slice) {{")
    inner = Block(block.lines, block.depth + 1)
    own = {reduction: w.fresh(f"{reduction.hint}_slice") for reduction in reductions}
    for reduction, name in own.items():
        inner.add(f"{accumulated(reduction)} {name} = {initial(reduction, accumulated(reduction))};")
    if single:
        stop = f"(slice + 1) * {step} < {outer.size} ? (slice + 1) * {step} : {outer.size}"
        inner.add(f"const int64_t stop = {stop};")
        write_chunks(w, inner, sweep, outer, own, f"slice * {step}:stop")
    else:
        inner.add(f"const int64_t {outer.index} = slice;")
        for loop in sweep.loops[1:-1]:
            inner.add(f"for (int64_t {loop.index} = 0; {loop.index} < {loop.size}; ++{loop.index}) {{")
            inner.depth += 1
        last = sweep.loops[-1]
        write_chunks(w, inner, sweep, last, own, f"0:{last.size}")
        for _ in sweep.loops[1:-1]:
            inner.depth -= 1
            inner.add("}")
    for reduction, name in parts.items():
        inner.add(f"{name}[slice] = {own[reduction]};")
    block.add("}")
    if reductions:
        block.add(f"for (int64_t slice = 0; slice < {count}; ++slice) {{")
        for reduction, name in parts.items():
            text = combined(reduction, accumulated(reduction), wholes[reduction], f"{name}[slice]")
            block.add(f"    {wholes[reduction]} = {text};")
        block.add("}")
    for name in parts.values():
        block.add(f"free({name});")


def write_chunks(w: KernelWriter, block: Block, sweep: Sweep, loop: Loop, into: Names, bounds: str) -> None:
    """The innermost loop; sums of floats go on in double after each chunk."""
    start, stop = bounds.split(":")
    widened = any(accumulated(reduction) != partial(reduction) for reduction in sweep.accumulators)
    chunked = widened and (not stop.isdigit() or size_hint(loop.size) > CHUNK)
    if chunked:
        block.add(f"for (int64_t chunk = {start}; chunk < {stop}; chunk += {CHUNK}) {{")
        block.depth += 1
        block.add(f"const int64_t chunk_end = chunk + {CHUNK} < {stop} ? chunk + {CHUNK} : {stop};")
        bounds = "chunk:chunk_end"
    parts = {reduction: w.fresh(f"{reduction.hint}_part") for reduction in sweep.accumulators}
    clauses = []
    for reduction, name in parts.items():
        kind = COMPUTED[reduction.of] if reduction.op in ("max", "min") else partial(reduction)
        block.add(f"{kind} {name} = {initial(reduction, kind)};")
        clause = REDUCTIONS[reduction.op][2].replace("{T}", kind)
        clauses.append(f"reduction({clause} : {name})")

    def write(inner: Block) -> None:
        def take(part: Accumulate, text: str) -> None:
            name = parts[part.into]
            inner.add(f"{name} = {combined(part.into, partial(part.into), name, text)};")

        w.statements(inner, sweep.body, take)

    w.vector_loop(block, loop, "", write, " ".join(clauses), bounds)
    for reduction, name in parts.items():
        block.add(f"{into[reduction]} = {combined(reduction, accumulated(reduction), into[reduction], name)};")
    if chunked:
        block.depth -= 1
        block.add("}")
