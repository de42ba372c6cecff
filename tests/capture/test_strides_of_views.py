"""Strides of computed tensors: those of views are known, and those of dimensions with more than one element.

A dimension of one element may have any stride, and a kernel decides which.
"""

import pytest
import torch
from agreeing import BACKENDS, agree
from observing import facts

X = torch.linspace(-1, 1, 24)


def overlapping(x):
    """Windows that overlap by a half, as attention to neighbours cuts them."""
    windows = x.view(x.size(0), 2, -1, x.size(2))
    size, stride = list(windows.size()), list(windows.stride())
    size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
    return windows.as_strided(size=size, stride=stride).sin()


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_a_view_of_an_argument(backend):
    def observe(function, rows):
        x = X[: 8 * rows].view(rows, 4, 2).clone().requires_grad_()
        result = function(x)
        result.sum().backward()
        return {"result": facts(result), "grad": x.grad}

    agree(overlapping, observe, 1, 1, 3, backend=backend, fullgraph=True)


def test_whatever_views_there_are():
    def program(x):
        turned = x[None, :, :1].transpose(1, -1).unsqueeze(-1)
        wide, flat = turned.expand(3, 1, -1, 1), turned.flatten(2)
        return turned.stride(), turned.squeeze().stride(), wide.stride(), flat.stride()

    def observe(function, shape):
        return {"wide": function(X.view(shape)), "turned": function(X.view(shape).t())}

    agree(program, observe, (6, 4), (6, 4), (1, 24), (24, 1), fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_one_dimension_that_has_several_elements(backend):
    """What asks whether a last dimension is dense, as callers of kernels do."""

    def program(x):
        y = x * 2
        return y if y.stride(-1) == 1 else y.contiguous() + 1

    def observe(function, turned):
        x = X.view(1, 6, 4)
        return {"result": facts(function(x.transpose(1, 2) if turned else x))}

    agree(program, observe, False, False, True, backend=backend, fullgraph=True)


def test_what_is_asked_wrongly_raises_as_it_does_uncompiled():
    def program(x):
        told, y = [], x * 2
        for places in ((0, 1), (5,), ("a",)):
            try:
                told.append(y.stride(*places))
            except (TypeError, IndexError, RuntimeError) as error:  # as PyTorch 2.11 says of names
                told.append(type(error).__name__)
        return told

    agree(program, lambda function, rows: {"told": function(torch.ones(rows, 2))}, 1, 1, 3)


def test_what_a_kernel_decides_is_not_taken_for_granted():
    def program(x):
        return (x + 1).stride(), x[torch.tensor([0])].stride(0)

    def observe(function, turned):
        x = X.view(1, 6, 4)
        return {"strides": function(x.transpose(0, 2) if turned else x)}

    agree(program, observe, False, False, True)
