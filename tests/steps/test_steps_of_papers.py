"""Steps as the authors of methods write them: sharpness, projected gradients, contrasts, two passes with dropout."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch import nn, optim

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


def net(classes=3):
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, classes))


def sharpness_aware():
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            norm = torch.norm(torch.stack([parameter.grad.norm(2) for parameter in model.parameters()]), 2)
            moves = [parameter.grad * (0.05 / (norm + 1e-12)) for parameter in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step, {"model": model, "optimizer": optimizer}


def projected():
    """Two tasks; what one gradient takes from the other is projected out."""
    model = net(5)
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        out, parameters = model(x), list(model.parameters())
        first, second = F.cross_entropy(out[:, :3], y), out[:, 3:].square().mean()
        ones = torch.autograd.grad(first, parameters, retain_graph=True)
        others = torch.autograd.grad(second, parameters)
        for parameter, one, other in zip(parameters, ones, others, strict=True):
            product = (one * other).sum()
            one = torch.where(product < 0, one - product / (other.norm() ** 2 + 1e-8) * other, one)
            parameter.grad = one + other
        optimizer.step()
        return {"first": first.item(), "second": second.item()}

    return step, {"model": model, "optimizer": optimizer}


def contrasted():
    model = net(8)
    optimizer = optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)

    def step(x, y):
        views = [F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2)]
        both = torch.cat(views)
        likeness = both @ both.t() / 0.5
        likeness.fill_diagonal_(float("-inf"))
        loss = F.cross_entropy(likeness, torch.arange(2 * x.shape[0]).roll(x.shape[0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, {"model": model, "optimizer": optimizer}


def passed_twice():
    model = net()
    optimizer = optim.Adam(model.parameters(), lr=0.01, eps=1e-4)

    def step(x, y):
        one, other = model(x), model(x)
        fit = 0.5 * (F.cross_entropy(one, y) + F.cross_entropy(other, y))
        gap = F.kl_div(F.log_softmax(one, -1), F.log_softmax(other, -1), log_target=True, reduction="batchmean")
        size = sum(parameter.abs().sum() for parameter in model.parameters())
        optimizer.zero_grad()
        (fit + gap + 1e-4 * size).backward()
        optimizer.step()
        return {"fit": fit.item(), "gap": gap.item(), "size": size.item()}

    return step, {"model": model, "optimizer": optimizer}


WAYS = [sharpness_aware, projected, contrasted, passed_twice]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_step_of_a_paper_is_one_graph(way, backend):
    agree(way, batches(4), backend, programs=1, tol=1e-4)
