"""Steps that make sure of data, as distributions do, after something was updated: one graph, and plain Python's error,
parameters, gradients and random numbers where the data is not as it should be."""

import copy

import pytest
import torch
import torch.nn.functional as F
from agreeing import assert_same
from seeding import seeded
from stepping import BACKENDS, agree, graphs_of, state_of
from torch import nn
from torch.distributions import Categorical, Normal, kl_divergence

import bothways

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def observations(count=5, size=12):
    generator = seeded(3)
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


def variational():
    """An autoencoder whose distributions look at what they are given, in the middle of what is differentiated."""
    encoder, decoder = nn.Linear(6, 6), nn.Linear(3, 6)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)

    def step(x):
        mean, width = encoder(x).chunk(2, dim=-1)
        found = Normal(mean, width.exp(), validate_args=True)
        made = Normal(decoder(found.rsample()), 1.0, validate_args=True)
        loss = kl_divergence(found, Normal(0.0, 1.0)).mean() - made.log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, {"encoder": encoder, "decoder": decoder, "optimizer": optimizer}


PROGRAMS = (clipped_policy, actor_and_critic, variational)


@everywhere
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_data_is_checked_between_updates(make, backend):
    agree(make, observations(), backend, programs=1)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_it_is_one_graph(make):
    assert len(graphs_of(make, observations(3)).graphs) == 1


def test_what_is_differentiated_is_not_cut_by_checks():
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = agree(variational, observations(), "native", programs=1)
    pieces = list(dict.fromkeys(map(str, bothways.explain(compiled).outcomes[-1].pieces)))
    # On a CPU all of it; on a GPU the checks are apart. Nothing of it is a backward of autograd's.
    assert len(pieces) == (1 if torch.empty(0).is_cpu else 3), pieces
    assert not any("backward" in piece for piece in pieces)


@everywhere
def test_checks_without_gradients_and_what_is_changed_behind_them(backend):
    """What is looked at keeps the value that it had then, and nothing is written before it was looked at."""
    total = torch.zeros(3)

    def step(x):
        with torch.no_grad():
            torch._assert((x < 10).all(), "too much")
        y = x * 2
        torch._assert((y > 0).all(), "too little")
        y.sub_(100)
        total.add_(x)
        with torch.no_grad():
            torch._assert((total < 20).all(), "too many")
            total.mul_(2)
        return y

    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    for value in (1.0, 2.0, 3.0, 11.0, -1.0, 2.0, 9.0, 1.0):
        sides = []
        for function in (step, compiled):
            before, x = total.clone(), torch.full((3,), value)
            try:
                result = function(x)
            except AssertionError as error:
                result = str(error)
            sides.append({"result": result, "total": total.clone()})
            after = total.clone()
            total.copy_(before)
        assert_same(*sides, f"{value}, backend {backend}")
        total.copy_(after)


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
@pytest.mark.parametrize(
    ("make", "spoil"),
    [(clipped_policy, explode), (clipped_policy, be_refused_at_once), (variational, be_refused_at_once)],
)
def test_what_is_refused_leaves_what_plain_python_leaves(make, spoil, backend):
    plain = observe(make, None, observations(), spoil)
    assert plain[3]["result"][0] is ValueError
    for number, (expected, own) in enumerate(
        zip(plain, observe(make, backend, observations(), spoil), strict=True)
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
