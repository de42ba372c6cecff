"""``torch.func.vjp`` is captured: what it gives is called later, in the same graph, with the histories of PyTorch's."""

import pytest
import torch
from agreeing import BACKENDS, agree, assert_raises_alike
from observing import with_history
from seeding import seeded
from torch.func import grad, vjp

import bothways
from bothways.testing import same

torch.manual_seed(0)
WEIGHT = torch.randn(3, 3, requires_grad=True)


def of_one(x):
    value, pull = vjp(lambda y: (y @ y).sin(), x)
    return value, pull(value * 2)[0]


def of_several(x):
    values, pull = vjp(lambda y, z: {"product": y * z, "sum": z.sum()}, x, x + 1)
    return values["sum"], pull({"product": x, "sum": torch.ones(())})


def called_twice(x):
    value, pull = vjp(lambda y: y**3, x)
    return pull(x)[0] + pull(value)[0].sin()


def with_more(x):
    value, pull, more = vjp(lambda y: (y**3, y * 2), x, has_aux=True)
    return value, pull(more)[0], more


def of_nothing(x):
    return vjp(lambda y: WEIGHT.detach() * 2, x)[1](x)


def of_an_argument_itself(x):
    value, pull = vjp(lambda y, z: y, x, x * 2)
    return value, pull(x)


def with_what_needs_gradients(x):
    value, pull = vjp(lambda y: (y @ WEIGHT).tanh(), x)
    return value, pull(x)[0]


def of_what_needs_gradients(x):
    value, pull = vjp(lambda weight: (x @ weight).square(), WEIGHT)
    return value, pull(x)[0]


def along_what_needs_gradients(x):
    return vjp(lambda y: y * 3, x)[1](WEIGHT)[0]


def without_gradients_around(x):
    with torch.no_grad():
        value, pull = vjp(lambda y: (y @ WEIGHT).exp(), x)
        return pull(value)


def that_is_not_differentiated(x):
    return vjp(lambda y: (y @ WEIGHT).exp(), x)[1](x, create_graph=False)


def inside_of_grad(x):
    return grad(lambda y: (vjp(torch.sin, y)[1](WEIGHT.detach())[0] * y).sum())(x)


def around_grad(x):
    return vjp(grad(lambda y: (y**3).sum()), x)[1](x)[0]


def pulled_inside_of_grad(x):
    value, pull = vjp(lambda y: y**3, x)
    return grad(lambda y: (pull(y)[0] * y).sum())(value)


def one_in_the_other(x):
    def slope(y):
        return vjp(torch.sin, y)[1](torch.ones_like(y))[0]

    return vjp(slope, x)[1](x)[0]


def in_a_loop(x):
    for _ in range(3):
        value, pull = vjp(torch.tanh, x)
        x = x - 0.1 * pull(value)[0]
    return x


CASES = [
    of_one, of_several, called_twice, with_more, of_nothing, of_an_argument_itself, with_what_needs_gradients,
    of_what_needs_gradients, along_what_needs_gradients, without_gradients_around, that_is_not_differentiated,
    inside_of_grad, around_grad, pulled_inside_of_grad, one_in_the_other, in_a_loop,
]  # fmt: skip


def observe(function, call):
    torch.manual_seed(call)
    return with_history(function(torch.randn(3, 3)), [WEIGHT])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.in_turn("backend")
def test_a_vjp_is_captured(case, backend):
    agree(case, observe, 3, 3, 4, backend=backend, fullgraph=True, programs=1)


def written_before_it_is_called(x):
    value, pull = vjp(lambda y: y.exp(), x)
    value.add_(1)
    return pull(x)


def given_away(x):
    value, pull = vjp(lambda y: y**2, x)
    return value, pull


def called_behind_a_break(x):
    value, pull = vjp(lambda y: y**2, x)
    bothways.graph_break()
    return pull(value)[0]


def for_the_last_time(x):
    return vjp(lambda y: y**2, x)[1](x, retain_graph=False)


@pytest.mark.parametrize(
    "function", [written_before_it_is_called, given_away, called_behind_a_break, for_the_last_time]
)
def test_what_a_graph_cannot_tell_is_a_break(function):
    def results(function, x):
        try:
            result = function(x)
        except RuntimeError as error:
            return str(error)
        return (result[0], result[1](x)) if callable(result[-1]) else result

    compiled = bothways.compile(function, backend="eager")
    for seed in range(3):
        x = torch.randn(3, 3, generator=seeded(seed))
        assert same(results(compiled, x.clone()), results(function, x.clone()))
    assert bothways.explain(compiled).breaks


def of_whole_numbers(x):
    return vjp(lambda y: y.long(), x)


def of_no_tensor(x):
    return vjp(lambda y: 2.0, x)


def given_a_number(x):
    return vjp(torch.mul, x, 2.0)


def of_another_structure(x):
    return vjp(lambda y: (y, y * 2), x)[1](x)


def of_another_shape(x):
    return vjp(lambda y: y * 2, x)[1](x[0])


@pytest.mark.parametrize(
    "function", [of_whole_numbers, of_no_tensor, given_a_number, of_another_structure, of_another_shape]
)
def test_errors_are_pytorchs(function):
    compiled = bothways.compile(function, backend="eager")
    assert_raises_alike(function, compiled, torch.randn(3, 3))
