"""A custom function whose forward breaks in the middle: it breaks there, and what surrounds the break is captured."""

import gc
import math
import weakref

import pytest
import torch
from custom_functions import BACKENDS, agree, inputs
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import bothways
from bothways.testing import CompileCounter, difference


class Root(Function):
    @staticmethod
    def forward(ctx, x):
        result = x + x
        bothways.graph_break()
        result = result + x
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * math.sqrt(result.numel())


class Applied(torch.nn.Module):
    def forward(self, x):
        return Root().apply(x)


class Kept(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.apply_root = Root.apply

    def forward(self, x):
        return self.apply_root(x)


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("module", [Applied, Kept])
def test_what_surrounds_the_break_is_captured(module, needs):
    counter = CompileCounter()
    model = module()
    compiled = bothways.compile(model, backend=counter)
    for size in (10, 10, 10):
        x = torch.randn(size, requires_grad=needs)
        assert difference(model(x), compiled(x)) is None
    assert counter.frame_count == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_before_and_after_the_call_is_captured_as_well(backend):
    agree(lambda x: Root.apply(x.sin()).cos(), backend, fullgraph=False, captures=None)
    counter = CompileCounter()
    compiled = bothways.compile(lambda x: Root.apply(x.sin()).cos(), backend=counter)
    for _ in range(2):
        compiled(*inputs())
    assert counter.frame_count == 4


class SetUp(Function):
    @staticmethod
    def forward(x, scale):
        doubled = x * scale
        bothways.graph_break()
        return doubled.sin(), doubled.detach()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, unused):
        (x,) = ctx.saved_tensors
        return grad * (x * ctx.scale).cos() * ctx.scale, None


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        bothways.graph_break()
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Given(Function):
    @staticmethod
    def forward(ctx, x):
        bothways.graph_break()
        ctx.size = x.size(0)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.size


class View(Function):
    @staticmethod
    def forward(ctx, x):
        bothways.graph_break()
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.view(2, 3) * 3


class NotMaterialized(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        first = x.clone()
        bothways.graph_break()
        return first, x.exp()

    @staticmethod
    def backward(ctx, first, second):
        assert second is None
        return first * 2


class Needs(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.needs = ctx.needs_input_grad
        bothways.graph_break()
        return x * y

    @staticmethod
    def backward(ctx, grad):
        assert ctx.needs == ctx.needs_input_grad == (True, False)
        return grad * 5, None


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x * x
        bothways.graph_break()
        return y * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x * x


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        bothways.graph_break()
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return grad * 7


PROGRAMS = {
    "setup_context": lambda x: SetUp.apply(x, 3.0),
    "dirty": lambda x: Dirty.apply(x * 1) * 2,
    "an argument returned": lambda x: Given.apply(x) * 2,
    "a view": lambda x: View.apply(x),
    "not materialized": lambda x: NotMaterialized.apply(x)[0].sum(),
    "needs_input_grad": lambda x: Needs.apply(x, torch.ones(2, 3)),
    "once differentiable": lambda x: Once.apply(x),
    "without gradients": lambda x: Root.apply(x.detach()),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_that_a_context_is_for_is_as_in_eager(backend, name):
    agree(PROGRAMS[name], backend, fullgraph=False, captures=None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_can_be_differentiated_twice(backend):
    compiled = bothways.compile(lambda x: Twice.apply(x), backend=backend)
    sides = []
    for function in (Twice.apply, compiled, compiled):
        (x,) = inputs()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        first.sum().backward()
        sides.append((first.detach(), x.grad))
    assert difference(sides[0], sides[1]) is None and difference(sides[0], sides[2]) is None


def test_the_node_in_the_graph_of_autograd_has_the_users_name():
    compiled = bothways.compile(lambda x: Root.apply(x), backend="eager")
    for _ in range(2):
        result = compiled(*inputs())
        assert result.grad_fn.name() == "RootBackward"
        assert isinstance(result.grad_fn, torch.autograd.function.BackwardCFunction)


def test_a_forward_that_is_replaced_is_noticed(monkeypatch):
    compiled = bothways.compile(lambda x: Root.apply(x), backend="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x), torch.full((3,), 3.0))
    monkeypatch.setattr(Root, "forward", staticmethod(lambda ctx, x: x + 41))
    assert torch.equal(compiled(x), torch.full((3,), 42.0))


def test_the_class_goes_when_it_is_held_no_more():
    def run():
        class Local(Function):
            @staticmethod
            def forward(ctx, x):
                bothways.graph_break()
                return x + 1

            @staticmethod
            def backward(ctx, grad):
                return grad

        compiled = bothways.compile(lambda x: Local.apply(x), backend="eager")
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        return weakref.ref(Local)

    gone = run()
    gc.collect()
    assert gone() is None


def test_under_fullgraph_the_break_is_an_error_at_its_line():
    compiled = bothways.compile(lambda x: Root.apply(x), backend="eager", fullgraph=True)
    with pytest.raises(bothways.errors.Unsupported, match="graph_break"):
        compiled(*inputs())
