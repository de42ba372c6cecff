"""Sizes, indices and bounds that are tensors, made of constants alone: what they hold is known, and nothing breaks."""

import pytest
import torch

import bothways
from bothways.testing import CompileCounter

BACKENDS = ["eager", "aot_eager", "native"]


def halves(x):
    count = torch.div(x.shape[0], 2, rounding_mode="trunc")
    return x.view(count, 2, -1) * count, x.new_zeros((count, 3)), x.reshape([count, -1])


def bounds(x):
    half = torch.tensor(x.shape[0]) // 2
    places = torch.arange(3)
    return x[half:], x[:half, places[1] :], x[places[2]], x.narrow(0, places[1], half), x.expand(half, *x.shape)


def named(x):
    count = torch.tensor(x.shape[0])
    return torch.zeros(size=(count, 2)) + count, padded(x, torch.tensor(1))


def padded(x, width):
    return torch.nn.functional.pad(x, (0, width))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("f", [halves, bounds, named])
def test_a_size_in_a_tensor_of_constants_is_a_number(f, backend):
    compiled = bothways.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 6, requires_grad=True)
        expected, found = f(x), compiled(x)
        torch.testing.assert_close(found, expected)
        grads = [torch.autograd.grad(sum(t.sin().sum() for t in made), x)[0] for made in (expected, found)]
        torch.testing.assert_close(*grads)
    assert len(bothways.history(compiled)) == 1


def test_what_is_known_of_sizes_that_change_breaks_and_stays_right():
    compiled = bothways.compile(halves, backend="aot_eager")
    for count in (4, 6, 8, 4, 10):
        x = torch.randn(count, 6)
        torch.testing.assert_close(compiled(x), halves(x))


def test_tensors_that_are_looked_at_as_tensors_stay_so():
    def f(x):
        count = torch.tensor(3)
        return torch.nonzero(count), x * count, torch.repeat_interleave(x, torch.tensor(2), 0)

    compiled = bothways.compile(f, backend=CompileCounter())
    for _ in range(2):
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(x), f(x))


def test_a_size_that_was_changed_is_not_what_it_was_made_as():
    def f(x, y):
        count = torch.tensor(1)
        count.add_(y)
        return x[:count]

    compiled = bothways.compile(f, backend="aot_eager")
    for number in (1, 2, 0):
        x, y = torch.randn(4, 6), torch.tensor(number)
        torch.testing.assert_close(compiled(x, y), f(x, y))
