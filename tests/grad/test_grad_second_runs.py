"""Second derivatives are eager's, to any order: custom functions, changes in place, hooks, what is None."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from pythons import run_python
from second_derivatives import BACKENDS, agree, gradients
from torch import nn

import bothways

everywhere = pytest.mark.parametrize("backend", BACKENDS)
# A dozen libraries are built for each program.
everywhere_in_time = pytest.mark.parametrize(
    "backend", ("eager", "aot_eager", pytest.param("native", marks=pytest.mark.slow))
)


def through(function, shape=(3, 3)):
    """A scene of a function of x and two matrices, whose slope is part of the loss."""

    def scene(compiler):
        run = compiler(function)
        first, second = (nn.Parameter(torch.randn(*shape)) for _ in range(2))

        def step(size):
            first.grad = second.grad = None
            x = torch.randn(size, 3, requires_grad=True)
            try:
                y = run(x, first, second)
                (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
                (slope.square().sum() + y.square().sum()).backward()
            except RuntimeError as error:
                return [str(error).split(":")[0]]
            return [y, slope, x.grad, first.grad, second.grad]

        return step

    return scene


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


class KeepsOnItsContext(Tripled):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.exp()
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return ctx.kept * gradient


class HidesAPart(Tripled):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            hidden = x.exp()
        return hidden * gradient * x


class OnceOnly(Tripled):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * gradient


class UsesAnother(Tripled):
    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return Tripled.apply(x) * gradient


class SavesItsResult(Tripled):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return 2 * result * gradient


class SavesWhatIsInBetween(Tripled):
    @staticmethod
    def forward(ctx, x):
        between = x.exp()
        ctx.save_for_backward(x, between)
        return between * x

    @staticmethod
    def backward(ctx, gradient):
        x, between = ctx.saved_tensors
        return between * gradient * x


CUSTOM = (Tripled, KeepsOnItsContext, HidesAPart, OnceOnly, UsesAnother, SavesItsResult, SavesWhatIsInBetween)


@everywhere_in_time
@pytest.mark.parametrize("custom", CUSTOM)
def test_custom_functions(custom, backend):
    agree(through(lambda x, a, b: torch.tanh(custom.apply(x @ a)) @ b), backend, sizes=(4, 4, 4, 5, 6))


def partly_without_grad(x, a, b):
    hidden = torch.tanh(x @ a)
    with torch.no_grad():
        scale = hidden.abs()
    return torch.tanh((hidden * scale) @ b)


def view_without_grad(x, a, b):
    with torch.no_grad():
        turned = a.t()
    return torch.tanh(x @ turned) @ b * torch.sin(x @ a.t())


def changed_without_grad(x, a, b):
    hidden = x @ a
    with torch.no_grad():
        hidden.mul_(2)
    return torch.tanh(hidden) @ b


def detached(x, a, b):
    hidden = torch.tanh(x @ a.detach())
    return (hidden * hidden.detach()).exp() @ b + x @ a


PROGRAMS = {
    "a part without grad": partly_without_grad,
    "a view without grad": view_without_grad,
    "a change without grad": changed_without_grad,
    "detached": detached,
    "dropout": lambda x, a, b: F.dropout(torch.tanh(x @ a), 0.5, True) @ b,
    "layer norm": lambda x, a, b: F.layer_norm(torch.tanh(x @ a), (3,)) @ b,
    "cross entropy": lambda x, a, b: F.cross_entropy(torch.tanh(x @ a) @ b, (x[:, 0] * 0).long()),
    "maximum": lambda x, a, b: (F.relu(x @ a).max(1)[0][:, None] * x) @ b,
    "gelu": lambda x, a, b: F.gelu(x @ a) @ b,
    "views in between": lambda x, a, b: ((x @ a).view(-1, 3).t().tanh() * 2).t() @ b,
    "a view is returned": lambda x, a, b: torch.tanh(x @ a @ b).view(-1),
    "cumulative": lambda x, a, b: (x @ a).prod(1)[:, None] * (x @ b).cumprod(1),
    "indexing": lambda x, a, b: (x @ a)[:, [0, 2]].sin() * (x @ b)[:, 1:],
    "in place": lambda x, a, b: torch.tanh(x @ a).mul_(2).add_(x).sin_() @ b,
    "complex": lambda x, a, b: torch.fft.rfft(x @ a).abs() @ b[:2],
    "attention": lambda x, a, b: F.scaled_dot_product_attention((x @ a)[None], (x @ b)[None], x[None]),
}


@everywhere_in_time
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program, backend):
    agree(through(PROGRAMS[program]), backend, sizes=(4, 4, 4, 5, 6))


@everywhere
def test_running_statistics_are_updated_once(backend):
    def scene(compiler):
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
        run = compiler(net)

        def step(size):
            net.zero_grad()
            x = torch.randn(size, 3, requires_grad=True)
            y = run(x)
            (slope,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
            (slope.square().sum() + y.sum()).backward()
            return [x.grad, *gradients(net), *(buffer.clone() for buffer in net.buffers())]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 5, 6))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.slow)])
def test_to_the_fifth_order(backend):
    def scene(compiler):
        run = compiler(lambda x: torch.tanh(x) * torch.sin(x))

        def step(size):
            x = torch.randn(size, 3, requires_grad=True)
            found = [run(x)]
            for _ in range(4):
                found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
            found[-1].sum().backward()
            return [*found, x.grad]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 5, 6))


@everywhere
def test_several_backwards_through_one_graph(backend):
    def scene(compiler):
        run = compiler(lambda x, w: torch.tanh(x @ w) @ w)
        w = nn.Parameter(torch.randn(3, 3))

        def step(size):
            w.grad = None
            x = torch.randn(size, 3, requires_grad=True)
            y = run(x, w)
            slopes = [torch.autograd.grad(y[:, column].sum(), x, create_graph=True)[0] for column in range(3)]
            loss = sum((place + 1) * slope.square().sum() for place, slope in enumerate(slopes))
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
            return [w.grad, x.grad, *slopes]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 5, 6))


@everywhere
def test_results_and_gradients_that_are_none(backend):
    def scene(compiler):
        run = compiler(lambda x, w, b: (torch.tanh(x @ w), torch.sin(x @ w).sum(1), (x * 2).exp() + b))
        w, b = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))

        def step(size):
            w.grad = b.grad = None
            x = torch.randn(size, 3, requires_grad=True)
            first, second, _ = run(x, w, b)
            (one,) = torch.autograd.grad(second.sum(), x, create_graph=True)
            (other,) = torch.autograd.grad(first.sum(), x, create_graph=True)
            (one * other).sum().backward()
            return [x.grad, w.grad, b.grad]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 5, 6))


@everywhere
def test_hooks_are_called_as_in_eager(backend):
    def scene(compiler):
        run = compiler(lambda x, w, b: torch.tanh(x @ w) @ w + b)
        w, b = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
        seen = []
        b.register_hook(lambda gradient: seen.append("b"))

        def step(size):
            w.grad = b.grad = None
            seen.clear()
            x = torch.randn(size, 3, requires_grad=True)
            x.register_hook(lambda gradient: seen.append(f"{gradient.sum():.2f}"))
            (slope,) = torch.autograd.grad(run(x, w, b).sum(), x, create_graph=True)
            slope.square().sum().backward()
            return [w.grad, b.grad, x.grad, *seen]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 5, 6))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@everywhere
def test_what_the_slope_does_not_depend_on_has_no_gradient(backend):
    """The node of the custom function would make zeros of None."""

    def scene(compiler):
        run = compiler(lambda x, w, b: torch.tanh(x @ w) @ w + b)
        w, b = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))

        def step(size):
            w.grad = b.grad = None
            x = torch.randn(size, 3, requires_grad=True)
            (slope,) = torch.autograd.grad(run(x, w, Doubled.apply(b)).sum(), x, create_graph=True)
            slope.square().sum().backward()
            return [w.grad, b.grad, x.grad]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 5, 6))


CHANGES = {
    "what both read, before the first": ("before", "w"),
    "what both read, before the second": ("after", "w"),
    "what neither reads": ("before", "b"),
    "the result": ("before", "y"),
}


@everywhere
@pytest.mark.parametrize("change", CHANGES)
def test_changes_in_place_are_errors_where_they_are_in_eager(change, backend):
    when, what = CHANGES[change]

    def scene(compiler):
        run = compiler(lambda x, w, b: (torch.tanh(x @ w) + b).exp() * b if what == "y" else torch.tanh(x @ w) + b)
        given = {"w": nn.Parameter(torch.randn(3, 3)), "b": torch.ones(3)}

        def step(size):
            given["w"].grad = None
            x = torch.randn(size, 3, requires_grad=True)
            y = run(x, given["w"], given["b"])
            changed = {**given, "y": y}[what]
            try:
                with torch.no_grad():
                    changed.add_(1.0 if when == "before" else 0.0)
                (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
                with torch.no_grad():
                    changed.add_(1.0 if when == "after" else 0.0)
                slope.square().sum().backward()
            except RuntimeError as error:
                assert "modified by an inplace operation" in str(error)
                return ["refused"]
            return [x.grad, given["w"].grad]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 4))


@everywhere
def test_nothing_is_kept_after_the_last_backward(backend):
    run = bothways.compile(lambda x, w: torch.tanh(torch.tanh(x @ w) @ w) @ w, backend=backend)
    w = nn.Parameter(torch.randn(3, 3))
    gc.collect()
    gc.disable()
    try:
        for size in (4, 4, 4, 5, 6):
            x = torch.randn(size, 3, requires_grad=True)
            lives = weakref.ref(x)
            (slope,) = torch.autograd.grad(run(x, w).sum(), x, create_graph=True)
            slope.square().sum().backward()
            del x, slope
            assert lives() is None
    finally:
        gc.enable()


@everywhere
def test_vectorized_derivatives(backend):
    functional = torch.autograd.functional

    def scene(compiler):
        total = compiler(lambda x: (torch.tanh(x) * x.sum()).sum())

        def rows(x):
            return functional.jacobian(lambda z: total(z) * z, x, create_graph=True, vectorize=True)

        def step(size):
            x = torch.randn(size)
            ones = torch.ones_like(x)
            return [
                functional.hessian(total, x, vectorize=True),
                functional.hvp(total, x, ones)[1],
                functional.vhp(total, x, ones)[1],
                functional.jacobian(rows, x),
            ]

        return step

    agree(scene, backend, sizes=(4, 4, 4, 5, 6))


FIRST_USE = """
import sys
import torch
import bothways

bothways.config.kernels_for_small_graphs = True
backend = sys.argv[1]
loss = bothways.compile(lambda x, w: (torch.tanh(x @ w) * x).sum(), backend=backend)
w = torch.ones(3, 3, requires_grad=True)
for size in (3, 3, 4, 5):
    x = torch.ones(size, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(x, w), x, create_graph=True)
    slope.square().sum().backward()

@bothways.compile(backend=backend, fullgraph=True)
def step(x, w):
    w.grad = None
    (x @ w).sin().sum().backward()
    return w.grad * 2

for _ in range(2):
    step(x, w)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


@everywhere
def test_second_derivatives_and_steps_do_not_load_pytorchs_compiler(backend):
    done = run_python(["-c", FIRST_USE, backend], check=True)
    assert done.stdout.strip() == "[]"
