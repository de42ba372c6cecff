"""Lists that get longer from call to call, as a training step's logs do: not a program for each length.

Their length is a number like others. What goes through the elements gets a few programs, then a break at that line;
the rest of the function stays captured.
"""

from collections import deque

import pytest
import torch

import bothways
from bothways.testing import difference

CALLS = range(14)


def counted(x, log):
    log.append(x.sum().item())
    return x * len(log) + (len(log) > 5)


def asked(x, log):
    if log:
        x = x + 1
    log.append(x.sum().item())
    return x * 2


def read_from_the_end(x, log):
    log.append(x.sum().item())
    log.append(1.5)
    log[-1] = 2.5
    return x * 2, log[-1], log[-2]


def averaged(x, log):
    y = x.sin() * 2
    log.append(y.sum().item())
    mean = sum(log) / len(log)
    return y.cos(), mean


def sliced(x, log):
    y = x.sin() * 2
    log.append(y.sum().item())
    return y.cos(), log[-3:], max(log)


def compared_with_the_one_before(x, log):
    better = not log or x.sum().item() < log[-1]
    log.append(x.sum().item())
    return x * 2, better


def put_in_front(x, log):
    y = x.exp()
    log.insert(0, len(log))
    return y * 2


# With the number of programs that are enough, however many calls there are.
PROGRAMS = {counted: 5, asked: 2, read_from_the_end: 1, averaged: 9, sliced: 14, compared_with_the_one_before: 14,
            put_in_front: 9}  # fmt: skip


def run(function, log, calls):
    return [function(torch.linspace(0, call + 1, 6), log) for call in calls]


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_log_does_not_make_a_program_for_each_call(program, backend):
    compiled = bothways.compile(program, backend=backend)
    expected, found = [], []
    assert difference(run(program, expected, CALLS), run(compiled, found, CALLS)) is None
    assert difference(expected, found) is None
    assert len(bothways.history(compiled)) <= PROGRAMS[program]
    enough = len(bothways.history(compiled))
    run(compiled, found, range(14, 18))
    assert len(bothways.history(compiled)) == enough


@pytest.mark.parametrize("kind", [deque, lambda: deque(maxlen=5)], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("program", [counted, asked, averaged], ids=lambda program: program.__name__)
def test_a_deque_that_fills_up(program, kind):
    def function(x, log):  # of this test alone: programs are shared by code
        return program(x, log)

    compiled = bothways.compile(function, backend="eager")
    expected, found = kind(), kind()
    assert difference(run(program, expected, CALLS), run(compiled, found, CALLS)) is None
    assert difference(list(expected), list(found)) is None
    assert len(bothways.history(compiled)) <= 16


def test_a_length_decides_and_is_guarded():
    def function(x, log):
        return x + 1 if len(log) > 5 else x - 1

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(3)
    for length in (2, 3, 4, 9, 5, 6, 100, 0, 1):
        assert torch.equal(compiled(x, [0.0] * length), function(x, [0.0] * length))
    assert len(bothways.history(compiled)) <= 5


def test_lists_of_few_lengths_still_have_a_program_each():
    def function(tensors):
        return sum(tensor * 2 for tensor in tensors)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for count in (2, 3, 2, 3):
        tensors = [torch.ones(3) * index for index in range(count)]
        assert torch.equal(compiled(tensors), function(tensors))
    assert len(bothways.history(compiled)) == 2
