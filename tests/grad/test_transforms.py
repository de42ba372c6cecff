"""``torch.func`` and ``torch.autograd.functional``: inside compiled functions, and around them."""

import pytest
import torch
from agreeing import agree
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import bothways

BACKENDS = ("eager", "aot_eager", "native")


def energy(x):
    return (x.sin() * x).sum()


def rows(x):
    return x.cos() * 2 + x.sum()


def with_grad(x):
    y = x * 2
    return grad(energy)(y) + y


def with_vmap(x):
    return vmap(rows)(x) + 1, vmap(rows, in_dims=1, out_dims=1)(x)


def with_vjp(x):
    value, pull = vjp(rows, x)
    return value, pull(torch.ones_like(value))[0] + x


def with_jvp(x):
    return jvp(rows, (x,), (torch.ones_like(x),))


def with_jacobians(x):
    row = x[0]
    return jacrev(rows)(row), jacfwd(rows)(row), hessian(energy)(row)


def nested(x):
    return vmap(grad(energy))(x), grad(lambda y: grad(energy)(y).sum())(x[0])


def captured_tensors(x):
    scale = x.exp()
    return grad(lambda y: (y * scale).sum())(x), vmap(lambda row: row * scale[0])(x)


def in_a_loop(x):
    for _ in range(3):
        x = x - 0.1 * grad(energy)(x)
    return x


def functionals(x):
    from torch.autograd.functional import hessian, jacobian, vjp

    return jacobian(rows, x[0]), hessian(energy, x[0]), vjp(energy, x)[1]


INSIDE = [
    with_grad, with_vmap, with_vjp, with_jvp, with_jacobians, nested, captured_tensors, in_a_loop, functionals,
]  # fmt: skip


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", INSIDE)
def test_transforms_inside(function, backend):
    compiled = bothways.compile(function, backend=backend)
    for seed, size in enumerate((3, 3, 4)):
        torch.manual_seed(seed)
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_transform_gives_is_differentiable(backend):
    compiled = bothways.compile(with_grad, backend=backend)
    for _ in range(2):
        x = torch.randn(3, requires_grad=True)
        expected, actual = (torch.autograd.grad(run(x).sum(), x)[0] for run in (with_grad, compiled))
        torch.testing.assert_close(actual, expected)


AROUND = {
    "vmap": lambda f, x: vmap(f)(x),
    "vmap of columns": lambda f, x: vmap(f, in_dims=1, out_dims=1)(x),
    "grad": lambda f, x: grad(lambda y: f(y).sum())(x),
    "vmap of grad": lambda f, x: vmap(grad(lambda y: f(y).sum()))(x),
    "jacrev": lambda f, x: jacrev(f)(x[0]),
    "jacfwd": lambda f, x: jacfwd(f)(x[0]),
    "hessian": lambda f, x: hessian(lambda y: f(y).sum())(x[0]),
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones_like(x))[0],
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones_like(x),)),
    "autograd.functional.jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x[0]),
    "autograd.functional.hessian": lambda f, x: torch.autograd.functional.hessian(lambda y: f(y).sum(), x[0]),
    "vectorized jacobian": lambda f, x: torch.autograd.functional.jacobian(f, x[0], vectorize=True),
    "is_grads_batched": lambda f, x: _batched_grads(f, x),
}


def _batched_grads(f, x):
    leaf = x.clone().requires_grad_()
    out = f(leaf)
    return torch.autograd.grad(out, leaf, torch.stack([torch.ones_like(out)] * 2), is_grads_batched=True)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AROUND)
def test_transforms_around_a_compiled_function(name, backend):
    compiled = bothways.compile(rows, backend=backend)
    x = torch.randn(3, 3)
    for warm in (False, True):  # with no program yet, and with one that ordinary calls use
        torch.testing.assert_close(AROUND[name](compiled, x), AROUND[name](rows, x))
        if not warm:
            torch.testing.assert_close(compiled(x), rows(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_function_with_a_break_in_a_transform(backend):
    def breaking(x):
        y = x.sin()
        bothways.graph_break()
        return y * x

    compiled = bothways.compile(breaking, backend=backend)
    x = torch.randn(3)
    compiled(x)
    torch.testing.assert_close(grad(lambda y: compiled(y).sum())(x), grad(lambda y: breaking(y).sum())(x))
    torch.testing.assert_close(vmap(compiled)(x), breaking(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_functional_call_and_grad_of_a_model(backend):
    model = torch.nn.Linear(3, 2)
    params = {name: value.detach() for name, value in model.named_parameters()}

    def loss(params, x):
        return functional_call(model, params, (x,)).pow(2).mean()

    def step(params, x):
        grads = grad(loss)(params, x)
        return {name: value - 0.1 * grads[name] for name, value in params.items()}

    compiled = bothways.compile(step, backend=backend)
    x = torch.randn(4, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(params, x), step(params, x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_transform_refuses_it_refuses(backend):
    outside = torch.zeros(3)

    def mutates(x):
        def inner(y):
            outside.copy_(y)
            return y.sum()

        return grad(inner)(x)

    def not_scalar(x):
        return grad(rows)(x)

    def reads(x):
        return vmap(lambda row: row * row.sum().item())(x)

    x = torch.randn(3, 3)
    for function, argument in ((mutates, x[0]), (not_scalar, x), (reads, x)):
        with pytest.raises(RuntimeError) as expected:
            function(argument)
        compiled = bothways.compile(function, backend=backend)
        for _ in range(2):
            with pytest.raises(RuntimeError) as actual:
                compiled(argument)
            assert str(actual.value) == str(expected.value)
    assert outside.tolist() == [0, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_complex_numbers_begin_with_one_that_is_given(backend):
    def program(x):
        try:
            return grad(lambda y: y.pow(2).sum())(x)
        except RuntimeError as error:
            return str(error), vjp(lambda y: y.pow(2).sum(), x)[1](x[0, 0])[0]

    def observe(function, x):
        return {"gives": function(x)}

    x = torch.ones(2, 2)
    agree(program, observe, x * 1j, x * 1j, x, backend=backend)


def test_mutation_of_the_argument_inside_a_transform():
    def function(x):
        def inner(y):
            y = y.clone()
            y.mul_(2)
            return y.sum()

        return grad(inner)(x) + vmap(lambda row: row.clone().add_(1))(x)

    compiled = bothways.compile(function, backend="eager")
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(x), function(x))


def test_python_inside_a_transform_runs_once():
    seen = []

    def function(x):
        def inner(y):
            seen.append(type(y))
            return energy(y)

        return grad(inner)(x)

    compiled = bothways.compile(function, backend="eager")
    x = torch.randn(3)
    for count in (1, 2):
        torch.testing.assert_close(compiled(x), grad(energy)(x))
        assert len(seen) == count
