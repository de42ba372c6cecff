"""Where a function sets the ``.data`` of many tensors, what it sets them to is computed together; which tensor has
which memory at any moment that can be seen is eager's."""

import copy

import pytest
import torch
from agreeing import agree

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


class Pair(torch.nn.Module):
    """A network and one that follows it, as in contrastive learning."""

    def __init__(self):
        super().__init__()
        self.quick = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
        self.slow = copy.deepcopy(self.quick).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for slow, quick in zip(self.slow.parameters(), self.quick.parameters(), strict=True):
            slow.data = slow.data * 0.9 + quick.data * 0.1

    def forward(self, x):
        query = self.quick(x)
        with torch.no_grad():
            self.follow()
            key = self.slow(x)
        return (query * key).sum()


def observe_pair(function, seed):
    torch.manual_seed(seed)
    model = function.__self__ if hasattr(function, "__self__") else function
    x = torch.randn(5, 6)
    held = [(weight, weight.data, weight.data_ptr()) for weight in model.slow.parameters()]
    loss = function(x)
    loss.backward()
    seen = {
        "loss": loss.detach(),
        "slow": [weight.detach().clone() for weight in model.slow.parameters()],
        "gradients": [weight.grad.clone() for weight in model.quick.parameters()],
        "the old memory": [data.clone() for _, data, _ in held],
        "has other memory": [weight.data_ptr() != before for weight, _, before in held],
        "versions": [weight._version for weight in model.slow.parameters()],
    }
    model.zero_grad()
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_network_that_follows_another_one(backend):
    torch.manual_seed(0)
    models = [Pair()]
    models.append(copy.deepcopy(models[0]))
    sides = []
    for model, function in zip(models, (models[0], bothways.compile(models[1], backend=backend)), strict=True):
        sides.append([observe_pair_of(model, function, seed) for seed in (0, 1, 2)])
    for expected, found in zip(*sides, strict=True):
        assert expected["has other memory"] == found["has other memory"] == [True] * 4
        torch.testing.assert_close(found, expected)


def observe_pair_of(model, function, seed):
    class Both:
        slow, quick, zero_grad = model.slow, model.quick, model.zero_grad

        def __call__(self, x):
            return function(x)

    return observe_pair(Both(), seed)


def test_what_the_parameters_get_is_computed_together():
    torch.manual_seed(0)
    model = bothways.compile(Pair())
    model(torch.randn(5, 6)).backward()
    texts = [half.texts["Python"] for half in bothways.explain(model).generated]
    assert sum("return (add, add_1, add_2, add_3, )" in text for text in texts) == 1, texts


def in_turns(a, b, x):
    """Each one is set to what the other one was set to."""
    a.data = b.data * 2 + x
    b.data = a.data * 3
    a.data = b.data + 1
    return a + b


def read_between(a, b, x):
    a.data = x * 2
    seen = a * 1
    b.data = x + seen
    return seen, a + b


def a_view_of_the_old_memory(a, b, x):
    view = a[1:]
    a.data = x * 2
    inside = view * 3
    view.add_(1)
    b.data = x + 1
    return inside, view * 1, a * 1, b * 1


def changed_after_it_was_set(a, b, x):
    value = x * 2
    a.data = value
    value.mul_(10)
    b.data = value + 1
    return a * 1, b * 1


def other_sizes(a, b, x):
    a.data = torch.cat([x, x])
    b.data = a.data[1:3] * 2
    return a * 1, b * 1, len(a), len(b)


def set_to_another(a, b, x):
    a.data = b.data
    b.data = x * 2
    a.add_(1)
    return a * 1, b * 1


def raises_behind(a, b, x):
    a.data = x * 2
    b.data = (x + 1).view(-1)[:3]
    return a @ torch.ones(len(x) + 1)


def behind_it(operation):
    def program(a, b, x):
        a.data = x * 2
        seen = operation(x).sum()
        b.data = x + 1
        return seen

    program.__name__ = f"behind_it_{operation.__name__}"
    return program


def an_index_out_of_range(x):
    return x[(x > -10).sum().reshape(1) + 1]


def a_place_out_of_range(x):
    return x.index_select(0, (x > -10).sum().reshape(1))


def no_inverse(x):
    return torch.linalg.cholesky(-torch.diag(x.abs()))


def whole_numbers_by_zero(x):
    return torch.div((x > 0).long() + 1, (x > 10).long(), rounding_mode="floor")


FAILING = [an_index_out_of_range, a_place_out_of_range, no_inverse, whole_numbers_by_zero]

PROGRAMS = [
    in_turns, read_between, a_view_of_the_old_memory, changed_after_it_was_set, other_sizes, set_to_another,
    raises_behind, *map(behind_it, FAILING),
]  # fmt: skip


def observe(function, seed):
    torch.manual_seed(seed)
    a, b, x = torch.randn(4), torch.randn(4), torch.randn(4)
    a_before, b_before = a.data, b.data
    try:
        with torch.no_grad():
            returned = function(a, b, x)
    except Exception as error:
        returned = type(error), str(error).partition("\n")[0]
    return {
        "returned": returned, "a": a.clone(), "b": b.clone(), "before": [a_before.clone(), b_before.clone()],
        "versions": [a._version, b._version], "shared": a.data_ptr() == b.data_ptr(),
    }  # fmt: skip


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_seen_is_as_in_eager(program, backend):
    agree(program, observe, 0, 1, 1, 2, backend=backend)
