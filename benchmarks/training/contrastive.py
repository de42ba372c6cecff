"""Contrastive learning with a second encoder that follows the first, and a queue of what it has seen."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 32),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.body(x), dim=1)


class Contrast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.follower = copy.deepcopy(self.encoder).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(256, 32), dim=1))
        self.at = 0

    @torch.no_grad()
    def follow(self) -> None:
        for slow, quick in zip(self.follower.parameters(), self.encoder.parameters(), strict=True):
            slow.data = slow.data * 0.99 + quick.data * 0.01

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        query = self.encoder(first)
        with torch.no_grad():
            self.follow()
            key = self.follower(second)
        near = (query * key).sum(dim=1, keepdim=True)
        far = query @ self.queue.clone().detach().t()
        loss = F.cross_entropy(torch.cat([near, far], dim=1) / 0.07, torch.zeros(len(first), dtype=torch.long))
        with torch.no_grad():
            self.queue[self.at : self.at + len(key)] = key
        self.at = (self.at + len(key)) % len(self.queue)
        return loss


def build(compile: Compile) -> Training:
    model = Contrast()
    compiled = compile(model)
    optimizer = torch.optim.SGD(model.encoder.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)

    def step(n: int) -> torch.Tensor:
        images = torch.randn(32, 3, 16, 16)
        loss = compiled(images + 0.1 * torch.randn_like(images), images.flip(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, [*model.parameters(), model.queue])
