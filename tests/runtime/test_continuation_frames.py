"""What a frame has at a break is there after it: variables, cells, ``self`` for super(), exceptions with tracebacks."""

import array
import re
import traceback
import weakref

import pytest
import torch
from test_continuations import BACKENDS, inputs, note, observed

import bothways
from bothways.testing import difference

NUMBERS = array.array("d", [1.0, 2.0])


def on_an_object_written_in_c(x):
    try:
        y = x * NUMBERS[0] + len(NUMBERS)
    except TypeError:
        return "no such operator"
    return y, 2.0 in NUMBERS, list(NUMBERS), NUMBERS == NUMBERS, bool(NUMBERS), (NUMBERS + NUMBERS).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_written_in_c_are_left_to_python(backend):
    compiled = bothways.compile(on_an_object_written_in_c, backend=backend)
    for make in (inputs(0), inputs(0), inputs(1)):
        assert difference(observed(on_an_object_written_in_c, make), observed(compiled, make)) is None


def test_an_exception_that_was_caught_before_a_break_has_its_traceback():
    def inner():
        try:
            {}["key"]  # the cause
        except KeyError:
            raise ValueError("no")  # the raise

    def outer(x):
        try:
            y = x + 1
            inner()  # the call
        except ValueError as error:
            seen.append(traceback.format_exception(error))
            y = x * 2
        return y

    seen = []
    compiled = bothways.compile(outer, backend="eager")
    for function in (outer, compiled, compiled):
        function(torch.ones(2))
    texts = [re.sub(r"\n +[~^]+(?=\n)", "", "".join(each)) for each in seen]
    assert texts[0] == texts[1] == texts[2]
    assert all(line in texts[0] for line in ("# the cause", "# the raise", "# the call"))


def test_an_exception_passes_a_finally_that_breaks():
    def program(x):
        try:
            y = x + 1
            [][3]
        finally:
            note("finally", x * 2)
            y = x * 3
        return y

    compiled = bothways.compile(program, backend="eager")
    for make in (inputs(0), inputs(0), inputs(1)):
        assert difference(observed(program, make), observed(compiled, make)) is None


def test_a_comprehension_with_the_name_of_a_variable_around_it():
    def program(x):
        v = 5

        def inner(t):
            doubled = [v * 2 for v in (1, 2)]
            note("inner")
            noted = [note(v) for v in (3, 4)]
            return t + v + sum(doubled) + sum(noted)

        y = inner(x)
        v = 7
        note("outer")
        return inner(y) + v, [v for v in (1, 2)]

    compiled = bothways.compile(program, backend="eager")
    for make in (inputs(0), inputs(0), inputs(1)):
        assert difference(observed(program, make), observed(compiled, make)) is None


def test_a_comprehension_with_the_name_of_a_variable_that_an_inner_function_shares():
    def program(x):
        v = x * 2
        kept = [note(v) for v in (1, 2)]
        later = lambda: v + 1
        note("between")
        more = [note(v) for v in kept]
        v = v * 3
        return later(), kept, more

    compiled = bothways.compile(program, backend="eager")
    for make in (inputs(0), inputs(0), inputs(1)):
        assert difference(observed(program, make), observed(compiled, make)) is None


class Parent:
    def scaled(self, x):
        return x * 2


class Child(Parent):
    def scaled(self, x):
        note("before")
        y = super().scaled(x)
        note(__class__.__name__)
        return super().scaled(y)


def test_super_after_a_break():
    def program(x):
        return Child().scaled(x)

    for plain in (program, Child().scaled):
        compiled = bothways.compile(plain, backend="eager")
        for make in (inputs(0), inputs(0), inputs(1)):
            assert difference(observed(plain, make), observed(compiled, make)) is None


@pytest.mark.parametrize("flags", [(False, True, False), (True, False, True)])
def test_a_shared_variable_that_is_bound_only_sometimes(flags):
    def program(x, flag):
        if flag:
            v = 1
        note("between")
        later = lambda: v
        try:
            return x + later()
        except NameError as error:
            return x, str(error)

    compiled = bothways.compile(program, backend="eager")
    for flag in flags:
        make = inputs(0)
        expected, got = (observed(lambda x: call(x, flag), make) for call in (program, compiled))
        assert difference(expected, got) is None


def test_a_tensor_that_is_not_needed_any_more_is_let_go_of():
    kept, alive = [], []

    @bothways.disable
    def keep(tensor):
        kept.append(weakref.ref(tensor))

    @bothways.disable
    def look():
        alive.append(kept[-1]() is not None)

    def program(x):
        y = x + 1
        keep(y)
        z = y * 2
        del y
        keep(z)
        z = z + 1
        note("in between")
        look()
        return z * 3

    compiled = bothways.compile(program, backend="eager")
    for function in (program, compiled, compiled):
        alive.clear()
        function(torch.ones(2))
        assert alive == [False]
