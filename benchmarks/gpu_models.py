"""The models of the GPU benchmarks: a GPT in bfloat16, blocks of Linear, LayerNorm and GELU, ResNets.

Each is a module that returns its loss, made with its data on the current device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.into(x).split(width, 2)
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.first = Attention(width, heads), nn.LayerNorm(width)
        self.second, self.wide = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.narrow(F.gelu(self.wide(self.second(x)), approximate="tanh"))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """GPT-2: learned positions, the embedding's weight again for the logits."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int = 50257) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def gpt(layers: int, width: int, heads: int, batch: int, length: int = 512) -> Made:
    model = Gpt(layers, width, heads, length).to("cuda", torch.bfloat16)
    words = torch.randint(0, 50257, (batch, length + 1), device="cuda")
    return model, (words[:, :-1].contiguous(), words[:, 1:].contiguous())


class Blocks(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        made = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(depth)]
        self.layers = nn.Sequential(*made)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), target)


def blocks(depth: int, width: int, batch: int = 256) -> Made:
    data = [torch.randn(batch, width, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    return Blocks(depth, width).to("cuda", torch.bfloat16), tuple(data)


class Residual(nn.Module):
    """A block of a ResNet: convolutions of these kernel sizes and widths, and a way around them."""

    def __init__(self, width: int, widths: Sequence[int], kernels: Sequence[int], stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = width
        strided = kernels.index(3)
        for place, (after, kernel) in enumerate(zip(widths, kernels, strict=True)):
            step = stride if place == strided else 1
            layers.append(nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            layers += [nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        self.layers = nn.Sequential(*layers[:-1])
        self.around = (
            nn.Sequential(nn.Conv2d(width, before, 1, stride, bias=False), nn.BatchNorm2d(before))
            if stride > 1 or width != before
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.around(x))


class ResNet(nn.Module):
    def __init__(self, depths: Sequence[int], bottleneck: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        ]  # fmt: skip
        width = 64
        for stage, depth in enumerate(depths):
            inner = 64 << stage
            widths = (inner, inner, 4 * inner) if bottleneck else (inner, inner)
            for place in range(depth):
                stride = 2 if stage and not place else 1
                layers.append(Residual(width, widths, (1, 3, 1) if bottleneck else (3, 3), stride))
                width = widths[-1]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(width, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(images).mean((2, 3))), labels)


def resnet(depths: Sequence[int], bottleneck: bool, size: int, batch: int = 32) -> Made:
    model = ResNet(depths, bottleneck).to("cuda", memory_format=torch.channels_last)
    images = torch.randn(batch, 3, size, size, device="cuda").to(memory_format=torch.channels_last)
    return model, (images, torch.randint(0, 1000, (batch,), device="cuda"))


GPT_SMALL: Callable[[], Made] = lambda: gpt(12, 768, 12, batch=8)  # noqa: E731
GPT_TINY: Callable[[], Made] = lambda: gpt(4, 128, 4, batch=2)  # noqa: E731
RESNET_50: Callable[[], Made] = lambda: resnet((3, 4, 6, 3), True, 224)  # noqa: E731
RESNET_18: Callable[[], Made] = lambda: resnet((2, 2, 2, 2), False, 64)  # noqa: E731
