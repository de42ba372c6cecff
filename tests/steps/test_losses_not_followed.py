"""Losses whose backward PyTorch knows no shapes of, through tensors that are hooked, with a number that changes."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree

TARGETS = {
    F.multi_margin_loss: torch.arange(6) % 3,
    F.multilabel_margin_loss: torch.zeros(6, 3, dtype=torch.int64),
}


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loss_of", TARGETS, ids=lambda loss: loss.__name__)
def test_two_updates_in_one_step(loss_of, backend):
    weight, y = torch.zeros(4, 3, requires_grad=True), TARGETS[loss_of]

    def reset():
        with torch.no_grad():
            weight.copy_(torch.linspace(-1, 1, 12).view(4, 3))

    def step(x, rate):
        losses = []
        for _ in range(2):
            weight.grad = None
            h = (x @ weight).tanh()
            h.register_hook(lambda grad: grad * 0.5)
            loss = loss_of(h * 2, y)
            losses.append(loss.detach())
            loss.backward()
            with torch.no_grad():
                weight.sub_(weight.grad * rate)  # behind which the graph has a number that is another one next time
        return torch.stack(losses)

    def observe(function, rate):
        shown = function(torch.linspace(-1, 1, 24).view(6, 4), rate)
        return {"losses": shown, "weight": weight.detach().clone(), "gradient": weight.grad.clone()}

    agree(step, observe, 0.1, 0.1, 0.2, 0.3, 0.2, backend=backend, reset=reset)
