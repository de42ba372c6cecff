"""Steps in the style of ``torch.func``: gradients by ``grad``, parameters in dictionaries, one graph."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch.func import functional_call, grad, grad_and_value

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


def net():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def by_hand():
    model = net()
    values = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def loss_of(values, x, y):
        return F.cross_entropy(functional_call(model, values, (x,)), y)

    def step(x, y):
        gradients, loss = grad_and_value(loss_of)(values, x, y)
        for name in values:
            values[name] = values[name] - 0.1 * gradients[name]
        return loss.item()

    return step, {"model": model, "values": values}


def by_an_optimizer():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)

    def loss_of(values, x, y):
        logits = functional_call(model, values, (x,))
        return F.cross_entropy(logits, y), logits

    differentiated = grad_and_value(loss_of, has_aux=True)

    def step(x, y):
        values = {name: parameter.detach() for name, parameter in model.named_parameters()}
        gradients, (loss, logits) = differentiated(values, x, y)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss, (logits.argmax(-1) == y).float().mean()

    return step, {"model": model, "optimizer": optimizer}


def learning_to_learn():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_of(values, x, y):
        return F.cross_entropy(functional_call(model, values, (x,)), y)

    def adapted(values, x, y):
        for _ in range(2):
            gradients = grad(loss_of)(values, x, y)
            values = {name: values[name] - 0.1 * gradients[name] for name in values}
        return values

    def step(x, y):
        optimizer.zero_grad()
        total = 0.0
        for task in range(2):
            total = total + loss_of(adapted(dict(model.named_parameters()), x + task, y), x - task, y)
        total.backward()
        optimizer.step()
        return total.item()

    return step, {"model": model, "optimizer": optimizer}


def penalized():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        slope = grad(lambda z: model(z).square().sum())(x)
        loss = F.cross_entropy(model(x), y) + 0.1 * (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, {"model": model, "optimizer": optimizer}


def descending_inside():
    """The input itself is moved along the slope of an energy, for which the model is trained."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(x, y):
        optimizer.zero_grad()
        moved = x
        for _ in range(3):
            moved = moved - 0.1 * grad(lambda z: model(z).logsumexp(-1).sum())(moved)
        loss = F.mse_loss(moved, x.flip(0))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, {"model": model, "optimizer": optimizer}


WAYS = [by_hand, by_an_optimizer, learning_to_learn, penalized, descending_inside]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_functional_step_is_one_graph(way, backend):
    agree(way, batches(5), backend, programs=1, tol=1e-4)
