"""Model-agnostic meta-learning on sine waves: a gradient step inside the loss, for each of a few tasks."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from training import Compile, Training


def build(compile: Compile) -> Training:
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    @compile
    def loss_with(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(functional_call(model, parameters, (x,)), y)

    def adapted(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        parameters = dict(model.named_parameters())
        for _ in range(2):
            gradients = torch.autograd.grad(loss_with(parameters, x, y), list(parameters.values()), create_graph=True)
            parameters = {
                name: value - 0.01 * gradient
                for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
            }
        return parameters

    def step(n: int) -> torch.Tensor:
        total = torch.zeros(())
        for _ in range(4):
            height, shift = torch.rand(()) * 4 + 0.1, torch.rand(()) * 3.14
            x = torch.rand(2, 64, 1) * 10 - 5
            y = height * torch.sin(x + shift)
            total = total + loss_with(adapted(x[0], y[0]), x[1], y[1])
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        return total.detach()

    return Training(step, model.parameters())
