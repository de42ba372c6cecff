"""``out=`` tensors that are resized: they lie as the kernel wants, which fake tensors do not know."""

import pytest
import torch
from agreeing import BACKENDS, agree
from observing import facts

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
KERNELS = {"kernels_for_small_graphs": True}


def larger(x, out):
    whole = torch.cat([out, out, out], -1)
    torch.clamp(x, 0, 1, out=whole)
    whole.copy_(whole.flip(0))
    return whole


def from_nothing(x, out):
    made = torch.mul(x, 2, out=torch.empty(0))
    return made.reshape(-1), made.stride(), torch.sum(x, 0, out=torch.empty(0)).stride()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("program", [larger, from_nothing])
def test_how_it_lies(program, turned, backend):
    def observe(function, size):
        x = torch.linspace(-1, 2, 4 * size).view(size, 4).t()
        x = x if turned else x.contiguous()
        return {"result": facts(function(x, torch.zeros(4, size)))}

    agree(program, observe, 9, 9, 5, 7, backend=backend, within=KERNELS)


def into_an_argument(x, out):
    turned = x.transpose(0, -1)
    x.zero_()
    torch.sin(turned, out=out)
    return turned + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0,), (1, 3), (3, 3)])
def test_what_autograd_refuses_is_used_where_it_does_not_look(shape, backend):
    def observe(function, call):
        x, out = torch.ones(3, 3).requires_grad_(), torch.zeros(shape)
        with torch.no_grad():
            return {"result": facts(function(x, out)), "out": out.clone()}

    agree(into_an_argument, observe, 1, 1, backend=backend, within=KERNELS)


def one_of_several(x, y):
    half = y.chunk(2, 0)[-1].reshape(-1)
    with torch.no_grad():
        half.unfold(0, 3, 1).fill_diagonal_(2)
    return torch.full_like(half, -2), x.frac()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_autograd_refuses_comes_into_a_part_of_a_graph(backend):
    def observe(function, rows):
        x = torch.linspace(-2, 2, rows * 6).view(rows, 6).requires_grad_()
        return {"result": facts(function(x, x * 2))}

    agree(one_of_several, observe, 4, 4, 6, backend=backend, within=KERNELS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scalar_is_scattered_into(backend):
    def observe(function, call):
        return {"result": facts(function(torch.tensor(2.0), torch.tensor([call])))}

    def scattered(x, mask):
        return x.masked_scatter(mask, x + 1)

    agree(scattered, observe, True, False, True, backend=backend, within=KERNELS, programs=1, fullgraph=True)
