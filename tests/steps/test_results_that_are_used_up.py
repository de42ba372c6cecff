"""What a compiled step has run a backward through leads to its inputs all the same: who asks for their gradients later
is refused, as by autograd, and not given what comes to them by other ways alone."""

import pytest
import torch
from agreeing import BACKENDS, agree


def loss_of(first, second, x):
    return ((x * first) * second).sin().mean()


def adapted(first, second, x):
    """The second weight after an inner step, which the outer loss has gone through."""
    by_first, by_second = torch.autograd.grad(loss_of(first, second, x), [first, second], create_graph=True)
    adapted = second - 0.1 * by_second
    loss_of(first - 0.1 * by_first, adapted, x).backward()
    return adapted


def features(first, second, x):
    hidden = (x * first * second).tanh()
    hidden.square().sum().backward()
    return hidden


def of_a_tensor_with_a_history(first, second, x):
    hidden = (x * first * second).tanh()
    hidden.square().sum().backward(inputs=[second])
    return hidden


USED_UP = [adapted, features, of_a_tensor_with_a_history]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wanted", [[0], [1], [0, 1]])
@pytest.mark.parametrize("step", USED_UP)
def test_a_later_backward_through_it_is_refused_where_it_stands(step, wanted, backend):
    def observe(function, call):
        torch.manual_seed(call)
        leaves = [torch.rand(3, requires_grad=True) for _ in range(2)]
        first = leaves[0] * 2 if step is of_a_tensor_with_a_history else leaves[0]
        result = function(first, leaves[1], torch.rand(3))
        loss = loss_of(leaves[0], result, leaves[1])
        try:
            gradients = torch.autograd.grad(loss, [leaves[index] for index in wanted], allow_unused=True)
        except RuntimeError as error:
            return {"result": result, "raised": str(error)}
        return {"result": result, "gradients": gradients}

    agree(step, observe, 1, 2, 3, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_later_gradient_of_what_is_beside_it_is_given(backend):
    def observe(function, call):
        torch.manual_seed(call)
        first, second, x, other = (torch.rand(3, requires_grad=number != 2) for number in range(4))
        loss = loss_of(other, function(first, second, x), x)
        return {"gradients": torch.autograd.grad(loss, other)}

    agree(features, observe, 1, 2, 3, backend=backend)
