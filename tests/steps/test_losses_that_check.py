"""Losses that look at their arguments' data before they compute: a step with one is a graph, which checks the same."""

import copy

import pytest
import torch
import torch.nn.functional as F
from agreeing import agree


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_negative_variance_is_refused_and_nothing_is_changed(backend):
    """Results, parameters, what the optimizer remembers, and the error are eager's."""
    sides = []

    def begin():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        sides.append((model, optimizer))

    def step(x, y, variance):
        model, optimizer = sides[-1]
        optimizer.zero_grad()
        loss = F.gaussian_nll_loss(model(x), y, variance, full=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def observe(function, variance):
        torch.manual_seed(1)
        x, y = torch.randn(5, 4), torch.randn(5, 2)
        shown = {}
        try:
            shown["loss"] = function(x, y, torch.full((5, 2), variance))
        except ValueError as error:
            shown["loss"] = str(error)
        model, optimizer = sides[-1]
        state = copy.deepcopy(optimizer.state_dict()["state"])
        return {**shown, "parameters": [p.detach().clone() for p in model.parameters()], "state": state}

    agree(step, observe, 0.1, 0.1, 0.2, -0.1, 0.3, backend=backend, reset=begin, fullgraph=True, may_fail=True)
