"""Every layer of ``torch.nn``: how to make it, and what to call it with.

A row is (constructor, arguments); the test module checks that the table is complete.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same numbers for the same shape, none of them on an edge of an activation."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float64) * 0.37 + 0.11).sin().reshape(shape).to(dtype)


def needs_grad(*shape: int) -> torch.Tensor:
    return tensor(*shape).requires_grad_()


def probabilities(*shape: int) -> torch.Tensor:
    return (tensor(*shape) * 0.45 + 0.5).requires_grad_()


def signs(*shape: int) -> torch.Tensor:
    return tensor(*shape).sign()


@dataclass(frozen=True)
class Row:
    """One layer: it is made anew, and called with arguments that are made anew, for every run."""

    make: Callable[[], nn.Module]
    arguments: Callable[[], tuple[Any, ...]] = field(default=lambda: (needs_grad(3, 4),))


def row(make: Callable[[], nn.Module], *shape: int) -> Row:
    """A layer of one tensor."""
    return Row(make, lambda: (needs_grad(*shape or (3, 4)),))


def pooled(dimensions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What an unpooling layer takes: a result of pooling and where it came from."""
    pool = getattr(nn, f"MaxPool{dimensions}d")(2, return_indices=True)
    values, places = pool(tensor(2, 3, *[4] * dimensions))
    return values.detach().requires_grad_(), places


TRANSFORMER = {"d_model": 4, "nhead": 2, "dim_feedforward": 8, "dropout": 0.0}

ACTIVATIONS = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LeakyReLU,
    nn.LogSigmoid, nn.Mish, nn.PReLU, nn.RReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus,
    nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Flatten,
)  # fmt: skip
DROPOUTS = (nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)

LAYERS: dict[str, Row] = {
    **{kind.__name__: row(kind) for kind in ACTIVATIONS},
    **{kind.__name__: row(kind, 2, 3, 4, 4, 4) for kind in DROPOUTS},
    "Dropout1d": row(nn.Dropout1d, 2, 3, 4),
    "Dropout2d": row(nn.Dropout2d, 2, 3, 4, 4),
    "GLU": row(nn.GLU),
    "Threshold": row(lambda: nn.Threshold(0.1, 2.0)),
    "Softmax": row(lambda: nn.Softmax(-1)),
    "Softmin": row(lambda: nn.Softmin(-1)),
    "LogSoftmax": row(lambda: nn.LogSoftmax(-1)),
    "Softmax2d": row(nn.Softmax2d, 2, 3, 4, 4),
    # Linear layers and embeddings
    "Linear": row(lambda: nn.Linear(4, 5)),
    "Bilinear": Row(lambda: nn.Bilinear(4, 3, 5), lambda: (needs_grad(2, 4), needs_grad(2, 3))),
    "Embedding": Row(lambda: nn.Embedding(10, 3, padding_idx=0), lambda: (torch.tensor([[1, 2], [0, 4]]),)),
    "EmbeddingBag": Row(lambda: nn.EmbeddingBag(10, 3), lambda: (torch.tensor([[1, 2], [3, 4]]),)),
    # Convolutions, padding and pooling
    **{f"Conv{n}d": row(lambda n=n: getattr(nn, f"Conv{n}d")(3, 2, 3, padding=1), 2, 3, *[5] * n) for n in (1, 2, 3)},
    **{
        f"ConvTranspose{n}d": row(lambda n=n: getattr(nn, f"ConvTranspose{n}d")(3, 2, 3, stride=2), 2, 3, *[4] * n)
        for n in (1, 2, 3)
    },
    **{
        f"{kind}Pad{n}d": row(lambda kind=kind, n=n: getattr(nn, f"{kind}Pad{n}d")(1), 2, 3, *[4] * n)
        for kind in ("Circular", "Reflection", "Replication", "Zero")
        for n in (1, 2, 3)
    },
    **{f"ConstantPad{n}d": row(lambda n=n: getattr(nn, f"ConstantPad{n}d")(1, 2.5), 2, 3, *[4] * n) for n in (1, 2, 3)},
    **{
        f"{kind}Pool{n}d": row(lambda kind=kind, n=n: getattr(nn, f"{kind}Pool{n}d")(2), 2, 3, *[4] * n)
        for kind in ("Avg", "Max", "AdaptiveAvg", "AdaptiveMax")
        for n in (1, 2, 3)
    },
    **{f"LPPool{n}d": row(lambda n=n: getattr(nn, f"LPPool{n}d")(2, 2), 2, 3, *[4] * n) for n in (1, 2, 3)},
    **{
        f"FractionalMaxPool{n}d": row(
            lambda n=n: getattr(nn, f"FractionalMaxPool{n}d")(
                2, output_size=2, _random_samples=probabilities(2, 3, n).detach()
            ),
            2, 3, *[6] * n,
        )
        for n in (2, 3)
    },
    **{f"MaxUnpool{n}d": Row(lambda n=n: getattr(nn, f"MaxUnpool{n}d")(2), lambda n=n: pooled(n)) for n in (1, 2, 3)},
    "Fold": row(lambda: nn.Fold((4, 5), (2, 2)), 2, 3 * 4, 12),
    "Unfold": row(lambda: nn.Unfold((2, 2)), 2, 3, 4, 5),
    "PixelShuffle": row(lambda: nn.PixelShuffle(2), 2, 8, 3, 3),
    "PixelUnshuffle": row(lambda: nn.PixelUnshuffle(2), 2, 2, 6, 6),
    "ChannelShuffle": row(lambda: nn.ChannelShuffle(2), 2, 4, 3, 3),
    "Upsample": row(lambda: nn.Upsample(scale_factor=2), 2, 3, 4, 4),
    "UpsamplingBilinear2d": row(lambda: nn.UpsamplingBilinear2d(scale_factor=2), 2, 3, 4, 4),
    "UpsamplingNearest2d": row(lambda: nn.UpsamplingNearest2d(size=(5, 7)), 2, 3, 4, 4),
    "Unflatten": row(lambda: nn.Unflatten(1, (2, 2))),
    # Normalization
    **{f"BatchNorm{n}d": row(lambda n=n: getattr(nn, f"BatchNorm{n}d")(3), 4, 3, *[4] * n) for n in (1, 2, 3)},
    **{
        f"InstanceNorm{n}d": row(
            lambda n=n: getattr(nn, f"InstanceNorm{n}d")(3, affine=True, track_running_stats=True), 2, 3, *[4] * n
        )
        for n in (1, 2, 3)
    },
    "GroupNorm": row(lambda: nn.GroupNorm(2, 4), 2, 4, 5),
    "LayerNorm": row(lambda: nn.LayerNorm(4)),
    "RMSNorm": row(lambda: nn.RMSNorm(4)),
    "LocalResponseNorm": row(lambda: nn.LocalResponseNorm(2), 2, 4, 3, 3),
    # Recurrence and attention
    **{
        name: Row(lambda name=name: getattr(nn, name)(4, 3, num_layers=2, batch_first=True, bidirectional=True),
                  lambda: (needs_grad(2, 5, 4),))
        for name in ("RNN", "LSTM", "GRU")
    },
    "RNNCell": row(lambda: nn.RNNCell(4, 3)),
    "LSTMCell": row(lambda: nn.LSTMCell(4, 3)),
    "GRUCell": row(lambda: nn.GRUCell(4, 3)),
    "MultiheadAttention": Row(
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        lambda: (needs_grad(2, 5, 4), needs_grad(2, 3, 4), needs_grad(2, 3, 4)),
    ),
    "TransformerEncoderLayer": row(lambda: nn.TransformerEncoderLayer(**TRANSFORMER, batch_first=True), 2, 5, 4),
    "TransformerDecoderLayer": Row(
        lambda: nn.TransformerDecoderLayer(**TRANSFORMER, batch_first=True),
        lambda: (needs_grad(2, 5, 4), needs_grad(2, 3, 4)),
    ),
    "TransformerEncoder": row(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**TRANSFORMER, batch_first=True), 2), 2, 5, 4
    ),
    "TransformerDecoder": Row(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(**TRANSFORMER, batch_first=True), 2),
        lambda: (needs_grad(2, 5, 4), needs_grad(2, 3, 4)),
    ),
    "Transformer": Row(
        lambda: nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True),
        lambda: (needs_grad(2, 5, 4), needs_grad(2, 3, 4)),
    ),
    # Losses and distances
    **{
        name: Row(getattr(nn, name), lambda: (needs_grad(3, 4), tensor(4, 3).t()))
        for name in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "PoissonNLLLoss", "CosineSimilarity",
                     "PairwiseDistance")
    },
    **{
        name: Row(getattr(nn, name), lambda: (needs_grad(3, 4), signs(3, 4)))
        for name in ("SoftMarginLoss", "HingeEmbeddingLoss")
    },
    "BCELoss": Row(nn.BCELoss, lambda: (probabilities(3, 4), probabilities(4, 3).t().detach())),
    "BCEWithLogitsLoss": Row(nn.BCEWithLogitsLoss, lambda: (needs_grad(3, 4), probabilities(4, 3).t().detach())),
    "KLDivLoss": Row(lambda: nn.KLDivLoss(reduction="batchmean"),
                     lambda: (needs_grad(3, 4), probabilities(4, 3).t().detach())),
    "GaussianNLLLoss": Row(nn.GaussianNLLLoss, lambda: (needs_grad(3, 4), tensor(3, 4), probabilities(3, 4))),
    "CrossEntropyLoss": Row(nn.CrossEntropyLoss, lambda: (needs_grad(3, 4), torch.tensor([0, 3, 1]))),
    "NLLLoss": Row(nn.NLLLoss, lambda: (needs_grad(3, 4), torch.tensor([0, 3, 1]))),
    "MultiMarginLoss": Row(nn.MultiMarginLoss, lambda: (needs_grad(3, 4), torch.tensor([0, 3, 1]))),
    "MultiLabelMarginLoss": Row(
        nn.MultiLabelMarginLoss, lambda: (needs_grad(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 0, 0]]))
    ),
    "MultiLabelSoftMarginLoss": Row(nn.MultiLabelSoftMarginLoss, lambda: (needs_grad(3, 4), signs(3, 4).relu())),
    "CTCLoss": Row(
        nn.CTCLoss,
        lambda: (
            tensor(6, 2, 5).log_softmax(2).detach().requires_grad_(),
            torch.tensor([[1, 2, 3], [4, 1, 2]]),
            torch.tensor([6, 6]),
            torch.tensor([3, 2]),
        ),
    ),
    "MarginRankingLoss": Row(nn.MarginRankingLoss, lambda: (needs_grad(5), probabilities(5), signs(5))),
    "CosineEmbeddingLoss": Row(nn.CosineEmbeddingLoss, lambda: (needs_grad(3, 4), probabilities(3, 4), signs(3))),
    "TripletMarginLoss": Row(
        nn.TripletMarginLoss, lambda: (needs_grad(3, 4), probabilities(3, 4), tensor(4, 3).t().requires_grad_())
    ),
    "TripletMarginWithDistanceLoss": Row(
        lambda: nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1)),
        lambda: (needs_grad(3, 4), probabilities(3, 4), tensor(4, 3).t().requires_grad_()),
    ),
    # Containers
    "Sequential": row(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())),
}
if hasattr(nn, "LinearCrossEntropyLoss"):
    LAYERS["LinearCrossEntropyLoss"] = Row(
        lambda: nn.LinearCrossEntropyLoss(4, 5), lambda: (needs_grad(3, 4), torch.tensor([0, 3, 1]))
    )
