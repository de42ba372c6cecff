"""Guards that are checked again later: when a backward runs whose body was looked at with the forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bothways.capture.emit import Names
from bothways.capture.guards import Guard
from bothways.capture.render import RESERVED, GuardWriter
from bothways.capture.sources import Injected

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
    writer = GuardWriter(tracer, Names(RESERVED), listed)
    text = " and ".join(f"({writer.check(guard).code})" for guard in listed)
    holds: Callable[[], bool] = eval(f"lambda: {text}", tracer.namespace)

    def check() -> bool:
        try:
            return bool(holds())
        except (AttributeError, KeyError, IndexError):
            return False  # what the guard reads is not there any more

    return check
