"""Where thin tensors do not know an operation, a whole trace asks PyTorch's fakes: their results lie as kernels' do."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree

from bothways.fake import fake_tensor_mode

aten = torch.ops.aten
GRADIENT, SAVED = torch.randn(2, 4, 12).transpose(1, 2), torch.randn(2, 12, 4)
OPERATIONS = {
    "softplus": lambda gradient, saved: aten.softplus_backward(gradient, saved, 1, 20),
    "elu": lambda gradient, saved: aten.elu_backward(gradient, 1, 1, 1, False, saved),
    "hardswish": aten.hardswish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "hardtanh": lambda gradient, saved: aten.hardtanh_backward(gradient, saved, -1, 1),
    "mish": aten.mish_backward,
    "logit": aten.logit_backward,
    "mean square": lambda one, other: aten.mse_loss_backward(one, other, other, 0),
    "dropout": lambda gradient, saved: aten.native_dropout_backward(gradient, saved > 0, 2.0),
    "logarithm of a softmax": lambda one, other: aten._log_softmax_backward_data(one, other, 2, torch.float32),
    "xlogy": torch.xlogy,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_strides_are_those_of_the_kernel(name):
    mode = fake_tensor_mode()
    for operands in ((GRADIENT, SAVED), (SAVED, GRADIENT)):
        expected = OPERATIONS[name](*operands)
        with mode:
            found = OPERATIONS[name](*map(mode.from_tensor, operands))
        assert (found.stride(), found.shape, found.dtype) == (expected.stride(), expected.shape, expected.dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", [F.softplus, F.elu, F.hardswish, F.hardsigmoid, F.mish])
def test_a_gradient_of_parts_that_lie_otherwise(activation, backend):
    weight, kernel = torch.randn(8, 8, requires_grad=True), torch.ones(8, 1, 4)

    def parts(x):
        one, other = F.linear(x, weight).view(2, 12, 2, 4).split([2, 2], 3)
        one = activation(one.reshape(2, 12, 4)).transpose(1, 2).contiguous().cumsum(-1)
        other = other.reshape(2, 12, 4).sigmoid().transpose(1, 2).contiguous()
        # Of a sequence that lies the other way the kernel decides how the result of a convolution does.
        return one, other, F.conv1d(x.transpose(1, 2), kernel, padding=3, groups=8)

    def observe(function, x):
        weight.grad = None
        one, other, around = function(x)
        (one.square().sum() + other.square().sum() + around.sum()).backward()
        return {"results": [one, other, around], "gradient": weight.grad}

    x = torch.randn(2, 12, 8)
    agree(parts, observe, x, x, backend=backend, programs=1, fullgraph=True, tol=1e-4)
