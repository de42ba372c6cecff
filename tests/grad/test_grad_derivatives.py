"""Compiled backwards are right: gradcheck and gradgradcheck over what models are made of."""

import pytest
import torch
import torch.nn.functional as F
from seeding import seeded
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel

import bothways


def tensor(*shape, positive=False):
    generator = seeded(sum(shape) + len(shape))
    value = torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.5
    return (value if positive else value * 2 - 2).requires_grad_()


def attention(*parts):
    with sdpa_kernel(SDPBackend.MATH):  # the kernel that newer versions take for these has no second derivative
        return F.scaled_dot_product_attention(*parts)


# name -> (function of tensors, inputs)
FUNCTIONS = {
    "add and multiply": (lambda x, y: x * y + x, (tensor(3, 2), tensor(2))),
    "divide": (lambda x, y: x / y, (tensor(3), tensor(3, positive=True))),
    "power": (lambda x: x**3 + 2**x, (tensor(4),)),
    "sin exp tanh": (lambda x: torch.sin(x) * torch.exp(x) + torch.tanh(x), (tensor(4),)),
    "log sqrt": (lambda x: torch.log(x) + torch.sqrt(x), (tensor(4, positive=True),)),
    "matmul": (lambda x, y: x @ y, (tensor(3, 4), tensor(4, 2))),
    "batched matmul": (lambda x, y: torch.bmm(x, y), (tensor(2, 3, 4), tensor(2, 4, 2))),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (tensor(2, 3), tensor(4, 3))),
    "outer": (torch.outer, (tensor(3), tensor(2))),
    "inverse": (lambda x: torch.linalg.inv(x @ x.T + 2 * torch.eye(3, dtype=x.dtype)), (tensor(3, 3),)),
    "determinant": (lambda x: torch.linalg.det(x @ x.T + torch.eye(3, dtype=x.dtype)), (tensor(3, 3),)),
    "solve": (lambda x, y: torch.linalg.solve(x @ x.T + torch.eye(3, dtype=x.dtype), y), (tensor(3, 3), tensor(3, 2))),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.T + 2 * torch.eye(3, dtype=x.dtype)), (tensor(3, 3),)),
    "norm": (lambda x: torch.linalg.norm(x), (tensor(3, 3),)),
    "linear": (F.linear, (tensor(2, 3), tensor(4, 3), tensor(4))),
    "convolution 1d": (lambda x, w: F.conv1d(x, w, padding=1), (tensor(1, 2, 5), tensor(3, 2, 3))),
    "convolution 2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2),
        (tensor(1, 2, 5, 5), tensor(2, 2, 3, 3), tensor(2)),
    ),
    "transposed convolution": (lambda x, w: F.conv_transpose1d(x, w), (tensor(1, 2, 4), tensor(2, 3, 3))),
    "average pooling": (lambda x: F.avg_pool2d(x, 2), (tensor(1, 1, 4, 4),)),
    "max pooling": (lambda x: F.max_pool1d(x, 2), (tensor(1, 2, 6),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (tensor(3, 4), tensor(4), tensor(4))),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (tensor(4, 3),)),
    "group norm": (lambda x: F.group_norm(x, 2), (tensor(2, 4, 3),)),
    "softmax": (lambda x: F.softmax(x, -1), (tensor(3, 4),)),
    "log softmax": (lambda x: F.log_softmax(x, 0), (tensor(3, 4),)),
    "gelu silu softplus": (lambda x: F.gelu(x) + F.silu(x) + F.softplus(x), (tensor(4),)),
    "attention": (attention, (tensor(1, 3, 4), tensor(1, 3, 4), tensor(1, 3, 4))),
    "indexing": (lambda x: x[1:, ::2] * x[0, 1] + x[[0, 1], [1, 0]].sum(), (tensor(3, 4),)),
    "index select": (lambda x: x.index_select(0, torch.tensor([0, 2, 0])), (tensor(3, 2),)),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 1], [1, 1]])), (tensor(2, 3),)),
    "scatter": (lambda x, y: x.scatter(1, torch.tensor([[0], [2]]), y), (tensor(2, 3), tensor(2, 1))),
    "scatter add": (lambda x, y: x.scatter_add(0, torch.tensor([[0, 1]]), y), (tensor(2, 2), tensor(1, 2))),
    "embedding": (lambda w: F.embedding(torch.tensor([0, 2, 2]), w), (tensor(3, 2),)),
    "where and clamp": (lambda x, y: torch.where(x > y, x, y).clamp(-0.9, 0.9), (tensor(3), tensor(1))),
    "reductions": (lambda x: x.sum(0) * x.mean() + x.std() + x.prod(1).sum(), (tensor(3, 3),)),
    "cumulative": (lambda x: x.cumsum(0) * x.cumprod(1), (tensor(3, 2),)),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), (tensor(3, 2),)),
    "concatenate and split": (lambda x, y: torch.cat([x, y]).split(2)[1] * 2, (tensor(2, 2), tensor(3, 2))),
    "permute and reshape": (lambda x: (x.permute(2, 0, 1).reshape(4, -1) ** 2), (tensor(2, 3, 4),)),
    "mse": (F.mse_loss, (tensor(3, 2), tensor(3, 2, positive=True))),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 2])), (tensor(2, 3),)),
    "binary cross entropy": (lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)), (tensor(3),)),
    "huber": (lambda x, y: F.huber_loss(x, y), (tensor(3), tensor(3, positive=True))),
    "fft": (lambda x: torch.fft.rfft(x).abs(), (tensor(6),)),
    "in-place": (lambda x: x.clone().mul_(2).add_(x).sin_(), (tensor(3),)),
    "in-place on a view": (lambda x: (x * 1).view(-1)[:2].mul_(x[0, 0]).sum() + x.sum(), (tensor(2, 2),)),
}  # fmt: skip


@pytest.mark.parametrize("in_one_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives(name, in_one_direction):
    function, inputs = FUNCTIONS[name]
    compiled = bothways.compile(function, backend="aot_eager", fullgraph=True)
    assert gradcheck(compiled, inputs, fast_mode=in_one_direction)
    assert gradgradcheck(compiled, inputs, fast_mode=in_one_direction)
