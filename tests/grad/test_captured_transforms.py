"""``torch.func.grad`` and ``grad_and_value`` are captured: one graph, the values and the histories of PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree
from observing import with_history
from seeding import seeded
from torch.func import functional_call, grad, grad_and_value

import bothways
from bothways.testing import same

backends = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]

torch.manual_seed(0)
NET = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
PARAMETERS = dict(NET.named_parameters())
VALUES = {name: parameter.detach().clone() for name, parameter in PARAMETERS.items()}
WEIGHT = torch.randn(3, 3, requires_grad=True)
LABELS = torch.tensor([0, 1, 1])


def loss_of(parameters, x):
    return F.cross_entropy(functional_call(NET, parameters, (x,)), LABELS)


made_outside = grad(loss_of)


def cubed(x):
    return (x**3).sum()


def of_a_function(x):
    return grad(cubed)(x) + 1


def with_what_needs_gradients(x):
    return grad(lambda y: (y**3 @ WEIGHT).sum())(x)


def of_what_needs_gradients(x):
    return grad(lambda weight: (x @ weight).square().sum())(WEIGHT)


def linear_in_what_needs_gradients(x):
    return grad(lambda weight: (x @ weight).sum())(WEIGHT)


def of_nothing(x):
    return grad(lambda y: WEIGHT.square().sum())(x)


def without_gradients_around(x):
    with torch.no_grad():
        return grad_and_value(lambda y: (y**3 @ WEIGHT).sum())(x)


def without_gradients_inside(x):
    def function(y):
        with torch.no_grad():
            constant = y**2
        return (y * constant - constant).sum()

    return grad(function)(x)


def with_value(x):
    return grad_and_value(lambda y: (y**3 @ WEIGHT).sum())(x)


def with_more(x):
    return grad_and_value(lambda y: (cubed(y), {"product": y @ WEIGHT, "given": y, "weight": WEIGHT}), has_aux=True)(x)


def more_alone(x):
    return grad(lambda y: (cubed(y), (y + 1, [y * 2])), has_aux=True)(x)


def of_several(x):
    return grad(lambda a, b, power=1: (a * b**power).sum(), argnums=(1, 0))(x, x, power=2)


def of_the_last(x):
    return grad(lambda a, b: (a * b).sum(), argnums=-1)(x, x * 2)


def of_parameters(x):
    return grad(loss_of)(VALUES, x)


def of_parameters_made_outside(x):
    return made_outside(VALUES, x)


def of_parameters_that_need_gradients(x):
    return made_outside(PARAMETERS, x)


def of_gradients(x):
    return grad(lambda y: grad(cubed)(y).square().sum())(x)


def of_products_that_are_not_confused(x):
    return grad(lambda a: a * grad(lambda b: a * b * b)(a))(x[0, 0])


def learned_to_learn(x):
    def outer(parameters):
        found = grad(loss_of)(parameters, x)
        return loss_of({name: value - 0.1 * found[name] for name, value in parameters.items()}, x + 1)

    return grad_and_value(outer)(PARAMETERS)


def written_inside(x):
    def function(y):
        total = torch.zeros_like(y)
        total.add_(y)
        return total.mul_(total.clone()).sum()

    return grad(function)(x)


def in_a_loop(x):
    for _ in range(3):
        x = x - 0.1 * grad(cubed)(x)
    return x


def of_random_numbers(x):
    return grad_and_value(lambda y: F.dropout(y, 0.5).sum())(x)


CASES = [
    of_a_function, with_what_needs_gradients, of_what_needs_gradients, linear_in_what_needs_gradients, of_nothing,
    without_gradients_around, without_gradients_inside, with_value, with_more, more_alone, of_several, of_the_last,
    of_parameters, of_parameters_made_outside, of_parameters_that_need_gradients, of_gradients,
    of_products_that_are_not_confused, learned_to_learn, written_inside, in_a_loop, of_random_numbers,
]  # fmt: skip


def observe(function, call):
    torch.manual_seed(4)
    return with_history(function(torch.randn(call, 3)), [WEIGHT, *PARAMETERS.values()])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.in_turn("backend")
def test_a_transform_is_captured(case, backend):
    agree(case, observe, 3, 3, backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_argument_with_a_history_of_the_callers(backend):
    def function(x):
        return grad_and_value(lambda y: (y**3).sum())(x * 2)

    def observe(function, call):
        leaf = torch.randn(3, generator=seeded(call), requires_grad=True)
        given = leaf.exp() if call == 2 else leaf
        slope, value = function(given)
        return {"slope": slope, "value": value, "gradient": torch.autograd.grad(slope.sum() + value, leaf)[0]}

    agree(function, observe, 1, 1, 2, 2, backend=backend, fullgraph=True)


# What a graph's own history would show otherwise is PyTorch's.


def looks_at_its_history(x):
    return grad(lambda y: (y * (2 if (WEIGHT * 2).requires_grad else 3)).sum())(x)


def writes_to_what_was_there(x):
    return grad(lambda y: (y * kept.add_(1)).sum())(x)


def leaks(x):
    seen = []

    def function(y):
        seen.append(y * 2)
        return seen[0].square().sum()

    slope = grad(function)(x)
    return slope, seen[0] + 1


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def with_a_custom_function(x):
    return grad(lambda y: Doubled.apply(y).sum())(x)


kept = torch.zeros(3)


@pytest.mark.parametrize("function", [looks_at_its_history, leaks, with_a_custom_function])
def test_what_a_graph_cannot_tell_is_a_break(function):
    compiled = bothways.compile(function, backend="eager")
    x = torch.randn(3, 3)
    for _ in range(2):
        assert same(compiled(x), function(x))
    assert bothways.explain(compiled).breaks
    with pytest.raises(bothways.errors.Unsupported):
        bothways.compile(function, backend="eager", fullgraph=True)(x)


def wrong_result(x):
    return grad(lambda y: y * 2)(x)


def no_tensor(x):
    return grad(lambda y: 2.0)(x)


def whole_numbers(x):
    return grad(lambda y: y.sum())(x.long())


def no_such_argument(x):
    return grad(cubed, argnums=3)(x)


def more_that_is_no_tensor(x):
    return grad(lambda y: (cubed(y), 3), has_aux=True)(x)


@pytest.mark.parametrize(
    "function", [wrong_result, no_tensor, whole_numbers, no_such_argument, more_that_is_no_tensor,
                 writes_to_what_was_there],
)  # fmt: skip
def test_errors_are_pytorchs(function):
    compiled = bothways.compile(function, backend="eager")
    x = torch.randn(3)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        function(x)
    for _ in range(2):
        with pytest.raises(type(expected.value)) as found:
            compiled(x)
        assert str(found.value) == str(expected.value)
    assert same(kept, torch.zeros(3))


def test_an_error_that_is_caught_leaves_the_transform():
    def function(x):
        try:
            grad(lambda y: [][0])(x)
        except IndexError:
            return x * 2, x.requires_grad, torch.is_grad_enabled()

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.randn(3)
    assert same(compiled(x), function(x))
