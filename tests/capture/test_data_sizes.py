"""Results whose length data says, as sizes of the graph, where ``config.sizes_from_data`` asks for them."""

import pytest
import torch
from sizing import BACKENDS, agree, agree_once

import bothways
from bothways import config

everywhere = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def _wanted():
    with config.patch(sizes_from_data=True):
        yield


def calls(*shape):
    """Some with many elements that are not zero, one with one, one with none."""
    every = [torch.randn(*shape).relu() for _ in range(3)] + [torch.zeros(*shape), torch.zeros(*shape)]
    every[3].view(-1)[1] = 1
    return [(x.requires_grad_(),) for x in every]


@everywhere
def test_places_of_elements(backend):
    def program(x):
        places = x.nonzero()
        return places + 1, places.shape[0], torch.nonzero(x).sum(0), torch.argwhere(x), places.t()

    agree(program, calls(4, 3), backend, programs=1)


@everywhere
def test_elements_that_a_mask_chooses(backend):
    def program(x):
        chosen = x[x > 0]
        rows = x[x.sum(1) > 1]
        return chosen * 2, chosen.sum() * 3, rows.relu() + 1, rows.sum(0), torch.masked_select(x, x > 0.5).exp()

    agree(program, calls(4, 3), backend, programs=1)


@everywhere
def test_different_elements(backend):
    def program(x):
        return torch.unique(x) * 2, x.unique().numel() + 1

    different = [[1, 2, 2, 5], [1, 1, 1, 1], [4, 3, 2, 1]]
    agree(program, [(torch.tensor(values),) for values in different], backend, programs=1)


@everywhere
def test_lengths_meet(backend):
    def program(x):
        places = (x > 0).nonzero().squeeze(1)
        taken = x[places]
        return taken + x[x > 0], torch.cat([taken, x]), torch.zeros(places.shape[0]) + 1

    agree(program, calls(6), backend, programs=1)


def test_other_forms_break():
    def program(x):
        first, second = x.nonzero(as_tuple=True)
        return first + second, x.t()[x.t() > 0], torch.unique(x, return_inverse=True)[1]

    compiled = bothways.compile(program, backend="eager")
    for args in calls(3, 3):
        agree_once(program, compiled, args)


def test_without_the_setting_they_break():
    with config.patch(sizes_from_data=False), pytest.raises(bothways.errors.Unsupported, match="dynamic_shape"):
        bothways.compile(lambda x: x.nonzero(), backend="eager", fullgraph=True)(torch.ones(3))
