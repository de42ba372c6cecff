"""What is different about gradients on a GPU: its own random numbers, and backward passes in threads of their own."""

import pytest
import torch
import torch.nn.functional as F
from observing import agree

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"]),
]


def leaf(*shape):
    return torch.rand(*shape, device="cuda").requires_grad_()


PROGRAMS = {
    "dropout": lambda x: F.dropout(x * 2, 0.5) ** 3,
    "dropout, transposed": lambda x: F.dropout(x.t(), 0.5) ** 3,
    "random numbers": lambda x: (x * torch.rand_like(x)).sin(),
    "layer norm": lambda x: F.layer_norm(x, (6,)).sin(),
    "convolution": lambda x: F.conv1d(x[None], torch.ones(2, 4, 3, device="cuda")).tanh(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_and_second_derivatives(backend, name):
    def scene(compiler):
        function = compiler(PROGRAMS[name])
        seen = []
        for _ in range(2):
            x = leaf(4, 6)
            result = function(x)
            (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
            first.pow(2).sum().backward()
            seen += [result, first, x.grad, torch.rand(2, device="cuda")]
        return seen

    agree(scene, backend)


def test_autocast_around_the_forward_only(backend):
    def scene(compiler):
        function = compiler(lambda x, w: torch.linalg.inv((x @ w).float()) @ w)
        seen = []
        for _ in range(2):
            x, w = leaf(4, 4), leaf(4, 4)
            with torch.autocast("cuda", torch.bfloat16):
                result = function(x, w)
            result.float().sum().backward()
            seen += [result.dtype, x.grad.dtype, w.grad.dtype]
        return seen

    agree(scene, backend)


def test_a_gradient_of_another_layout_is_traced_in_the_thread_of_the_backward(backend):
    def scene(compiler):
        x = leaf(4, 6)
        compiler(lambda x: x.sin() * x)(x).t().backward(torch.ones(6, 4, device="cuda"))
        return x.grad

    agree(scene, backend)


def test_tensors_on_both_devices(backend):
    def scene(compiler):
        function = compiler(lambda x, s: x.sin() * s)
        x, scale = leaf(3), torch.rand((), requires_grad=True)
        function(x, scale).sum().backward()
        return x.grad, scale.grad, scale.grad.device.type

    agree(scene, backend)
