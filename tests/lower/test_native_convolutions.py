"""Transposed convolutions to few channels are a product and a kernel; results, layouts and gradients are eager's."""

import pytest
import torch
import torch.nn.functional as F
from native_checking import cases_of, run_cases, unlowered
from torch import nn

import bothways
from bothways.record.counters import counters

# Channels, kernel, further arguments of conv_transpose2d after the bias, and whether it is a product of matrices.
KINDS = {
    "a decoder's last": (1, (4, 4), (2, 1), True),
    "in colours": (3, (4, 4), (2, 1), True),
    "side by side": (1, (2, 2), (2,), True),
    "as it is": (2, (3, 3), (1, 1), True),
    "of two sizes": (1, (4, 2), ((2, 1), (1, 0)), True),
    "three over each other": (1, (6, 6), (2, 2), True),
    "most is cut off": (1, (4, 4), (2, 3), True),
    "a kernel that leaves a rest": (1, (3, 3), (2, 1), False),
    "rows to be added": (1, (4, 4), (2, 1, 1), False),
    "with gaps": (1, (2, 2), (2, 0, 0, 1, 2), False),
    "in groups": (4, (4, 4), (2, 1, 0, 2), False),
    "many channels": (8, (4, 4), (2, 1), False),
}


def check(x, weight, bias, arguments):
    def function(x, weight, bias=None):
        return F.conv_transpose2d(x, weight, bias, *arguments) * 2

    cases = cases_of("conv_transpose2d", function, [x, weight] if bias is None else [x, weight, bias])
    for outcome in run_cases(cases):
        assert outcome.wrong == []
    return [target.__name__.partition(".")[0] for case in cases for target in unlowered(case)]


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name):
    channels, kernel, arguments, by_product = KINDS[name]
    groups = arguments[3] if len(arguments) > 3 else 1
    weight = torch.randn(4, channels // groups, *kernel, requires_grad=True)
    bias = torch.randn(channels, requires_grad=True)
    left = check(torch.randn(2, 4, 5, 6, requires_grad=True), weight, bias, arguments)
    assert ("convolution" in left) is not by_product
    assert ("mm" in left) is by_product


def test_layouts():
    image, weight = torch.randn(2, 4, 6, 6), torch.randn(4, 1, 4, 4)
    for x in (image, image.to(memory_format=torch.channels_last), image.transpose(2, 3), image[:, :, ::2, ::2]):
        assert "convolution" not in check(x, weight, None, (2, 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_precisions_are_a_librarys(dtype):
    x, weight = torch.randn(2, 4, 6, 6, dtype=dtype), torch.randn(4, 1, 4, 4, dtype=dtype)
    assert "convolution" in check(x, weight, None, (2, 1))


def test_large_images_are_a_librarys():
    assert "convolution" in check(torch.randn(8, 4, 64, 64), torch.randn(4, 3, 4, 4), None, (2, 1))


def test_a_factor_that_is_no_number_reaches_what_it_reaches_in_eager():
    x, weight = torch.randn(2, 4, 5, 5), torch.randn(4, 1, 4, 4)
    weight[0, 0, 0, 0], weight[1, 0, 3, 2], weight[2, 0, 1, 3] = float("inf"), float("nan"), -float("inf")
    plain = F.conv_transpose2d(x, weight, None, 2, 1)
    assert 0 < plain.isfinite().sum() < plain.numel()
    compiled = bothways.compile(lambda x, weight: F.conv_transpose2d(x, weight, None, 2, 1) * 1.0)
    torch.testing.assert_close(compiled(x, weight), plain, equal_nan=True, rtol=1e-4, atol=1e-5)


def test_a_decoder_is_trained():
    def build():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4, 2, 1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    plain, trained = build(), build()
    compiled = bothways.compile(trained, fullgraph=True)
    for size in (4, 4, 5):
        x = torch.randn(3, 6, size, size)
        results = [model(x) for model in (plain, compiled)]
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)
        assert results[0].stride() == results[1].stride()
        for result in results:
            result.square().sum().backward()
        for own, other in zip(trained.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-3, atol=1e-4)
        if size == 4:
            graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1
    assert counters["stats"]["unique_graphs"] == 2
    for own, other in zip(trained.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
