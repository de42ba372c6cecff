"""A backward that thin tensors cannot run beforehand is asked of PyTorch's fake ones, and the step is one graph."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches

from bothways.capture.shapes.autograd_history import AutogradHistory
from bothways.fake import NotThin

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def asked(monkeypatch):
    """No backward runs on thin tensors; which ones were asked for one."""
    run, asked = AutogradHistory.run, []

    def refusing(history, *args, **kwargs):
        asked.append("thin" if history._is_thin else "fake")
        if history._is_thin:
            raise NotThin("an operation of the backward has no rule")
        return run(history, *args, **kwargs)

    monkeypatch.setattr(AutogradHistory, "run", refusing)
    return asked


def make():
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    log = []
    net[0].weight.register_post_accumulate_grad_hook(lambda weight: log.append(weight.grad.sum().item()))

    def step(x, y):
        optimizer.zero_grad()
        hidden = net[0](x)
        hidden.register_hook(lambda gradient: gradient * 2)
        F.cross_entropy(net[2](net[1](hidden)), y).backward()
        (penalty,) = torch.autograd.grad(net(x).square().sum(), net[2].weight)
        optimizer.step()
        return penalty

    return step, {"model": net, "optimizer": optimizer, "log": log}


def test_fakes_tell_what_thin_tensors_do_not(backend, asked):
    agree(make, batches(3), backend)
    assert {"thin", "fake"} == set(asked)
