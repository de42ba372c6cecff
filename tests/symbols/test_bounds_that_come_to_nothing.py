"""Slices whose bounds are numbers that change, nothing and the whole size among them: a box that is cut out."""

import numpy as np
import pytest
import torch
from agreeing import BACKENDS, agree
from seeding import seeded

import bothways

BOXES = [
    (2, 5, 3, 9), (3, 7, 4, 8), (1, 6, 1, 7), (0, 5, 3, 8), (0, 6, 0, 7), (3, 12, 5, 9),
    (3, 12, 4, 12), (0, 12, 2, 5), (0, 4, 6, 12), (4, 9, 0, 12), (2, 5, 3, 9),
]  # fmt: skip


def pasted(x, order, box):
    a, b, c, d = box
    x = x.clone()
    x[:, a:b, c:d] = x[order, a:b, c:d]
    return x * 2, 1 - (b - a) * (d - c) / 144


def cut(x, order, box):
    a, b, c, d = box
    return x[:, a:b, c:d] * 2


def erased(x, order, box):
    a, b, c, d = box
    x = x * 1
    x[..., a:b, c:d] = 0.5
    return x.relu()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [int, np.int64], ids=["Python's", "NumPy's"])
@pytest.mark.parametrize("program", [pasted, cut, erased], ids=lambda one: one.__name__)
def test_a_box_is_few_programs(program, kind, backend):
    generator = seeded(0)
    x, order = torch.randn(4, 12, 12, generator=generator), torch.tensor([2, 0, 3, 1])

    def observe(function, box):
        return {"result": function(x, order, tuple(map(kind, box)))}

    compiled = agree(program, observe, *BOXES, backend=backend)
    assert len(bothways.history(compiled)) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_nothing_means_more_for_is_asked(backend):
    def program(x, n):
        if n == 0:
            return x - 1
        if not n % 4:
            return x.sum(0)
        return x[n:] / n, torch.zeros(n), [0] * n

    def observe(function, n):
        return {"result": function(torch.arange(10.0), n)}

    agree(program, observe, 3, 5, 0, 0, 4, 1, 0, 8, 2, backend=backend)
