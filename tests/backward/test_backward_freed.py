"""Captured backwards through graphs that another backward, captured or not, has gone through and freed."""

import contextlib

import pytest
import torch
from backward_counting import Captured

import bothways

BACKENDS = ["aot_eager", "native"]


@pytest.fixture(autouse=True)
def with_nodes_of_their_own():
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def saves_nothing(x, w):
    return x + w, x.t() - w


def saves_a_number_alone(x, w):
    return x * 2, w + x


def saves_a_product(x, w):
    return x @ w, w.sin()


PROGRAMS = [saves_nothing, saves_a_number_alone, saves_a_product]


def gradients(functions, ways):
    """What backwards through the first function and those through both give, one after the other."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    outputs = [function(x, w) for function in functions]
    results = []
    for number, way in enumerate(ways):
        roots = [outputs[0][0], outputs[1][number % 2]]
        for some in (roots, roots[:1]):
            try:
                with way():
                    torch.autograd.backward(some, [torch.ones_like(root) for root in some])
            except RuntimeError as error:
                results.append(str(error))
            else:
                results.append([None if one.grad is None else one.grad.clone() for one in (x, w)])
    return results


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("second", PROGRAMS, ids=lambda program: program.__name__)
def test_a_second_backward_ends_as_it_does_plainly(first, second, backend):
    def captured():
        return bothways.autograd.capture(Captured(backend))

    compiled = [bothways.compile(program, backend=backend) for program in (first, second)]
    for ways in ([captured] * 3, [contextlib.nullcontext, captured, captured]):
        expected = gradients([first, second], [contextlib.nullcontext] * 3)
        assert bothways.testing.difference(expected, gradients(compiled, ways)) is None


def test_a_freed_node_is_not_taken_for_one_of_another_graph_that_saved_nothing():
    sums = [lambda x, w: x + w, lambda x, w: w - x, lambda x, w: x - w]
    x, w = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
    with bothways.autograd.capture(Captured()):
        for function in sums:
            bothways.compile(function, backend="aot_eager")(x, w).backward(torch.ones(3, 3))
            x.grad = w.grad = None
        result = bothways.compile(torch.mm, backend="aot_eager")(x, w)
        result.backward(torch.ones(3, 3))
        x.grad = w.grad = None
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            result.backward(torch.ones(3, 3))
