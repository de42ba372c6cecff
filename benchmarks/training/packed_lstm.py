"""A classifier of texts of all lengths: embedding, packed LSTM, the last states."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from training import Compile, Training


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(500, 48, padding_idx=0)
        self.lstm = nn.LSTM(48, 64, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.lstm(packed)
        return self.head(torch.cat([state[-2], state[-1]], dim=1))


def build(compile: Compile) -> Training:
    model = Classifier()
    compiled = compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(n: int) -> torch.Tensor:
        lengths = torch.randint(4, 24, (16,))
        texts = [torch.randint(1, 500, (int(length),)) for length in lengths]
        labels = torch.randint(0, 4, (16,))
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(compiled(pad_sequence(texts, batch_first=True), lengths), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return Training(step, model.parameters())
