"""Steps that evaluate on their way, or change views of parameters by hand: what they train is as in eager."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


def training(step_of):
    def make():
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        log = []
        return step_of(net, optimizer, log), {"model": net, "optimizer": optimizer, "log": log}

    return make


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_parameters_that_are_first_met_in_an_evaluation_are_trained(mode, hooked, backend):
    """They are tensors of before the call: a mode in which they are read first makes no others of them."""

    def step_of(net, optimizer, log):
        def forward(x):
            h = net[0](x).tanh()
            if hooked and h.requires_grad:
                h.register_hook(lambda gradient: log.append(tuple(gradient.shape)) or gradient * 0.5)
            return net[2](h)

        def step(x, y):
            with mode():
                before = F.cross_entropy(forward(x), y)
                before = before * 1.0
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(x), y)
            loss.backward()
            optimizer.step()
            return before.clone(), loss.detach()

        return step

    agree(training(step_of), batches(), backend, fullgraph=False)


def test_views_of_parameters_are_changed_after_the_update(backend):
    """Autograd lets no operation use such a view where gradients are recorded, and none does."""

    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            for parameter in net.parameters():
                parameter.grad.view(-1)[:2].zero_()
                parameter.grad[0] += 0.01
            optimizer.step()
            with torch.no_grad():
                net[2].weight[:, 0].mul_(0.5)
                net[2].weight.t()[1].add_(0.1)
                net[2].bias.clamp_(-0.5, 0.5)
            return loss.detach()

        return step

    agree(training(step_of), batches(), backend)
