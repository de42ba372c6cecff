"""Second derivatives go through results that people hook, keep the gradient of or ask about, from the first call on."""

import pytest
import torch

import bothways

BACKENDS = ["aot_eager", "native"]


@pytest.fixture(autouse=True)
def small_graphs():
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def second(function, look):
    """What is seen of two second derivatives, each of a call of its own."""
    torch.manual_seed(0)
    weight = torch.randn(4, 4, requires_grad=True)
    seen = []
    for _ in range(2):
        x = torch.randn(5, 4, requires_grad=True)
        y = function(x, weight)
        seen += look(x, y)
        seen += [x.grad, weight.grad]
        weight.grad = None
    return seen


def hooked(x, y):
    calls = []
    y.register_hook(lambda gradient: (calls.append(gradient.detach()), gradient * 3)[1])
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    first.pow(2).sum().backward()
    return calls


def kept(x, y):
    y.retain_grad()
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    first.pow(2).sum().backward()
    return [y.grad]


def asked(x, y):
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return list(torch.autograd.grad(first.pow(2).sum(), y))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("look", [hooked, kept, asked])
def test_a_result_that_the_backward_reads_is_on_the_way(look, backend):
    def function(x, weight):
        return (x @ weight).tanh()

    expected = second(function, look)
    found = second(bothways.compile(function, backend=backend), look)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_inside_is_called_for_second_derivatives(backend):
    def function(x, weight):
        h = (x @ weight).tanh()
        h.register_hook(lambda gradient: gradient * 3)
        return (h @ weight).tanh()

    def look(x, y):
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return [first.detach()]

    expected = second(function, look)
    found = second(bothways.compile(function, backend=backend), look)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_changing_the_result_between_the_two_is_an_error(backend):
    def function(x, weight):
        return (x @ weight).tanh()

    for run in (function, bothways.compile(function, backend=backend)):
        for _ in range(2):
            x, weight = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
            y = run(x, weight)
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            with torch.no_grad():
                y.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                first.pow(2).sum().backward()
