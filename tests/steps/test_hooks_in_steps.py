"""Hooks that a backward inside a compiled function comes to: they are called as eager calls them, in its order."""

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from stepping import BACKENDS, agree, batches

import bothways

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


def training(step_of, model=None):
    """A step made of a model, an optimizer and a log."""

    def make():
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        log = []
        return step_of(net, optimizer, log), {"model": net, "optimizer": optimizer, "log": log}

    return make


def test_hooks_of_parameters_that_the_caller_registered(backend):
    def step_of(net, optimizer, log):
        for name, parameter in net.named_parameters():
            parameter.register_hook(lambda gradient, name=name: log.append((name, tuple(gradient.shape))))
        net[0].weight.register_hook(lambda gradient: gradient * 2)
        net[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    agree(training(step_of), batches(), backend, programs=1)


def test_a_hook_that_is_added_later_is_called(backend):
    net = torch.nn.Linear(6, 3)
    log = []

    def step(x, y):
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        return net.weight.grad.abs().sum()

    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    (x, y), *_ = batches(1)
    plain = step(x, y)
    for _ in range(3):
        assert torch.allclose(compiled(x, y), plain)
    handle = net.weight.register_hook(lambda gradient: log.append(1) or gradient * 3)
    for _ in range(2):
        assert torch.allclose(compiled(x, y), plain * 3, rtol=1e-4)
    assert log == [1, 1]
    handle.remove()
    assert torch.allclose(compiled(x, y), plain) and log == [1, 1]


def test_hooks_of_what_is_computed_inside(backend):
    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            hidden = net[1](net[0](x))
            hidden.register_hook(lambda gradient: log.append("hidden") or gradient * 0.5)
            early = hidden * 2
            hidden.register_hook(lambda gradient: log.append("again"))
            logits = net[2](early)
            logits.register_hook(lambda gradient: log.append("logits") or gradient.clamp(-0.05, 0.05))
            loss = F.cross_entropy(logits, y) + hidden.square().mean()
            loss.register_hook(lambda gradient: log.append("loss") or gradient * 3)
            loss.backward()
            optimizer.step()
            return loss

        return step

    agree(training(step_of), batches(), backend, programs=1)


def test_the_order_of_hooks_on_leaves_and_on_what_is_between(backend):
    def step_of(net, optimizer, log):
        for name, parameter in net.named_parameters():
            parameter.register_hook(lambda gradient, name=name: log.append(name))

        def step(x, y):
            optimizer.zero_grad()
            one = net[0](x)
            two = net[1](one)
            three = net[2](two)
            for name, tensor in (("one", one), ("three", three), ("two", two)):
                tensor.register_hook(lambda gradient, name=name: log.append(name))
            F.cross_entropy(three, y).backward()
            optimizer.step()

        return step

    agree(training(step_of), batches(3), backend, programs=1)


def test_the_order_of_hooks_where_autocast_keeps_casts_of_what_is_computed_again(backend):
    """A weight is cast where the function that is checkpointed comes to it, and no sooner."""

    def step_of(net, optimizer, log):
        norm = torch.nn.LayerNorm(8)
        for name, parameter in [*net.named_parameters(), *norm.named_parameters("norm")]:
            parameter.register_hook(lambda gradient, name=name: log.append(name))

        def last(x):
            return net[2](norm(x))

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                three = torch.utils.checkpoint.checkpoint(last, net[0](x), use_reentrant=False)
                loss = F.cross_entropy(three, y)
            loss.backward()
            return loss.detach()

        return step

    agree(training(step_of), batches(3), backend, programs=2)


def test_what_a_hook_sees_can_be_kept(backend):
    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            hidden = net[1](net[0](x))
            seen = []
            hidden.register_hook(lambda gradient: seen.append(gradient.norm()))
            F.cross_entropy(net[2](hidden), y).backward()
            optimizer.step()
            return seen

        return step

    agree(training(step_of), batches(3), backend, programs=1)


def test_a_hook_that_is_removed_before_the_backward(backend):
    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            hidden = net[0](x)
            handle = hidden.register_hook(lambda gradient: gradient * 100)
            handle.remove()
            F.cross_entropy(net[2](hidden), y).backward()
            optimizer.step()

        return step

    agree(training(step_of), batches(3), backend, programs=1)


def test_an_update_in_the_backward_by_hooks_after_accumulation(backend):
    def make():
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        log = []
        for name, parameter in net.named_parameters():

            def update(parameter, name=name):
                log.append(name)
                with torch.no_grad():
                    parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None

            parameter.register_post_accumulate_grad_hook(update)

        def step(x, y):
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss.detach()

        return step, {"model": net, "log": log}

    agree(make, batches(), backend, programs=1)


def test_one_optimizer_for_each_parameter_steps_in_the_backward(backend):
    def make():
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        optimizers = {parameter: torch.optim.Adam([parameter], lr=0.01) for parameter in net.parameters()}

        def update(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(update)

        def step(x, y):
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            return loss.detach()

        return step, {"model": net}

    agree(make, batches(), backend)


def test_a_gradient_that_a_computed_tensor_retains(backend):
    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            hidden = net[1](net[0](x))
            hidden.retain_grad()
            loss = F.cross_entropy(net[2](hidden), y)
            loss.backward()
            optimizer.step()
            return hidden.grad * 2, hidden.grad.norm()

        return step

    agree(training(step_of), batches(3), backend, programs=1)


def test_a_hook_that_raises_ends_the_step(backend):
    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            hidden = net[0](x)
            hidden.register_hook(refuse)
            try:
                F.cross_entropy(net[2](hidden), y).backward()
            except ValueError as error:
                log.append(str(error))
            optimizer.step()

        return step

    def refuse(gradient):
        raise ValueError("not this one")

    agree(training(step_of), batches(3), backend, fullgraph=False)


def test_hooks_are_called_for_what_autograd_grad_asks_for(backend):
    def step_of(net, optimizer, log):
        net[0].weight.register_hook(lambda gradient: log.append("weight") or gradient * 2)
        net[0].bias.register_hook(lambda gradient: log.append("bias"))

        def step(x, y):
            hidden = net[0](x)
            hidden.register_hook(lambda gradient: log.append("hidden") or gradient * 3)
            loss = F.cross_entropy(net[2](hidden), y)
            return torch.autograd.grad(loss, (net[0].weight, hidden, net[2].weight))

        return step

    agree(training(step_of), batches(3), backend, programs=1)


def two_losses(net, optimizer, log):
    def halved(gradient):
        log.append("hidden")
        return gradient / 2

    def step(x, y):
        optimizer.zero_grad()
        hidden = net[0](x)
        hidden.register_hook(halved)
        out = net[2](net[1](hidden))
        out.register_hook(lambda gradient: log.append("out"))
        F.cross_entropy(out, y).backward(retain_graph=True)
        (out.square().mean() + hidden.mean()).backward(retain_graph=True)
        hidden.sum().backward()
        optimizer.step()

    return step


def retained_twice(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        hidden = net[0](x)
        hidden.retain_grad()
        out = net[2](net[1](hidden))
        F.cross_entropy(out, y).backward(retain_graph=True)
        first = hidden.grad.clone()
        out.square().mean().backward()
        optimizer.step()
        return first, hidden.grad

    return step


def hooked_in_between(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        hidden = net[0](x)
        loss = F.cross_entropy(net[2](net[1](hidden)), y)
        loss.backward(retain_graph=True)
        hidden.register_hook(lambda gradient: log.append("late"))
        loss.backward()
        optimizer.step()

    return step


def unhooked_in_between(net, optimizer, log):
    def step(x, y):
        optimizer.zero_grad()
        hidden = net[0](x)
        handle = hidden.register_hook(lambda gradient: log.append("early"))
        loss = F.cross_entropy(net[2](net[1](hidden)), y)
        loss.backward(retain_graph=True)
        handle.remove()
        loss.backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("step_of", [two_losses, retained_twice, hooked_in_between, unhooked_in_between])
def test_hooks_of_what_is_gone_through_twice(step_of, backend):
    """Those that change in between break."""
    whole = step_of in (two_losses, retained_twice)
    agree(training(step_of), batches(4), backend, fullgraph=whole, programs=1 if whole else None)


def test_hooks_of_one_of_several_results_and_of_a_module_that_takes_it(backend):
    """The line that such a result comes from is not known; it is lowered all the same."""

    def step_of(net, optimizer, log):
        net[2].register_full_backward_hook(lambda module, given, got: log.append(("module", len(given))))

        def step(x, y):
            optimizer.zero_grad()
            first, second = net[0](x).split(4, dim=-1)
            first.register_hook(lambda gradient: log.append("first"))
            loss = F.cross_entropy(net[2](torch.cat([first, second.tanh()], -1)), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    agree(training(step_of), batches(), backend)


WAYS_AROUND = {
    "residual": lambda h: (h.tanh(), h),
    "two functions": lambda h: (h.sin(), h.cos()),
    "split": lambda h: h.split(4, -1),
    "unbind": lambda h: h.reshape(len(h), 2, 4).unbind(1),
    "slices": lambda h: (h[:, :4], h[:, 4:]),
    "values of a maximum": lambda h: (h.max(-1, keepdim=True).values, h),
    "longer way": lambda h: (h.sigmoid(), (h * 2).relu() + h),
}


@pytest.mark.parametrize("ways", WAYS_AROUND)
def test_a_backward_comes_to_what_is_behind_a_hooked_tensor_by_another_way_as_well(ways, backend):
    """Autograd goes on from where the ways meet once, when all has come."""

    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            h = net[0](x)
            h.register_hook(lambda gradient: log.append(("h", gradient.clone()))) if len(log) % 2 else None
            hooked, other = WAYS_AROUND[ways](h)
            hooked.register_hook(lambda gradient: log.append(("hooked", gradient.clone())))
            hooked.register_hook(lambda gradient: gradient * 0.5)
            loss = hooked.square().mean() + other.cos().mean() + F.cross_entropy(net[2](net[1](h)), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    agree(training(step_of), batches(), backend)


def test_ways_meet_around_modules_with_hooks_and_in_loops(backend):
    def step_of(net, optimizer, log):
        layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(3)])
        layers[0].register_full_backward_hook(lambda module, given, got: log.append(("out of", got[0].clone())))
        layers[1].register_full_backward_pre_hook(lambda module, got: log.append(("into", len(got))))

        def step(x, y):
            optimizer.zero_grad()
            for layer in layers:
                inner = layer(x).tanh()
                inner.register_hook(lambda gradient: log.append(tuple(gradient.shape)))
                x = x + inner
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach(), [layer.weight.grad for layer in layers]

        return step

    agree(training(step_of), batches(), backend)


def test_one_of_several_results_of_an_operation_that_keeps_tensors_is_hooked(backend):
    def step_of(net, optimizer, log):
        def step(x, y):
            optimizer.zero_grad()
            variance, mean = torch.var_mean(net[0](x), -1)
            variance.register_hook(lambda gradient: log.append(gradient.clone()))
            loss = (variance + mean.square()).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    agree(training(step_of), batches(), backend, fullgraph=False)
