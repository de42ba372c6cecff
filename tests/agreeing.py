"""The one comparison of a program plain and compiled: what a call shows, by name, has to be the same on both sides.

A test says what it looks at: ``observe(function, call)`` runs one call and gives a dictionary of results, gradients,
arguments afterwards, what was raised, the order of hooks. What differs is named when it fails, with the call, the
backend and both values.
"""

import contextlib

import pytest
from staying import stays_compiled

import bothways
from bothways.testing import difference

BACKENDS = ("eager", "aot_eager", "native")


def agree(program, observe, *calls, backend="eager", reset=None, programs=None, within=(), may_fail=False, **options):
    """Observe every call of the program plain, then compiled, and compare; the compiled function is returned.

    ``calls`` are handed to ``observe`` one by one; a call that is there twice has to hit the second time, which
    ``programs``, the number of compilations after all of them, makes sure of. ``reset`` is called before each side.
    Unless it ``may_fail``, no graph of a ``fullgraph`` function does where plain Python then comes through. ``within``
    are the settings under which both run, ``tol`` how close numbers are; other options are ``compile``'s.
    """
    tolerance = {name: options.pop(name) for name in ("tol", "exact_dtype") if name in options}
    sides = []
    with contextlib.ExitStack() as around:
        if options.get("fullgraph") and not may_fail:
            around.enter_context(stays_compiled())
        compiled = bothways.compile(program, backend=backend, **options)
        if within:
            around.enter_context(bothways.config.patch(**dict(within)))
        for function in (program, compiled):
            if reset is not None:
                reset()
            sides.append([observe(function, call) for call in calls])
    for number, (expected, found) in enumerate(zip(*sides, strict=True), 1):
        assert_same(expected, found, f"call {number} of {len(calls)}, backend {backend}", **tolerance)
    if programs is not None:
        compilations = bothways.history(compiled)
        assert len(compilations) == programs, (
            f"{len(compilations)} programs instead of {programs} after {len(calls)} calls, backend {backend}: "
            f"{[compilation.why for compilation in compilations]}"
        )
    return compiled


def assert_same(expected, found, where, **tolerance):
    """Compare what was observed plain and compiled, name by name; ``where`` begins the complaint."""
    assert list(expected) == list(found), f"{where}: plain shows {list(expected)}, compiled {list(found)}"
    for name, value in expected.items():
        differs = difference(value, found[name], **tolerance)
        assert differs is None, f"{where}: {name}: {differs}\nplain    {value}\ncompiled {found[name]}"


def assert_raises_alike(function, compiled, *args, characters=None):
    """Both raise the same twice, compared by class and by the first line of the text, or so many characters of it."""
    with pytest.raises(Exception) as expected:  # noqa: PT011
        function(*args)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as raised:
            compiled(*args)
        told = [str(error.value).partition("\n")[0][:characters] for error in (expected, raised)]
        assert told[0] == told[1]
