"""Older code leaves autograd by ``Variable(x)`` and ``x.detach_()``, and makes tensors of deques."""

from collections import deque

import pytest
import torch
from agreeing import agree
from torch.autograd import Variable

import bothways


def ones(needs_grad):
    return torch.arange(1.0, 4.0).requires_grad_(needs_grad)


def observe(function, needs_grad):
    x = ones(needs_grad)
    result = function(x)
    return {"result": result, "history": result.requires_grad, "leaf": result.is_leaf, "argument": x, "grad": x.grad}


def without_history(x):
    return Variable(x * 2) + 1


def shares_memory(x):
    alone = Variable(x)
    alone.add_(1)
    return alone


def with_its_own_gradient(x):
    own = Variable(data=x, requires_grad=True)
    (own**2).sum().backward()
    assert isinstance(own, Variable)
    return own.grad


def of_nothing_to_detach(x):
    with torch.no_grad():
        return (x * 2).detach_() + 1


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program", [without_history, shares_memory, with_its_own_gradient, of_nothing_to_detach], ids=lambda f: f.__name__
)
def test_it_is_captured(program, backend):
    agree(program, observe, False, False, True, True, backend=backend, fullgraph=True, programs=2)


def old_zero_grad(x):
    (x**2).sum().backward()
    gradient = x.grad.clone()
    x.grad.detach_()
    x.grad.zero_()
    return gradient


def test_gradients_are_emptied_in_place_as_they_once_were():
    agree(old_zero_grad, observe, True, True, fullgraph=True, programs=1)


def refuses(program):
    compiled = bothways.compile(program, backend="eager")
    for _ in range(2):
        with pytest.raises((TypeError, RuntimeError)) as expected:
            program(torch.ones(3))
        with pytest.raises(type(expected.value)) as raised:
            compiled(torch.ones(3))
        assert str(raised.value) == str(expected.value)


def test_what_pytorch_refuses_is_refused():
    refuses(lambda x: Variable([1.0, 2.0]))
    refuses(lambda x: Variable(x.long(), requires_grad=True))
    refuses(lambda x: x[0].detach_())


def test_a_history_is_cut_off_in_place():
    def cut(x):
        y = x * 2
        y.detach_()
        return y + 1

    agree(cut, observe, True, True)


def returns_of(rewards):
    total, returns = 0, deque()
    for reward in rewards[::-1]:
        total = reward + 0.9 * total
        returns.appendleft(total)
    returns = torch.tensor(returns)
    return (returns - returns.mean()) / (returns.std() + 1e-6)


def test_a_tensor_is_made_of_a_deque():
    def observe(function, rewards):
        return {"result": function(rewards)}

    calls = [[1.0, 0.5, 2.0], [1.0, 0.5, 2.0], [0.1, 0.2, 0.3], [5.0, 1.0, 1.0]]
    agree(returns_of, observe, *calls, fullgraph=True, programs=2)
    agree(lambda numbers: torch.as_tensor(deque(numbers)), observe, [1, 2], [1, 2], fullgraph=True, programs=1)
