"""What special methods answer: Python refuses some answers, and so does a compiled function."""

import operator
import types

import pytest
import torch
from agreeing import agree

import bothways
from bothways.testing import same

X = torch.ones(3)


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def having(method, answer, bases=(), meta=type):
    return meta("Having", bases, {method: lambda self, *args: answer})


def agree_on_answers(function, make, *, backend="eager"):
    """Objects of a class with a method are given, the answer of which is right, then wrong."""
    agree(function, lambda run, _: {"outcome": outcome(run, X, make())}, 1, 2, backend=backend)


TRUTHS = {
    "if": lambda x, o: x + 1 if o else x - 1,
    "not": lambda x, o: x + (not o),
    "bool": lambda x, o: x + bool(o),
    "and": lambda x, o: (o and x) is x,
    "truth": lambda x, o: x + operator.truth(o),
    "all": lambda x, o: x + all([o]),
    "filter": lambda x, o: x + len(list(filter(None, [o]))),
    "comprehension": lambda x, o: [y for y in [x] if o],
}


@pytest.mark.parametrize("answer", [True, False, 1, 1.5, None, "yes"])
@pytest.mark.parametrize("asked", TRUTHS)
def test_a_truth_is_true_or_false(asked, answer):
    agree_on_answers(TRUTHS[asked], having("__bool__", answer))


@pytest.mark.parametrize("answer", [0, 2, True, -1, 1.5, "long", None, 10**30])
@pytest.mark.parametrize("asked", ["if", "bool"])
def test_a_truth_by_length(asked, answer):
    agree_on_answers(TRUTHS[asked], having("__len__", answer))


ASKED = [
    ("__len__", lambda x, o: x + len(o), [2, True, -1, 1.5, "long", 10**30]),
    ("__hash__", lambda x, o: x + len({o: 1}), [3, -1, 1.5, "a", None, 10**30]),
    ("__hash__", lambda x, o: x + hash(o) % 7, [3, -1, 1.5, "a", None, 10**30]),
    ("__index__", lambda x, o: x + [5, 6, 7][o], [1, 1.5, "a", None]),
    ("__index__", lambda x, o: x + len(range(o)), [1, 1.5, "a", None]),
    ("__index__", lambda x, o: x + operator.index(o), [1, 1.5, "a", None]),
    ("__index__", lambda x, o: x + int(o), [1, 1.5, "a", None]),
    ("__int__", lambda x, o: x + int(o), [1, 1.5, "a", None]),
    ("__float__", lambda x, o: x + float(o), [1.5, 1, "a", None]),
    ("__complex__", lambda x, o: x + complex(o), [1j, 1.5, 1, "a", None]),
    ("__bytes__", lambda x, o: x + len(bytes(o)), [b"abc", 1, "a"]),
    ("__str__", lambda x, o: x + len(str(o)), ["abc", 1.5, None]),
    ("__str__", lambda x, o: x + len(f"{o}"), ["abc", 1.5, None]),
    ("__repr__", lambda x, o: x + len(repr(o)), ["abc", 1.5, None]),
    ("__repr__", lambda x, o: x + len("%r" % (o,)), ["abc", 1.5, None]),
    ("__format__", lambda x, o: x + len(f"{o:3}"), ["abc", 1.5, None]),
    ("__length_hint__", lambda x, o: x + operator.length_hint(o), [3, -1, "a", NotImplemented]),
]


@pytest.mark.parametrize("method, function, answers", ASKED)
def test_answers_that_python_refuses(method, function, answers):
    for answer in answers:
        agree_on_answers(function, having(method, answer))


@pytest.mark.parametrize("answer", [None, "a", 1.5, X])
def test_init_gives_nothing(answer):
    cls = having("__init__", answer)

    def function(x, o):
        try:
            cls()
        except TypeError as error:
            return x + len(str(error))
        return x

    agree_on_answers(function, object)


@pytest.mark.parametrize("answer", [True, 1, "a"])
def test_a_class_with_a_metaclass(answer):
    meta = type("Meta", (type,), {"__bool__": lambda cls: answer, "__repr__": lambda cls: "shown"})
    cls = meta("Having", (), {})
    agree_on_answers(lambda x, o: x + 1 if cls else x - 1, object)
    agree_on_answers(lambda x, o: (x + 1, str(cls), repr(cls), f"{cls}"), object)


def test_the_exception_is_one_that_captured_code_can_catch():
    def function(x, o):
        try:
            return x + 1 if o else x - 1
        except TypeError as error:
            return x * 2, str(error)

    for answer in (True, 1):
        make = having("__bool__", answer)
        compiled = bothways.compile(function, backend="eager", fullgraph=True)
        assert same(compiled(X, make()), function(X, make())) and same(compiled(X, make()), function(X, make()))


def test_a_tensor_is_no_truth():
    agree_on_answers(lambda x, o: x + 1 if o else x - 1, having("__bool__", X[0]))


def test_a_length_that_is_a_size_stays_one():
    class Batch:
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return self.data.shape[0]

    def function(batch):
        return batch.data * 2 + 1 if batch else batch.data

    compiled = bothways.compile(function, backend="eager", fullgraph=True, dynamic=True)
    for rows in (3, 4, 5):
        assert same(compiled(Batch(torch.ones(rows))), function(Batch(torch.ones(rows))))
    assert len(bothways.history(compiled)) == 1


def test_the_text_of_a_namespace_is_asked_for_once():
    class Named(types.SimpleNamespace):
        def __repr__(self):
            self.asked += 1
            return "named"

    def function(x, o):
        return x + len(repr(o)), o.asked

    agree_on_answers(function, lambda: Named(asked=0))
