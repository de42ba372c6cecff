"""Gradients that are differentiated again, of functions whose second derivative is zero.

PyTorch's formulas give zeros without memory for some of them, which views and products have to take.
"""

import pytest
import torch

import bothways
from bothways.testing import difference

FLAT = {
    "abs": torch.abs,
    "sgn": torch.sgn,
    "floor": lambda y: y.floor() * y,
    "L1 loss": lambda y: torch.nn.functional.l1_loss(y, torch.full_like(y, 0.25)),
}

LAYERS = {
    "a vector": lambda x, w: torch.nn.functional.linear(x[0], w, torch.ones(1)),
    "a matrix": lambda x, w: x @ w,
    "a view": lambda x, w: (x[1:] * w.t()[: x.shape[0] - 1]).transpose(0, 1).reshape(-1)[2:],
    "a convolution": lambda x, w: torch.nn.functional.conv1d(x[None], w[:, :, None]).squeeze(0),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("flat", FLAT)
def test_a_penalty_on_a_gradient(flat, layer, backend):
    def step(x, w):
        value = FLAT[flat](LAYERS[layer](x, w)).sum()
        (grad,) = torch.autograd.grad(value, x, create_graph=True, allow_unused=True)
        return value if grad is None else (grad + x).pow(2).sum()

    def observe(function, scale):
        x = torch.linspace(-1, 2, 16).mul(scale).reshape(4, 4).requires_grad_()
        w = torch.linspace(-0.7, 1.3, 16).reshape(4, 4)[: 1 if layer == "a vector" else 4].clone().requires_grad_()
        result = function(x, w)
        result.backward()
        return result.detach(), x.grad, w.grad

    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    for scale in (1.0, 1.0, 0.5):
        assert difference(observe(step, scale), observe(compiled, scale), tol=1e-5) is None
    assert len(bothways.history(compiled)) == 1
