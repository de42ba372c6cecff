"""A convolutional variational autoencoder with BatchNorm, and losses that are logged as numbers."""

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.mean, self.spread = nn.Linear(32 * 16, 16), nn.Linear(32 * 16, 16)
        self.decoder = nn.Sequential(
            nn.Linear(16, 32 * 16), nn.ReLU(), nn.Unflatten(1, (32, 4, 4)),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.encoder(x)
        mean, spread = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.decoder(z), mean, spread


def build(compile: Compile) -> Training:
    model = Autoencoder()
    compiled = compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    logged: list[float] = []

    def step(n: int) -> torch.Tensor:
        x = torch.rand(32, 1, 16, 16)
        restored, mean, spread = compiled(x)
        restoring = F.binary_cross_entropy_with_logits(restored, x, reduction="sum") / len(x)
        divergence = -0.5 * (1 + spread - mean.pow(2) - spread.exp()).sum() / len(x)
        loss = restoring + min(1.0, n / 100) * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logged.append(loss.item())
        return loss.detach()

    return Training(step, [*model.parameters(), *model.buffers()])
