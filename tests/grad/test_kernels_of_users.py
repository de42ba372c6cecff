"""Kernels that users launch themselves run on tensors with memory alone: never while a program is captured or traced.

The kernels look like Triton's and run on the CPU; ``test_custom_functions_gpu.py`` has real ones.
"""

import pytest
import torch
from custom_functions import agree, inputs
from fake_triton import jit, memory_of
from torch.autograd import Function

import bothways
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]
pytestmark = [pytest.mark.every_backend, pytest.mark.parametrize("backend", BACKENDS)]


@jit
def add_kernel(x, y, out, count, BLOCK):
    for index in range(count):
        out[index] = x[index] + y[index]


@jit
def scale_kernel(x, out, factor, count, BLOCK):
    for index in range(count):
        out[index] = x[index] * factor


class Add(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        out = torch.zeros_like(x)
        count = out.numel()
        add_kernel[lambda meta: (-(-count // meta["BLOCK"]),)](x, y, out, count, BLOCK=16)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return x * grad, y * grad


class Scale(Function):
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
        scale_kernel[(1, 1, 1)](grad, out, ctx.factor, grad.numel(), BLOCK=64)
        return out, None


class ScaleBackward(Function):
    """A kernel in the backward alone."""

    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        out = torch.empty_like(grad)
        scale_kernel[(1,)](grad, out, 3.0, grad.numel(), BLOCK=64)
        return out


class Around(Function):
    """A custom function inside of another one's forward launches the kernel."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return Add.apply(x, y) * 2

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return x * grad, y * grad


PROGRAMS = {
    "a kernel in forward": lambda x, y: Add.apply(x, y),
    "between other operations": lambda x, y: Add.apply(x.sin(), y * 2).cos() * x,
    "a kernel in each body": lambda x, y: Scale.apply(x * y, 3.0) + y,
    "a kernel in backward": lambda x, y: ScaleBackward.apply(x * y) + y,
    "one after the other": lambda x, y: Add.apply(Scale.apply(x, 2.0), Add.apply(x, y)),
    "inside of another function": lambda x, y: Around.apply(x, y).sin(),
    "of detached tensors": lambda x, y: Add.apply(x.detach(), y.detach()) * x,
}


def two():
    return inputs((2, 3), (2, 3))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_custom_function_with_kernels(name, backend):
    agree(PROGRAMS[name], backend, two)


def test_each_call_launches_once(backend):
    def program(x, y):
        return Add.apply(x, y).sin()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    before = add_kernel.launches
    for count in (1, 2, 3):
        compiled(*two()).sum().backward()
        assert add_kernel.launches == before + count


def test_a_kernel_without_gradients(backend):
    agree(lambda x, y: Add.apply(x, y) * 2, backend, lambda: [value.detach() for value in two()])


def test_a_launch_in_the_function_itself(backend):
    def program(x, y):
        x, y = x.detach() * 2, y.detach()
        out = torch.zeros_like(x)
        add_kernel[(1,)](x, y, out, x.numel(), BLOCK=16)
        return out + 1

    agree(program, backend, two)


@bothways.allow_in_graph
def added(x, y):
    out = torch.empty_like(x)
    add_kernel[(1,)](x, y, out, x.numel(), BLOCK=16)
    return out


@bothways.allow_in_graph
class AllowedAdd(Add):
    pass


@pytest.mark.parametrize("function", [added, AllowedAdd.apply], ids=["a function", "a custom function"])
def test_what_is_allowed_in_graphs_is_not_launched_on_stand_ins(function, backend):
    def program(x, y):
        return function(x.detach() * 2, y.detach()) + 1

    agree(program, backend, two, fullgraph=False, captures=None)


def test_a_trace_refuses_to_launch(backend):
    with pytest.raises(RuntimeError, match="data pointer"):
        bothways.trace(lambda x, y: added(x, y))(*[value.detach() for value in two()])


@torch.library.custom_op("bothways_tests::scaled_by_kernel", mutates_args=())
def scaled_by_kernel(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, factor, x.numel(), BLOCK=64)
    return out


@scaled_by_kernel.register_fake
def _(x, factor):
    return torch.empty_like(x)


def _keep_factor(ctx, inputs, output):
    ctx.factor = inputs[1]


def _scaled_backward(ctx, grad):
    grad = grad.contiguous()
    out = torch.empty_like(grad)
    scale_kernel[(1,)](grad, out, ctx.factor, grad.numel(), BLOCK=64)
    return out, None


scaled_by_kernel.register_autograd(_scaled_backward, setup_context=_keep_factor)


def test_the_formula_of_a_custom_operation_launches_when_the_backward_runs(backend):
    agree(lambda x, y: torch.ops.bothways_tests.scaled_by_kernel(x * y, 3.0).sin(), backend, two)


def test_addresses_are_read_by_whole_functions_outside_of_graphs(backend):
    """Python that takes addresses by itself is plain Python to a capture."""

    def program(x, y):
        z = x.detach() * 2
        for index in range(3):
            memory_of(z)[index] += 1.0
        return z + y

    plain, compiled = program(*two()), bothways.compile(program, backend=backend)(*two())
    assert difference(plain, compiled) is None
