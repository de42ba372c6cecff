"""Second derivatives go past what was detached, though it lies in the memory of what they go through."""

import pytest
import torch
from observing import BACKENDS, agree, leaf

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def of_a_value(x, w):
    slope = w.tanh()
    return x / (slope**2 + 1) + slope.detach() * w


def of_a_result(x, w):
    slope = w.tanh()
    return slope * 1, x / (slope**2 + 1), slope.detach() * w


def of_its_own_factor(x, w):
    slope = w.tanh()
    return slope * slope.detach() * w + x


def of_an_input(x, w):
    return w.detach() * w.sin() + x, w.exp() * w.detach()


def of_a_part(x, w):
    slope = w.tanh()
    return slope[1:].detach() * w.sin()[1:] * x[1:] * slope[1:]


@pytest.mark.parametrize("program", [of_a_value, of_a_result, of_its_own_factor, of_an_input, of_a_part])
def test_the_second_derivative_does_not_see_what_was_detached(backend, program):
    def scene(compiler):
        function, seen = compiler(program), []
        for _ in range(3):
            x, w = leaf(4, 4), leaf(4, 4)
            results = function(x, w)
            results = results if isinstance(results, tuple) else (results,)
            (slope,) = torch.autograd.grad([result.sum() for result in results], w, create_graph=True)
            seen += torch.autograd.grad(slope.square().sum(), (x, w), allow_unused=True)
        return seen

    agree(scene, backend)
