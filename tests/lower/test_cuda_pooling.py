"""Pooling on GPUs, of images whose channels lie side by side: values, places and gradients are eager's to the bit.

Kernels run on the CPU, and NVRTC compiles them.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from cuda_on_host import CudaOnHost
from native_checking import cases_of
from test_cuda_kernels import as_on_gpu, needs_nvrtc, source_of  # noqa: F401  (a fixture)

import bothways
from bothways.building.cuda_build import compiled
from bothways.lower.dialects.cuda.kernels import spell_kernel
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir.prims import Extern
from bothways.lower.schedule.steps import lower
from bothways.lower.schedule.tree import Kernel

pytestmark = pytest.mark.usefixtures("as_on_gpu")

# Arguments of max_pool2d, and the size of an image.
WINDOWS = {
    "of a ResNet": ((3, 2, 1), (16, 16)),
    "over the edge": ((3, 2, 1), (9, 11)),
    "side by side": ((2,), (8, 12)),
    "a rest is left": ((2,), (9, 13)),
    "each pixel in nine": ((3, 1, 1), (7, 7)),
    "of two sizes": (((2, 3), (1, 2), (1, 1)), (9, 11)),
    "apart": ((2, 3), (9, 11)),
    "rounded up": ((3, 2, 1, 1, True), (10, 12)),
}


def on_host(function, steps):
    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        steps.append(list(lowered.steps))
        return KernelProgram(lowered, dialect=CudaOnHost()).run

    return bothways.compile(function, backend=bothways.backends.aot(fw_compiler=compile))


def images(size, *, channels=16, special=False, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(2, channels, *size)
    if special:
        x = torch.tensor([0.0, -0.0, 1.0, 1.0, math.inf, -math.inf, math.nan, 2.0])[torch.randint(0, 8, x.shape)]
    return x.to(dtype).to(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, special):
    arguments, size = WINDOWS[name]
    x, steps = images(size, special=special), []
    gradient = torch.randn_like(F.max_pool2d(x.detach(), *arguments))

    def function(x):
        return F.max_pool2d(x * 1, *arguments, return_indices=True)

    found = on_host(function, steps)(x)
    expected = function(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    one, other = (torch.autograd.grad(result[0], x, gradient)[0] for result in (found, expected))
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    # Nothing is ATen's, and the backward is one kernel.
    assert not any(isinstance(step, Extern) for half in steps for step in half)
    assert len(steps[-1]) == 1


def test_half_precision_is_added_up_in_single():
    """As on GPUs; where a pixel is one window's there is nothing to add."""
    x = images((8, 12), dtype=torch.bfloat16)

    def function(x):
        return F.max_pool2d(x * 1, 2) * 1

    results = [one(x) for one in (on_host(function, []), function)]
    torch.testing.assert_close(*results, rtol=0, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(one.sum(), x)[0] for one in results), rtol=0, atol=0)


@pytest.mark.parametrize("channels", [4, 16])
def test_images_of_few_channels_are_atens(channels):
    x, steps = images((9, 11), channels=channels), []
    on_host(lambda x: F.max_pool2d(x * 1, 3, 2, 1) * 1, steps)(x)
    assert any(isinstance(step, Extern) for step in steps[0]) == (channels < 8)


def test_channels_are_read_as_vectors():
    """Where a vector is, is computed once for all of its elements."""
    x, steps = images((9, 11)), []
    on_host(lambda x: F.max_pool2d(x * 1, 3, 2, 1) * 1, steps)(x)
    texts = [spell_kernel(step, None).body for step in steps[0] if isinstance(step, Kernel)]
    assert sum(text.count("load_float_4(") for text in texts) >= 9
    weight, words = torch.randn(50, 64), torch.randint(0, 50, (3, 7))
    [case] = cases_of("case", lambda weight, words: [F.embedding(words, weight) * 2], [weight, words])[:1]
    [kernel] = lower(case.graph, case.given).steps
    assert "load_float_4(" in spell_kernel(kernel, None).body


@needs_nvrtc
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_kernels_compile(dtype):
    for case in cases_of("case", lambda x: [F.max_pool2d(x * 1, 3, 2, 1)], [images((9, 11), dtype=dtype)], grad=True):
        assert compiled(source_of(case), "sm_90")
