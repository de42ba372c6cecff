"""Products and normalisations that refuse dtypes beside each other raise where the user's handler is."""

import pytest
import torch
from agreeing import BACKENDS, agree
from torch import nn

LAYERS = [nn.BatchNorm1d(3), nn.BatchNorm1d(3).eval(), nn.LayerNorm(3), nn.Linear(3, 3), nn.GroupNorm(1, 3)]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_double_precision_beside_single(layer, backend):
    def program(x):
        try:
            return layer(x)
        except RuntimeError:
            return x * 0

    def observe(function, dtype):
        return {"result": function(torch.arange(15.0).view(5, 3).to(dtype)).detach()}

    agree(program, observe, torch.float64, torch.float32, torch.float64, backend=backend)
