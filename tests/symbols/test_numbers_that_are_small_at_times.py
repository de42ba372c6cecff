"""Numbers that are nothing or one at times and larger at others: the program for one kind of them serves the other."""

import random

import pytest
import torch
from agreeing import agree

import bothways

numpy = pytest.importorskip("numpy")


def pasted(x, left, top, right, bottom):
    x = x.clone()
    x[:, left:right, top:bottom] = x.flip(0)[:, left:right, top:bottom]
    return x * 2


def cropped(x, row, column, *_):
    return torch.nn.functional.pad(x, (2, 2, 2, 2))[:, row : row + 8, column : column + 8]


def boxes(count, kind):
    drawn = random.Random(0)
    for _ in range(count):
        width, across, down = drawn.randint(0, 8), drawn.randrange(8), drawn.randrange(8)
        sides = (across - width // 2, down - width // 2, across + width // 2, down + width // 2)
        yield tuple(kind(min(max(side, 0), 8)) for side in sides)


@pytest.mark.parametrize("kind", [int, numpy.int64])
@pytest.mark.parametrize(("program", "programs"), [(pasted, 6), (cropped, 5)])
def test_a_box_that_touches_the_edge_at_times(program, programs, kind):
    def observe(function, box):
        return {"result": function(torch.arange(192.0).reshape(3, 8, 8), *box)}

    compiled = agree(program, observe, *boxes(40, kind), fullgraph=True)
    assert len(bothways.history(compiled)) <= programs


def test_a_number_that_was_large_before():
    def observe(function, number):
        return {"result": function(torch.arange(12.0), number)}

    compiled = agree(
        lambda x, number: x[number:] * number, observe, 5, 7, 3, 0, 4, 1, 6, 2, -1, -3, 8, 0, 9, fullgraph=True
    )
    assert len(bothways.history(compiled)) <= 5
