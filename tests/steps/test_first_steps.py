"""The step in which an optimizer makes its state: plain Python, for which no program is made."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches

import bothways


def training(log, name="AdamW"):
    model = torch.nn.Linear(6, 3)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)

    def step(x, y):
        log.append("begun")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model, optimizer


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [True, False], ids=["one graph", "any graphs"])
def test_nothing_is_compiled_for_the_first_step(backend, fullgraph):
    def make():
        log = []
        step, model, optimizer = training(log)
        return step, {"model": model, "optimizer": optimizer, "log": log}

    compiled = agree(make, batches(4), backend, programs=1, fullgraph=fullgraph)
    first, second = bothways.history(compiled)
    assert not first.graphs and [found.code for found in first.breaks] == ["lazy_state"]
    assert second.graphs and not second.breaks


def test_models_that_are_trained_one_after_the_other_each_have_such_a_step():
    for count in range(1, 6):
        step, _, optimizer = training([])
        compiled = bothways.compile(step, backend="eager")
        for batch in batches(3):
            compiled(*batch)
        assert optimizer.state
        made = [one for one in bothways.history(compiled) if one.graphs]
        assert len(made) == count and not any(one.breaks for one in made)


def test_a_number_that_changes_is_known_to_after_the_first_step():
    """That step was looked at, though it was not captured."""
    step, _, _ = training([])
    compiled = bothways.compile(lambda x, y, scale: step(x * scale, y), backend="eager")
    for number, (x, y) in enumerate(batches(5)):
        compiled(x, y, 0.5 + number)
    assert sum(bool(one.graphs) for one in bothways.history(compiled)) == 1
