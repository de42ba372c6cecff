"""A translator with attention that is sometimes taught by its own words, as a coin decides."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from training import Compile, Training


class Translator(nn.Module):
    def __init__(self, words: int = 120, width: int = 48) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.encoder, self.cell = nn.GRU(width, width, batch_first=True), nn.GRUCell(2 * width, width)
        self.query, self.head = nn.Linear(width, width), nn.Linear(2 * width, words)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        read, state = self.encoder(self.source(source))
        state, word, said = state[0], target[:, 0], []
        for t in range(1, target.shape[1]):
            weights = torch.einsum("btc,bc->bt", read, self.query(state)).softmax(dim=-1)
            context = torch.einsum("bt,btc->bc", weights, read)
            state = self.cell(torch.cat([self.target(word), context], dim=-1), state)
            logits = self.head(torch.cat([state, context], dim=-1))
            said.append(logits)
            word = target[:, t] if random.random() < 0.5 else logits.argmax(dim=-1)
        return torch.stack(said, dim=1)


def build(compile: Compile) -> Training:
    random.seed(0)
    model = Translator()
    compiled = compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(n: int) -> torch.Tensor:
        source, target = torch.randint(0, 120, (16, 12)), torch.randint(0, 120, (16, 10))
        logits = compiled(source, target)
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Training(step, model.parameters())
