"""The ways to call a backward inside a compiled function, and what they leave behind."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches

import bothways

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
        self.unused = torch.nn.Linear(2, 2)
        self.frozen = torch.nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)) * self.frozen)


def training(step_of):
    def make():
        net = Net()
        log = []
        return step_of(net, log), {"model": net, "log": log}

    return make


def update(net):
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def forget(net):
    for parameter in net.parameters():
        parameter.grad = None


def with_a_gradient(net, log):
    def step(x, y):
        forget(net)
        out = net(x)
        out.backward(torch.ones_like(out) * 0.1)
        update(net)

    return step


def of_several_tensors(net, log):
    def step(x, y):
        forget(net)
        out = net(x)
        torch.autograd.backward([out.sum(), out.square()], [None, torch.full_like(out, 0.2)])
        update(net)

    return step


def twice_with_retain_graph(net, log):
    def step(x, y):
        forget(net)
        loss = F.cross_entropy(net(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        update(net)
        return loss

    return step


def of_two_losses(net, log):
    def step(x, y):
        forget(net)
        out = net(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        out.square().mean().backward()
        update(net)
        return out

    return step


def for_some_inputs(net, log):
    def step(x, y):
        forget(net)
        F.cross_entropy(net(x), y).backward(inputs=[net.inner.weight, net.outer.bias])
        update(net)

    return step


def by_grad(net, log):
    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        names, parameters = zip(*net.named_parameters(), strict=True)
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(wanted, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=0.1)
        log.append([gradient is None for gradient in gradients])
        return loss, gradients

    return step


def materialized(net, log):
    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        found = torch.autograd.grad(loss, [net.unused.weight, net.inner.weight], materialize_grads=True)
        net.unused.weight.grad = found[0].clone()
        return found

    return step


def materialized_to_be_differentiated(net, log):
    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        wanted = [net.unused.weight, net.inner.weight]
        return torch.autograd.grad(loss, wanted, create_graph=True, materialize_grads=True)

    return step


def of_what_is_between(net, log):
    def step(x, y):
        hidden = net.inner(x)
        loss = F.cross_entropy(net.outer(hidden.relu()), y)
        (gradient,) = torch.autograd.grad(loss, hidden, retain_graph=True)
        forget(net)
        loss.backward()
        update(net)
        return gradient

    return step


def penalized(net, log):
    def step(x, y):
        forget(net)
        x = x.clone().requires_grad_()
        out = net(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        update(net)
        return loss.detach(), x.grad

    return step


def in_an_inner_loop(net, log):
    def step(x, y):
        forget(net)
        weights = dict(net.named_parameters())
        fast = {name: weight for name, weight in weights.items() if weight.requires_grad and "unused" not in name}
        for _ in range(2):
            loss = F.cross_entropy(torch.func.functional_call(net, fast, (x,)), y)
            gradients = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            pairs = zip(fast.items(), gradients, strict=True)
            fast = {name: weight - 0.1 * gradient for (name, weight), gradient in pairs}
        outer = F.cross_entropy(torch.func.functional_call(net, fast, (x + 1,)), y)
        outer.backward()
        update(net)
        return outer.detach()

    return step


def gradients_of_gradients_accumulate(net, log):
    def step(x, y):
        forget(net)
        loss = F.cross_entropy(net(x), y)
        loss.backward(create_graph=True)
        norm = sum(parameter.grad.square().sum() for parameter in (net.inner.weight, net.outer.weight))
        result = norm.detach()
        forget(net)
        norm.backward()
        update(net)
        return result

    return step


def read_scaled_replaced(net, log):
    def step(x, y):
        forget(net)
        F.cross_entropy(net(x), y).backward()
        net.inner.weight.grad.mul_(0.5)
        net.inner.bias.grad = net.inner.bias.grad * 2
        net.outer.bias.grad = None
        log.append(net.unused.weight.grad is None)
        update(net)

    return step


def zeroed_in_place(net, log):
    def step(x, y):
        net.zero_grad(set_to_none=False)
        F.cross_entropy(net(x), y).backward()
        update(net)

    return step


def accumulated_over_parts_of_the_batch(net, log):
    def step(x, y):
        forget(net)
        total = 0
        for part, target in zip(x.chunk(3), y.chunk(3), strict=True):
            loss = F.cross_entropy(net(part), target) / 3
            loss.backward()
            total = total + loss.detach()
        update(net)
        return total

    return step


def detached_and_shared(net, log):
    def step(x, y):
        forget(net)
        hidden = net.inner(x)
        with torch.no_grad():
            target = net.outer(hidden)
        out = net.outer(hidden.detach())
        ((out - target.roll(1, 0)).square().mean() + F.cross_entropy(net.outer(hidden), y)).backward()
        update(net)

    return step


def a_leaf_made_inside(net, log):
    def step(x, y):
        scale = torch.ones(3, requires_grad=True)
        forget(net)
        F.cross_entropy(net(x) * scale, y).backward()
        update(net)
        return scale.grad

    return step


def gradients_that_are_one_tensor(net, log):
    def step(x, y):
        forget(net)
        (net.inner.bias.sum() + net.outer.bias.sum()).backward()
        net.inner.bias.grad.mul_(3)
        update(net)
        return net.outer.bias.grad

    return step


def turned_around(net, log):
    def step(x, y):
        forget(net)
        (net.inner.weight.t() @ torch.ones(8, 2)).square().sum().backward()
        update(net)

    return step


WAYS = [
    with_a_gradient, of_several_tensors, twice_with_retain_graph, of_two_losses, for_some_inputs, by_grad, materialized,
    materialized_to_be_differentiated,
    of_what_is_between, penalized, in_an_inner_loop, gradients_of_gradients_accumulate, read_scaled_replaced,
    accumulated_over_parts_of_the_batch, detached_and_shared, a_leaf_made_inside, gradients_that_are_one_tensor,
    turned_around,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_way_to_call_it(way, backend):
    agree(training(way), batches(4), backend, programs=1)


def test_gradients_that_are_set_to_zero(backend):
    agree(training(zeroed_in_place), batches(4), backend, programs=2)  # without gradients, and with some


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_computed_argument_is_no_leaf_whatever_others_were(backend):
    def program(x):
        h = x * 2
        h.sum().backward(retain_graph=True)
        return x.grad, h

    compiled = bothways.compile(program, backend=backend)
    for is_leaf in (True, False, True):
        x = torch.ones(3, requires_grad=True)
        found = compiled(x if is_leaf else x * 1)
        expected = program(torch.ones(3, requires_grad=True) if is_leaf else torch.ones(3, requires_grad=True) * 1)
        assert (found[0] is None) == (expected[0] is None)
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
