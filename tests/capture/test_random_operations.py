"""A call that fails after it drew random numbers has drawn as many as eager: what may draw is told in one place."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import fake_tensor

import bothways

HALF, PICTURE = torch.full((4,), 0.5), torch.arange(16.0).view(1, 1, 4, 4)

# What draws four numbers.
DRAWS = {
    "bernoulli": lambda: torch.bernoulli(HALF),
    "bernoulli_": lambda: torch.empty(4).bernoulli_(0.5),
    "binomial": lambda: torch.binomial(torch.full((4,), 5.0), HALF),
    "dirichlet": lambda: torch._sample_dirichlet(HALF),
    "dropout": lambda: F.dropout(HALF, 0.5),
    "exponential_": lambda: torch.empty(4).exponential_(),
    "fractional_max_pool2d": lambda: F.fractional_max_pool2d(PICTURE, 2, output_size=2).flatten(),
    "gamma": lambda: torch._standard_gamma(HALF),
    "gumbel_softmax": lambda: F.gumbel_softmax(HALF),
    "multinomial": lambda: torch.multinomial(HALF, 4, replacement=True),
    "normal": lambda: torch.normal(HALF, 1.0),
    "overload": lambda: torch.ops.aten.bernoulli.p(HALF, 0.5),
    "poisson": lambda: torch.poisson(HALF),
    "rand_like": lambda: torch.rand_like(HALF),
    "randperm": lambda: torch.randperm(4),
    "rrelu": lambda: F.rrelu(-HALF, training=True),
}


def outcome(function, index):
    torch.manual_seed(0)
    try:
        result = function(index)
    except (IndexError, RuntimeError) as error:
        result = type(error)
    return result, torch.get_rng_state()


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", DRAWS)
def test_a_call_that_fails_has_drawn_what_eager_draws(name, backend):
    draw = DRAWS[name]

    def plain(index):
        return draw().index_select(0, index) * 2.0

    compiled = bothways.compile(plain, backend=backend)
    compiled(torch.tensor([0, 1]))
    for index in (torch.tensor([0, 99]), torch.tensor([3, 1]), torch.tensor([99, 0])):
        (expected, state), (result, after) = outcome(plain, index), outcome(compiled, index)
        assert torch.equal(state, after)
        assert torch.equal(result, expected) if isinstance(expected, torch.Tensor) else result is expected


def test_what_draws_is_not_run_to_learn_what_it_gives(monkeypatch):
    """Where PyTorch has no rule for shapes it runs the kernel, on zeros, and one on a GPU draws for those too."""
    run, ran = fake_tensor.run_fallback_kernel, []
    monkeypatch.setattr(
        fake_tensor, "run_fallback_kernel", lambda mode, func, *others: (ran.append(func), run(mode, func, *others))[1]
    )
    draws = [*DRAWS.values(), lambda: torch.binomial(torch.full((4,), 5.0), HALF[:1])]
    for draw in draws:
        bothways.compile(lambda draw=draw: draw() * 2, backend="eager")()
    assert ran == []


class Drawing(torch.autograd.Function):
    """A backward that draws, by an operation whose name does not sound like it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * torch.binomial(torch.full((4,), 5.0), HALF)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_backward_that_draws_is_not_run_again_for_second_derivatives(backend):
    def plain(x):
        return Drawing.apply(x).exp()

    def derivatives(function):
        x = torch.linspace(0.1, 1, 4, requires_grad=True)
        torch.manual_seed(0)
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first, second, torch.get_rng_state()

    compiled = bothways.compile(plain, backend=backend)
    for _ in range(2):
        for expected, found in zip(derivatives(plain), derivatives(compiled), strict=True):
            torch.testing.assert_close(found, expected)
