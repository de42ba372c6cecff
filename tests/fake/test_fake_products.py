"""Products made of parts are laid out as PyTorch lays out its own, with and without gradients."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from bothways.fake.products import linear, matmul

SHAPES = [
    ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4,)), ((2, 3, 4), (4, 5)),
    ((4,), (2, 4, 5)), ((3, 4), (2, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((2, 3, 4), (6, 1, 4, 5)),
    ((6, 2, 3, 4), (4, 5)), ((6, 2, 3, 4), (4,)), ((0, 3, 4), (4, 5)), ((2, 3, 1), (1, 5)),
]  # fmt: skip


def transposed(tensor):
    """The same numbers with the last two dimensions the other way around in memory."""
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


def swapped(tensor):
    """The same numbers with the first two dimensions the other way around in memory."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1) if tensor.dim() > 2 else tensor


LAYOUTS = (lambda tensor: tensor, transposed, swapped)


@pytest.mark.parametrize("gradients", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("shapes", SHAPES)
def test_matmul_of_parts_is_matmul(shapes, gradients):
    for layouts in itertools.product(LAYOUTS, repeat=2):
        one, other = (
            layout(torch.randn(shape)).detach().requires_grad_(gradient)
            for shape, layout, gradient in zip(shapes, layouts, gradients, strict=True)
        )
        expected, found = torch.matmul(one, other), matmul(one, other)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        assert found.requires_grad == expected.requires_grad


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (5, 2, 3, 4)])
def test_linear_of_parts_is_linear(shape, bias):
    for layout, gradient in itertools.product(LAYOUTS, (False, True)):
        x, weight = layout(torch.randn(shape)), torch.randn(6, 4, requires_grad=gradient)
        offset = torch.randn(6, requires_grad=gradient) if bias else None
        expected, found = F.linear(x, weight, offset), linear(x, weight, offset)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shapes", SHAPES)
def test_autocast_casts_what_goes_into_parts_as_into_products(shapes, dtype):
    one, other = (torch.randn(shape, dtype=dtype) for shape in shapes)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = torch.matmul(one, other), matmul(one, other)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (5, 2, 3, 4)])
def test_linear_of_parts_is_rounded_as_linear_is(shape, autocast):
    dtype = torch.float32 if autocast else torch.bfloat16
    weight, bias = torch.randn(6, 4, dtype=dtype), torch.randn(6, dtype=dtype)
    for layout in LAYOUTS:
        x = layout(torch.randn(shape, dtype=dtype))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            expected, found = F.linear(x, weight, bias), linear(x, weight, bias)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
