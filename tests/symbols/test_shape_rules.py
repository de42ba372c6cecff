"""The predicted shapes are those PyTorch computes: every rule is compared with the operation itself."""

import itertools

import pytest
import torch

from bothways.capture.shapes import shape_rules
from bothways.capture.shapes.fakes import Fake, fake_like
from bothways.capture.shapes.shape_rules import _TABLE, predict

SHAPES = [(2, 3), (3,), (2, 1), (4, 2, 3), (), (1,), (0, 3), (2, 3, 4, 5)]


def layouts(shape, dtype):
    """The same shape contiguous, transposed, expanded and with gaps."""
    base = torch.rand(shape).to(dtype)
    yield base
    if len(shape) >= 2:
        yield torch.rand(tuple(reversed(shape))).to(dtype).permute(*reversed(range(len(shape))))
        yield torch.rand(*shape[:-1], shape[-1] * 2).to(dtype)[..., ::2]
        yield torch.rand(*shape[:-1], 1).to(dtype).expand(shape)
    if len(shape) == 4:
        yield base.contiguous(memory_format=torch.channels_last)


def operands():
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            yield from layouts(shape, dtype)


def compare(function, args):
    fakes = tuple(fake_like(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
    prediction = predict(function, fakes, {})
    if prediction is None:
        return 0
    result = function(*args)
    expected = (tuple(result.shape), result.stride(), result.dtype, result.device, result.requires_grad)
    fake = Fake(None, prediction.device, prediction)
    assert (fake.shape, fake.stride, fake.dtype, fake.device, fake.requires_grad) == expected, (function, args)
    assert fake.meta.is_leaf == result.is_leaf
    return 1


def arguments(rule):
    """Everything the rule could be asked about: alone, with a number on either side, in pairs."""
    tensors = list(operands())
    if rule is shape_rules._unary:
        return [(tensor,) for tensor in tensors]
    numbers = [(tensor, number) for tensor in tensors for number in (2, 0.5)]
    if rule is shape_rules._clamp:
        return numbers
    pairs = [pair for pair in itertools.product(tensors, tensors) if broadcasts(*pair)]
    if rule is shape_rules._binary_of_tensors:
        return pairs
    swapped = [(number, tensor) for tensor, number in numbers] if rule is shape_rules._operator else []
    return numbers + swapped + pairs


def broadcasts(left, right):
    try:
        torch.broadcast_shapes(left.shape, right.shape)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("function", _TABLE, ids=lambda function: getattr(function, "__qualname__", str(function)))
def test_rule_agrees_with_the_operation(function):
    answered = sum(compare(function, args) for args in arguments(_TABLE[function]))
    assert answered, "the rule never answers"


def test_what_an_operation_does_not_take_is_not_predicted():
    x = fake_like(torch.rand(2, 3))
    assert predict(torch.maximum, (x, 2.0), {}) is None
    assert predict(torch.Tensor.add, (2.0, x), {}) is None
    assert predict(torch.add, (x, x), {"alpha": 2}) is None


@pytest.mark.parametrize("enabled", [True, False])
def test_results_require_grad_as_autograd_says(enabled):
    x, y = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3)
    with torch.set_grad_enabled(enabled):
        for args in [(x, y), (y, x), (y, y), (x, 2.0)]:
            assert compare(torch.add, args) == 1
