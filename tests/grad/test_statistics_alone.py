"""A normalisation updates its running statistics also where its result is never read."""

import copy

import pytest
import torch

import bothways
from bothways.testing import same

BACKENDS = ("eager", "aot_eager", "native")
LAYERS = {
    "batch norm": (lambda: torch.nn.BatchNorm1d(4), (6, 4)),
    "batch norm of images": (lambda: torch.nn.BatchNorm2d(4), (6, 4, 3, 3)),
    "without weights": (lambda: torch.nn.BatchNorm1d(4, affine=False), (6, 4)),
    "cumulative": (lambda: torch.nn.BatchNorm1d(4, momentum=None), (6, 4)),
    "instance norm": (lambda: torch.nn.InstanceNorm1d(4, track_running_stats=True), (6, 4, 5)),
    "behind another": (lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), (6, 4)),
}  # fmt: skip


def runs(layer, function, shape):
    """The layer's state after each of some calls; the last batch is smaller."""
    shown = []
    for number in range(4):
        torch.manual_seed(number)
        size, *rest = shape
        function(torch.randn(size - number // 3, *rest))
        shown.append(copy.deepcopy(layer.state_dict()))
    return shown


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("without_grad", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_statistics_are_updated_though_the_result_is_not_used(layer, without_grad, backend):
    make, shape = LAYERS[layer]
    shown = []
    for compiles in (False, True):
        torch.manual_seed(0)
        module = make()

        def recalibrate(x):
            with torch.set_grad_enabled(not without_grad):
                module(x)

        function = bothways.compile(recalibrate, backend=backend) if compiles else recalibrate
        shown.append(runs(module, function, shape))
    assert same(*shown)


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_are_updated_beside_results_that_are_used(backend):
    shown = []
    for compiles in (False, True):
        torch.manual_seed(0)
        unused, used = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
        both = torch.nn.ModuleList([unused, used])
        losses = []

        def step(x):
            unused(x * 2)
            loss = used(x).square().sum() + (x * x).sum()
            loss.backward()
            with torch.no_grad():
                unused(x + 1)
            return loss.detach()

        function = bothways.compile(step, backend=backend) if compiles else step
        shown.append((runs(both, lambda x: losses.append(function(x)), (6, 4)), losses, used.weight.grad))
    assert same(*shown)


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluation_leaves_statistics_alone(backend):
    module = torch.nn.BatchNorm1d(4).eval()
    before = copy.deepcopy(module.state_dict())
    bothways.compile(lambda x: module(x) is None, backend=backend)(torch.randn(6, 4))
    assert same(before, module.state_dict())
