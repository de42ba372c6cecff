"""A network that solves Burgers' equation: first and second derivatives of its output are in the loss."""

import torch
from torch import nn

from training import Compile, Training


def build(compile: Compile) -> Training:
    layers: list[nn.Module] = [nn.Linear(2, 64), nn.Tanh()]
    for _ in range(3):
        layers += [nn.Linear(64, 64), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(64, 1))
    compiled = compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def derivative(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), create_graph=True)[0]

    def step(n: int) -> torch.Tensor:
        x = (torch.rand(256, 1) * 2 - 1).requires_grad_()
        t = torch.rand(256, 1).requires_grad_()
        u = compiled(torch.cat([x, t], dim=1))
        by_x, by_t = derivative(u, x), derivative(u, t)
        residual = by_t + u * by_x - 0.01 / 3.1416 * derivative(by_x, x)
        begin = torch.rand(64, 1) * 2 - 1
        known = compiled(torch.cat([begin, torch.zeros_like(begin)], dim=1)) + torch.sin(3.1416 * begin)
        loss = residual.square().mean() + known.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, model.parameters())
