"""The kernels of a program once more, with the clock read after each of them: for profiles, and built only then."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from bothways.building.build import CSource, library_of
from bothways.calls.call_library import entry
from bothways.lower.dialects.c.prelude import HELPERS
from bothways.lower.dialects.c.products import bound
from bothways.lower.host.dialect import Timed

_ROUTINE = re.compile(r"^void (run_\d+)\(const Given \*given\) \{\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"^(    kernel_\w+\(.*\);)$", re.MULTILINE)
CLOCK = """\
typedef struct { long seconds, nanoseconds; } Moment;
extern int clock_gettime(int, Moment *);
static int64_t at_moment(void) {
    Moment now;
    clock_gettime(1, &now);
    return (int64_t)now.seconds * 1000000000 + now.nanoseconds;
}

"""

def timed_routines(text: str, kinds: Mapping[str, str]) -> dict[str, Timed]:
    """The routines of a program by name."""
    source = CSource((), (CLOCK + _ROUTINE.sub(_with_moments, text),), HELPERS)
    library = library_of(source)
    bound(library)
    timed: dict[str, Timed] = {}
    for routine, body in _ROUTINE.findall(text):
        count = len(_CALL.findall(body)) + 1
        moments = (ctypes.c_int64 * count).in_dll(library, f"{routine}_moments")
        timed[routine] = entry(library.address(routine), kinds[routine], library), _reader(moments)
    return timed


def _reader(moments: Any) -> Callable[[], list[int]]:
    def read() -> list[int]:
        known = list(moments)
        return [after - before for before, after in itertools.pairwise(known)]

    return read


def _with_moments(routine: re.Match[str]) -> str:
    name, body = routine.groups()
    calls = iter(range(1, len(_CALL.findall(body)) + 1))
    body = _CALL.sub(lambda call: f"{call[1]}\n    {name}_moments[{next(calls)}] = at_moment();", body)
    count = len(_CALL.findall(routine[2])) + 1
    head = f"int64_t {name}_moments[{count}];\nvoid {name}(const Given *given) {{\n    {name}_moments[0] = at_moment();"
    return f"{head}\n{body}}}"
