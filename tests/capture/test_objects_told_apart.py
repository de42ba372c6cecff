"""Modules that are others at each call: what walks through them, as ``net.train()`` and ``parameters()`` do, only
tells them apart. A client of federated averaging trains a copy of the model; two programs are for all copies.
"""

import copy

import pytest
import torch
from agreeing import agree
from torch.nn import functional as F

import bothways


def client(net, x, y):
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    for _ in range(2):
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def trained(function, seed):
    net = copy.deepcopy(model())
    torch.manual_seed(seed)
    loss = function(net, torch.randn(5, 4), torch.randint(0, 3, (5,)))
    return {"loss": loss, **{name: tensor.clone() for name, tensor in net.state_dict().items()}}


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_each_client_trains_a_copy_of_the_model(backend):
    agree(client, trained, *range(6), backend=backend, fullgraph=True, programs=2, tol=1e-5)


def count(modules, x):
    seen = set()
    for module in modules:
        if module not in seen:
            seen.add(module)
            x = module(x)
    return x


def other_modules(apart):
    torch.manual_seed(1)
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    return [first, second if apart else first, torch.nn.Linear(3, 3)]


def test_what_was_two_modules_may_be_one_at_the_next_call():
    def observe(function, apart):
        return {"result": function(other_modules(apart), torch.ones(2, 3))}

    compiled = agree(count, observe, True, True, True, True, False, True, False)
    assert len(bothways.history(compiled)) <= 4


def in_order(modules, x):
    for module in {*modules}:
        x = module(x)
    return x


def test_the_very_modules_count_where_the_order_of_a_set_does():
    kept = [[torch.nn.Linear(3, 3)] for _ in range(3)]

    def observe(function, number):
        return {"result": function(kept[number], torch.ones(2, 3))}

    agree(in_order, observe, 0, 1, 2, 2, 1, 0)
