"""The ten lines that an explanation starts with: captured whole or where not, how much of what, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bothways.errors import Break
from bothways.record.compilation import Compilation, Conclusion, failed_guards_of, timing
from bothways.record.outcomes import Way, counted, shares, summary

if TYPE_CHECKING:
    from bothways.report.explanation import Explanation

T = TypeVar("T")
# So many characters of a line are enough to know what it is about.
WIDTH = 150


class Listing(list[T]):
    """A list whose ``str`` is a line for each of its items, as people read them."""

    def __init__(self, items: Iterable[T], line: Callable[[T], str] = str, empty: str = "none") -> None:
        super().__init__(items)
        self._line, self._empty = line, empty

    def __str__(self) -> str:
        return "\n".join(map(self._line, self)) or self._empty


def ten_lines(explained: Explanation) -> list[str]:
    """At most ten lines."""
    rows = [
        ("graphs", _graphs(explained)),
        ("kernels", _kernels(explained)),
        ("guards", _guards(explained)),
        ("compiled", _compiled(explained.compilations)),
        ("memory", _memory(explained)),
        ("again", _again(explained)),
        ("plain", _plain(explained)),
        ("next", next_step(explained)),
        ("more", ".details, .breaks, .guards, .graph, .code, .kernels, .memory, .html('report.html')"),
    ]
    return [_cut(_first(explained)), *(_cut(f"  {title:<9} {text}") for title, text in rows if text)]


def _first(explained: Explanation) -> str:
    name = explained.name
    if not explained.compilations:
        plain = [standing for standing in explained.standings if standing.why]
        return f"{name}: {plain[0].why if plain else 'compiled, and not called yet'}"
    once, breaks = _parted(explained.breaks)
    if not breaks:
        if not explained.has_bodies:
            waits = f"plain Python so far, the next call is captured: {once[0].reason}" if once else ""
            return f"{name}: {waits or 'no program of it is there now'}"
        first = f"; the first call was plain Python: {once[0].reason}" if once else ""
        others = "; other calls are plain Python from now on" * explained.plain_from_now_on
        return f"{name}: captured whole{first}{others}"
    where = breaks[0].places[0]
    others = f", and {counted(len(breaks) - 1, 'more break')}" if len(breaks) > 1 else ""
    return f"{name}: not captured whole: {where.filename.rpartition('/')[2]}:{where.line} {breaks[0].reason}{others}"


def _parted(breaks: Sequence[Break]) -> tuple[list[Break], list[Break]]:
    """The breaks of one call alone, and those that stay."""
    return [one for one in breaks if one.of_first_call], [one for one in breaks if not one.of_first_call]


def _graphs(explained: Explanation) -> str:
    return f"{summary(explained.outcomes)}, in {counted(len(explained.programs), 'program')}"


def _kernels(explained: Explanation) -> str:
    pieces = [piece for outcome in explained.outcomes for piece in outcome.pieces]
    count = sum(piece.kernels for piece in pieces)
    if not count:
        return f"none, for {counted(explained.op_count, 'operation')}" if explained.op_count else "none"
    cached = sum(half.from_cache for half in explained.generated)
    kept = f"; {cached} of {counted(len(explained.generated), 'program')} from the cache on disk" if cached else ""
    return f"{shares([piece for piece in pieces if piece.way is Way.KERNELS])}{kept}"


def _guards(explained: Explanation) -> str:
    checks = explained.guards
    by_line = sum(check.where is not None and bool(check.where.line) for check in checks)
    return f"{len(checks)}, {by_line} of them from lines of your source" if checks else "none"


def _compiled(compilations: Sequence[Compilation]) -> str:
    seconds = sum(taken for one in compilations for taken in one.seconds.values())
    return f"in {seconds:.2f} s: {timing(compilations)}" if compilations else ""


def _memory(explained: Explanation) -> str:
    kept = [value.size for value in explained.memory if not value.is_input]
    return f"{size_text(sum(kept))} saved for the backward, {counted(len(kept), 'value')}" if kept else ""


def _again(explained: Explanation) -> str:
    programs = [one for one in explained.compilations if one.conclusion is Conclusion.PROGRAM and one.is_recompilation]
    guards = failed_guards_of(programs)
    return f"recompiled {counted(len(guards), 'time')}; last because this guard failed: {guards[-1]}" if guards else ""


def _plain(explained: Explanation) -> str:
    plain = list(dict.fromkeys(str(standing) for standing in explained.standings if standing.why))
    return "; ".join(plain)


def next_step(explained: Explanation) -> str:
    """What is worth doing, the most useful thing first."""
    if not explained.compilations:
        return "call it, or explain(f)(*args)"
    once, breaks = _parted(explained.breaks)
    if breaks or (once and not explained.has_bodies):
        return [*breaks, *once][0].hint
    if len(explained.recompilations) > 2:
        return "pass what keeps changing as a tensor or keep it constant; for a size, call mark_dynamic"
    if explained.plain_from_now_on:
        return "'plain' says why; config.recompile_limit and config.wasted_capture_ratio set the limits"
    reasons = [reason for outcome in explained.outcomes for reason in outcome.reasons if not reason.startswith("small")]
    if reasons:
        return f"nothing to do; some of it is not in kernels: {reasons[0]}"
    return "nothing to do"


def size_text(size: int) -> str:
    """Bytes as people read them."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _cut(line: str) -> str:
    line = line.replace("\n", " ")
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def kernel_line(kernel: Any) -> str:
    """A kernel in a line, and what it computes below it."""
    head = f"{kernel.name}: reads {size_text(kernel.read)}, writes {size_text(kernel.written)}"
    return "\n".join([head, *(f"    {member}" for member in kernel.members)])


def saved_line(value: Any) -> str:
    """A value that is saved for the backward."""
    frame = value.where.partition("\n")[0].removeprefix("File ")
    where = f"  # {frame}" if frame else ""
    return f"{value.name}: {value.value}, {size_text(value.size)}{' (an input)' * value.is_input}{where}"
