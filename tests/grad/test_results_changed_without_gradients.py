"""A tensor that is changed in place while gradients are off has the history it had; what leads to it is seen."""

import pytest
import torch
from observing import BACKENDS, agree, leaf

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def scaled(x):
    made = x.sin() * 0.3
    with torch.no_grad():
        made.mul_(1.1)
    return made, made.exp().sum()


def read_before(x):
    made = x.sin() * 0.3
    total = made.exp().sum()
    with torch.no_grad():
        made.mul_(1.1)
    return made, total


def several_times(x):
    made = x.sin() * 0.3
    with torch.no_grad():
        made.mul_(1.1).add_(1)
    total = made.exp().sum()
    with torch.no_grad():
        made.mul_(1)
    return made, total


def by_out(x):
    made = x.sin() * 0.3
    with torch.no_grad():
        torch.mul(x, 2, out=made)
    return made, made.exp().sum()


def kept(x):
    made, total = scaled(x)
    made.retain_grad()
    return made, total


@pytest.mark.parametrize("program", [scaled, read_before, several_times, by_out, kept])
def test_gradients_by_a_result_that_was_changed(backend, program):
    def scene(compiler):
        function, seen = compiler(program), []
        for _ in range(2):
            x = leaf(4, 4)
            made, total = function(x)
            seen += torch.autograd.grad(total, (made, x), retain_graph=True)
            made.register_hook(lambda gradient, seen=seen: seen.append(gradient.clone()))
            total.backward()
            seen += [made, total, x.grad, made._version, made.grad if made.retains_grad else None]
        return seen

    agree(scene, backend)


def test_a_hook_on_what_was_changed(backend):
    def scene(compiler):
        seen = []

        def program(x):
            made = x.sin() * 0.3
            with torch.no_grad():
                made.mul_(1.1)
            made.register_hook(lambda gradient: seen.append(gradient.clone()))
            return made.exp().sum()

        function = compiler(program)
        for _ in range(2):
            x = leaf(4, 4)
            function(x).backward()
            seen.append(x.grad)
        return seen

    agree(scene, backend)
