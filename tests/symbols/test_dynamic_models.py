"""Models whose batches and sequences change: two programs in all, and what eager computes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways
from bothways.driver.compiled import CompiledFunction

everywhere = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(10, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x, labels):
        logits = self.second(F.gelu(self.norm(self.first(x))))
        return logits, F.cross_entropy(logits, labels)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.mlp(self.after(x))


class GPT(nn.Module):
    def __init__(self, words=37, width=16, heads=2, layers=2, longest=64):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens, targets):
        batch, length = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x):
        length = x.size(1)
        scores = self.query(x) @ x.transpose(1, 2) / 8**0.5
        seen = torch.tril(torch.ones(length, length)).bool()
        return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ x).mean()


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm, self.out = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Linear(6, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.convolution(x))), 2)
        return self.out(x.mean((2, 3))).pow(2).sum()


def tokens(*shape):
    return torch.randint(0, 37, shape)


CASES = {
    "classifier": (Classifier, [(torch.randn(n, 10), torch.randint(0, 4, (n,))) for n in (2, 3, 5, 10, 16, 4)]),
    "gpt": (
        GPT,
        [(tokens(*size), tokens(*size)) for size in ((2, 8), (3, 9), (4, 16), (16, 4), (8, 2), (7, 7), (2, 37))],
    ),
    "attention": (Attention, [(torch.randn(n, t, 8),) for n, t in ((2, 5), (3, 6), (4, 8), (8, 4), (6, 6), (2, 300))]),
    "batches of images": (Convolutions, [(torch.randn(n, 3, 8, 8),) for n in (2, 3, 4, 9)]),
    "images": (Convolutions, [(torch.randn(n, 3, s, s),) for n, s in ((2, 8), (3, 10), (4, 12), (5, 6), (9, 8))]),
}


@pytest.mark.in_turn("backend")
@everywhere
@pytest.mark.parametrize("case", CASES)
def test_a_model_trains_on_changing_sizes(case, backend, monkeypatch):
    made, calls = CASES[case]
    functions = []
    start = CompiledFunction.__init__
    monkeypatch.setattr(
        CompiledFunction, "__init__", lambda self, *args: (functions.append(self), start(self, *args))[1]
    )
    plain = made()
    module = copy.deepcopy(plain)
    compiled = bothways.compile(module, backend=backend, fullgraph=True)
    for args in calls:
        for model, run in ((plain, plain), (module, compiled)):
            model.zero_grad()
            results = run(*args)
            loss = results[-1] if isinstance(results, tuple) else results
            loss.backward()
            model.results = results if isinstance(results, tuple) else (results,)
        for expected, found in zip(plain.results, module.results, strict=True):
            torch.testing.assert_close(found, expected)
        for expected, found in zip(plain.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-5)
        for expected, found in zip(plain.buffers(), module.buffers(), strict=True):
            torch.testing.assert_close(found, expected)
    assert sum(len(function.history.compilations) for function in functions) == 2


@everywhere
def test_an_operation_that_takes_no_symbols_has_a_program_for_each_size(backend):
    plain = nn.LSTM(4, 6, batch_first=True)
    compiled = bothways.compile(copy.deepcopy(plain), backend=backend, fullgraph=True)
    for size in ((2, 5), (3, 6), (4, 9), (3, 6)):
        x = torch.randn(*size, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, found = plain(x)[0], compiled(y)[0]
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


@everywhere
def test_channels_last(backend):
    plain = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    plain = plain.to(memory_format=torch.channels_last)
    compiled = bothways.compile(copy.deepcopy(plain), backend=backend, fullgraph=True)
    for batch in (2, 3, 5, 7):
        x = torch.randn(batch, 3, 10, 10).to(memory_format=torch.channels_last)
        expected, found = plain(x), compiled(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
