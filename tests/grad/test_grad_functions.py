"""Custom ``autograd.Function``s inside compiled functions, on each backend: results, gradients, and what the
bodies do to the world, at the moment they do it in eager."""

import enum

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import bothways
from bothways.testing import CompileCounter, difference

BACKENDS = ["eager", "aot_eager"]


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor, mode="plain"):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor if mode == "plain" else x + factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + 0 * x, None, None


class SinCos(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x, x.sin(), x.cos())
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, for_sin, for_cos):
        _, sin, cos = ctx.saved_tensors
        return for_sin * cos - for_cos * sin


class Clipped(Function):
    @staticmethod
    def forward(ctx, x):
        mask = x.abs() <= 1
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return x.clamp(-1, 1), mask

    @staticmethod
    def backward(ctx, grad, _):
        (mask,) = ctx.saved_tensors
        return grad * mask


class WithSetup(Function):
    @staticmethod
    def forward(x, weight):
        return x @ weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.structure = {"shapes": [tuple(value.shape) for value in inputs]}

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        assert ctx.structure["shapes"][0] == x.shape
        return grad @ weight.t() if ctx.needs_input_grad[0] else None, x.t() @ grad


class Quiet(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        total = None
        for grad, factor in ((first, 2), (second, 3)):
            if grad is not None:
                total = grad * factor if total is None else total + grad * factor
        return total


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * x


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Scale.apply(x, 2.0).sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 * (2 * x).cos()


class Level(enum.Enum):
    LOW = 0
    HIGH = 1


class ByEnum(Function):
    @staticmethod
    def forward(ctx, x, level):
        return x.sin() if level is Level.LOW else x.cos()

    @staticmethod
    def backward(ctx, grad):
        return grad * 7, None


class Sum(Function):
    @staticmethod
    def forward(ctx, tensors, x):
        return tensors[0] + tensors[1] + x

    @staticmethod
    def backward(ctx, grad):
        return None, grad


PROGRAMS = {
    "constant argument": lambda x: Scale.apply(x * 2, 3.0),
    "default argument": lambda x: Scale.apply(x, 3.0, "shift"),
    "apply through a name": lambda x: (lambda apply: apply(x, 0.5))(Scale.apply),
    "through an instance": lambda x: Once().apply(x),
    "several outputs": lambda x: SinCos.apply(x)[0] * SinCos.apply(x)[1],
    "non-differentiable output": lambda x: Clipped.apply(x * 3)[0] * Clipped.apply(x)[1],
    "setup_context": lambda x: WithSetup.apply(x, torch.ones(3, 2)),
    "unmaterialized gradients": lambda x: Quiet.apply(x)[1],
    "once differentiable": lambda x: Once.apply(x),
    "a function in a function": lambda x: Nested.apply(x) + x,
    "enum argument": lambda x: ByEnum.apply(x, Level.HIGH),
    "tensors in a list": lambda x: Sum.apply([x.detach(), torch.ones(3)], x),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, backend):
    program = PROGRAMS[name]
    results = []
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for function in (program, compiled, compiled):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        output = function(x)
        output.sum().backward()
        results.append((output, output.requires_grad, x.grad))
    assert difference(results[0], results[1]) is None
    assert difference(results[0], results[2]) is None
    assert len(bothways.history(compiled)) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_with_side_effects_runs_as_python_each_time(backend):
    seen = []

    class Watched(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(tuple(grad.shape))
            return grad * 2

    def program(x):
        return Watched.apply(x.sin()).sum()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    for calls in (1, 2, 3):
        compiled(x).backward()
        assert seen == [(3,)] * calls


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_that_reads_a_variable_sees_its_new_value(backend):
    factor = 2.0

    class Scaled(Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * factor

    compiled = bothways.compile(lambda x: Scaled.apply(x).sum(), backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    loss = compiled(x)
    factor = 5.0
    loss.backward()
    assert torch.equal(x.grad, torch.full((3,), 7.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forward_that_reads_a_variable_sees_its_new_value(backend):
    factor = 2.0

    class Scaled(Function):
        @staticmethod
        def forward(ctx, x):
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad

    compiled = bothways.compile(lambda x: Scaled.apply(x), backend=backend, fullgraph=True)
    assert compiled(torch.ones(2))[0] == 2
    factor = 5.0
    assert compiled(torch.ones(2))[0] == 5


class Prints(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        print("backward")
        return grad * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_that_prints_keeps_the_forward_captured(backend, capsys):
    compiled = bothways.compile(lambda x: Prints.apply(x).sum(), backend=backend)
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        compiled(x).backward()
    assert capsys.readouterr().out == "backward\n" * 2
    assert len(bothways.history(compiled)) == 1


def test_a_backward_that_prints_is_named_under_fullgraph():
    compiled = bothways.compile(lambda x: Prints.apply(x).sum(), fullgraph=True)
    with pytest.raises(bothways.errors.Unsupported) as caught:
        compiled(torch.ones(3, requires_grad=True))
    assert caught.value.break_.where.text == 'print("backward")'


def test_a_forward_with_side_effects_runs_as_python():
    calls = []

    class Counting(Function):
        @staticmethod
        def forward(ctx, x):
            calls.append(1)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    counter = CompileCounter()
    compiled = bothways.compile(lambda x: Counting.apply(x) + 1, backend=counter)
    for count in (1, 2, 3, 4):
        compiled(torch.ones(2))
        assert len(calls) == count


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_numbers_of_gradients_raise_as_in_eager(backend):
    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, grad):
            return grad

    def program(x, y):
        return Wrong.apply(x, y).sum()

    messages = []
    for function in (program, bothways.compile(program, backend=backend)):
        x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError) as caught:
            function(x, y).backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_go_through_the_users_backward(backend):
    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    def program(x):
        return Cube.apply(x).sum()

    results = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        x = torch.linspace(1, 2, 4).requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        results.append((first, second))
    assert difference(*results) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_marked_dirty_is_the_result(backend):
    class AddOne(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.add_(1)

        @staticmethod
        def backward(ctx, grad):
            return grad

    def program(x):
        y = x * 2
        z = AddOne.apply(y)
        return z is y, z * 3, y

    results = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        same, scaled, changed = function(x)
        (scaled.sum() + changed.sum()).backward()
        results.append((same, scaled, changed, x.grad))
    assert difference(*results) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_once_differentiable_is_respected(backend):
    compiled = bothways.compile(lambda x: Once.apply(x).sum(), backend=backend, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


class ChangesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        _, w = ctx.saved_tensors
        grad.mul_(2)
        return grad * w, None


class StepsInBackward(ChangesGradient):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        w.data.sub_(grad * x, alpha=0.1)
        return grad * w, None


@pytest.mark.parametrize("function", [ChangesGradient, StepsInBackward])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_a_backward_changes_is_changed(backend, function):
    def program(x, w):
        return function.apply(x, w)

    sides = []
    for run in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        x, w = torch.tensor([0.5, 2.0], requires_grad=True), torch.tensor([3.0, 4.0])
        for _ in range(2):
            given = torch.ones(2)
            run(x, w).backward(given)
        sides.append((x.grad, w, given))
    assert difference(*sides) is None
