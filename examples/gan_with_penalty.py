"""Two networks against each other, with a gradient penalty: the step of the critic takes a gradient of a gradient, and
is still one compiled function.

    python examples/gan_with_penalty.py [steps]
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn

import bothways

NOISE, BATCH = 4, 16


def networks() -> tuple[nn.Module, nn.Module]:
    generator = nn.Sequential(nn.Linear(NOISE, 32), nn.Tanh(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1))
    return generator, critic


def train(
    generator: nn.Module, critic: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], compiled: bool
) -> list[float]:
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def step(real: torch.Tensor, noise: torch.Tensor) -> float:
        of_critic.zero_grad()
        made = generator(noise).detach()
        between = (0.5 * (real + made)).requires_grad_()
        [slope] = torch.autograd.grad(critic(between).sum(), [between], create_graph=True)
        penalty = (slope.norm(dim=1) - 1).pow(2).mean()
        loss = critic(made).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        of_generator.step()
        return loss.item()

    if compiled:
        step = bothways.compile(step)
    return [step(real, noise) for real, noise in batches]


def main(steps: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(0)
    batches = [(torch.randn(BATCH, 2) * 0.3 + 1, torch.randn(BATCH, NOISE)) for _ in range(steps)]
    generator, critic = networks()
    return {
        "plain": train(copy.deepcopy(generator), copy.deepcopy(critic), batches, compiled=False),
        "compiled": train(generator, critic, batches, compiled=True),
    }


if __name__ == "__main__":
    for name, losses in main(int(sys.argv[1]) if len(sys.argv) > 1 else 20).items():
        print(f"{name:<9} {losses[0]:.4f} -> {losses[-1]:.4f}")
