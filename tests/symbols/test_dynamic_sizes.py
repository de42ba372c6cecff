"""One program for all batch sizes: the first is made for its sizes, the second for those that changed."""

import math

import pytest
import torch
import torch.nn.functional as F
from sizing import BACKENDS, agree, batches

import bothways

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def randn(*shape):
    return torch.randn(*shape, requires_grad=True)


def arithmetic(x):
    n = x.shape[0]
    return x * n + n // 2 - n % 3, n * 2 + 1, (n, x.shape), -n, abs(2 - n), n > 1


def slices(x):
    n = len(x)
    return x[: n - 1], x[1:], x[n // 2 :], x[-1], x[:, :2], x[::2], x[n - 1], x[1:n]


def factories(x):
    n = x.size(0)
    filled = torch.zeros(n, 6) + torch.arange(n)[:, None] + torch.full((n, 1), 3.0) + x.new_ones(n, 6)
    return x + filled + torch.ones_like(x), torch.eye(n), torch.arange(1, n), torch.arange(n, 0, -1)


def views(x):
    n = x.shape[0]
    halves = x.view(n, 2, 3).permute(0, 2, 1)
    return halves.reshape(n * 3, 2), x.reshape(-1), x.view(-1, 3), x.unsqueeze(1).expand(n, 5, 6), x.flatten(), x.t()


def reductions(x):
    return x.sum(), x.sum(0), x.mean(1), x.var(0), x.std(), x.max(0).values, x.argmax(0), x.norm(dim=1), x / x.numel()


def softmaxes(x):
    return x.softmax(0), x.softmax(1), x.log_softmax(0), F.layer_norm(x, (6,)), x.logsumexp(0), x.cumsum(0)


def joined(x):
    n = x.shape[0]
    with_nothing = torch.cat([torch.tensor([]), x], dim=-2)  # a cache of keys begins like that
    moved = F.pad(x, (0, 0, 1, n)), x.roll(1, 0), x.flip(0)
    return torch.cat([x, x[1:]]), with_nothing, torch.stack([x, x]), x.repeat(2, 1), *moved


def in_parts(x):
    return (*x.chunk(2, 1), *x.split(3, 1), *x.unbind(1))


def products(x):
    return x @ x.t(), torch.einsum("bi,bj->ij", x, x), torch.bmm(x[:, None], x[:, :, None]), x.unsqueeze(1) @ x.t()


def masks(x):
    n = x.shape[0]
    square = torch.ones(n, n)
    return torch.where(x > 0, x, 0.5), x.masked_fill(x > 1, 0.0), square.tril(), torch.triu(square, 1)


def changed_inside(x):
    y = x * 1
    y.add_(x.shape[0])
    y[1:] = 0
    y[0].mul_(2)
    return y


def with_fractions(x):
    n = x.shape[0]
    return x * (1 / n), x * n * 0.5, x / math.sqrt(x.shape[1]), (n + 1) / 2, x * (n - 0.5)


def containers(x):
    sizes = [x.shape[0], 2]
    sizes.append(sizes[0] + 1)
    sizes[0] += 1
    return sizes, tuple(sizes), {"n": sizes[0]}, sum(x.shape), math.prod(x.shape), torch.Size([x.shape[0], 2]), x.sum()


def attention(x):
    q = x.view(1, 1, -1, 6)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def decided(x):
    if x.shape[0] and len(x) > 1 and x.shape[0] != 0:
        return x * 2
    return x


PROGRAMS = [
    arithmetic, slices, factories, views, reductions, softmaxes, joined, in_parts, products, masks, changed_inside,
    with_fractions, containers, attention, decided,
]  # fmt: skip


@pytest.mark.in_turn("backend")
@everywhere
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_two_programs_serve_all_batch_sizes(function, backend):
    agree(function, batches(None, 6), backend)


@pytest.mark.every_backend
@everywhere
def test_every_batch_size_from_2_to_64(backend):
    def loss(x, w):
        return ((x @ w).relu() + x.shape[0]).mean()

    agree(loss, [(randn(n, 4), randn(4, 3)) for n in range(2, 65)], backend)


@everywhere
def test_two_inputs_of_one_size(backend):
    agree(lambda x, y: x * y + x.shape[0], [(randn(n, 4), randn(n, 4)) for n in (2, 3, 5, 9)], backend)


@everywhere
def test_equal_sizes_that_differ_later(backend):
    def both(x, y):
        return torch.cat([x, y]), x.sum() * y.sum()

    sizes = ((3, 3), (4, 4), (5, 6), (6, 5), (7, 7))
    agree(both, [(randn(n, 4), randn(m, 4)) for n, m in sizes], backend)


@everywhere
def test_a_size_that_becomes_one_broadcasts(backend):
    sizes = ((3, 3), (5, 5), (6, 1), (6, 6), (1, 7), (4, 4))
    agree(lambda x, y: x * y, [(randn(n, 4), randn(m, 4)) for n, m in sizes], backend, programs=4)


@everywhere
def test_nothing_and_one_have_programs_of_their_own(backend):
    calls = batches(None, 4, sizes=(5, 0, 1, 7, 8, 1, 0, 9))
    agree(lambda x: (x.sum(0), x * 2, x.softmax(1)), calls, backend, programs=4)


@everywhere
def test_square_and_oblong(backend):
    def two(x):
        n, m = x.shape
        return x.softmax(0).reshape(m, n) * n, x @ x.t()

    agree(two, [(randn(n, m),) for n, m in ((3, 4), (5, 6), (6, 5), (7, 7), (4, 4), (2, 9))], backend)


@everywhere
def test_a_decision_by_a_remainder_has_a_program_for_each_side(backend):
    def halved(x):
        if x.shape[0] % 2:
            return x[1:] * 2
        return x.view(x.shape[0] // 2, 2, 4).sum(1)

    compiled = agree(halved, batches(None, 4, sizes=(2, 3, 4, 5, 6, 7, 8, 9)), backend, programs=3)
    assert any("% 2" in check.text for check in bothways.history(compiled)[-1].guards)


@everywhere
def test_a_loop_over_a_size_is_unrolled_for_that_size(backend):
    def total(x):
        result = 0
        for index in range(x.shape[0]):
            result = result + x[index] * index
        return result

    agree(total, batches(None, 4, sizes=(2, 3, 4, 3, 2)), backend, programs=3)


@everywhere
def test_text_of_a_size_is_that_size(backend):
    agree(lambda x: (x * 2, f"{x.shape[0]}", str(len(x))), batches(None, 4, sizes=(2, 3, 4)), backend, programs=3)


@everywhere
@pytest.mark.parametrize(
    "layout",
    [
        lambda n: torch.randn(4, n).t(),
        lambda n: torch.randn(n, 8)[:, ::2],
        lambda n: torch.randn(n * 2, 4)[::2],
        lambda n: torch.randn(n, 1).expand(n, 4),
        lambda n: torch.randn(n, 2, 4)[:, 1],
    ],
    ids=["transposed", "every other column", "every other row", "expanded", "a slice"],
)
def test_other_layouts(layout, backend):
    calls = [(layout(n).requires_grad_(),) for n in (2, 3, 5, 9)]
    agree(lambda x: (x * 2, x.sum(1), x.contiguous(), x + torch.ones(len(x), 4)), calls, backend)


@everywhere
def test_a_layout_that_changed_is_another_program(backend):
    calls = [(randn(3, 4),), (randn(5, 4),), (torch.randn(4, 6).t().requires_grad_(),), (randn(7, 4),)]
    agree(lambda x: (x * 2).view(-1) if x.is_contiguous() else x + 1, calls, backend, programs=3)


@everywhere
def test_mutated_inputs(backend):
    def update(x, buffer):
        buffer.mul_(0.9).add_(x.detach().mean(0))
        x.detach()[1:].mul_(2)
        return x * buffer + x.shape[0]

    agree(update, [(torch.randn(n, 4), torch.randn(4)) for n in (2, 3, 5, 9)], backend)


@everywhere
def test_images_of_changing_sizes(backend):
    def pooled(x):
        return F.avg_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1), F.pad(x, (1, 2, 0, 1))

    agree(pooled, [(randn(2, 3, n, n),) for n in (8, 10, 16, 12)], backend)


@everywhere
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_other_dtypes(dtype, backend):
    calls = [(torch.arange(n * 4).reshape(n, 4).to(dtype),) for n in (2, 3, 5, 9)]
    agree(lambda x: (x * 2 + x.shape[0], x.sum(), x.amax(0), x % len(x)), calls, backend)


@pytest.mark.parametrize("small_first", [True, False])
def test_kernels_are_right_for_sizes_of_another_kind(small_first):
    """Whether work is shared out to threads, summed in chunks or kept for the row was chosen by other sizes."""

    def program(x):
        n, m = x.shape
        y = (x.softmax(1) * m).tanh() + x.mean(0) * n
        return y, y.sum(), (y * y).sum(0), y.amax(1)

    sizes = [(2, 3), (3, 5), (700, 300), (3, 70000), (70000, 3), (9000, 9)]
    calls = [(torch.randn(n, m, dtype=torch.float64, requires_grad=True),) for n, m in sizes]
    agree(program, calls if small_first else calls[::-1], "native", programs=4)
