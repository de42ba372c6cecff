"""Operations that change how an input with a history is laid out, and none of its elements, change the input itself."""

import pytest
import torch
from agreeing import BACKENDS, agree

CHANGES = {
    "swapaxes_": lambda x: x.swapaxes_(0, -1),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "transposed and doubled": lambda x: x.transpose_(0, 1).mul_(2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_was_computed(change, backend):
    def program(x):
        change(x)
        return x

    def observe(function, _):
        leaf = torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_()
        x = leaf * 2
        result = function(x)
        result.exp().sum().backward()
        laid_out = x.shape, x.stride(), x._version
        return {"result": result is x, "gradient": leaf.grad, "x": x.detach(), "laid out": laid_out}

    agree(program, observe, 1, 2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reshape", [lambda a: a.t_(), lambda a: a.swapaxes_(0, -1), lambda a: a.unsqueeze_(0)])
def test_a_leaf_is_reshaped_after_its_gradient_was_set(reshape, backend):
    def program(a):
        a.grad = torch.ones_like(a)
        reshape(a)
        return a * 2

    def observe(function, _):
        a = torch.arange(6.0).reshape(2, 3).requires_grad_()
        with torch.no_grad():
            doubled = function(a)
        return {"doubled": doubled, "a": a.detach().clone(), "grad": a.grad}

    agree(program, observe, 1, 2, backend=backend)
