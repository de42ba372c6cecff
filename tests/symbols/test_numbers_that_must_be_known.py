"""Fractions that an operation takes as plain numbers alone, as a probability: where they follow a schedule, that
operation is plain Python from the fourth number on, and the rest stays compiled."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import agree
from torch import nn

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


class Block(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.operation, self.rate = operation, 0.1
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.operation(torch.relu(self.first(x)), self.rate) * 2)


class Net(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.blocks = nn.ModuleList(Block(operation) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def drop_path(x, rate):
    kept = 1.0 - rate
    mask = torch.zeros(x.size(0), 1).bernoulli_(kept)
    return x / kept * mask


OPERATIONS = {
    "dropout": lambda x, rate: F.dropout(x, rate),
    "drop path": drop_path,
    "noise": lambda x, rate: x + torch.empty_like(x).normal_(0, rate),
    "loss": lambda x, rate: x + F.huber_loss(x, x.detach() * 2, delta=rate),
}


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_schedule_of_what_must_be_known_does_not_end_compilation(name, backend):
    torch.manual_seed(0)
    block = Block(OPERATIONS[name])
    compiled, counts = bothways.compile(block, backend=backend), []

    def observe(run, step):
        torch.manual_seed(step)
        block.rate = 0.1 + 0.01 * step
        x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        result = run(x)
        block.zero_grad()
        result.sum().backward()
        gradients = [parameter.grad.clone() for parameter in block.parameters()]
        return {"result": result, "gradients": [x.grad, *gradients], "numbers": torch.get_rng_state()}

    for step in range(24):
        torch.testing.assert_close(observe(compiled, step), observe(block, step))
        counts.append(len(bothways.history(compiled)))
    assert counts[-1] == counts[14]
    assert all(made.conclusion.value == "a program" for made in bothways.history(compiled))


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_around_it_stays_compiled(name):
    """The whole model ran as plain Python from the ninth number on."""
    ran = []

    def counting(graph, inputs):
        def run(*args):
            ran.extend(node.name for node in graph.graph.nodes if node.op.startswith("call"))
            return graph.forward(*args)

        return run

    net = Net(OPERATIONS[name])
    compiled = bothways.compile(net, backend=counting)
    for step in range(40):
        ran.clear()
        for place, block in enumerate(net.blocks):
            block.rate = 0.1 + 0.01 * step * (place + 1)
        compiled(torch.ones(3, 4))
    assert len([node for node in ran if "linear" in node or "first" in node or "last" in node]) == 4


def test_numbers_that_operations_take_as_they_come_break_nothing():
    block = Block(lambda x, rate: x * rate + F.leaky_relu(x, rate))
    compiled = bothways.compile(block, backend="eager", fullgraph=True)
    for step in range(12):
        block.rate = 0.1 + 0.01 * step
        compiled(torch.ones(3, 4))
    assert len(bothways.history(compiled)) == 2


def test_three_numbers_are_worth_a_program_each():
    def program(x, rate):
        torch.manual_seed(3)
        return F.dropout(x * 2, rate) + 1

    def observe(run, rate):
        return {"result": run(torch.ones(8), rate)}

    calls = [0.1, 0.5, 0.3] * 3
    agree(program, observe, *calls, backend="native", fullgraph=False, programs=None)
