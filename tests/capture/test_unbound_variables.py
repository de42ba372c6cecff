"""Unbound variables raise plain Python's errors, before and after a break: free ones another than local ones."""

# ruff: noqa: F821

import agreeing
import pytest
import torch

import bothways


@bothways.disable
def note():
    """Where a graph ends."""


def read_after_a_break(x):
    if x is None:
        t = 1

    def inner(v):
        note()
        return v + t

    return inner(x)


def read_in_a_default(x):
    if x is None:
        t = 1

    def inner(v):
        note()

        def innermost(by=t):
            return by

        return v + innermost()

    return inner(x)


def deleted_before_a_break(x):
    t = 2

    def inner(v):
        nonlocal t
        del t
        note()
        return v + t

    return inner(x)


def deleted_twice(x):
    if x is None:
        t = 1

    def inner(v):
        nonlocal t
        v = v + 1
        del t
        return v

    return inner(x)


def deleted_by_its_own(x):
    t = x

    def inner():
        return t

    del t
    note()
    return inner()


def local_in_a_cell(x):
    def inner():
        return t

    note()
    del t
    return inner()


def stored_in_time(x):
    def inner(v):
        nonlocal t
        note()
        t = v * 2
        note()
        return t

    result = inner(x)
    t = 1
    return result


PROGRAMS = [
    read_after_a_break, read_in_a_default, deleted_before_a_break, deleted_twice, deleted_by_its_own, local_in_a_cell,
    stored_in_time,
]  # fmt: skip


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", agreeing.BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_errors_of_unbound_variables(program, backend):
    def observe(function, size):
        try:
            return {"result": function(torch.ones(size))}
        except NameError as error:
            return {"error": (type(error), str(error), error.name)}

    agreeing.agree(program, observe, 2, 2, 3, backend=backend)


def test_the_variable_of_a_made_function_that_is_bound_is_given_to_what_goes_on():
    """The function is another one at each call, and the programs are the same."""

    def program(x):
        t = x * 2

        def inner(v):
            note()
            return v + t

        return inner(x)

    agreeing.agree(program, lambda function, x: {"result": function(x)}, *[torch.ones(2)] * 3, programs=3)
