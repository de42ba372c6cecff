"""Pooling by kernels: values, places and gradients as eager has them."""

import math

import pytest
import torch
import torch.nn.functional as F
from native_checking import cases_of, run_cases, unlowered

# Arguments of max_pool2d, the size of an image, and whether kernels do the forward.
WINDOWS = {
    "side by side": ((2,), (8, 12), True),
    "of two sizes": (((2, 3),), (8, 12), True),
    "overlapping": ((3, 2), (9, 11), True),
    "apart": ((2, 3), (9, 11), True),
    "a rest is left": ((2,), (9, 13), True),
    "over the edge": ((3, 2, 1), (9, 11), False),
    "with gaps": ((2, 2, 0, 2), (9, 11), False),
    "rounded up": ((2, 2, 0, 1, True), (9, 11), False),
    "large": ((7,), (14, 14), False),
}


def check(x, arguments):
    def function(x):
        values, places = F.max_pool2d(x, *arguments, return_indices=True)
        return values * 2, places

    cases = cases_of("max_pool2d", function, [x])
    for outcome in run_cases(cases):
        assert outcome.wrong == []
    return [target.__name__.partition(".")[0] for case in cases for target in unlowered(case)]


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    arguments, size, forward = WINDOWS[name]
    left = check(torch.randn(2, 3, *size, requires_grad=True), arguments)
    assert ("max_pool2d_with_indices" in left) is not forward


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_layouts_and_dtypes(dtype):
    image = torch.randn(2, 3, 8, 8, dtype=dtype)
    views = [image, image.to(memory_format=torch.channels_last), image.transpose(2, 3), image[:, :, ::2, ::2], image[0]]
    for x in views:
        assert check(x.detach(), (2,)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [2, (2, 3), (1, 4)], ids=str)
def test_the_backward_of_images_that_lie_pixel_by_pixel(window, dtype):
    values = torch.tensor([0.0, -0.0, 1.0, 1.0, math.inf, -math.inf, math.nan, 2.0])
    torch.manual_seed(0)
    x = values[torch.randint(0, 8, (2, 9, 8, 12))].to(dtype).to(memory_format=torch.channels_last)
    assert "max_pool2d_with_indices_backward" not in check(x.requires_grad_(), (window,))
    for arguments, size in (((3, 2), (9, 11)), ((2,), (9, 13)), ((2, 2, 0, 2), (9, 11))):
        other = torch.randn(2, 9, *size, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
        assert "max_pool2d_with_indices_backward" in check(other, arguments)


def test_nan_infinity_and_equal_values():
    values = torch.tensor([0.0, -0.0, 1.0, 1.0, math.inf, -math.inf, math.nan])
    torch.manual_seed(0)
    x = values[torch.randint(0, 7, (2, 3, 12, 12))].requires_grad_()
    check(x, (2,))
    check(torch.full((1, 1, 4, 4), -math.inf).requires_grad_(), (2,))
