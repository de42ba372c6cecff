"""A gradient that is a sum of pieces lies as eager's does, also where a step is cut and its parts give the pieces."""

import pytest
import torch
from agreeing import BACKENDS, agree


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.images = torch.nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm, self.last = torch.nn.BatchNorm2d(4), torch.nn.Linear(64, 3)

    def forward(self, x):
        return self.last(self.norm(self.images(x)).flatten(1))


def penalized(net, x):
    """The loss with a penalty on the gradient by an input that is made here, and one on the parameters."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(x).sin().sum() + 0.01 * sum(parameter.square().sum() for parameter in net.parameters())
    by_input, = torch.autograd.grad(loss, x, create_graph=True)
    return loss + by_input.square().sum()


def stepping(net, optimizer, x):
    net.zero_grad()
    penalized(net, x).backward()
    optimizer.step()


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_a_sum_of_pieces_from_several_parts_lies_as_eagers(backend):
    def observe(function, call):
        torch.manual_seed(call)
        net = Net()
        function(net, torch.optim.SGD(net.last.parameters(), lr=0.05), torch.randn(6, 2, 4, 4))
        gradient = net.images.weight.grad
        return {"gradient": gradient, "strides": gradient.stride()}

    agree(stepping, observe, 1, 2, backend=backend, tol=5e-2)
