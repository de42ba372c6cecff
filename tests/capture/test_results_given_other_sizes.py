"""What ``out=`` names, and gets other sizes: it lies as the kernel lays it, which later reads rely on."""

import pytest
import torch
from agreeing import BACKENDS, agree

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
PROGRAMS = {
    "product": lambda b, out: torch.mul(b, 2, out=out),
    "sum": lambda b, out: torch.sum(b, 0, out=out),
    "joined": lambda b, out: torch.cat([b, b], out=out),
    "sine": lambda b, out: torch.sin(b, out=out),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("turned", [False, True])
def test_it_lies_as_eager_lays_it(name, turned, backend):
    def program(b):
        out = torch.empty(0)
        with torch.no_grad():
            PROGRAMS[name](b.detach(), out)
        return out.stride(), out.flatten() * b.sum(), out

    def observe(function, size):
        b = torch.arange(size * 4.0).reshape(size, 4)
        b = (b.t() if turned else b).requires_grad_()
        strides, scaled, out = function(b)
        return {"strides": strides, "scaled": scaled, "out": out, "gradient": torch.autograd.grad(scaled.sum(), b)}

    agree(program, observe, 3, 3, 5, 6, backend=backend, within={"kernels_for_small_graphs": True})
