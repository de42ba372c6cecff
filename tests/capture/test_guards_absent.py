"""What a program does not rely on is not guarded: one program serves however it changes."""

import pytest
import torch
from guarding import Steps, is_one_program

import bothways
from bothways.testing import CompileCounter

X = torch.arange(4.0)
SCALE = 2


class Plain:
    def __init__(self):
        self.own = 1



@pytest.mark.parametrize("value", [1, "a", None, X, [1], {}, int], ids=lambda value: type(value).__name__)
def test_an_argument_that_is_only_passed_on(value):
    is_one_program(lambda x, y: x + 1, (X, 0), (X, value))
    is_one_program(lambda x, y: (x + 1, y), (X, 0), (X, value))
    is_one_program(lambda x, y: {"sum": x + 1, "rest": [y]}, (X, 0), (X, value))


def test_whether_it_is_none_says_nothing_else():
    is_one_program(lambda x, y: x + 1 if y is None else x - 1, (X, X), (X, torch.ones(9)), (X, 3), (X, "a"))


def test_elements_that_are_not_read():
    is_one_program(lambda x, values: x + values[0], (X, [1, 2]), (X, [1, "b"]), (X, [1]), (X, [1, 2, 3]))


def test_keys_that_are_not_read():
    is_one_program(lambda x, d: x + d["a"], (X, {"a": 1}), (X, {"b": 2, "a": 1}), (X, {"a": 1, "c": X}))
    is_one_program(lambda x, d: x + d.get("a", 0), (X, {}), (X, {"b": 2}))


def test_attributes_that_are_not_read():
    one, other = Plain(), Plain()
    other.extra = 7
    is_one_program(lambda x, o: x + o.own, (X, one), (X, other))


def test_a_list_that_is_only_appended_to():
    def program(x, values):
        values.append(x + 1)

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    values = []
    for _ in range(3):
        compiled(X, values)
    assert [value.tolist() for value in values] == [(X + 1).tolist()] * 3
    assert counter.frame_count == 1


def test_a_dictionary_that_is_only_stored_into():
    def program(x, d):
        d["sum"] = x + 1

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    for d in ({}, {"a": 1}, {"sum": 0}):
        compiled(X, d)
        assert torch.equal(d["sum"], X + 1)
    assert counter.frame_count == 1


def test_an_attribute_that_is_only_stored():
    def program(x, o):
        o.sum = x + 1

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    owner = Plain()
    for _ in range(3):
        compiled(X, owner)
        assert torch.equal(owner.sum, X + 1)
    assert counter.frame_count == 1


def test_globals_that_are_not_read(monkeypatch):
    steps = Steps(lambda x: x + 1)
    steps.agree(X, frames=1)
    monkeypatch.setitem(globals(), "SCALE", 9)
    steps.agree(X, frames=1)
