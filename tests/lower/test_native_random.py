"""Dropout: eager's own numbers by default, drawn by C; others, by kernels, with ``config.exact_random = False``."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways
from bothways.calls import drawing
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


def drawn(draw, count, p, skipped=0):
    """What is drawn, and where the generator is afterwards."""
    torch.manual_seed(7)
    torch.empty(skipped, dtype=torch.int32).random_()
    mask = draw(torch.empty(count, dtype=torch.bool), p)
    return mask, torch.get_rng_state()


# On some CPUs ATen draws in another way, which is its own then.
draws_as_aten = pytest.mark.skipif(drawing._draw() is None, reason="ATen draws in another way here, or no C compiler")


@draws_as_aten
@pytest.mark.parametrize("p", [0.0, 1e-20, 0.1, 0.5, 1 - 2**-53, 1.0])
def test_c_draws_what_aten_draws_and_leaves_the_generator_there(p):
    for count in (drawing.FEW, drawing.FEW + 1, 3 * 624, 10_000):
        for skipped in (0, 1, 311, 623, 624, 1249):
            mask, state = drawn(drawing.draw_truths, count, p, skipped)
            expected, there = drawn(torch.Tensor.bernoulli_, count, p, skipped)
            assert torch.equal(mask, expected) and torch.equal(state, there), (count, skipped)


@draws_as_aten
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "lie", [lambda x: x, lambda x: x.transpose(1, 3), lambda x: x.to(memory_format=torch.channels_last)],
    ids=["rows", "turned", "channels last"],
)  # fmt: skip
@pytest.mark.parametrize("drop", [F.dropout, lambda x, p: torch.native_dropout(x, p, True)[0]], ids=["", "native"])
def test_a_large_dropout_is_eagers_and_not_drawn_by_aten(dtype, lie, drop):
    def drops(x):
        return drop(drop(x * 2, 0.1) + 1, 0.5) * 3

    x = lie(torch.randn(4, 8, 16, 16, dtype=dtype))
    compiled = bothways.compile(drops, fullgraph=True)
    for take in (x, x + 1):
        plain, numbers = (seeded(lambda f=f: (f(take), torch.rand(3))) for f in (drops, compiled))
        torch.testing.assert_close(numbers, plain)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        compiled(x)
    assert "aten::bernoulli_" not in {event.name for event in recorded.events()}


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


def test_a_large_dropout_of_sizes_that_change_is_eagers():
    compiled = bothways.compile(dropped, fullgraph=True)
    for rows in (60, 80, 100, 3):
        x = torch.randn(rows, 70)
        torch.testing.assert_close(seeded(compiled, x), seeded(dropped, x))


def test_a_large_dropout_trains_as_eagers_does():
    def trained(f):
        x = torch.linspace(-1, 1, 6400).view(80, 80).requires_grad_()
        f(x).square().sum().backward()
        return x.grad

    compiled = bothways.compile(dropped, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(seeded(trained, compiled), seeded(trained, dropped))


@draws_as_aten
def test_numbers_that_others_draw_meanwhile_are_theirs(monkeypatch):
    draw = drawing._draw()

    def others_draw_meanwhile(*given):
        draw(*given)
        thread = threading.Thread(target=torch.rand, args=(5,))
        thread.start()
        thread.join()

    monkeypatch.setattr(drawing, "_draw", lambda: others_draw_meanwhile)
    mask, after = drawn(drawing.draw_truths, 5000, 0.5)
    torch.manual_seed(7)
    torch.rand(5)
    assert torch.equal(mask, torch.empty(5000, dtype=torch.bool).bernoulli_(0.5))
    assert torch.equal(after, torch.get_rng_state())


@draws_as_aten
def test_threads_that_draw_at_once_draw_each_number_once():
    def draw_some():
        masks.extend(drawing.draw_truths(torch.empty(4096, dtype=torch.bool), 0.5) for _ in range(50))

    masks = []
    torch.manual_seed(3)
    threads = [threading.Thread(target=draw_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.manual_seed(3)
    expected = {tuple(torch.empty(4096, dtype=torch.bool).bernoulli_(0.5).tolist()) for _ in masks}
    assert {tuple(mask.tolist()) for mask in masks} == expected and len(expected) == len(masks) == 200


def test_without_c_aten_draws(monkeypatch):
    monkeypatch.setattr(drawing, "_draw", lambda: None)
    x = torch.randn(80, 60)
    torch.testing.assert_close(seeded(bothways.compile(dropped), x), seeded(dropped, x))


@draws_as_aten
def test_c_that_draws_in_another_way_is_not_used():
    def wrong(before, after, mask, count, below):
        mask.fill_(True)
        after.copy_(before)

    assert not drawing._draws_as_aten(wrong) and drawing._draws_as_aten(drawing._draw())


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_a_probability_that_is_none_is_refused(p):
    for draw in (torch.Tensor.bernoulli_, drawing.draw_truths):
        with pytest.raises(RuntimeError, match="bernoulli_ expects p to be in"):
            drawn(draw, 5000, p)


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
