"""The programs that benchmarks/models.py runs: small models and functions as people train them.

A workload makes its model and data, lets an engine compile it, and gives the function that does one step. ``trained``
are the tensors whose values show that every engine computes the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Prepare = Callable[[Any], Any]


@dataclass(frozen=True)
class Work:
    """One step, and the tensors to compare after it."""

    step: Callable[[], Any]
    trained: list[Tensor]


def _training(module: nn.Module, prepare: Prepare, *data: Tensor) -> Work:
    """Forward and backward of a module that returns a loss, gradients from None."""
    compiled = prepare(module)

    def step() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        compiled(*data).backward()

    return Work(step, list(module.parameters()))


def pointwise_chain(prepare: Prepare) -> Work:
    """Twenty operations on a million floats, and their backward."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.sigmoid(x * 1.1 + 0.3) - x.tanh()
        return x

    compiled = prepare(chain)
    x = torch.randn(1_000_000, requires_grad=True)
    gradient = torch.ones_like(x)

    def step() -> None:
        x.grad = None
        compiled(x).backward(gradient)

    return Work(step, [x])


class Mlp(nn.Module):
    def __init__(self, width: int = 512, depth: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
        )

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(x, target)


def mlp(prepare: Prepare) -> Work:
    """LayerNorm and GELU, 4 layers of 512, batch 64."""
    return _training(Mlp(), prepare, torch.randn(64, 512), torch.randn(64, 512))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [3, 32, 64, 64]
        self.stages = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
                for a, b in itertools.pairwise(sizes)
            ]
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), target)


def cnn(prepare: Prepare) -> Work:
    """Three convolutions with BatchNorm, batch 16 of 32x32."""
    return _training(Cnn(), prepare, torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int = 4, width: int = 128, vocabulary: int = 256, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def gpt(prepare: Prepare, layers: int = 4) -> Work:
    """A GPT of width 128, 128 tokens, batch 4, with cross-entropy."""
    tokens = torch.randint(0, 256, (4, 128))
    return _training(Gpt(layers), prepare, tokens, tokens.roll(-1, 1))


def cross_entropy(prepare: Prepare) -> Work:
    """Softmax cross-entropy alone, 512 rows of 1000 classes."""
    compiled = prepare(lambda logits, target: F.cross_entropy(logits, target))
    logits = torch.randn(512, 1000, requires_grad=True)
    target = torch.randint(0, 1000, (512,))

    def step() -> None:
        logits.grad = None
        compiled(logits, target).backward()

    return Work(step, [logits])


def adamw(prepare: Prepare) -> Work:
    """An AdamW update of 60 parameters, written as a function over lists."""
    rate, beta1, beta2, epsilon, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01

    def update(
        parameters: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor], count: Tensor
    ) -> None:
        count.add_(1)
        correction1, correction2 = 1 - beta1**count, (1 - beta2**count).sqrt()
        for parameter, gradient, mean, square in zip(parameters, gradients, means, squares, strict=True):
            parameter.mul_(1 - rate * decay)
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            denominator = square.sqrt() / correction2 + epsilon
            parameter.sub_(mean / denominator * (rate / correction1))

    compiled = prepare(update)
    shapes = [(128, 128), (512, 128), (128,)] * 20
    parameters, gradients = [torch.randn(shape) for shape in shapes], [torch.randn(shape) for shape in shapes]
    means, squares = [torch.zeros(shape) for shape in shapes], [torch.zeros(shape) for shape in shapes]
    count = torch.zeros(())

    def step() -> None:
        with torch.no_grad():
            compiled(parameters, gradients, means, squares, count)

    return Work(step, parameters)


def toy(prepare: Prepare) -> Work:
    """A small function of two 64x64 tensors."""
    compiled = prepare(lambda x, y: (x * y + x).sin() * y)
    x, y = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    gradient = torch.ones(64, 64)

    def step() -> None:
        x.grad = y.grad = None
        compiled(x, y).backward(gradient)

    return Work(step, [x, y])


class Rnn(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.take, self.keep = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[1], x.shape[2])
        for now in x:
            state = torch.tanh(self.take(now) + self.keep(state))
        return state.square().mean()


def rnn(prepare: Prepare) -> Work:
    """An RNN written as a loop of 32 steps, batch 16, width 64."""
    return _training(Rnn(), prepare, torch.randn(32, 16, 64))


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 2).to(gradient.dtype)


class Hooked(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = Clipped.apply(self.first(x))
        hidden.register_hook(lambda gradient: gradient * 0.5)
        return F.gelu(self.second(hidden)).square().mean()


def custom_function(prepare: Prepare) -> Work:
    """A custom autograd.Function and a hook between two linear layers of 256, batch 64."""
    return _training(Hooked(), prepare, torch.randn(64, 256))


WORKLOADS: dict[str, Callable[[Prepare], Work]] = {
    "pointwise chain": pointwise_chain,
    "mlp": mlp,
    "cnn": cnn,
    "gpt": gpt,
    "cross-entropy": cross_entropy,
    "adamw": adamw,
    "toy": toy,
    "rnn loop": rnn,
    "custom function": custom_function,
}
