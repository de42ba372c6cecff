"""Optimizers that wrap another one and never call ``Optimizer.__init__``: PyTorch refuses their step, when
``zero_grad`` has made it one of its own.
"""

from collections import defaultdict

import pytest
import torch
from agreeing import assert_raises_alike

import bothways


def training():
    class Around(torch.optim.Optimizer):
        def __init__(self, base):
            self.base, self.defaults = base, base.defaults
            self.param_groups, self.state = base.param_groups, defaultdict(dict)

        def step(self, closure=None):
            return self.base.step(closure)

    model = torch.nn.Linear(3, 3)
    optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(x):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, model


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_the_step_is_refused_as_by_pytorch(backend):
    step, model = training()
    other_step, other = training()
    other.load_state_dict(model.state_dict())
    assert_raises_alike(step, bothways.compile(other_step, backend=backend), torch.ones(2, 3))
    assert all(map(torch.equal, model.parameters(), other.parameters()))
