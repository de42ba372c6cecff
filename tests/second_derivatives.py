"""Steps of training with second derivatives, plain and compiled, compared over batches of changing sizes."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import bothways

BACKENDS = ("eager", "aot_eager", "native")
# Four calls of one size, then others: the first two of each program make what they need.
SIZES = (6, 6, 6, 6, 5, 4, 3, 7, 7)
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::convolution", "aten::convolution_backward")


def perceptron(*sizes, activation=nn.Tanh):
    torch.manual_seed(0)
    layers = [part for pair in zip(sizes, sizes[1:]) for part in (nn.Linear(*pair), activation())]
    return nn.Sequential(*layers[:-1])


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def products(call):
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    return sum(event.name in PRODUCTS for event in seen.events())


def same(expected, found):
    assert len(expected) == len(found)
    for wanted, got in zip(expected, found, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        else:
            assert wanted == got


def agree(scene, backend, sizes=SIZES):
    """Both steps give the same for all sizes; gives them, and the compiled functions."""
    compiled = []

    def compiler(function):
        compiled.append(bothways.compile(lambda *args: function(*args), backend=backend))
        return compiled[-1]

    torch.manual_seed(0)
    plain = scene(lambda function: function)
    torch.manual_seed(0)
    step = scene(compiler)
    for number, size in enumerate(sizes):
        torch.manual_seed(number)
        expected = plain(size)
        torch.manual_seed(number)
        same(expected, step(size))
    return plain, step, compiled
