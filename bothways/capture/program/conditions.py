"""Guards that are checked again later: when a backward runs whose body was looked at with the forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from bothways.calls.call_library import call_library
from bothways.capture.guards.guards import STAMPED, Guard
from bothways.capture.guards.sources import Injected
from bothways.capture.program.guard_table import TableWriter
from bothways.capture.program.guard_text import RESERVED, GuardWriter
from bothways.capture.writing.emit import FreeNames
from bothways.config import config

if TYPE_CHECKING:
    from bothways.capture.tracer import Tracer


def can_be_checked_later(guard: Guard) -> bool:
    """Whether the guard needs no argument of the call: it is about globals, classes and what they lead to."""
    return all(isinstance(source.root, Injected) for source in guard.sources)


def condition(tracer: Tracer, guards: Iterable[Guard]) -> Callable[[], bool] | None:
    """A function that tells whether the guards hold when it is called; None when there are none."""
    listed = list(dict.fromkeys(guards))
    if not listed:
        return None
    if any(source.root == tracer.names.root for guard in listed for source in guard.sources):
        tracer.names.bind()  # what is made here looks at the closure of this very function
    names, stamped = _in_table(listed)
    writer = GuardWriter(tracer, FreeNames(RESERVED), listed)
    texts = [f"({writer.check(guard).code})" for guard in listed if guard not in stamped]
    if names is not None:
        texts.append(f"{tracer.inject(names, 'definitions').key}()")
    holds: Callable[[], bool] = eval(f"lambda: {' and '.join(texts)}", tracer.names.namespace)

    def check() -> bool:
        try:
            return bool(holds())
        except Exception:
            return False  # what the guard reads is not there any more

    return check


def _in_table(guards: list[Guard]) -> tuple[Callable[[], Any] | None, frozenset[Guard]]:
    """A function in C that checks the stamps among the guards, and which those are."""
    library = call_library() if config.guards_in_c else None
    stamped = frozenset(guard for guard in guards if guard.template == STAMPED)
    if library is None or not stamped:
        return None, frozenset()
    table = TableWriter((), {})
    assert all(map(table.takes, stamped))
    return table.finish(library, ()).check(), stamped
