"""A small diffusion model of images, with an average of its weights."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


def of_time(t: torch.Tensor, width: int) -> torch.Tensor:
    rates = torch.exp(-math.log(10_000) * torch.arange(width // 2) / (width // 2))
    angles = t[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return x + self.conv2(F.dropout(F.silu(self.norm2(h)), 0.1, self.training))


class Denoiser(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.inward, self.outward = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(width) for _ in range(3)])

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        time = self.time(of_time(t, self.width))
        x = self.inward(x)
        for block in self.blocks:
            x = block(x, time)
        return self.outward(x)


def build(compile: Compile) -> Training:
    model = Denoiser()
    averaged = copy.deepcopy(model).requires_grad_(False)
    compiled = compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 200), dim=0)

    def step(n: int) -> torch.Tensor:
        images, noise = torch.randn(8, 1, 16, 16), torch.randn(8, 1, 16, 16)
        t = torch.randint(0, 200, (8,))
        share = kept[t][:, None, None, None]
        loss = F.mse_loss(compiled(share.sqrt() * images + (1 - share).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(averaged.parameters(), model.parameters(), strict=True):
                mean.mul_(0.99).add_(parameter, alpha=0.01)
        return loss.detach()

    return Training(step, [*model.parameters(), *averaged.parameters()])
