"""A check of data is an operation of what is compiled: it cuts no step, and where it fails, the call begins anew as
plain Python, with nothing changed but what plain Python changes."""

import pytest
import torch
from agreeing import BACKENDS, agree
from seeding import seeded
from torch import nn
from torch.distributions import Normal

import bothways

pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]


class World:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.critic = nn.Linear(3, 1).double()
        self.optimizers = [
            torch.optim.Adam(self.model.parameters(), lr=0.01),
            torch.optim.SGD(self.critic.parameters(), lr=0.1, momentum=0.9),
        ]
        self.total = torch.zeros((), dtype=torch.double)

    def tensors(self):
        return [*self.model.state_dict().values(), *self.critic.state_dict().values(), self.total]


def after_an_update(world, x):
    of_model, of_critic = world.optimizers
    of_critic.zero_grad()
    world.critic(world.model(x.nan_to_num()).detach()).square().mean().backward()
    of_critic.step()
    world.total += 1
    drawn = Normal(world.model(x), torch.ones((), dtype=torch.double), validate_args=True)
    of_model.zero_grad()
    loss = world.critic(drawn.rsample()).mean()
    loss.backward()
    of_model.step()
    return loss.detach()


def with_frozen_parameters(world, x):
    for parameter in world.critic.parameters():
        parameter.requires_grad = False
    try:
        drawn = Normal(world.model(x), torch.ones((), dtype=torch.double), validate_args=True)
        world.optimizers[0].zero_grad()
        loss = world.critic(drawn.rsample()).mean() - drawn.log_prob(x[:, :3].nan_to_num()).mean()
        loss.backward()
        world.optimizers[0].step()
    finally:
        for parameter in world.critic.parameters():
            parameter.requires_grad = True
    return loss.detach()


def differentiated_twice(world, x):
    mixed = x.detach().requires_grad_()
    drawn = Normal(world.model(mixed), torch.ones((), dtype=torch.double), validate_args=True)
    (gradient,) = torch.autograd.grad(drawn.log_prob(x[:, :3]).sum(), mixed, create_graph=True)
    world.optimizers[0].zero_grad()
    gradient.square().sum().backward()
    world.optimizers[0].step()
    return gradient.detach()


def forward_only(world, x):
    torch._assert(torch.isfinite(x).all(), "not finite")
    loss = world.model(x).square().mean()
    torch._assert(loss < 1e3, "too much")
    return loss


def of_what_is_changed(world, x):
    world.total += x.nan_to_num().abs().sum()
    torch._assert(torch.isfinite(x).all(), "not finite")
    world.total *= 0.5
    torch._assert(world.total < 1e5, "too much")
    return world.total + world.model(x).mean()


STEPS = [after_an_update, with_frozen_parameters, differentiated_twice, forward_only, of_what_is_changed]


def program(body):
    world = {}

    def step(x):
        return body(world["now"], x)

    def reset():
        world["now"] = World()

    def observe(function, call):
        size, scale, broken = call
        x = torch.randn(size, 6, dtype=torch.double, generator=seeded(size)) * scale
        if broken:
            x[1, 2] = float("nan")
        torch.manual_seed(3)
        found = {}
        try:
            result = function(x)
            if result.requires_grad:
                result.backward()
            found["result"] = result.detach()
        except (ValueError, AssertionError) as error:
            found["error"] = type(error), str(error)
        now = world["now"]
        found["tensors"] = [tensor.clone() for tensor in now.tensors()]
        parameters = [*now.model.parameters(), *now.critic.parameters()]
        found["gradients"] = [(parameter.grad, parameter.requires_grad) for parameter in parameters]
        found["states"] = [optimizer.state_dict()["state"] for optimizer in now.optimizers]
        found["random"] = torch.get_rng_state()
        return found

    return step, observe, reset


@pytest.mark.parametrize("body", STEPS, ids=lambda body: body.__name__)
@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (4, 5, 6, 4)])
def test_what_fails_begins_anew(backend, body, sizes):
    step, observe, reset = program(body)
    fine = [(size, 1, False) for size in sizes]
    calls = [*fine[:2], (sizes[2], 1, True), fine[3], (sizes[3], 1e9, False)]
    agree(step, observe, *calls, backend=backend, reset=reset, fullgraph=True, may_fail=True)


def test_a_step_is_one_part(backend):
    if backend == "eager":
        pytest.skip("cuts nothing")
    step, observe, reset = program(with_frozen_parameters)
    compiled = agree(step, observe, *[(4, 1, False)] * 4, backend=backend, reset=reset, fullgraph=True)
    assert "data is checked" not in bothways.explain(compiled).details
