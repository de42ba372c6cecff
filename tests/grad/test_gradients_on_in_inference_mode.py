"""Gradients that are turned on in inference mode: operations are not followed there, custom functions are."""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def turned_on(x):
    with torch.enable_grad():
        h = (x * 2).sin()
    return h, h.requires_grad


def on_for_all(x):
    h = (x * 2).sin()
    return h, h.requires_grad


def both_inside(x):
    with torch.inference_mode(), torch.enable_grad():
        h = (x * 2).sin()
    return h, h.requires_grad


def custom(x):
    with torch.enable_grad():
        h = Doubled.apply(x)
    return h, h.requires_grad


@pytest.mark.parametrize("program", [turned_on, on_for_all, both_inside, custom])
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_needs_a_gradient_there(program, kernels, backend):
    def observe(function, is_leaf):
        x = torch.ones(3, requires_grad=True)
        x = x if is_leaf else x * 1
        with torch.inference_mode(), torch.set_grad_enabled(program is on_for_all):
            h, asked = function(x)
        return {"asked": asked, "result": h.detach(), "kinds": (h.requires_grad, h.is_leaf, h.is_inference())}

    with bothways.config.patch(kernels_for_small_graphs=kernels):
        agree(program, observe, True, True, False, False, backend=backend)
