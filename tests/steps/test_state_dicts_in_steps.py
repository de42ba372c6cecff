"""State dicts taken and loaded inside a step: target networks, best weights, snapshots."""

import copy

import pytest
import torch
from torch import nn

import bothways
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]


class Agent:
    """A network with a target that follows it, and what a step keeps of them."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.best, self.kept, self.said = float("inf"), {}, []

    def learn(self, x):
        with torch.no_grad():
            goal = self.target(x).cos()
        loss = (self.net(x) - goal).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def shown(self):
        states = [part.state_dict() for part in (self.net, self.target, self.optimizer)]
        return copy.deepcopy([states, self.kept, self.said])


def target_every_third(agent, step, x):
    loss = agent.learn(x)
    if step % 3 == 0:
        agent.target.load_state_dict(agent.net.state_dict())
    return loss.detach()


def target_assigned(agent, step, x):
    loss = agent.learn(x)
    state = {name: value.clone() for name, value in agent.net.state_dict().items()}
    agent.target.load_state_dict(state, assign=True)
    return loss.detach()


def some_of_it(agent, step, x):
    loss = agent.learn(x)
    state = agent.net.state_dict()
    state["extra"] = state.pop("3.bias")
    missing, unexpected = agent.target.load_state_dict(state, strict=False)
    agent.said.append((list(missing), list(unexpected)))
    return loss.detach()


def best_is_kept(agent, step, x):
    loss = agent.learn(x)
    value = loss.item()
    if value < agent.best:
        agent.best = value
        agent.kept = {name: value.detach().clone() for name, value in agent.net.state_dict().items()}
    return value


def of_other_sizes(agent, step, x):
    loss = agent.learn(x)
    try:
        agent.target.load_state_dict({**agent.net.state_dict(), "0.bias": torch.zeros(7)})
    except RuntimeError as error:
        agent.said.append(str(error))
    return loss.detach()


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [target_every_third, target_assigned, some_of_it, best_is_kept, of_other_sizes],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_a_state_dict_in_a_step(program, backend):
    def observe(function):
        agent = Agent()
        torch.manual_seed(1)
        return [(function(agent, step, torch.randn(5, 6)), agent.shown()) for step in range(6)]

    compiled = bothways.compile(program, backend=backend)
    assert difference(observe(program), observe(compiled), tol=1e-5) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_target_that_follows_is_part_of_one_graph(backend):
    agent = Agent()

    def follow(x):
        agent.target.load_state_dict(agent.net.state_dict())
        return agent.target(x)

    compiled = bothways.compile(follow, backend=backend, fullgraph=True)
    for turn in range(3):
        x = torch.arange(24.0).reshape(4, 6).sin() + turn  # rows that differ: a norm of equal ones is rounding alone
        with torch.no_grad():
            agent.net[0].weight.add_(0.1)
        plain = copy.deepcopy(agent)
        plain.target.load_state_dict(plain.net.state_dict())
        assert difference(plain.target(x), compiled(x), tol=1e-5) is None
        assert difference(plain.shown(), agent.shown(), tol=1e-5) is None
    assert len(bothways.history(compiled)) == 1
