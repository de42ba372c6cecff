"""When a call has raised, and that was caught, no exception is being handled any more, wherever its function broke."""

import sys

import pytest
import torch

import bothways


@bothways.disable
def fail():
    raise ValueError("failed")


class Manager:
    def __enter__(self):
        return self

    def __exit__(self, *given):
        return False


def with_around(x, log):
    with Manager():
        for _ in iter(lambda: 1, None):
            try:
                fail()
            finally:
                log.append("left")


def finally_around(x, log):
    try:
        for _ in iter(lambda: 1, None):
            try:
                fail()
            finally:
                log.append("inner")
    finally:
        log.append("outer")


def except_around(x, log):
    try:
        for _ in iter(lambda: 1, None):
            try:
                fail()
            except KeyError:
                log.append("not here")
    except ValueError as error:
        log.append(str(error))
        raise KeyError("another") from None


@pytest.mark.parametrize("function", [with_around, finally_around, except_around])
def test_no_exception_is_handled_after_it_was_caught(function):
    """A loop's iterator goes while an exception passes through; the rest of the frame then runs as plain Python."""
    compiled = bothways.compile(function, backend="eager")
    for _ in range(3):
        seen = []
        for call in (function, compiled):
            log = []
            try:
                call(torch.ones(2), log)
            except Exception as error:
                seen.append((repr(error), repr(error.__context__), log))
            assert sys.exc_info() == (None, None, None)
        assert seen[0] == seen[1]
