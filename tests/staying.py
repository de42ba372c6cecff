"""Whether calls stay in their programs: a graph that fails at each call gives the right answer slowly, as plain Python.

A test that compares plain and compiled could not tell; under ``stays_compiled`` such a call is a failure of the test.
"""

import contextlib
from unittest import mock

from bothways.runtime import logs


@contextlib.contextmanager
def stays_compiled(functions=()):
    """No graph raises where plain Python then comes through, while this is open, of functions that are compiled in it.

    ``functions`` are looked at in the end: none has been given up.
    """
    failures = []

    def fell_back(failure):
        failures.append(failure)
        told(failure)

    told = logs.ran_plainly_after
    with mock.patch.object(logs, "ran_plainly_after", fell_back):
        yield
    complaints = [f"{type(failure).__name__}: {failure}" for failure in failures]
    assert not failures, f"{len(failures)} calls ran as plain Python after their graph had failed: {complaints[0]}"
    for function in functions:
        for standing in function.__bothways__.standings:
            assert not standing.for_good, str(standing)
