"""What the tests of modules share: the same module plain and compiled, changed alike, must stay alike."""

import copy

import torch
from agreeing import assert_same

import bothways
from bothways.testing import CompileCounter

X = torch.arange(12.0).reshape(3, 4) / 10


def pair(make):
    """The same module twice, and a compiled function that calls the second."""
    torch.manual_seed(0)
    plain = make()
    other = copy.deepcopy(plain)
    counter = CompileCounter()
    return plain, other, bothways.compile(lambda *args: other(*args), backend=counter, fullgraph=True), counter


def check(plain, other, run, *args):
    """Outputs, parameters, buffers and the random state agree after a call of each."""
    sides = []
    for function, module in ((plain, plain), (run, other)):
        torch.manual_seed(1)
        result = function(*args)
        sides.append({"result": result, "state": module.state_dict(), "the next random number": torch.rand(1)})
    assert_same(*sides, f"called with {args}")


def check_changes(make, *changes, args=(X,)):
    """Each change is made to both modules and must be noticed."""
    plain, other, run, counter = pair(make)
    check(plain, other, run, *args)
    check(plain, other, run, *args)
    assert counter.frame_count == 1
    for change in changes:
        change(plain), change(other)
        check(plain, other, run, *args)
        check(plain, other, run, *args)
    return counter
