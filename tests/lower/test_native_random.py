"""Dropout: eager's own numbers by default; numbers that kernels draw with ``config.exact_random = False``."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways
from bothways.config import config


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path))


def dropped(x, p=0.25):
    return F.dropout(x.sin() + 2, p, training=True) * 2


def seeded(function, *args):
    torch.manual_seed(0)
    return function(*args)


@pytest.fixture
def fast():
    with config.patch(exact_random=False):
        yield


def test_by_default_the_numbers_are_those_of_eager():
    x = torch.randn(50, 60)
    torch.testing.assert_close(seeded(bothways.compile(dropped), x), seeded(dropped, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_native_dropout_of_half_precision_scales_by_what_eager_scales_by(dtype):
    def trained(f):
        x = torch.linspace(-3, 3, 900, dtype=torch.float32).to(dtype).requires_grad_()
        result = f(x)
        result.backward(torch.linspace(1, 2, 900).to(dtype))
        return result.detach(), x.grad

    def drops(x):
        return torch.native_dropout(x, 0.1, True)[0]

    compiled = bothways.compile(drops, fullgraph=True)
    with config.patch(kernels_for_small_graphs=True):
        for _ in range(2):
            for plain, own in zip(seeded(trained, drops), seeded(trained, compiled), strict=True):
                assert torch.equal(plain, own)


def test_kernels_draw_numbers_of_their_own(fast):
    x = torch.randn(500, 400)
    compiled = bothways.compile(dropped, fullgraph=True)
    first, second = seeded(compiled, x), compiled(x)
    kept = first != 0
    torch.testing.assert_close(first[kept], ((x.sin() + 2) * 2 / 0.75)[kept])
    assert not torch.equal(kept, second != 0)
    assert torch.equal(seeded(compiled, x), first) and torch.equal(compiled(x), second)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_as_many_are_kept_as_the_probability_says(p, fast):
    x = torch.zeros(1_000_000)
    kept = (seeded(bothways.compile(lambda x: dropped(x, p)), x) != 0).double().mean().item()
    assert kept == pytest.approx(1 - p, abs=4 * (p * (1 - p) / 1e6) ** 0.5)


def test_neighbours_rows_and_calls_have_nothing_to_do_with_each_other(fast):
    compiled = bothways.compile(lambda x: dropped(x, 0.5))
    draws = [(compiled(torch.zeros(1000, 1000)) != 0).double() - 0.5 for _ in range(2)]
    one = draws[0].flatten()
    others = [*(one.roll(distance) for distance in (1, 2, 16, 64, 1000)), draws[1].flatten(), draws[0].t().flatten()]
    assert max(abs((one * other).mean().item()) for other in others) < 0.25 * 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_backward_uses_what_the_forward_kept(dtype, fast):
    x = (torch.rand(40, 30, dtype=dtype) + 1).t().requires_grad_()
    compiled = bothways.compile(lambda x: F.dropout(x, 0.5, training=True), fullgraph=True)
    for _ in range(2):
        x.grad = None
        result = compiled(x)
        result.sum().backward()
        torch.testing.assert_close(x.grad, (result != 0).to(dtype) * 2)


def test_two_dropouts_of_one_graph_differ(fast):
    one, other = bothways.compile(lambda x: (dropped(x, 0.5), dropped(x, 0.5)))(torch.zeros(1000))
    assert not torch.equal(one, other)


def test_a_model_trains_and_evaluates(fast):
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1))
    compiled = bothways.compile(model, fullgraph=True)
    x = torch.randn(16, 8)
    compiled(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    torch.testing.assert_close(compiled(x), model(x))


def test_the_choice_is_part_of_what_is_remembered():
    x = torch.randn(50, 60)
    with config.patch(exact_random=False):
        seeded(bothways.compile(dropped), x)
    torch.testing.assert_close(seeded(bothways.compile(dropped), x), seeded(dropped, x))
