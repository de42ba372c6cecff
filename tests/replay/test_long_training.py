"""A small GPT trained for long: a schedule, batches of other sizes, evaluation in between, a checkpoint that is loaded.

Every loss is eager's, nearly every step is replayed, and memory stays what it was after the first sizes.
"""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from replaying import DEVICE, graphs, replays
from seeding import seeded
from torch import nn

import bothways

WIDTH, LENGTH, WORDS = 16, 8, 31


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = (part.unflatten(2, (2, -1)).transpose(1, 2) for part in self.into(self.first(x)).split(WIDTH, 2))
        x = x + self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(Layer(), Layer())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x = self.words(words[:, :-1]) + self.places.weight
        return F.cross_entropy(self.head(self.norm(self.layers(x))).flatten(0, 1), words[:, 1:].flatten())


class Training:
    def __init__(self, steps):
        torch.manual_seed(0)
        self.model = Gpt().to(DEVICE, torch.float64)  # rounding must not grow to a difference
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, fused=True)
        warm = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=steps // 10)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.schedule = torch.optim.lr_scheduler.SequentialLR(self.optimizer, [warm, cosine], [steps // 10])

    def step(self, words):
        self.optimizer.zero_grad()
        loss = self.model(words)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def saved(self):
        return copy.deepcopy([part.state_dict() for part in (self.model, self.optimizer, self.schedule)])

    def load(self, checkpoint):
        for part, state in zip((self.model, self.optimizer, self.schedule), copy.deepcopy(checkpoint), strict=True):
            part.load_state_dict(state)


def batch(number, size):
    return torch.randint(0, WORDS, (size, LENGTH + 1), generator=seeded(number)).to(DEVICE)


def train(training, step, steps):
    """The losses of a training, of its evaluations, and the memory that is held every so often."""
    losses, held, period = [], [], steps // 10
    checkpoint = None
    batches = [batch(number, (8, 5)[number // period % 2]) for number in range(steps)]
    for number, words in enumerate(batches):
        losses.append(step(words))
        training.schedule.step()
        if number % period == period - 1:
            training.model.eval()
            with torch.no_grad():
                losses.append(training.model(batch(-number, 6)))
            training.model.train()
        if number == 4 * period:
            checkpoint = training.saved()
        if number == 6 * period:
            training.load(checkpoint)
        if number % (2 * period) == period + period // 5:  # the same size each time
            gc.collect()
            recorded = sum(one.bytes for one in bothways.memory())
            held.append(torch.cuda.memory_allocated() if DEVICE == "cuda" else recorded)
    return torch.stack(losses), held


@pytest.mark.parametrize("wanted", ["auto", True])
@pytest.mark.parametrize("steps", [60, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_schedule_other_sizes_evaluation_and_a_checkpoint(steps, wanted):
    plain, ours = Training(steps), Training(steps)
    expected, _ = train(plain, plain.step, steps)
    with graphs(wanted):
        compiled = bothways.compile(ours.step)
        found, held = train(ours, compiled, steps)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
        told = [str(one) for compilation in bothways.history(compiled) for one in compilation.replays]
        assert replays(compiled)["forward"] > 0.6 * steps, told
        assert max(held[1:]) <= 1.1 * held[1], (held, told)  # since each size has come again
