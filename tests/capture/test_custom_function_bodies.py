"""A custom function in a graph: one call over a forward and a backward graph, with nothing of the user's Python."""

import copy
import gc
import inspect
import sys
import weakref
from dataclasses import dataclass

import pytest
import torch
from custom_functions import BACKENDS, agree, inputs
from torch.autograd import Function

import bothways
from bothways.testing import CompileCounter, RecordGraphs, difference, normalize_gm


def text_of(compiled):
    (graph,) = bothways.explain(compiled).graphs
    return normalize_gm(graph.print_readable(print_output=False))


def spelled_by(program, *args):
    """What a backend of the user's is given."""
    recorded = RecordGraphs()
    bothways.compile(program, backend=recorded, fullgraph=True)(*args)
    return recorded.only


@dataclass
class Settings:
    scale: float
    first: torch.Tensor
    second: torch.Tensor


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, settings, z):
        ctx.save_for_backward(settings.first, settings.second)
        ctx.scale = settings.scale
        product = settings.first * settings.second
        return product * x

    @staticmethod
    def backward(ctx, grad):
        first, second = ctx.saved_tensors
        return grad * first * second, None, grad * ctx.scale


SCALED = """\
class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[3]", L_z_: "f32[3]", L_settings_first: "f32[3]", L_settings_second: "f32[3]"):
        l_x_ = L_x_
        l_z_ = L_z_
        l_settings_first = L_settings_first
        l_settings_second = L_settings_second

        function_ctx = torch.autograd.function.FunctionCtx();  function_ctx = None
        fwd_body_0 = self.fwd_body_0
        bwd_body_0 = self.bwd_body_0
        autograd_function_apply: "f32[3]" = torch.ops.higher_order.autograd_function_apply(fwd_body_0, bwd_body_0, l_x_, l_z_, l_settings_first, l_settings_second, args_tensor_mask = [True, False, True], non_differentiable_idx = []);  fwd_body_0 = bwd_body_0 = l_x_ = l_z_ = l_settings_first = l_settings_second = None
        return (autograd_function_apply,)

    class fwd_body_0(torch.nn.Module):
        def forward(self, ctx : torch.autograd.function.Function, x: "f32[3]", z: "f32[3]", l_settings_first: "f32[3]", l_settings_second: "f32[3]"):
            _set_grad_enabled = torch._C._set_grad_enabled(False);  _set_grad_enabled = None

            product: "f32[3]" = l_settings_first * l_settings_second

            mul_1: "f32[3]" = product * x;  product = x = None

            _set_grad_enabled_1 = torch._C._set_grad_enabled(True);  _set_grad_enabled_1 = None
            return (mul_1, [l_settings_first, l_settings_second])

    class bwd_body_0(torch.nn.Module):
        def forward(self, ctx : torch.autograd.function.Function, grad: "f32[3]", l_settings_first: "f32[3]", l_settings_second: "f32[3]"):
            _set_grad_enabled = torch._C._set_grad_enabled(False);  _set_grad_enabled = None

            mul: "f32[3]" = grad * l_settings_first;  l_settings_first = None
            mul_1: "f32[3]" = mul * l_settings_second;  mul = l_settings_second = None
            mul_2: "f32[3]" = grad * 2.5;  grad = None

            _set_grad_enabled_1 = torch._C._set_grad_enabled(True);  _set_grad_enabled_1 = None
            return (mul_1, mul_2)
"""  # noqa: E501


def scaled_arguments():
    x, z, first, second = inputs((3,), (3,), (3,), (3,))
    return [x, Settings(2.5, first, second), z]


def scaled(x, settings, z):
    return Scaled.apply(x, settings, z)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_graph_spells_out_both_bodies(backend):
    assert text_of(agree(scaled, backend, scaled_arguments)) == SCALED


def test_a_backend_of_the_users_is_given_the_bodies_as_modules():
    record = spelled_by(scaled, *scaled_arguments())
    assert record.ops == ["FunctionCtx", "autograd_function_apply"]
    bodies = dict(record.gm.named_children())
    assert list(bodies) == ["fwd_body_0", "bwd_body_0"]
    assert normalize_gm(record.gm.print_readable(print_output=False)) == SCALED


def test_what_an_object_holds_is_read_anew_at_each_call():
    compiled = bothways.compile(scaled, backend="eager", fullgraph=True)
    for scale in (2.5, 2.5, 3.5):
        sides = []
        for function in (scaled, compiled):
            x, settings, z = scaled_arguments()
            settings.scale = scale
            settings.first = settings.first.detach() + scale
            result = function(x, settings, z)
            result.sum().backward()
            sides.append((result.detach(), x.grad, z.grad))
        assert difference(*sides) is None
    assert len(bothways.history(compiled)) == 2


class Rewriting:
    """A backend that changes operations inside bodies, on the module it is given or on a copy."""

    def __init__(self, copies):
        self.copies = copies

    def __call__(self, module, example_inputs):
        module = copy.deepcopy(module) if self.copies else module
        for body in module.children():
            for node in body.graph.nodes:
                if node.target == "sin":
                    node.target = "cos"
            body.recompile()
        return module.forward


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.sin()


@pytest.mark.parametrize("copies", [False, True])
def test_what_a_backend_does_to_the_bodies_counts(copies):
    compiled = bothways.compile(lambda x: Sine.apply(x), backend=Rewriting(copies), fullgraph=True)
    for _ in range(2):
        (x,) = inputs()
        result = compiled(x)
        (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        assert difference((result.detach(), first.detach()), (x.cos().detach(), x.cos().detach())) is None
        (second,) = torch.autograd.grad(first.sum(), x)
        assert difference(second, -x.sin().detach()) is None


@pytest.mark.parametrize("how", ["eager", "aot_eager", "native", "spelled"])
def test_a_function_is_differentiated_twice(how):
    backend = CompileCounter() if how == "spelled" else how
    compiled = bothways.compile(lambda x: Sine.apply(x) * x, backend=backend, fullgraph=True)
    sides = []
    for function in (lambda x: Sine.apply(x) * x, compiled, compiled):
        (x,) = inputs()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        sides.append((first.detach(), second.detach(), third))
    assert difference(sides[0], sides[1]) is None and difference(sides[0], sides[2]) is None


def test_a_backward_leaves_the_grad_mode_as_it_finds_it():
    modes = []
    compiled = bothways.compile(lambda x: Sine.apply(x), backend=CompileCounter(), fullgraph=True)
    for create_graph in (False, True):
        (x,) = inputs()
        result = compiled(x)
        result.grad_fn.register_hook(lambda *grads: modes.append(torch.is_grad_enabled()))
        torch.autograd.grad(result.sum(), x, create_graph=create_graph)
    assert modes == [False, True] and torch.is_grad_enabled()


def test_a_function_that_is_not_differentiated_is_part_of_the_graph():
    program = lambda x: Sine.apply(x) + 1
    record = spelled_by(program, torch.ones(3))
    assert record.ops == ["sin", "add"]
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert spelled_by(program, x).ops == ["sin", "add"]
    assert spelled_by(program, x).ops == ["FunctionCtx", "autograd_function_apply", "add"]


def test_nothing_of_the_users_python_runs_in_a_hit():
    compiled = bothways.compile(lambda x: Sine.apply(x), backend="eager", fullgraph=True)
    compiled(*inputs()).sum().backward()
    (x,) = inputs()
    ran = set()
    sys.setprofile(lambda frame, event, argument: ran.add(frame.f_code))
    try:
        compiled(x).sum().backward()
    finally:
        sys.setprofile(None)
    assert ran and not ran & {Sine.forward.__code__, Sine.backward.__code__}
    assert difference(x.grad, x.sin().detach()) is None


class Sorted(Function):
    @staticmethod
    def forward(ctx, x, y):
        largest = x.exp()
        places = y * 2
        ctx.mark_non_differentiable(places)
        return largest, places

    @staticmethod
    def backward(ctx, first, second):
        return first.cos(), second * 0.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_results_and_those_without_gradients(backend):
    compiled = agree(lambda x, y: Sorted.apply(x, y), backend, lambda: inputs((3,), (3,)))
    text = text_of(compiled)
    assert "args_tensor_mask = [True, True], non_differentiable_idx = [1])" in text
    assert "return ((largest, places), [])" in text


class Bounded(Function):
    """Saves a tensor that it makes itself."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x, x.new_ones(1) * bound)
        return x.clamp(min=bound)

    @staticmethod
    def backward(ctx, grad):
        x, bound = ctx.saved_tensors
        return (x >= bound) * grad, None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_made_in_forward_is_saved(backend):
    parameter = torch.nn.Parameter(torch.rand(4, 3))
    agree(lambda x: x + Bounded.apply(parameter, 1) + Bounded.apply(x, 0.75), backend, lambda: inputs((4, 3)))


def test_a_tuple_says_how_many_numbers_are_drawn():
    recorded = RecordGraphs()
    compiled = bothways.compile(lambda x, shape: Draws.apply(x, shape), backend=recorded, fullgraph=True)
    x = torch.randn(10, 10, requires_grad=True)
    result = compiled(x, (10, 10))
    result.sum().backward()
    assert torch.equal(result, x + 1) and x.grad.shape == (10, 10)
    assert recorded.only.ops == ["FunctionCtx", "autograd_function_apply"]


class Changed(Function):
    """Backward asks for all that was saved, and uses one of them."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.also = y
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * 2, grad * x


class Holding(Function):
    """Backward reads a tensor that forward did not save."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.y = y
        return x * y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y, None


@pytest.mark.parametrize("backend", [*BACKENDS, CompileCounter()], ids=[*BACKENDS, "spelled"])
@pytest.mark.parametrize("function", [Changed, Holding])
def test_a_saved_tensor_that_is_changed_is_an_error_where_eager_says_so(function, backend):
    compiled = bothways.compile(lambda x, y: function.apply(x, y), backend=backend, fullgraph=True)
    sides = []
    for run in (function.apply, compiled, compiled):
        x, y = inputs((3,), (3,))
        inner = y * 1
        result = run(x, inner)
        with torch.no_grad():
            inner.add_(1)
        try:
            result.sum().backward()
            sides.append(x.grad)
        except RuntimeError as error:
            sides.append("modified by an inplace operation" in str(error))
    assert difference(sides[0], sides[1]) is None and difference(sides[0], sides[2]) is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [Changed, Holding])
def test_a_second_backward_is_an_error_where_it_is_in_eager(function, backend):
    compiled = bothways.compile(lambda x, y: function.apply(x, y) * 1, backend=backend, fullgraph=True)
    sides = []
    for run in (lambda x, y: function.apply(x, y) * 1, compiled):
        x, y = inputs((3,), (3,))
        result = run(x, y).sum()
        result.backward(retain_graph=True)
        result.backward()
        sides.append((x.grad, y.grad))
    assert difference(*sides) is None


class Views(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1), x

    @staticmethod
    def backward(ctx, first, second):
        return first.view(2, 3) + second


class Draws(Function):
    @staticmethod
    def forward(ctx, x, shape):
        ctx.save_for_backward(torch.rand(shape))
        return x + 1

    @staticmethod
    def backward(ctx, grad):
        (drawn,) = ctx.saved_tensors
        return grad * drawn * torch.rand_like(drawn), None


class Inner(Function):
    @staticmethod
    def forward(ctx, x):
        return Sine.apply(x) * 2

    @staticmethod
    def backward(ctx, grad):
        return Sine.apply(grad)


class Ctx(Function):
    """Arguments with names that graphs use themselves."""

    @staticmethod
    def forward(ctx, self, grad):
        ctx.save_for_backward(self)
        return self * grad, 7, None

    @staticmethod
    def backward(ctx, self, number, nothing):
        assert number is None and nothing is None
        return self * ctx.saved_tensors[0].contiguous(), None


PROGRAMS = {
    "views and arguments as results": lambda x: Views.apply(x),
    "an argument twice": lambda x: Scaled.apply(x, Settings(2.0, x, x), x),
    "random numbers": lambda x: (torch.manual_seed(3), Draws.apply(x, (2, 3)))[1],
    "a function in a function": lambda x: Inner.apply(x),
    "results that are no tensors": lambda x: Ctx.apply(x, x.detach())[0],
    "a tensor changed before": lambda x: Sine.apply((x * 1).mul_(2)),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_agree_with_eager(backend, name):
    fullgraph = name != "random numbers"
    agree(PROGRAMS[name], backend, fullgraph=fullgraph, captures=None)


def test_a_body_that_changes_the_world_stays_the_users_own():
    seen = []

    class Says(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append("backward")
            return grad * 2

    compiled = agree(lambda x: Says.apply(x), "eager", seen=seen)
    assert "autograd_function_apply" not in text_of(compiled)


class Context:
    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.mark.parametrize("backend", ["eager", CompileCounter()], ids=["eager", "spelled"])
@pytest.mark.parametrize("function", [Sine, Holding])
def test_capture_looks_into_the_backward_of_a_captured_function(function, backend):
    arguments = inputs((3,), (3,))[: len(inspect.signature(function.forward).parameters) - 1]
    result = bothways.compile(lambda *args: function.apply(*args), backend=backend, fullgraph=True)(*arguments)
    backward = result.grad_fn._forward_cls.backward
    other = arguments[-1].detach()
    recorded = RecordGraphs()
    compiled = bothways.compile(lambda ctx, grad: backward(ctx, grad)[0], backend=recorded, fullgraph=True)
    with torch.no_grad():
        found = compiled(Context(saved_tensors=(other,), held=[other]), torch.ones(3))
    expected = other.sin() if function is Sine else other
    assert difference(found, expected) is None
    assert "mul" in recorded.only.ops


def test_hooks_of_saved_tensors_see_what_is_saved():
    packed = []

    def pack(tensor):
        packed.append(tuple(tensor.shape))
        return tensor

    compiled = bothways.compile(lambda x: Sine.apply(x), backend="eager", fullgraph=True)
    compiled(*inputs())
    sides = []
    for function in (Sine.apply, compiled):
        packed.clear()
        (x,) = inputs()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor * 3):
            result = function(x)
        result.sum().backward()
        sides.append((list(packed), x.grad))
    assert difference(*sides) is None


def test_the_node_of_autograd_has_the_users_name():
    compiled = bothways.compile(lambda x: Sine.apply(x), backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(*inputs()).grad_fn.name() == "SineBackward"


def test_the_users_class_goes_with_the_compiled_function():
    def run():
        class Local(Function):
            @staticmethod
            def forward(ctx, x):
                return x + 1

            @staticmethod
            def backward(ctx, grad):
                return grad

        compiled = bothways.compile(lambda x: Local.apply(x), backend="eager", fullgraph=True)
        compiled(*inputs()).sum().backward()
        return weakref.ref(Local)

    gone = run()
    gc.collect()
    assert gone() is None
