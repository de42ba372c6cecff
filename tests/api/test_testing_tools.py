"""bothways.testing: the comparison, the backends that count and record, the text of graphs."""

import collections
import dataclasses
import functools
import io
import operator
import unittest

import pytest
import torch
from torch import fx

import bothways
from bothways.testing import (
    CompileCounter,
    CompileCounterWithBackend,
    RecordGraphs,
    TestCase,
    difference,
    normalize_gm,
    same,
)

NAN = float("nan")


def tensor(*values, **options):
    return torch.tensor(values, **options)


@dataclasses.dataclass
class Point:
    x: object
    y: object = None


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Empty:
    pass


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensor(1.0, 2.0),
        lambda: tensor(1, 2),
        lambda: tensor(True, False),
        lambda: tensor(1 + 2j),
        lambda: tensor(NAN, float("inf")),
        lambda: torch.empty(0, 3),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.empty(2, device="meta"),
        lambda: torch.ones(2, requires_grad=True),
        lambda: None,
        lambda: NAN,
        lambda: complex(NAN, 1),
        lambda: [1, 2.5, "a", b"b", True, None, ..., slice(1, 2), range(3)],
        lambda: {"a": tensor(1.0), 2: (tensor(2.0), [3])},
        lambda: {1, 2},
        lambda: collections.OrderedDict(a=tensor(1.0)),
        lambda: collections.deque([tensor(1.0)]),
        lambda: Pair(tensor(1.0), 2),
        lambda: Point(tensor(1.0), [Point(1)]),
        lambda: Slotted(tensor(1.0)),
        lambda: Empty(),
        lambda: functools.partial(max, tensor(1.0), key=len),
        lambda: ValueError("message", tensor(1.0)),
        lambda: (torch.float32, torch.device("cpu"), torch.Size([1, 2])),
        lambda: (len, Empty, operator, torch.sin),
        lambda: torch.nn.BatchNorm1d(2),
    ],
)
def test_same_when_built_twice(make):
    assert difference(make(), make()) is None
    assert same(make(), make())


@pytest.mark.parametrize(
    "a, b, message",
    [
        (tensor(1.0), tensor(1.1), "result: values differ in 1 of 1 elements"),
        (tensor(1.0), torch.tensor(1.0), "shape (1,) and ()"),
        (tensor(1.0), tensor(1.0, dtype=torch.float64), "dtype torch.float32 and torch.float64"),
        (tensor(1.0), torch.ones(1, device="meta"), "device"),
        (tensor(1.0, NAN), tensor(NAN, 1.0), "2 of 2"),
        (tensor(1, 2), tensor(1, 3), "most at element 1: 2 and 3"),
        (tensor(1.0), 1.0, "a tensor of shape (1,) and float 1.0"),
        (1, 1.0, "int 1 and float 1.0"),
        (True, 1, "bool True and int 1"),
        (1, 2, "1 and 2"),
        (1.0, 1.1, "1.0 and 1.1"),
        (None, 1, "NoneType None and int 1"),
        ("a", "b", "'a' and 'b'"),
        ([1, 2], [1], "[1] only on the left"),
        ([1, [2, 3]], [1, [2, 4]], "result[1][1]: 3 and 4"),
        ({"a": 1}, {"b": 1}, "['a'] only on the left, ['b'] only on the right"),
        ({"a": [1]}, {"a": [2]}, "result['a'][0]: 1 and 2"),
        ([1], {0: 1}, "list [1] and dict {0: 1}"),
        (Point(1), Point(2), "result.x: 1 and 2"),
        (Slotted(1), Slotted(2), "result.value: 1 and 2"),
        (Point(1), Slotted(1), "Point"),
        (functools.partial(max, 1), functools.partial(max, 2), "result.args[0]: 1 and 2"),
        ({1, 2}, {1, 3}, "{1, 2} and {1, 3}"),
    ],
)
def test_difference_says_where_and_how(a, b, message):
    assert message in difference(a, b)
    assert not same(a, b)


def test_kinds_of_sequence_and_of_mapping_are_interchangeable():
    assert same((1, tensor(2.0)), [1, tensor(2.0)])
    assert same({"a": 1, "b": 2}, collections.OrderedDict(b=2, a=1))


def test_options_of_same():
    assert same(tensor(1.0), tensor(1.05), tol=0.1)
    assert not same(tensor(1.0), tensor(1.00001), tol=0)
    assert not same(NAN, NAN, equal_nan=False)
    assert not same(tensor(NAN), tensor(NAN), equal_nan=False)
    assert same(tensor(1.0), tensor(1.0, dtype=torch.float64), exact_dtype=False)
    assert same(1, 1.0, exact_dtype=False)
    assert same(tensor(1), tensor(2), ignore_non_fp=True)
    assert same(tensor(1.0, 2.0), tensor(1.01, 2.0), cos_similarity=True)
    assert not same(tensor(1.0, 0.0), tensor(0.0, 1.0), cos_similarity=True)
    messages = []
    assert not same([1], [2], log_error=messages.append)
    assert messages == ["result[0]: 1 and 2"]


def test_a_double_precision_reference_forgives_rounding():
    exact = torch.linspace(0, 1000, 100, dtype=torch.float64) / 3
    low = exact.to(torch.bfloat16)
    other = low + 0.4 * (exact - low).abs().mean().to(torch.bfloat16)
    assert not same([low], [other], tol=1e-5)
    assert same([low], [other], fp64_ref=[exact], tol=1e-5)
    assert not same([low], [low + 10], fp64_ref=[exact], tol=1e-5)


def test_numpy_values():
    numpy = pytest.importorskip("numpy")
    assert same(numpy.ones(2), numpy.ones(2))
    assert same(numpy.float32(1), numpy.float32(1))
    assert same(numpy.array(["a", "b"]), numpy.array(["a", "b"]))
    assert not same(numpy.array(["a", "b"]), numpy.array(["a", "c"]))
    assert not same(numpy.ones(2), numpy.zeros(2))
    assert not same(numpy.ones(2), torch.ones(2, dtype=torch.float64))
    assert same(numpy.ones(2), torch.ones(2, dtype=torch.float64), relax_numpy_equality=True)


def test_structures_that_contain_themselves():
    def knot(value):
        ring, point = [value], Point(value)
        ring.append(ring)
        point.y = point
        return ring, point

    assert same(knot(1), knot(1))
    assert not same(knot(1), knot(2))


def two_op_graph():
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.add, (x, 1))
    graph.output((graph.call_method("relu", (y,)),))
    return fx.GraphModule(torch.nn.Module(), graph)


def test_compile_counter():
    counter, gm, x = CompileCounter(), two_op_graph(), torch.randn(3)
    assert same(counter(gm, [x])(x), ((x + 1).relu(),))
    counter(gm, [x])
    assert (counter.frame_count, counter.op_count) == (2, 4)
    counter.clear()
    assert (counter.frame_count, counter.op_count) == (0, 0)


def test_compile_counter_with_backend():
    counter, gm, x = CompileCounterWithBackend("eager"), two_op_graph(), torch.randn(3)
    assert same(counter(gm, [x])(x), ((x + 1).relu(),))
    assert (counter.frame_count, counter.op_count, counter.graphs) == (1, 2, [gm])
    counter.clear()
    assert (counter.frame_count, counter.op_count, counter.graphs) == (0, 0, [])
    with pytest.raises(bothways.errors.InvalidBackend):
        CompileCounterWithBackend("unknown")


def test_record_graphs():
    recorded, gm, x = RecordGraphs(), two_op_graph(), torch.randn(3)
    assert recorded and len(recorded) == 0
    with pytest.raises(AssertionError, match="0 were compiled"):
        recorded.only
    assert same(recorded(gm, [x])(x), ((x + 1).relu(),))
    assert recorded.only.inputs == ["x"]
    assert recorded.only.ops == ["add", "relu"]
    assert recorded.only.gm is recorded.graphs[0] is recorded[0].gm is gm
    assert recorded.only.example_inputs[0] is x
    assert "torch.add(x, 1)" in recorded.only.code
    recorded.clear()
    assert list(recorded) == []


def test_normalize_gm():
    printed = """\
# a comment line
class GraphModule(torch.nn.Module):
    # File: somewhere.py:1


    def forward(self, x):   # stays
        y = x + 1;  x = None   \n
        # Another

        return (y,)
"""
    assert (
        normalize_gm(printed)
        == """\
class GraphModule(torch.nn.Module):

    def forward(self, x):   # stays
        y = x + 1;  x = None

        return (y,)
"""
    )


def test_test_case_resets_around_each_test(monkeypatch):
    calls = []
    monkeypatch.setattr(bothways, "reset", lambda: calls.append("reset"))

    class Example(TestCase):
        def test_passes(self):
            calls.append("test")
            self.assertSame([tensor(1.0)], [tensor(1.0)])

        def test_shows_the_difference(self):
            self.assertSame([1], [2])

    suite = unittest.TestSuite([Example("test_passes"), Example("test_shows_the_difference")])
    result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
    assert calls == ["reset", "test", "reset", "reset", "reset"]
    assert "result[0]: 1 and 2" in result.failures[0][1]
