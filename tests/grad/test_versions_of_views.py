"""Versions of inputs after their views were changed in place: elements, or the shape of the view alone, in any mode."""

import pytest
import torch
from agreeing import BACKENDS, agree

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
SMALL = {"kernels_for_small_graphs": True}

SHAPES = {
    "t_": lambda view: view.t_(),
    "squeeze_": lambda view: view.squeeze_(),
    "unsqueeze_": lambda view: view.unsqueeze_(0).unsqueeze_(0),
    "as_strided_": lambda view: view.as_strided_((2, 2), (1, 2)),
}
VIEWS = {"part": lambda x: x[1:], "part of a part": lambda x: x.t()[:, 1:], "detached": lambda x: x.detach()}
MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def tried(function, *arguments):
    try:
        return function(*arguments)
    except RuntimeError as error:
        return str(error).partition("[")[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.in_turn("backend")
def test_a_view_whose_shape_is_changed_counts_for_its_base(shape, view, mode, backend):
    def program(x, w):
        part = VIEWS[view](x)
        SHAPES[shape](part)
        return (part * 2).sum() + (x * w).sum()

    def observe(function, _):
        x, w = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
        with MODES[mode]():
            y = function(x, w)
        gradient = torch.autograd.grad(y, w) if y.requires_grad else None
        return {"y": y, "version": x._version, "gradient": gradient}

    agree(program, observe, 1, 2, backend=backend, within=SMALL, fullgraph=True, programs=1)


@pytest.mark.every_backend
def test_a_shape_that_is_changed_after_its_base_was_kept_is_an_error_in_the_backward(backend):
    def program(x, w):
        part = x[1:]
        y = (x * w).sum()
        part.t_()
        return y + part.sum()

    def observe(function, _):
        x, w = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
        return {"gradient": tried(torch.autograd.grad, function(x, w), w), "version": x._version}

    agree(program, observe, 1, 2, backend=backend, within=SMALL)


@pytest.mark.every_backend
def test_results_that_have_nothing_in_common_count_a_shape_once(backend):
    def program(x, w, v):
        x[1:].t_()
        return (x * w).sum(), (x * v).cos()

    def observe(function, _):
        x, w, v = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)
        first, second = function(x, w, v)
        return {"gradients": torch.autograd.grad(first + second.sum(), [w, v]), "version": x._version}

    agree(program, observe, 1, 2, backend=backend, within=SMALL)


WRITES = {
    "whole": lambda x: x.add_(1),
    "part": lambda x: x[1:].mul_(2),
    "part of a part": lambda x: x.t()[:, 1:].sin_(),
    "twice": lambda x: x[0].zero_().add_(1),
}


@pytest.mark.parametrize("made_in_it", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.in_turn("backend")
def test_changes_in_inference_mode_count_for_tensors_that_were_made_outside(write, made_in_it, backend):
    def program(x):
        WRITES[write](x)
        return x * 2

    def observe(function, made_in_it):
        with torch.inference_mode(made_in_it):
            x = torch.ones(3, 3)
        with torch.inference_mode():
            y = function(x)
        return {"y": y, "x": x, "version": None if made_in_it else x._version}

    agree(program, observe, False, False, made_in_it, made_in_it, backend=backend, within=SMALL)


def once(x, w):
    x.mul_(w)


def thrice(x, w):
    x.mul_(w).add_(1).mul_(w)
    return x.detach()[0], w.detach()


def through_views(x, w):
    x[0].mul_(w[0])
    x[1] = w[1]
    x.t().add_(w)
    return (x * 3).sum()


def behind_autograd(x, w):
    x.copy_(w)
    x.data.add_(1)
    return x


@pytest.mark.every_backend
@pytest.mark.parametrize("program", [once, thrice, through_views, behind_autograd])
def test_an_input_that_gets_a_history_counts_each_change(program, backend):
    def observe(function, makes_history):
        x, w = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
        if makes_history:
            x = x * w
        result = function(x, w)
        return {"result": result, "gradient": torch.autograd.grad(x.sum(), w), "version": x._version}

    agree(program, observe, False, False, True, True, backend=backend, within=SMALL)
