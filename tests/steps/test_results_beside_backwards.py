"""What leaves a function that runs a backward of its own can be differentiated outside, by other results too."""

import pytest
import torch
from observing import BACKENDS, agree, leaf

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def shared(x, w):
    """A result that leaves, and another one that is computed from it."""
    product = x * x.sin()
    total = product.exp().sum()
    w.sin().sum().backward()
    return product, total


def several(x, w):
    first = x @ w.detach()
    second = first.tanh()
    w.sum().backward()
    return first, (first * second).sum() + second.mean()


@pytest.mark.parametrize("program", [shared, several])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_result_by_another_one(backend, program, is_leaf):
    def scene(compiler):
        function, seen = compiler(program), []
        for _ in range(2):
            x, w = leaf(4, 4), leaf(4, 4)
            product, total = function(x if is_leaf else x * 2, w)
            seen += torch.autograd.grad(total, (product, x), allow_unused=True, retain_graph=True)
            product.register_hook(lambda gradient, seen=seen: seen.append(gradient.clone()))
            total.backward()
            seen += [product, total, x.grad, w.grad]
        return seen

    agree(scene, backend)


def test_a_gradient_by_what_was_computed_inside_and_by_what_was_not(backend):
    def program(x, w, unused):
        product = x[0] * x
        w.sum().backward()
        return torch.autograd.grad(product.sum(), (product, unused), allow_unused=True)

    def scene(compiler):
        function = compiler(program)
        return [function(leaf(4, 4) * 1.5, leaf(4, 4), leaf(4, 4)) for _ in range(2)]

    agree(scene, backend, fullgraph=False)
