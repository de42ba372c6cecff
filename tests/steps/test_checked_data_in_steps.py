"""Steps that make sure of data, as distributions do, after something was updated: one graph, and plain Python's error,
parameters, gradients and random numbers where the data is not as it should be."""

import copy

import pytest
import torch
import torch.nn.functional as F
from agreeing import assert_same
from stepping import BACKENDS, agree, graphs_of, state_of
from torch import nn
from torch.distributions import Categorical, Normal

import bothways

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def observations(count=5, size=12):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(size, 6, generator=generator),) for _ in range(count)]


def clipped_policy():
    """Some epochs of a policy's update over what it did itself: each makes a distribution after the last update."""
    policy, value = nn.Linear(6, 3), nn.Linear(6, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-2)
    losses = []

    def step(x):
        with torch.no_grad():
            before = Categorical(logits=policy(x), validate_args=True)
            done = before.sample()
            odds, expected = before.log_prob(done), value(x).squeeze(-1)
        reached = torch.randn(len(x)) + expected
        for _ in range(3):
            now = Categorical(logits=policy(x), validate_args=True)
            ratio = (now.log_prob(done) - odds).exp()
            gained = reached - expected
            loss = -torch.min(ratio * gained, ratio.clamp(0.8, 1.2) * gained).mean() - 0.01 * now.entropy().mean()
            loss = loss + 0.5 * F.mse_loss(value(x).squeeze(-1), reached)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
        return loss.detach()

    return step, {"policy": policy, "value": value, "optimizer": optimizer, "losses": losses}


def actor_and_critic():
    """Two optimizers: the critic is updated, then the actor draws again."""
    actor, critic = nn.Linear(6, 4), nn.Linear(8, 1)
    of_actor = torch.optim.SGD(actor.parameters(), lr=1e-2, momentum=0.9)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-2)

    def act(x):
        mean, width = actor(x).chunk(2, dim=-1)
        drawn = Normal(mean, width.clamp(-5, 2).exp(), validate_args=True)
        action = drawn.rsample()
        return action.tanh(), drawn.log_prob(action).sum(-1, keepdim=True)

    def step(x):
        with torch.no_grad():
            action, odds = act(x)
        of_critic.zero_grad()
        F.mse_loss(critic(torch.cat([x, action], 1)), odds).backward()
        of_critic.step()
        action, odds = act(x)
        loss = (0.1 * odds - critic(torch.cat([x, action], 1))).mean()
        of_actor.zero_grad()
        loss.backward()
        of_actor.step()
        return loss.item()

    return step, {"actor": actor, "critic": critic, "of actor": of_actor, "of critic": of_critic}


PROGRAMS = (clipped_policy, actor_and_critic)


@everywhere
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_data_is_checked_between_updates(make, backend):
    agree(make, observations(), backend, programs=1)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_it_is_one_graph(make):
    assert len(graphs_of(make, observations(3)).graphs) == 1


def observe(make, backend, batches, spoil):
    """What each step leaves behind; an error in place of a result."""
    torch.manual_seed(0)
    step, training = make()
    if backend is not None:
        step = bothways.compile(step, backend=backend, fullgraph=True)
    torch.manual_seed(1)
    trail = []
    for number, batch in enumerate(batches):
        if number == 3:
            spoil(training)
        try:
            result = copy.deepcopy(step(*batch))
        except ValueError as error:
            result = type(error), str(error).partition("(")[0]
        trail.append({"result": result, **state_of(training)})
    return trail


def explode(training):
    """The next update makes parameters that are no numbers, which the distribution behind it refuses."""
    optimizer = training.get("optimizer", training.get("of critic"))
    for group in optimizer.param_groups:
        group["lr"] = float("inf")


def be_refused_at_once(training):
    with torch.no_grad():
        next(iter(training.values())).weight.fill_(float("nan"))


@everywhere
@pytest.mark.parametrize("spoil", [explode, be_refused_at_once], ids=lambda spoil: spoil.__name__)
def test_what_is_refused_leaves_what_plain_python_leaves(spoil, backend):
    plain = observe(clipped_policy, None, observations(), spoil)
    assert plain[3]["result"][0] is ValueError
    for number, (expected, own) in enumerate(
        zip(plain, observe(clipped_policy, backend, observations(), spoil), strict=True)
    ):
        assert_same(expected, own, f"step {number}, backend {backend}", tol=1e-5)


@everywhere
def test_large_parameters_are_put_back_too(backend):
    """Of what runs as captured there are copies only up to a size, unless an error of the check's own would leave."""
    weight = torch.zeros(300, 300)
    seen = []

    def step(x):
        weight.add_(x.sum())
        torch._assert((weight < 10).all(), "too much")  # as pytest's own assert is another one
        seen.append(1)
        return weight * 2

    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    for value in (1.0, 2.0, 3.0):
        before = weight.clone()
        torch.testing.assert_close(compiled(torch.tensor([value])), (before + value) * 2)
    with pytest.raises(AssertionError, match="too much"):
        compiled(torch.tensor([7.0]))
    assert weight.unique().tolist() == [13.0] and len(seen) == 3
    assert len(bothways.history(compiled)) == 1
