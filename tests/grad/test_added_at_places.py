"""A tensor with a history that is added to at some places gets another history: its gradients, and those of these, are
eager's, whatever its numbers are needed for."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import agree

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


def added(total, places, rows):
    total.index_add_(0, places, rows * rows)


def added_and_used(total, places, rows):
    total.index_add_(0, places, rows.sin())
    return (total * total).sum()


def by_places_of_its_own(total, places, rows):
    """The places are numbers of the tensor itself."""
    own = (total.detach().abs() * 3).long().clamp(0, len(total) - 1)[: len(places), 0]
    total.index_add_(0, own, rows * rows)


def put(total, places, rows):
    total.index_put_((places,), rows.exp(), accumulate=True)


def scattered(total, places, rows):
    total.scatter_add_(0, places[:, None].expand(-1, rows.shape[1]), rows * rows)


PROGRAMS = [added, added_and_used, by_places_of_its_own, put, scattered]


def observe(function, call):
    seed, size, order = call
    torch.manual_seed(seed)
    x, rows = torch.randn(5, 4).requires_grad_(), torch.randn(size, 4).requires_grad_()
    places = torch.randint(0, 5, (size,))
    total = x * x.sum()
    before = total._version
    returned = function(total, places, rows)
    seen = {"total": total.detach().clone(), "version": total._version - before, "returned": returned}
    loss = total.pow(3).sum() + (0 if returned is None else returned)
    if order == 1:
        loss.backward()
        return {**seen, "gradients": [x.grad, rows.grad]}
    first = torch.autograd.grad(loss, (x, rows), create_graph=True)
    second = torch.autograd.grad(sum(one.pow(2).sum() for one in first), (x, rows))
    return {**seen, "first": [one.detach() for one in first], "second": second}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_any_order_are_eagers(program, order, backend):
    agree(program, observe, (0, 3, order), (1, 3, order), (2, 4, order), (3, 1, order), backend=backend, tol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_it_was_may_change_before_the_second_derivative(backend):
    """In eager, too: no gradient depends on what the sum was before."""

    def observe(function, seed):
        torch.manual_seed(seed)
        x, rows = torch.randn(5, 4).requires_grad_(), torch.randn(3, 4).requires_grad_()
        total = x * 2
        function(total, torch.tensor([0, 2, 2]), rows)
        first = torch.autograd.grad(total.sum(), (x, rows), create_graph=True)
        with torch.no_grad():
            total.zero_()
        return {"second": torch.autograd.grad(first[1].pow(2).sum(), rows), "first": [one.detach() for one in first]}

    agree(added, observe, 0, 1, 2, backend=backend)


class Mixture(torch.nn.Module):
    """Each row goes to one of some layers."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        result = torch.zeros_like(x)
        chosen = x.argmax(1) % 3
        for number, layer in enumerate(self.layers):
            rows = torch.where(chosen == number)[0]
            if len(rows):
                result.index_add_(0, rows, F.silu(layer(x[rows])))
        return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_over_experts(backend):
    torch.manual_seed(0)
    model = Mixture()

    def observe(function, seed):
        torch.manual_seed(seed)
        model.zero_grad()
        x = torch.randn(12, 4, requires_grad=True)
        result = function(x)
        result.pow(2).sum().backward()
        return {"result": result.detach(), "x": x.grad, "weights": [weight.grad for weight in model.parameters()]}

    agree(model, observe, 0, 1, 1, 2, 3, backend=backend)


def test_the_sum_is_not_copied_for_a_second_derivative_that_does_not_read_it():
    compiled = bothways.compile(added, backend="native")
    observe(compiled, (0, 3, 1))
    observe(compiled, (0, 3, 1))
    x, rows, places = torch.randn(5, 4, requires_grad=True), torch.randn(3, 4), torch.tensor([0, 1, 1])
    total = x * 2
    with torch.autograd.profiler.profile() as recorded:
        compiled(total, places, rows.requires_grad_())
    assert not [event.name for event in recorded.function_events if event.name == "aten::clone"]
    total.sum().backward()
    assert torch.equal(x.grad, torch.full((5, 4), 2.0))
