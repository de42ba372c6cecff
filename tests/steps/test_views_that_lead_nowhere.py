"""Views of leaves that were taken without gradients: they need one, and no backward comes to them."""

import pytest
import torch

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


def unseen():
    with torch.no_grad():
        return torch.ones(3, requires_grad=True).view_as(torch.ones(3))


INPUTS = {
    "a leaf": lambda: torch.ones(3, requires_grad=True),
    "such a view": unseen,
    "a leaf that is a view": lambda: torch.ones(2, 3)[0].requires_grad_(),
}


def accumulated(x):
    (x * 2).sum().backward()
    return x.grad


def asked_for(x):
    return torch.autograd.grad((x * 2).sum(), x)[0]


def accumulated_where_asked(x):
    (x * 2).sum().backward(inputs=[x])
    return x.grad


def seen(function, name):
    x = INPUTS[name]()
    try:
        result = function(x)
    except RuntimeError as error:
        return str(error), x.grad
    return (None if result is None else result.tolist()), None if x.grad is None else x.grad.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", INPUTS)
@pytest.mark.parametrize("function", [accumulated, asked_for, accumulated_where_asked])
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_view_taken_without_gradients_is_given_none(function, first, backend):
    compiled = bothways.compile(function, backend=backend)
    for name in (first, *INPUTS, *INPUTS):
        assert seen(compiled, name) == seen(function, name), name
    count = len(bothways.history(compiled))
    for name in INPUTS:
        seen(compiled, name)
    assert len(bothways.history(compiled)) == count
