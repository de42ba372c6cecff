"""A Wasserstein GAN with gradient penalty: two optimizers, and a gradient inside the loss."""

import torch
from torch import nn

from training import Compile, Training


def critic_of(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, 1)
    )


def generator_of(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def build(compile: Compile) -> Training:
    generator, critic = generator_of(128), critic_of(128)
    make, judge = compile(generator), compile(critic)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))

    def penalty(real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        share = torch.rand(len(real), 1)
        mixed = (share * real + (1 - share) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
        return ((gradient.norm(2, dim=1) - 1) ** 2).mean()

    def step(n: int) -> torch.Tensor:
        angle = torch.rand(256) * 6.2832
        real = torch.stack([angle.cos(), angle.sin()], dim=1)
        fake = make(torch.randn(256, 8)).detach()
        of_critic.zero_grad()
        loss = judge(fake).mean() - judge(real).mean() + 10 * penalty(real, fake)
        loss.backward()
        of_critic.step()
        if n % 3 == 0:
            of_generator.zero_grad()
            (-judge(make(torch.randn(256, 8))).mean()).backward()
            of_generator.step()
        return loss.detach()

    return Training(step, [*generator.parameters(), *critic.parameters()])
