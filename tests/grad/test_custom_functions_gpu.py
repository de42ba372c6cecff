"""Triton kernels that users wrote, launched in compiled functions and in the bodies of custom functions.

These tests need a GPU and Triton.
"""

import pytest
import torch
from custom_functions import agree
from torch.autograd import Function

import bothways
from bothways.testing import RecordGraphs, difference

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.parametrize("backend", ["eager", "aot_eager"]),
]


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


@triton.jit
def scale_kernel(x, out, factor, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) * factor, mask=mask)


def inputs(count=10, number=2):
    generator = torch.Generator("cuda").manual_seed(7)
    return [torch.rand(count, device="cuda", generator=generator).requires_grad_() for _ in range(number)]


class Add(Function):
    """A kernel in forward, with a grid that is a function of the kernel's own constants."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        out = torch.zeros_like(x)
        count = out.numel()
        grid = lambda meta: (triton.cdiv(count, meta["BLOCK"]),)  # noqa: E731
        add_kernel[grid](x, y, out, count, BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return x * grad, y * grad


class Scale(Function):
    """Kernels in both bodies, with grids that are tuples."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        out = torch.empty_like(x)
        scale_kernel[(1,)](x, out, factor, x.numel(), BLOCK=64)
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        out = torch.empty_like(grad)
        scale_kernel[(1, 1, 1)](grad, out, ctx.factor, grad.numel(), BLOCK=64, num_warps=2)
        return out, None


class AddTwoOut(Function):
    """Several results, one of them an input, and tensors kept as attributes."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.first, ctx.second = x, y
        out = torch.zeros_like(x)
        count = out.numel()
        add_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](x, y, out, count, BLOCK=16)
        return out, x

    @staticmethod
    def backward(ctx, grad, for_x):
        x, y = ctx.saved_tensors
        return for_x * x * ctx.first * grad, y * ctx.second * grad


PROGRAMS = {
    "a kernel in forward": lambda x, y: Add.apply(x, y),
    "between other operations": lambda x, y: Add.apply(x.sin(), y * 2).cos() * x,
    "a kernel in each body": lambda x, y: Scale.apply(x * y, 3.0) + y,
    "several results": lambda x, y: AddTwoOut.apply(x, y),
    "one after the other": lambda x, y: Add.apply(Scale.apply(x, 2.0), Add.apply(x, y)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_custom_function_with_kernels(name, backend):
    agree(PROGRAMS[name], backend, inputs)


def test_a_kernel_without_gradients(backend):
    def program(x, y):
        return Add.apply(x, y) * 2

    agree(program, backend, lambda: [value.detach() for value in inputs()])


def test_a_launch_in_the_function_itself_is_one_node(backend):
    def program(x, y):
        x, y = x.detach() * 2, y.detach()
        out = torch.zeros_like(x)
        add_kernel[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
        return out + 1

    recorded = RecordGraphs()
    recording = bothways.compile(program, backend=recorded, fullgraph=True)
    assert difference(program(*inputs()), recording(*inputs())) is None
    assert recorded.only.ops == ["detach", "mul", "detach", "zeros_like", "add_kernel", "add"]
    agree(program, backend, inputs)


def test_another_size_is_another_grid(backend):
    def program(x, y):
        return Add.apply(x, y)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for count in (10, 1000, 33, 10):
        x, y = inputs(count)
        assert torch.equal(compiled(x, y), x + y)
