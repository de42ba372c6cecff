"""A mixture of experts: each token goes to the two experts that its gate prefers."""

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


class Experts(nn.Module):
    def __init__(self, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(experts)]
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = self.gate(x).softmax(dim=-1)
        best, chosen = shares.topk(2, dim=-1)
        best = best / best.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == number)
            if len(tokens) == 0:
                continue
            result.index_add_(0, tokens, expert(x[tokens]) * best[tokens, place, None])
        load = F.one_hot(chosen[:, 0], shares.shape[1]).float().mean(0)
        return result, (load * shares.mean(0)).sum() * shares.shape[1]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Experts() for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(2)])
        self.head = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        balance = x.new_zeros(())
        for norm, layer in zip(self.norms, self.layers, strict=True):
            mixed, uneven = layer(norm(x))
            x, balance = x + mixed, balance + uneven
        return self.head(x), balance


def build(compile: Compile) -> Training:
    model = Model()
    compiled = compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)

    def step(n: int) -> torch.Tensor:
        x, target = torch.randn(128, 64), torch.randint(0, 8, (128,))
        optimizer.zero_grad()
        logits, balance = compiled(x)
        loss = F.cross_entropy(logits, target) + 0.01 * balance
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(step, model.parameters())
