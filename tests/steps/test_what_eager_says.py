"""Backward calls that eager refuses, or that leave something unusual behind: a compiled step does as eager does."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import assert_same
from seeding import seeded
from stepping import BACKENDS

import bothways


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class HalfBlind(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def a_second_backward_that_is_caught(net, optimizer, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)


def a_second_backward(net, optimizer, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    loss.backward()


def a_change_of_what_was_saved(net, optimizer, x, y):
    hidden = net.a(x).tanh()
    loss = net.b(hidden).sum()
    hidden.mul_(2)
    loss.backward()


def a_change_of_a_parameter_that_was_saved(net, optimizer, x, y):
    loss = F.cross_entropy(net(x), y)
    with torch.no_grad():
        net.b.weight.add_(1)
    loss.backward()


def a_change_that_autograd_does_not_see(net, optimizer, x, y):
    loss = F.cross_entropy(net(x), y)
    net.b.weight.data.add_(1)
    loss.backward()


def a_loss_of_many_numbers(net, optimizer, x, y):
    net(x).backward()


def a_loss_that_is_complex(net, optimizer, x, y):
    loss = (net(x) * 1j).sum()
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error), torch.autograd.grad(loss, net.a.weight, torch.ones_like(loss), allow_unused=True)


def a_gradient_of_a_complex_number(net, optimizer, x, y):
    return torch.autograd.grad((net(x) * 1j).sum(), net.a.weight)


def a_loss_without_a_history(net, optimizer, x, y):
    net(x).detach().sum().backward()


def a_backward_without_gradients(net, optimizer, x, y):
    loss = F.cross_entropy(net(x), y)
    with torch.no_grad():
        loss.backward()
    return loss


def an_exception_after_the_update(net, optimizer, x, y):
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    raise ValueError("too late")


def a_graph_that_is_retained(net, optimizer, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward(retain_graph=True)
    return loss


def gradients_that_can_be_differentiated(net, optimizer, x, y):
    net.zero_grad()
    loss = F.cross_entropy(net(x), y)
    loss.backward(create_graph=True)
    return loss


def a_gradient_that_is_returned(net, optimizer, x, y):
    F.cross_entropy(net(x), y).backward()
    return net.a.weight.grad


def a_part_that_the_backward_does_not_come_to(net, optimizer, x, y):
    hidden = net.a(x)
    F.cross_entropy(net.b(hidden.detach()), y).backward()
    return hidden.sum()


def what_the_loss_is_made_of(net, optimizer, x, y):
    out = net(x)
    F.cross_entropy(out, y).backward()
    return out


def a_history_that_saves_nothing(net, optimizer, x, y):
    shifted = net.a.bias + 1
    shifted.sum().backward()
    return shifted


def a_hook_on_a_graph_that_is_retained(net, optimizer, x, y):
    hidden, seen = net.a(x), []
    hidden.register_hook(lambda gradient: seen.append(1))
    loss = net.b(hidden).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return len(seen)


def a_hook_beside_the_way(net, optimizer, x, y):
    hidden = net.a(x)
    beside = hidden * 2
    beside.register_hook(lambda gradient: gradient * 5)
    net.b(hidden).sum().backward()
    return beside


def a_leaf_as_the_beginning(net, optimizer, x, y):
    net.a.bias.backward(torch.ones(5))


def a_beginning_twice(net, optimizer, x, y):
    total = net(x).sum()
    torch.autograd.backward([total, total], [torch.tensor(1.0), torch.tensor(2.0)])


def an_input_that_is_not_used(net, optimizer, x, y):
    return torch.autograd.grad(net.a(x).sum(), [net.a.weight, net.b.weight])


def an_input_that_may_not_be_missing_and_is_made_up(net, optimizer, x, y):
    inputs = [net.a.weight, net.b.weight]
    return torch.autograd.grad(net.a(x).sum(), inputs, allow_unused=False, materialize_grads=True)


def an_input_twice(net, optimizer, x, y):
    return torch.autograd.grad(net.a(x).sum(), [net.a.weight, net.a.weight])


def frozen_for_a_while(net, optimizer, x, y):
    net.a.requires_grad_(False)
    F.cross_entropy(net(x), y).backward()
    net.a.requires_grad_(True)
    optimizer.step()


def complex_numbers(net, optimizer, x, y):
    number = torch.view_as_complex(net(x))
    (number * number.conj()).real.sum().backward()
    optimizer.step()


def a_sum_that_is_backed_on_the_way(net, optimizer, x, y):
    total = 0
    for turn in range(3):
        total = total + net(x * turn).square().mean()
        if turn == 1:
            total.backward(retain_graph=True)
    total.backward()
    optimizer.step()
    return total


def a_function_without_one_gradient(net, optimizer, x, y):
    HalfBlind.apply(net.a.bias, net.b.bias).sum().backward()
    optimizer.step()


def a_result_that_is_an_index(net, optimizer, x, y):
    values, indices = net(x).max(1)
    (values * indices).sum().backward()
    optimizer.step()
    return indices


CASES = [function for name, function in list(globals().items()) if name.startswith(("a_", "an_", "what_", "frozen"))]
CASES += [gradients_that_can_be_differentiated, complex_numbers]


def observed(step):
    """Three steps: what they give and raise, what a backward outside makes of that, and the model afterwards."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    trail = []
    for number in range(3):
        x = torch.randn(3, 4, generator=seeded(number))
        found = {}
        try:
            result = step(net, optimizer, x, torch.tensor([0, 1, 1]))
            found["result"] = result
            if isinstance(result, torch.Tensor):
                found["needs gradients"] = result.requires_grad
                if result.requires_grad:
                    result.sum().backward()
        except Exception as error:
            found["raised"] = type(error).__name__, str(error)
        parameters = list(net.parameters())
        found["parameters"] = [parameter.detach().clone() for parameter in parameters]
        gradients = [parameter.grad for parameter in parameters]
        found["gradients"] = [None if gradient is None else gradient.detach().clone() for gradient in gradients]
        found["their layouts"] = [
            None if gradient is None else (gradient.stride(), gradient.requires_grad) for gradient in gradients
        ]
        trail.append(found)
    return trail


@pytest.mark.filterwarnings("ignore")
@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_step_with(case, backend):
    plain = observed(case)
    found = observed(bothways.compile(case, backend=backend))
    for number, (expected, own) in enumerate(zip(plain, found, strict=True)):
        assert_same(expected, own, f"step {number}, backend {backend}", tol=1e-5)
