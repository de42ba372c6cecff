"""Fine-tuning a frozen transformer through low-rank adapters, over several small batches a step."""

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


class Adapted(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.01)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * 2.0


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 4, c // 4).transpose(1, 2) for part in self.attention(self.norm1(x)).split(c, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(200, 64), nn.Embedding(32, 64)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.head = nn.Linear(64, 200)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.tokens(tokens) + self.places(places)))


def adapt(model: nn.Module) -> None:
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, Adapted(child))
        else:
            adapt(child)


def build(compile: Compile) -> Training:
    model = Model().requires_grad_(False)
    adapt(model)
    compiled = compile(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))

    def step(n: int) -> torch.Tensor:
        total = torch.zeros(())
        for _ in range(2):
            tokens = torch.randint(0, 200, (4, 24))
            loss = F.cross_entropy(compiled(tokens[:, :-1]).reshape(-1, 200), tokens[:, 1:].reshape(-1)) / 2
            loss.backward()
            total += loss.detach()
        optimizer.step()
        rate.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return Training(step, trained)
