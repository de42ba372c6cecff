"""A tensor without dimensions, of another dtype, beside half precision: a norm, a temperature, a count of tokens.

The result is of half precision. ATen's products and quotients on a CPU take such a second operand as the number that it
holds; its other operations round it first.
"""

import pytest
import torch

import bothways

HALVES = [torch.float16, torch.bfloat16]
OTHERS = [torch.float32, torch.float64, torch.int64]


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """However small the tensors are."""
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)


def product(x, y):
    return x * y, y * x, x.clone().mul_(y)


def quotient(x, y):
    return x / y, x.clone().div_(y), torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")


def by_a_number(x, y):
    return x * 0.7345, x / 0.7345, torch.div(x, 0.7345, rounding_mode="trunc"), torch.div(x, 3, rounding_mode="floor")


def sums(x, y):
    return x + y, y - x, torch.add(x, y, alpha=0.3), torch.maximum(x, y), x.clone().sub_(y)


def mixed(x, y):
    quotients = torch.addcdiv(x, x, y), torch.addcdiv(y, x, x + 9)
    return torch.lerp(x, x * 2, y), torch.addcmul(x, x, y, value=0.3), *quotients


def computed_inside(x, y):
    norm = x.float().norm() + 1e-7
    return x / norm, x * (y + 2), x / (x > 0).sum(), x.sum() / (x < 9).sum()


def lists(x, y):
    return torch._foreach_mul([x, x + 1], y) + torch._foreach_div([x, x + 1], y)


def newton_schulz(x, y):
    matrix = (x.float() * 0.01).reshape(16, 32)
    x = matrix.to(x.dtype) / (matrix.norm() + 1e-7)
    for _ in range(3):
        a = x @ x.T
        b = -4.7750 * a + 2.0315 * a @ a
        x = 3.4445 * x + b @ x
    return (x,)


PROGRAMS = [product, quotient, by_a_number, sums, mixed, computed_inside, lists, newton_schulz]


@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_rounded_where_aten_rounds_it(program, dtype, other):
    if other is torch.int64 and program is mixed:
        pytest.skip("ATen wants the dtypes to be of one kind")
    torch.manual_seed(0)
    x = torch.randn(512).to(dtype)
    compiled = bothways.compile(program, fullgraph=True)
    for number in (0.7345678, 257.25, 0.7345678):
        y = torch.tensor(number).to(other) + (1 if other is torch.int64 else 0)
        for own, eager in zip(compiled(x, y), program(x, y), strict=True):
            assert own.dtype == eager.dtype
            assert torch.equal(own, eager), (program.__name__, (own - eager).abs().max())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_are_rounded_alike(dtype):
    def loss(x, scale):
        return (x * scale).sum() + (x / scale).square().sum()

    seen = []
    for function in (loss, bothways.compile(loss, fullgraph=True)):
        torch.manual_seed(0)
        x = torch.randn(256).to(dtype).requires_grad_()
        scale = torch.tensor(0.7345678, requires_grad=True)
        function(x, scale).backward()
        seen.append((x.grad, scale.grad))
    assert torch.equal(seen[0][0], seen[1][0])
    torch.testing.assert_close(seen[0][1], seen[1][1], rtol=1e-2, atol=0)  # sums in another order
