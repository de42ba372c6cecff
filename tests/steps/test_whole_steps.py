"""A training step in one compiled function: forward, loss, backward, update, as one graph."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def classifier():
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3)
    )


def test_forward_backward_clipping_and_adam_are_one_graph(backend):
    def make():
        model = classifier()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        return step, {"model": model, "optimizer": optimizer}

    agree(make, batches(), backend, programs=1)


def test_gradients_accumulate_in_place(backend):
    def make():
        model = classifier()
        seen = []

        def step(x, y):
            F.cross_entropy(model(x), y).backward()

        return step, {"model": model, "seen": seen}

    agree(make, batches(), backend, programs=2)  # without gradients, and with some to add to


def test_a_loss_whose_backward_has_run_refuses_a_second_one(backend):
    def make():
        model = classifier()

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return step, {"model": model}

    compiled = agree(make, batches(2), backend)
    loss = compiled(*batches(1)[0])
    assert loss.requires_grad and loss.grad_fn is not None
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()
