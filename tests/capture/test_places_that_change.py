"""Elements at places that change from call to call: one program serves them all."""

import pytest
import torch

import bothways
from bothways.testing import RecordGraphs, same

BACKENDS = ("eager", "aot_eager", "native")

READS = {
    "the first dimension": lambda x, i: x[i],
    "a column": lambda x, i: x[:, i],
    "behind all others": lambda x, i: x[..., i],
    "before all others": lambda x, i: x[i, ...],
    "beside a place that stays": lambda x, i: x[0, :, i],
    "two of them": lambda x, i: x[i, :, i + 1],
    "from the end": lambda x, i: x[:, -i],
    "a whole element": lambda x, i: x[i, i, i],
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_reading(name, backend):
    read = READS[name]

    def function(x, i):
        return read(x * 2, i).sin() * 3

    recorded = RecordGraphs(backend)
    compiled = bothways.compile(function, backend=recorded, fullgraph=True)
    for i in (2, 3, 4, 5, 6):
        x = torch.randn(8, 8, 8, requires_grad=True)
        expected, got = function(x, i), compiled(x, i)
        torch.testing.assert_close(got, expected)
        assert same(*(torch.autograd.grad(result.sum(), x) for result in (expected, got)))
    assert len(recorded) == 2  # for the first place, and for all others


# What is no place and no whole dimension, what is no tuple, and what is an error.
OTHERS = {
    "a part of a dimension": lambda x, i: x[1:, i],
    "a new dimension": lambda x, i: x[:, i, None],
    "a list": lambda x, i: x[[0, 1], i],
    "a tensor": lambda x, i: x[torch.tensor([0, 1]), i],
    "a mask": lambda x, i: x[True, i],
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_indices_are_as_ever(name, backend):
    read = OTHERS[name]

    def function(x, i):
        return read(x * 2, i).sin() * 3

    compiled = bothways.compile(function, backend=backend)
    for i in (2, 3, 4):
        x = torch.randn(8, 8, 8)
        torch.testing.assert_close(compiled(x, i), function(x, i))


@pytest.mark.parametrize("read", [lambda x, i: x[:, i], lambda x, i: x[..., 0, 0, 0, i], lambda x, i: x[..., ..., i]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_place_that_is_not_there(read, backend):
    def function(x, i):
        return read(x, i) * 2

    def outcome(call, *args):
        try:
            return call(*args)
        except (IndexError, RuntimeError, TypeError) as error:
            return type(error), str(error)

    compiled = bothways.compile(function, backend=backend)
    x = torch.arange(24.0).reshape(4, 6)
    for i in (2, 3, 6, 5, -6, -7, 4):
        assert same(outcome(function, x, i), outcome(compiled, x, i))


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("value", ["tensor", "one that broadcasts", "another dtype", "number"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_writing(dim, value, backend):
    values = {
        "tensor": torch.arange(8.0), "one that broadcasts": torch.full((1,), 5.0),
        "another dtype": torch.arange(8), "number": 7,
    }  # fmt: skip

    def function(x, new, i):
        y = x * 2
        if dim:
            y[:, i] = new
        else:
            y[i] = new
        return y.sin()

    def in_place(x, new, i):
        if dim:
            x[:, i] = new
        else:
            x[i] = new
        return x + 1

    recorded = RecordGraphs(backend)
    compiled = bothways.compile(function, backend=recorded)
    compiled_in_place = bothways.compile(in_place, backend=backend)
    new = values[value]
    for i in (2, 3, 4, 5):
        x = torch.randn(8, 8, requires_grad=True)
        expected, got = function(x, new, i), compiled(x, new, i)
        torch.testing.assert_close(got, expected)
        assert same(*(torch.autograd.grad(result.sum(), x) for result in (expected, got)))
        own, other = x.detach().clone(), x.detach().clone()
        assert same((in_place(own, new, i), own, own._version), (compiled_in_place(other, new, i), other, own._version))
    if value in ("tensor", "one that broadcasts"):
        assert len(recorded) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_that_breaks_reads_and_writes_at_each_turn(backend):
    def function(x, weight):
        state, out = torch.zeros(4, 6), torch.zeros(4, 9, 6)
        for t in range(x.shape[1]):
            state = torch.tanh(x[:, t] @ weight + state)
            if state.sum().item() > 1e9:
                break
            out[:, t] = state
        return out.sum()

    recorded = RecordGraphs(backend)
    compiled = bothways.compile(function, backend=recorded)
    counts = []
    for _ in range(4):
        x, weight = torch.randn(4, 9, 6), torch.randn(6, 6, requires_grad=True)
        expected, got = function(x, weight), compiled(x, weight)
        torch.testing.assert_close(got, expected)
        gradients = [torch.autograd.grad(result, weight) for result in (expected, got)]
        torch.testing.assert_close(gradients[1], gradients[0])
        counts.append(len(recorded))
    assert counts[2:] == counts[1:2] * 2 and counts[-1] <= 9  # no more than there are turns
