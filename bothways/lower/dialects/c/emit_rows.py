"""Kernels that reduce along memory: each row is gone through once for every stage."""

from __future__ import annotations

from bothways.lower.dialects.c.accumulate import accumulated, combined, initial, partial
from bothways.lower.dialects.c.emit import Block, KernelWriter
from bothways.lower.dialects.c.operators import COMPUTED, REDUCTIONS
from bothways.lower.ir.prims import Map, Reduce
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.loops import Loop

CHUNK = 256  # how many values are summed in float before the sum goes on in double; short chains overlap, too
SCRATCH = 8192  # elements of a row that may be kept on the stack


def write_rows(w: KernelWriter, body: Block) -> None:
    nest = w.nest
    plan_scratch(w)
    if nest.kept:
        with w.row_loop(body, nest.kept, nest.row_length) as inner:
            write_stages(w, inner, split="")
    else:
        write_stages(w, body, split=w.parallel(nest.row_length))


def plan_scratch(w: KernelWriter) -> None:
    """Values that cost much and are read in a later stage again are kept for the row."""
    if len(w.nest.reduced) != 1 or not w.nest.kept:
        return
    for member in w.group.members:
        if isinstance(member, Map) and w.in_loop(member) and w.is_expensive(member):
            readers = [other for other in w.group.members if member in w.fusion.leaves(other)]
            if any(w.stage[other] > w.stage[member] for other in readers) and w.nest.row_length <= SCRATCH:
                w.scratch[member] = w.fresh(f"{member.name}_row")


def write_stages(w: KernelWriter, block: Block, split: str) -> None:
    length = SCRATCH if isinstance(w.nest.row_length, Size) else w.nest.row_length
    for member, name in w.scratch.items():
        block.add(f"{COMPUTED[member.dtype]} {name}[{length}];")
    write_row_values(w, block, -1)
    for stage in range(w.stages):
        w.stage_now = stage
        reduces = [m for m in w.group.members if isinstance(m, Reduce) and w.stage[m] == stage]
        write_stage(w, block, stage, reduces, split)
        for reduce in reduces:
            finish_reduce(w, block, reduce)
        write_row_values(w, block, stage)


def write_row_values(w: KernelWriter, block: Block, stage: int) -> None:
    for member in w.group.members:
        if not w.in_loop(member) and w.stage[member] == stage:
            text = w.value(member, w.group.mapping[member], block)
            w.row_names[member] = text
            if member in w.stored:
                block.add(w.store(member, text))


def finish_reduce(w: KernelWriter, block: Block, reduce: Reduce) -> None:
    name = w.fresh(reduce.name)
    block.add(f"const {COMPUTED[reduce.dtype]} {name} = ({COMPUTED[reduce.dtype]}){w.accumulators[reduce]};")
    w.row_names[reduce] = name
    if reduce in w.stored:
        block.add(w.store(reduce, name))


def write_stage(w: KernelWriter, block: Block, stage: int, reduces: list[Reduce], split: str) -> None:
    loops = list(w.nest.reduced)
    w.accumulators = {reduce: w.fresh(f"{reduce.name}_all") for reduce in reduces}
    for reduce, name in w.accumulators.items():
        block.add(f"{accumulated(reduce)} {name} = {initial(reduce, accumulated(reduce))};")
    if split:
        write_slices(w, block, stage, reduces, split)
        return
    for loop in loops[:-1]:
        block.add(f"for (int64_t {loop.index} = 0; {loop.index} < {loop.size}; ++{loop.index}) {{")
        block.depth += 1
    write_chunks(w, block, stage, reduces, loops[-1], w.accumulators, f"0:{loops[-1].size}")
    for _ in loops[:-1]:
        block.depth -= 1
        block.add("}")


def write_slices(w: KernelWriter, block: Block, stage: int, reduces: list[Reduce], parallel: str) -> None:
    """One long row, shared out to the threads in slices whose results are put together in order."""
    outer = w.nest.reduced[0]
    single = len(w.nest.reduced) == 1
    step = CHUNK * 64 if single else 1
    count = -(-outer.size // step)
    parts = {reduce: w.fresh(f"{reduce.name}_slices") for reduce in reduces}
    for reduce, name in parts.items():
        block.add(f"{accumulated(reduce)} *{name} = malloc({count} * sizeof(*{name}));")
    block.add(f"#pragma omp {parallel} schedule(static)")
    block.add(f"for (int64_t slice = 0; slice < {count}; ++slice) {{")
    inner = Block(block.lines, block.depth + 1)
    own = {reduce: w.fresh(f"{reduce.name}_slice") for reduce in reduces}
    for reduce, name in own.items():
        inner.add(f"{accumulated(reduce)} {name} = {initial(reduce, accumulated(reduce))};")
    if single:
        stop = f"(slice + 1) * {step} < {outer.size} ? (slice + 1) * {step} : {outer.size}"
        inner.add(f"const int64_t stop = {stop};")
        write_chunks(w, inner, stage, reduces, outer, own, f"slice * {step}:stop")
    else:
        inner.add(f"const int64_t {outer.index} = slice;")
        for loop in w.nest.reduced[1:-1]:
            inner.add(f"for (int64_t {loop.index} = 0; {loop.index} < {loop.size}; ++{loop.index}) {{")
            inner.depth += 1
        last = w.nest.reduced[-1]
        write_chunks(w, inner, stage, reduces, last, own, f"0:{last.size}")
        for _ in w.nest.reduced[1:-1]:
            inner.depth -= 1
            inner.add("}")
    for reduce, name in parts.items():
        inner.add(f"{name}[slice] = {own[reduce]};")
    block.add("}")
    if reduces:
        block.add(f"for (int64_t slice = 0; slice < {count}; ++slice) {{")
        for reduce, name in parts.items():
            text = combined(reduce, accumulated(reduce), w.accumulators[reduce], f"{name}[slice]")
            block.add(f"    {w.accumulators[reduce]} = {text};")
        block.add("}")
    for name in parts.values():
        block.add(f"free({name});")


def write_chunks(
    w: KernelWriter, block: Block, stage: int, reduces: list[Reduce], loop: Loop, into: dict[Reduce, str], bounds: str
) -> None:
    """The innermost loop; sums of floats go on in double after each chunk."""
    start, stop = bounds.split(":")
    widened = any(accumulated(reduce) != partial(reduce) for reduce in reduces)
    chunked = widened and (not stop.isdigit() or size_hint(loop.size) > CHUNK)
    if chunked:
        block.add(f"for (int64_t chunk = {start}; chunk < {stop}; chunk += {CHUNK}) {{")
        block.depth += 1
        block.add(f"const int64_t chunk_end = chunk + {CHUNK} < {stop} ? chunk + {CHUNK} : {stop};")
        bounds = "chunk:chunk_end"
    parts = {reduce: w.fresh(f"{reduce.name}_part") for reduce in reduces}
    clauses = []
    for reduce, name in parts.items():
        kind = COMPUTED[reduce.arg.dtype] if reduce.op in ("max", "min") else partial(reduce)
        block.add(f"{kind} {name} = {initial(reduce, kind)};")
        clause = REDUCTIONS[reduce.op][2].replace("{T}", kind)
        clauses.append(f"reduction({clause} : {name})")

    def write(inner: Block) -> None:
        def take(reduce: Reduce, text: str) -> None:
            inner.add(f"{parts[reduce]} = {combined(reduce, partial(reduce), parts[reduce], text)};")

        w.values(inner, stage, take)

    w.vector_loop(block, loop, "", write, " ".join(clauses), bounds)
    for reduce, name in parts.items():
        block.add(f"{into[reduce]} = {combined(reduce, accumulated(reduce), into[reduce], name)};")
    if chunked:
        block.depth -= 1
        block.add("}")
