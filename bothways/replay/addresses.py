"""Whether tensors lie where they lay when a graph was recorded: one question to C for all of a call's inputs."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from bothways.building.build import CSource, library_of
from bothways.calls.bound_names import PYTHON, TORCH, makers, text_with_names, usual_functions
from bothways.calls.call_library import call_library
from bothways.calls.entry_source import ENTER
from bothways.errors import BothwaysError

ANYWHERE = -1  # of an input that is copied, or no tensor

COMPARE = """\
static PyObject *compare(PyObject *self, PyObject *const *arguments, int64_t count) {
    const int64_t *expected = (const int64_t *)PyBytes_AsString(self);
    PyObject *answer = count == expected[0] ? yes : no;
    for (int64_t index = 0; answer == yes && index < count; ++index) {
        Given given;
        if (expected[index + 1] == -1) continue;
        if (!take(arguments[index], 'p', &given)) return 0;
        if (given.number != expected[index + 1]) answer = no;
    }
    Py_IncRef(answer);
    return answer;
}

static Method comparing = {"lie_there", compare, FASTCALL, 0};

PyObject *make_comparison(PyObject *expected, PyObject *kept) { return PyCFunction_NewEx(&comparing, expected, kept); }
"""


def lying_at(addresses: Sequence[int]) -> Callable[..., bool]:
    """A function of as many tensors that tells whether each lies at its address, or may lie anywhere."""
    make = _make()
    if make is not None:
        there: Callable[..., bool] = make(struct.pack(f"{len(addresses) + 1}q", len(addresses), *addresses), None)
        return there
    fixed = [(place, address) for place, address in enumerate(addresses) if address != ANYWHERE]
    return lambda *values: all(values[place].data_ptr() == address for place, address in fixed)


@functools.cache
def _make() -> Any:
    """What makes a builtin function of addresses; None where there can be none."""
    if call_library() is None:  # whose tries show that tensors are what they are taken for
        return None
    try:
        library = library_of(CSource((), (text_with_names({**PYTHON, **TORCH}, ENTER, COMPARE),)))
    except (BothwaysError, OSError, RuntimeError):
        return None
    [make] = makers(library, usual_functions(), "make_comparison")
    return make
