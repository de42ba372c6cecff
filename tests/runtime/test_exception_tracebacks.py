"""Tracebacks of exceptions that captured code raises and catches: the user's lines are in them, as in plain Python."""

import traceback

import pytest
import torch
from agreeing import agree


def lines(error):
    """The places of this file in an exception's traceback, and in those of its parts."""
    found = traceback.extract_tb(error.__traceback__)
    own = [(place.name, place.lineno) for place in found if place.filename == __file__]
    return [own, *map(lines, getattr(error, "exceptions", ()))]


def outcome(function, *args):
    try:
        found = function(*args)
    except Exception as error:
        found = type(error), str(error), lines(error)
    return found, [lines(arg) for arg in args if isinstance(arg, BaseException)]


def lines_agree(program, make=lambda: ()):
    def observe(function, make):
        return {"what is returned or raised, with its lines": str(outcome(function, torch.ones(2), *make()))}

    agree(program, observe, make, make)


def raised():
    error = ValueError("raised before")
    try:
        raise error
    except ValueError:
        return (error,)


def made():
    return (ValueError("never raised"),)


def test_what_an_except_star_leaves_has_the_line_that_raised_it():
    def program(x):
        y = x + 1
        try:
            raise ExceptionGroup("group", [ValueError("a"), TypeError("b")])
        except* ValueError:
            y = y * 2
        return y

    lines_agree(program)


def test_an_except_star_that_raises_something_else():
    def program(x):
        y = x + 1
        try:
            raise ExceptionGroup("group", [ValueError("a"), TypeError("b")])
        except* ValueError:
            y = y * 2
            raise KeyError("inside") from None
        return y

    lines_agree(program)


def test_an_except_star_inside_another():
    def program(x):
        found = []
        try:
            try:
                raise ExceptionGroup("group", [ValueError("a"), TypeError("b")])
            except* ValueError:
                x = x * 2
        except* TypeError as rest:
            found.append(lines(rest))
        return x, found

    lines_agree(program)


@pytest.mark.parametrize("make", [raised, made])
def test_an_exception_from_outside_is_raised_and_caught(make):
    def program(x, error):
        try:
            raise error
        except ValueError:
            x = x + 1
        return x * 2

    lines_agree(program, make)


@pytest.mark.parametrize("make", [raised, made])
def test_an_exception_from_outside_passes_several_functions(make):
    def inner(error):
        raise error

    def program(x, error):
        try:
            try:
                inner(error)
            except ValueError:
                raise
        except ValueError:
            x = x + 1
        return x * 2

    lines_agree(program, make)


@pytest.mark.parametrize("make", [raised, made])
def test_a_traceback_is_taken_away(make):
    def program(x, error):
        error.__traceback__ = None
        return x + 1

    def again(x, error):
        try:
            raise error.with_traceback(None)
        except ValueError:
            x = x + 1
        return x

    lines_agree(program, make)
    lines_agree(again, make)


def test_an_exception_that_leaves_has_its_lines_once():
    def program(x, error):
        try:
            raise error
        except TypeError:
            x = x + 1
        return x

    lines_agree(program, raised)
