"""Kernels that reduce along memory: a team of threads takes a row, keeps it in registers, and sweeps over it there.

Teams of up to a warp put their results together by exchanging registers, larger ones, which are a block, through shared
memory. Every thread of a team then has the same result.
"""

from __future__ import annotations

from bothways.lower.dialects.c.operators import COMPUTED, IN_MEMORY
from bothways.lower.dialects.cuda.arranging import (
    PROCESSORS,
    Phase,
    RowGeometry,
    kept_elements,
    row_geometry,
    statements_of_phase,
    statements_of_row,
)
from bothways.lower.dialects.cuda.emit import (
    Block,
    KernelWriter,
    Span,
    accumulated,
    combined,
    indices,
    initial,
    product,
)
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.tree import Accumulate, Accumulator, Kernel, RowValue, Scratch, Store, Sweep, Total

WARP = 32
MOST_BLOCKS = 2**31 - 1
OUTSIDE = Span(None, 1, "")

Names = dict[Accumulator, str]


def write_rows(w: KernelWriter, block: Block, kernel: Kernel) -> tuple[int, int, int]:
    """Returns how many blocks of how many threads, and how wide its vectors are."""
    geometry = row_geometry(kernel)
    if isinstance(kernel, Phase):
        return write_phase(w, block, kernel, geometry)
    kind, teams, team = w.index_type, geometry.teams, geometry.team
    rows = product(geometry.kept)
    single = not isinstance(rows, Size) and -(-rows // teams) <= MOST_BLOCKS
    block.add(f"const int thread = threadIdx.x % {team};" if teams > 1 else "const int thread = threadIdx.x;")
    if single:
        block.add(f"const {kind} group = blockIdx.x;")
        block.open("")
    else:
        block.open(f"for ({kind} group = blockIdx.x; group * {teams} < {rows}; group += gridDim.x)")
    own = f"group * {teams} + threadIdx.x / {team}" if teams > 1 else "group"
    exact = not isinstance(rows, Size) and rows % teams == 0
    active = "" if exact else "active"
    block.add(f"const {kind} {'row' if exact else 'wanted'} = {own};")
    if not exact:  # all threads of a warp take part in what it does together
        block.add(f"const int active = wanted < {rows};")
        block.add(f"const {kind} row = active ? wanted : 0;")
    indices(block, geometry.kept, "row", kind)
    write_stages(w, block, kernel, geometry, active)
    if not single:
        block.add("__syncthreads();")
    block.close()
    blocks = -(-size_hint(rows) // teams)
    if not single:
        blocks = max(blocks, PROCESSORS * 8)
    return min(blocks, MOST_BLOCKS), geometry.threads, geometry.width


def write_stages(w: KernelWriter, block: Block, kernel: Kernel, geometry: RowGeometry, active: str) -> None:
    body = statements_of_row(kernel)
    kind, team, width = w.index_type, geometry.team, geometry.width
    inner = geometry.reduced[-1]
    vectors = product(geometry.reduced) // width if width > 1 else product(geometry.reduced)
    block.add(f"const {kind} vectors = {vectors};")
    first = " && ".join(filter(None, [active, "thread == 0"]))
    spans = geometry.spans
    exact = not isinstance(vectors, Size) and spans * team == vectors
    wholes: Names = {}
    for part in body:
        match part:
            case Scratch():
                w.scratch[part] = w.fresh(part.hint)
                block.add(f"{COMPUTED[part.dtype]} {w.scratch[part]}[{spans * width}];")
            case RowValue():
                for let in part.body:
                    w.let(block, let, OUTSIDE)
                write_store(w, block, part.store, first)
            case Total():
                of = COMPUTED[part.value.dtype]
                block.add(f"const {of} {part.value.name} = ({of}){wholes[part.accumulator]};")
                write_store(w, block, part.store, first)
            case Sweep():
                if spans:
                    write_reads(w, block, part, geometry, exact)
                wholes = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in part.accumulators}
                for reduction, name in wholes.items():
                    block.add(f"{accumulated(reduction)} {name} = {initial(reduction)};")
                if spans:
                    block.add("UNROLL")
                    block.open(f"for (int span = 0; span < {spans}; ++span)")
                    block.add(f"const {kind} at = thread + span * {team};")
                    if not exact:
                        block.open("if (at < vectors)")
                else:
                    block.open(f"for ({kind} at = thread; at < vectors; at += {team})")
                write_indices(block, geometry, kind)
                span = Span(inner, width, "first", at="span" if spans else "")

                def take(inside: Block, one: Accumulate, text: str, wholes: Names = wholes) -> None:
                    name = wholes[one.into]
                    inside.add(f"{name} = {combined(one.into, name, text)};")

                w.body(block, part.body, span, take, active)
                if spans and not exact:
                    block.close()
                block.close()
                if wholes:
                    write_reduction(w, block, wholes, team, geometry.threads)


def write_indices(block: Block, geometry: RowGeometry, kind: str) -> None:
    """From the number of a vector to the indices of the reduced loops."""
    *outer, inner = geometry.reduced
    width = geometry.width
    if not outer:
        block.add(f"const {kind} first = at{f' * {width}' if width > 1 else ''};")
        return
    along = inner.size // width if width > 1 else inner.size
    block.add(f"const {kind} line = at / {along}, first = at % {along}{f' * {width}' if width > 1 else ''};")
    indices(block, outer, "line", kind)


def write_reads(w: KernelWriter, block: Block, sweep: Sweep, geometry: RowGeometry, exact: bool) -> None:
    """Read what this sweep is the first to read, all at once, into registers."""
    kind, width, spans = w.index_type, geometry.width, geometry.spans
    inner = geometry.reduced[-1]
    new = [element for element in kept_elements((sweep,), inner) if element not in w.kept]
    if not new:
        return
    names = {element: w.fresh(f"{element.memory.name}_row") for element in new}
    for element, name in names.items():
        block.add(f"{IN_MEMORY[element.memory.dtype]} {name}[{spans * width}];")
    block.add("UNROLL")
    block.open(f"for (int span = 0; span < {spans}; ++span)")
    block.add(f"const {kind} at = thread + span * {geometry.team};")
    if not exact:
        block.open("if (at < vectors)")
    write_indices(block, geometry, kind)
    span = Span(inner, width, "first")
    for element, name in names.items():
        if w.is_vector(element, span):
            w.load(block, element, name, span, at=f"span * {width}")
            continue
        block.add("UNROLL")
        block.open(f"for (int v = 0; v < {width}; ++v)")
        block.add(f"const {kind} {inner.index} = first + v;")
        block.add(f"{name}[span * {width} + v] = {w.element(element)};")
        block.close()
    if not exact:
        block.close()
    block.close()
    w.kept.update(names)


def write_reduction(w: KernelWriter, block: Block, wholes: Names, team: int, threads: int) -> None:
    """Let a team put together what its threads have; each has the whole then."""
    lanes = min(team, WARP)
    if lanes > 1:
        block.add("UNROLL")
        block.open(f"for (int bit = {lanes // 2}; bit; bit /= 2)")
        for reduction, name in wholes.items():
            other = f"shuffled_{accumulated(reduction)}({name}, bit)"
            block.add(f"{name} = {combined(reduction, name, other)};")
        block.close()
    if team <= WARP:
        return
    warps = threads // WARP
    parts = {reduction: w.fresh(f"{reduction.hint}_parts") for reduction in wholes}
    for reduction, name in parts.items():
        block.add(f"SHARED {accumulated(reduction)} {name}[{warps}];")
        block.add(f"if (threadIdx.x % {WARP} == 0) {name}[threadIdx.x / {WARP}] = {wholes[reduction]};")
    block.add("__syncthreads();")
    for reduction, name in parts.items():
        whole = wholes[reduction]
        block.add(f"{whole} = {initial(reduction)};")
        block.add("UNROLL")
        block.add(f"for (int part = 0; part < {warps}; ++part) {whole} = {combined(reduction, whole, f'{name}[part]')};")


def write_store(w: KernelWriter, block: Block, store: Store | None, condition: str) -> None:
    if store is not None:
        block.add(f"if ({condition}) {w.element(store.element)} = {w.stored_text(store, OUTSIDE)};")


# Few, long rows: several blocks take parts of one.


def write_phase(w: KernelWriter, block: Block, kernel: Phase, geometry: RowGeometry) -> tuple[int, int, int]:
    kind, width, splits = w.index_type, geometry.width, kernel.splits
    body = statements_of_row(kernel)
    rows = product(geometry.kept)
    sweeps = any(isinstance(part, Sweep) for part, _ in statements_of_phase(body, kernel.stage))
    parts, threads = (splits, geometry.threads) if sweeps else (1, WARP)
    block.add("const int thread = threadIdx.x;")
    block.open(f"for ({kind} group = blockIdx.x; group < ({kind}){rows} * {parts}; group += gridDim.x)")
    block.add(f"const {kind} row = group / {parts}, part = group % {parts};")
    indices(block, geometry.kept, "row", kind)
    for one, stores in statements_of_phase(body, kernel.stage):
        match one:
            case RowValue():
                for let in one.body:
                    w.let(block, let, OUTSIDE)
                write_store(w, block, one.store if stores else None, "part == 0 && thread == 0")
            case Total():
                whole = put_together(w, block, kernel, one.accumulator)
                of = COMPUTED[one.value.dtype]
                block.add(f"const {of} {one.value.name} = ({of}){whole};")
                write_store(w, block, one.store if stores else None, "part == 0 && thread == 0")
            case Sweep():
                write_part(w, block, kernel, geometry, one)
    block.close()
    blocks = size_hint(rows) * parts
    return min(blocks, MOST_BLOCKS), threads, width


def put_together(w: KernelWriter, block: Block, kernel: Phase, reduction: Accumulator) -> str:
    """What all parts of a row were reduced to, by each warp for itself, in the same order."""
    kind, whole = w.index_type, w.fresh(f"{reduction.hint}_all")
    pointer = w.pointer(kernel.partials[reduction])
    block.add(f"{accumulated(reduction)} {whole} = {initial(reduction)};")
    each = combined(reduction, whole, f"{pointer}[row * {kernel.splits} + one]")
    block.add(f"for ({kind} one = thread % {WARP}; one < {kernel.splits}; one += {WARP}) {whole} = {each};")
    other = f"shuffled_{accumulated(reduction)}({whole}, bit)"
    block.add("UNROLL")
    block.add(f"for (int bit = {WARP // 2}; bit; bit /= 2) {whole} = {combined(reduction, whole, other)};")
    return whole


def write_part(w: KernelWriter, block: Block, kernel: Phase, geometry: RowGeometry, sweep: Sweep) -> None:
    kind, width, threads = w.index_type, geometry.width, geometry.threads
    vectors = product(geometry.reduced) // width if width > 1 else product(geometry.reduced)
    share = -(-vectors // kernel.splits)
    block.add(f"const {kind} vectors = {vectors}, begin = part * {share};")
    block.add(f"const {kind} end = begin + {share} < vectors ? begin + {share} : vectors;")
    wholes = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in sweep.accumulators}
    for reduction, name in wholes.items():
        block.add(f"{accumulated(reduction)} {name} = {initial(reduction)};")
    block.add("_Pragma(\"unroll 4\")")
    block.open(f"for ({kind} at = begin + thread; at < end; at += {threads})")
    write_indices(block, geometry, kind)

    def take(inside: Block, one: Accumulate, text: str) -> None:
        name = wholes[one.into]
        inside.add(f"{name} = {combined(one.into, name, text)};")

    w.body(block, sweep.body, Span(geometry.reduced[-1], width, "first"), take)
    block.close()
    if not wholes:
        return
    write_reduction(w, block, wholes, geometry.threads, threads)
    for reduction, name in wholes.items():
        pointer = w.pointer(kernel.partials[reduction])
        block.add(f"if (thread == 0) {pointer}[row * {kernel.splits} + part] = {name};")
    block.add("__syncthreads();")
