"""Products, normalisations and losses that refuse dtypes beside each other raise where the user's handler is."""

import pytest
import torch
from agreeing import BACKENDS, agree
from torch import nn
from torch.nn import functional as F

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


CLASSES, SHARES = torch.arange(16) % 4, torch.linspace(0, 1, 64).view(16, 4)
LOSSES = {
    "cross_entropy": lambda x, weight: F.cross_entropy(x, CLASSES, weight=weight),
    "smoothed": lambda x, weight: F.cross_entropy(x, CLASSES, weight=weight, label_smoothing=0.1),
    "nll_loss": lambda x, weight: F.nll_loss(x.log_softmax(-1), CLASSES, weight=weight, reduction="none").sum(),
    "a weight": lambda x, weight: F.binary_cross_entropy(x.sigmoid(), SHARES.to(x.dtype), weight=weight),
    "a target": lambda x, weight: F.binary_cross_entropy(x.sigmoid(), SHARES.to(weight.dtype)),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_with_a_weight_or_target_of_another_dtype(loss, backend):
    log = []

    def program(x, weight):
        log.append("begun")
        return loss(x * 2 + 1, weight) * 3

    def observe(function, dtypes):
        log.clear()
        x = torch.linspace(-1, 1, 64).view(16, 4).to(dtypes[0]).requires_grad_()
        try:
            result = function(x, torch.ones(4, dtype=dtypes[1]))
            result.backward()
        except RuntimeError as error:
            return {"refused": str(error), "log": list(log)}
        return {"result": result.detach(), "dtype": result.dtype, "gradient": x.grad, "log": list(log)}

    single, double, whole = torch.float32, torch.float64, torch.int64
    calls = (single, single), (double, single), (single, double), (single, double), (single, whole), (double, double)
    agree(program, observe, *calls, backend=backend)
