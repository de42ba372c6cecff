"""A convolutional network learns to tell patterns of pixels apart, in whole compiled steps.

    python examples/classifier.py [steps]
"""

from __future__ import annotations

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn

import bothways

CLASSES, SIZE, BATCH = 4, 16, 16


def network() -> nn.Module:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 8), *block(8, 16), nn.Flatten(), nn.Linear(16 * (SIZE // 4) ** 2, CLASSES))


def images(steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of stripes: the class says how far they are apart."""
    labels = torch.randint(0, CLASSES, (steps, BATCH))
    columns = torch.arange(SIZE).float()
    waves = torch.sin(columns * (labels[..., None] + 1) * 0.7)[:, :, None, None, :].expand(-1, -1, 1, SIZE, SIZE)
    noisy = waves + 0.3 * torch.randn(waves.shape)
    return [(noisy[step].clone(), labels[step].clone()) for step in range(steps)]


def train(model: nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]], compiled: bool) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.item()

    if compiled:
        step = bothways.compile(step, fullgraph=True)
    return [step(x, y) for x, y in batches]


def main(steps: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(0)
    batches, model = images(steps), network()
    return {
        "plain": train(copy.deepcopy(model), batches, compiled=False),
        "compiled": train(model, batches, compiled=True),
    }


if __name__ == "__main__":
    for name, losses in main(int(sys.argv[1]) if len(sys.argv) > 1 else 20).items():
        print(f"{name:<9} {losses[0]:.4f} -> {losses[-1]:.4f}")
