"""A small GPT, trained on this file's own characters: the whole step (forward, loss, backward, clipping, AdamW with a
schedule) is one compiled function.

    python examples/nanogpt.py [steps]
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import bothways

LENGTH, WIDTH, HEADS, LAYERS, BATCH = 32, 64, 4, 2, 8


class Block(nn.Module):
    """Attention over what came before, then two layers, each beside a way around."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.first(x)).split(width, dim=2)
        query, key, value = (part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.second(x))))


class GPT(nn.Module):
    """Characters in, the logits of the next ones out."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        x = self.tokens(characters) + self.places(torch.arange(characters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(model: GPT, batches: list[torch.Tensor], compiled: bool) -> list[float]:
    """The losses of one pass over the batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(batches))

    def step(batch: torch.Tensor) -> float:
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.item()

    if compiled:
        step = bothways.compile(step, fullgraph=True)
    return [step(batch) for batch in batches]


def main(steps: int = 20) -> dict[str, list[float]]:
    torch.manual_seed(0)
    text = Path(__file__).read_text()
    known = {character: number for number, character in enumerate(sorted(set(text)))}
    data = torch.tensor([known[character] for character in text])
    starts = torch.randint(0, len(data) - LENGTH - 1, (steps, BATCH))
    batches = [torch.stack([data[at : at + LENGTH + 1] for at in row]) for row in starts.tolist()]
    model = GPT(len(known))
    return {
        "plain": train(copy.deepcopy(model), batches, compiled=False),
        "compiled": train(model, batches, compiled=True),
    }


if __name__ == "__main__":
    for name, losses in main(int(sys.argv[1]) if len(sys.argv) > 1 else 20).items():
        print(f"{name:<9} {losses[0]:.4f} -> {losses[-1]:.4f}")
