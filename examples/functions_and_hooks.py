"""A custom ``autograd.Function``, hooks of tensors, parameters and modules, and an optimizer that steps inside the
backward: all in one compiled step.

    python examples/functions_and_hooks.py [steps]
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import nn

import bothways


class Straight(torch.autograd.Function):
    """Rounds to quarters; gradients pass as if it had not, where the input is in range."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        [x] = ctx.saved_tensors
        return grad * (x.abs() < 2)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = Straight.apply(torch.tanh(self.first(x)))
        hidden.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
        return self.second(hidden)


def train(model: Network, batches: list[tuple[torch.Tensor, torch.Tensor]], compiled: bool) -> list[float]:
    norms: list[torch.Tensor] = []
    model.second.register_full_backward_hook(lambda module, inputs, outputs: norms.append(outputs[0].norm()))

    def descend(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter -= 0.05 * parameter.grad
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(descend)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        return loss.item()

    if compiled:
        step = bothways.compile(step)
    losses = [step(x, y) for x, y in batches]
    return losses + [norm.item() for norm in norms]


def main(steps: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(0)
    batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(steps, 12, 8)]
    model = Network()
    return {
        "plain": train(copy.deepcopy(model), batches, compiled=False),
        "compiled": train(model, batches, compiled=True),
    }


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for name, seen in main(count).items():
        print(f"{name:<9} {seen[0]:.4f} -> {seen[count - 1]:.4f}, {len(seen) - count} norms noted")
