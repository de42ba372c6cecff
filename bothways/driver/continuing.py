"""How a function goes on after a break: the continuations that a program calls at its end, compiled like the function.

A capture comes in; its program's names then lead to a compiled continuation for each, which all functions of the same
code share.
"""

from __future__ import annotations

import types
import weakref

from bothways.capture.capture import Capture
from bothways.driver.pools import Pool
from bothways.record.standing import rest_of
from bothways.runtime.resume import Continuation, resumed, resumption_of


def connect(captured: Capture, original: types.FunctionType, pool: Pool) -> None:
    """Give a program what it calls at its end."""
    rests = pool.history.rests
    for continued in captured.continuations:
        captured.program.namespace[continued.name] = _continuation(continued, original, pool)
        if not continued.is_compiled and (rest := rest_of(continued, captured.broke)) not in rests:
            rests.append(rest)


def _continuation(continued: Continuation, original: types.FunctionType, pool: Pool) -> types.FunctionType:
    """The rest of a frame; a function that is itself the rest of one shares those of the function it began in."""
    if not continued.is_compiled:
        return resumed(continued.origin, continued.point)
    record = resumption_of(original)
    root: Pool = (record and record.root and record.root()) or pool
    origin = continued.origin
    # By the closure where it is that of this very function: what goes on there keeps it.
    key = origin.code, continued.point, None if origin.closure is None else id(origin.closure)
    known = root.continuations.get(key)
    if known is None:
        known = root.continuations[key] = root.part(resumed(origin, continued.point, weakref.ref(root)))
    return known
