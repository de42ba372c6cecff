"""Kernels that reduce along memory: a team of threads takes a row, keeps it in registers, and sweeps over it there.

Teams of up to a warp put their results together by exchanging registers, larger ones, which are a block, through shared
memory. Every thread of a team then has the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from bothways.lower.dialects.c_family.operators import COMPUTED
from bothways.lower.dialects.cuda.arranging import (
    PROCESSORS,
    WARP,
    Phase,
    RowGeometry,
    elements_in,
    kept_elements,
    row_geometry,
    statements_of_phase,
    statements_of_row,
)
from bothways.lower.dialects.cuda.emit import (
    Lines,
    Raw,
    Span,
    ThreadWriter,
    accumulated,
    combined,
    counted,
    indices,
    initial,
    product,
)
from bothways.lower.ir.sizes import Size, size_hint
from bothways.lower.schedule.tree import (
    Accumulate,
    Accumulator,
    Element,
    Kernel,
    RowValue,
    Scratch,
    Statement,
    Store,
    Sweep,
    Total,
)

MOST_BLOCKS = 2**31 - 1
OUTSIDE = Span(None, 1, "")
SINGLE_NUMBERS = 40  # of what is kept in pairs, that a thread has registers for
LONG_PART = 32  # numbers of a row that a thread has; of shorter parts a compiler keeps what it read by itself

Names = dict[Accumulator, str]
Take = Callable[[Lines, Accumulate, str, str], None]


def write_rows(w: ThreadWriter, block: Lines, kernel: Kernel) -> tuple[int, int]:
    """Returns how many blocks of how many threads."""
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
    return min(blocks, MOST_BLOCKS), geometry.threads


def write_stages(w: ThreadWriter, block: Lines, kernel: Kernel, geometry: RowGeometry, active: str) -> None:
    first = " && ".join(filter(None, [active, "thread == 0"]))
    wholes: Names = {}
    for part in statements_of_row(kernel):
        match part:
            case Scratch():
                w.scratch[part] = w.fresh(part.hint)
                block.add(f"{COMPUTED[part.dtype]} {w.scratch[part]}[{geometry.spans * geometry.width}];")
            case RowValue():
                for let in part.body:
                    w.let(block, let, OUTSIDE)
                write_store(w, block, part.store, first)
            case Total():
                of = COMPUTED[part.value.dtype]
                block.add(f"const {of} {part.value.name} = ({of}){wholes[part.accumulator]};")
                write_store(w, block, part.store, first)
            case Sweep():
                wholes = write_sweep(w, block, part, geometry.of_sweep(part), active)
                if wholes:
                    write_reduction(w, block, wholes, geometry)
                    keep_in_pairs(w, block, geometry)


def write_sweep(w: ThreadWriter, block: Lines, sweep: Sweep, geometry: RowGeometry, active: str) -> Names:
    """Returns the names of what each thread has accumulated."""
    if geometry.spans:
        write_reads(w, block, statements_of_row(w.kernel), sweep, geometry)
    wholes = started(w, block, sweep)
    open_spans(w, block, geometry)
    count = write_indices(block, geometry, w.index_type)
    span = Span(geometry.reduced[-1], geometry.width, "first", count, "span" if geometry.spans else "")
    w.body(block, sweep.body, span, taking(wholes), active)
    close_spans(block, geometry)
    return wholes


def open_spans(w: ThreadWriter, block: Lines, geometry: RowGeometry) -> None:
    """A loop over the vectors of a row that are a thread's own."""
    kind, team, vectors = w.index_type, geometry.team, geometry.vectors
    if not geometry.spans:
        block.add('_Pragma("unroll 4")')
        block.open(f"for ({kind} at = thread; at < {vectors}; at += {team})")
        return
    block.add("UNROLL")
    block.open(f"for (int span = 0; span < {geometry.spans}; ++span)")
    block.add(f"const {kind} at = thread + span * {team};")
    if not geometry.is_exact:
        block.open(f"if (at < {vectors})")


def close_spans(block: Lines, geometry: RowGeometry) -> None:
    if geometry.spans and not geometry.is_exact:
        block.close()
    block.close()


def started(w: ThreadWriter, block: Lines, sweep: Sweep) -> Names:
    """What a sweep accumulates into."""
    wholes = {reduction: w.fresh(f"{reduction.hint}_all") for reduction in sweep.accumulators}
    for reduction, name in wholes.items():
        block.add(f"{accumulated(reduction)} {name} = {initial(reduction)};")
    return wholes


def taking(wholes: Names) -> Take:
    def take(inside: Lines, one: Accumulate, text: str, condition: str) -> None:
        name = wholes[one.into]
        inside.add(f"{condition}{name} = {combined(one.into, name, text)};")

    return take


def write_indices(block: Lines, geometry: RowGeometry, kind: str) -> str:
    """From the number of a vector to the indices of the reduced loops. Returns the name of its count, if it has one."""
    *outer, inner = geometry.reduced
    width = geometry.width
    if not outer:
        block.add(f"const {kind} first = at{f' * {width}' if width > 1 else ''};")
        return counted(block, inner.size, width)
    along = inner.size // width if width > 1 else inner.size
    block.add(f"const {kind} line = at / {along}, first = at % {along}{f' * {width}' if width > 1 else ''};")
    indices(block, outer, "line", kind)
    return ""


def write_reads(
    w: ThreadWriter, block: Lines, body: Sequence[Statement], sweep: Sweep, geometry: RowGeometry
) -> None:
    """Read what this sweep is the first to read, all at once, into registers."""
    inner = geometry.reduced[-1]
    read = {element for part in sweep.body for element, writes in elements_in(part) if not writes}
    new = [element for element in kept_elements(body, inner) if element in read and element not in w.kept]
    arrays = {element: w.raw(element, "row", Span(inner, geometry.width, "first")) for element in new}
    write_reading(w, block, arrays, geometry)


def write_reading(
    w: ThreadWriter, block: Lines, arrays: Mapping[Element, Raw], geometry: RowGeometry, declared: bool = False
) -> None:
    """Read elements along a row into registers, where they are kept; where these are ``declared``, of another row."""
    if not arrays:
        return
    kind, width, inner = w.index_type, geometry.width, geometry.reduced[-1]
    for array in () if declared else arrays.values():
        block.add(array.declared(geometry.spans * width))
    open_spans(w, block, geometry)
    span = Span(inner, width, "first", write_indices(block, geometry, kind))
    for element, array in arrays.items():
        if w.is_vector(element, span):
            w.load(block, element, array, span, "span")
            continue
        block.add("UNROLL")
        block.open(f"for (int v = 0; v < {width}; ++v)")
        place = f"v < {span.count} ? first + v : first" if span.count else "first + v"
        block.add(f"const {kind} {inner.index} = {place};")
        block.add(f"{array.name}[span * {width} + v] = {w.element(element)};")
        block.close()
    close_spans(block, geometry)
    if not declared:
        w.kept.update(arrays)


def keep_in_pairs(w: ThreadWriter, block: Lines, geometry: RowGeometry) -> None:
    """Let what is kept in pairs stay so until the next sweep, where there are too few registers for single numbers: a
    compiler would rather keep what it has computed of them, in memory."""
    pairs = [array for array in w.kept.values() if array.in_pairs]
    count = geometry.spans * geometry.width
    if count >= LONG_PART and len(pairs) * count > SINGLE_NUMBERS:
        keep_as_pairs(block, pairs, count)


def keep_as_pairs(block: Lines, arrays: Iterable[Raw], count: int) -> None:
    """Have a compiler forget what it has computed of so many numbers."""
    pairs = [array for array in arrays if array.in_pairs]
    if pairs:
        block.add("UNROLL")
        each = " ".join(f"STAYS({array.name}[word]);" for array in pairs)
        block.add(f"for (int word = 0; word < {count // 2}; ++word) {{ {each} }}")


def write_reduction(w: ThreadWriter, block: Lines, wholes: Names, geometry: RowGeometry) -> None:
    """Let a team put together what its threads have; each has the whole then. Where teams take one row after the other,
    that is by turns through two places, so that none waits for those who still read."""
    team, teams = geometry.team, geometry.teams
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
    warps = team // WARP
    parts = {reduction: w.fresh(f"{reduction.hint}_parts") for reduction in wholes}
    size, place = (f"[2][{teams}]", "[turn][team]") if geometry.turns else ("", "")
    for reduction, name in parts.items():
        block.add(f"SHARED {accumulated(reduction)} {name}{size}[{warps}];")
        block.add(f"if (thread % {WARP} == 0) {name}{place}[thread / {WARP}] = {wholes[reduction]};")
    block.add(f"TEAM_WAITS(team + 1, {team});" if teams > 1 else "__syncthreads();")
    for reduction, name in parts.items():
        whole = wholes[reduction]
        block.add(f"{whole} = {initial(reduction)};")
        block.add("UNROLL")
        each = combined(reduction, whole, f"{name}{place}[part]")
        block.add(f"for (int part = 0; part < {warps}; ++part) {whole} = {each};")


def write_store(w: ThreadWriter, block: Lines, store: Store | None, condition: str) -> None:
    if store is not None:
        block.add(f"if ({condition}) {w.element(store.element)} = {w.stored_text(store, OUTSIDE)};")


# Few, long rows: several blocks take parts of one.


def write_phase(w: ThreadWriter, block: Lines, kernel: Phase, geometry: RowGeometry) -> tuple[int, int]:
    kind, splits = w.index_type, kernel.splits
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
                write_part(w, block, kernel, geometry.of_sweep(one), one)
    block.close()
    blocks = size_hint(rows) * parts
    return min(blocks, MOST_BLOCKS), threads


def put_together(w: ThreadWriter, block: Lines, kernel: Phase, reduction: Accumulator) -> str:
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


def write_part(w: ThreadWriter, block: Lines, kernel: Phase, geometry: RowGeometry, sweep: Sweep) -> None:
    kind, width, threads = w.index_type, geometry.width, geometry.threads
    vectors = geometry.vectors
    share = -(-vectors // kernel.splits)
    block.add(f"const {kind} begin = part * {share};")
    block.add(f"const {kind} end = begin + {share} < {vectors} ? begin + {share} : {vectors};")
    wholes = started(w, block, sweep)
    block.add('_Pragma("unroll 4")')
    block.open(f"for ({kind} at = begin + thread; at < end; at += {threads})")
    span = Span(geometry.reduced[-1], width, "first", write_indices(block, geometry, kind))
    w.body(block, sweep.body, span, taking(wholes))
    block.close()
    if not wholes:
        return
    write_reduction(w, block, wholes, geometry)
    for reduction, name in wholes.items():
        pointer = w.pointer(kernel.partials[reduction])
        block.add(f"if (thread == 0) {pointer}[row * {kernel.splits} + part] = {name};")
    block.add("__syncthreads();")
