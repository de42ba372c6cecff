"""The gradient of the largest, smallest or middle one of all elements is eager's zeros everywhere else: also of a
gradient that is infinite, no number or negative, laid out as eager's is, and where the largest is there no more."""

import pytest
import torch
from agreeing import agree

BACKENDS = ["eager", "aot_eager", "native"]
pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]
NAMES = ["max", "min", "median", "nanmedian"]


def gradient(function, call):
    values, factor = call
    x = values.clone().requires_grad_()
    result = function(x, torch.tensor(factor, dtype=x.dtype))
    (grad,) = torch.autograd.grad(result, x)
    return {"result": result.detach(), "gradient": grad, "strides": grad.stride(), "signs": torch.signbit(grad)}


VALUES = torch.tensor([[1.0, 3.0, 2.0], [3.0, -1.0, -1.0]])
FACTORS = [float("inf"), float("nan"), -2.0, float("inf")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float, torch.double, torch.bfloat16])
def test_what_is_not_chosen_has_a_gradient_of_zero(backend, name, dtype):
    def function(x, factor):
        return getattr(x, name)() * factor

    calls = [(VALUES.to(dtype), factor) for factor in FACTORS]
    agree(function, gradient, *calls, backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize("name", NAMES)
def test_it_lies_row_by_row(backend, name):
    def function(x, factor):
        return getattr(x.t(), name)() * factor

    agree(function, gradient, (VALUES, 1.0), (VALUES, -1.0), backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize("name", NAMES)
def test_of_numbers_that_are_none(backend, name):
    def function(x, factor):
        return getattr(x, name)() * factor

    values = VALUES.clone()
    values[0, 1] = values[1, 2] = float("nan")
    agree(function, gradient, *((values, one) for one in FACTORS), backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize("name", NAMES)
def test_inside_of_a_step(backend, name):
    def step(x, factor):
        leaf = (x * 1).detach().requires_grad_()
        (getattr(leaf.t(), name)() * factor).backward()
        return leaf.grad

    def observe(function, call):
        grad = function(VALUES, torch.tensor(call))
        return {"gradient": grad, "strides": grad.stride(), "signs": torch.signbit(grad)}

    agree(step, observe, *FACTORS, backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize("name", ["max", "min"])
def test_where_the_largest_is_there_no_more(backend, name):
    """Its data is changed before the backward, and no element equals what was the largest."""

    def function(x):
        return getattr(x, name)()

    def observe(function, call):
        x = VALUES.clone().requires_grad_()
        result = function(x)
        x.data.mul_(call)
        result.backward()
        return {"gradient": x.grad}

    agree(function, observe, 2.0, 1.0, 3.0, backend=backend, fullgraph=True, programs=1)


def test_of_other_sizes(backend):
    def function(x, factor):
        return x.max() * factor

    calls = [(torch.arange(float(size)).reshape(2, -1) % 3, float("inf")) for size in (6, 8, 10, 14)]
    agree(function, gradient, *calls, backend=backend, fullgraph=True, dynamic=True)
