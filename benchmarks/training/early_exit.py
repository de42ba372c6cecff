"""A network that looks, after each block, whether it is sure enough already, and counts where it left."""

import collections

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.exit = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return x, self.exit(x)


class Exits(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.inward = nn.Linear(32, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(5)])
        self.left_at: collections.Counter[int] = collections.Counter()

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x, losses = self.inward(x), []
        for number, block in enumerate(self.blocks):
            x, logits = block(x)
            losses.append(F.cross_entropy(logits, target))
            if logits.softmax(-1).amax(-1).mean().item() > 0.9:
                self.left_at[number] += 1
                break
        return torch.stack(losses).mean()


def build(compile: Compile) -> Training:
    model = Exits()
    compiled = compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(n: int) -> torch.Tensor:
        loss = compiled(torch.randn(64, 32), torch.randint(0, 10, (64,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, model.parameters())
