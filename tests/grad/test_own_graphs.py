"""Calls with a graph of their own, ``checkpoint`` and ``torch.cond``; transforms of functions break correctly."""

import copy

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree
from torch import nn
from torch.utils.checkpoint import checkpoint

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounterWithBackend, same


def leaf(*shape):
    return torch.sin(torch.arange(float(torch.Size(shape).numel()))).reshape(shape).requires_grad_()


def check(function, *arguments, backend="eager"):
    """Results and gradients agree, twice, by one program with one graph."""
    counter = CompileCounterWithBackend(backend)
    agree(function, trained, arguments, arguments, backend=counter, programs=1, fullgraph=True)
    assert counter.frame_count == 1


def trained(function, arguments):
    given = [argument.detach().clone().requires_grad_(argument.requires_grad) for argument in arguments]
    torch.manual_seed(0)
    result = function(*given)
    (result[0] if isinstance(result, tuple) else result).sum().backward()
    return {"result": result, "gradients": [argument.grad for argument in given]}


def block(x, w):
    return torch.sin(x @ w).relu() @ w


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpoint(backend):
    def function(x, w):
        return checkpoint(block, x * 2, w, use_reentrant=False) + 1

    check(function, leaf(3, 4), leaf(4, 4), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_checkpointed_dropout_draws_the_same_numbers_again(backend):
    def function(x, w):
        return checkpoint(lambda x: F.dropout(block(x, w), 0.5), x, use_reentrant=False, preserve_rng_state=True)

    check(function, leaf(3, 4), leaf(4, 4), backend=backend)


def test_checkpoints_of_modules_inside_each_other():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def inner(self, x):
            return torch.tanh(self.second(x))

        def forward(self, x, scale=1.0):
            x = self.first(x) * scale
            return {"out": checkpoint(self.inner, x, use_reentrant=False), "kept": x}

    torch.manual_seed(0)
    plain = Block()
    other = copy.deepcopy(plain)

    def function(module, x):
        result = checkpoint(module, x, scale=2.0, use_reentrant=False)
        return result["out"] + result["kept"]

    compiled = bothways.compile(function, backend="native", fullgraph=True)
    for _ in range(2):
        x, y = leaf(3, 4), leaf(3, 4)
        function(plain, x).sum().backward()
        compiled(other, y).sum().backward()
        assert same(y.grad, x.grad)
        assert same([p.grad for p in other.parameters()], [p.grad for p in plain.parameters()])


def test_statistics_are_updated_in_both_runs_as_in_eager():
    plain = nn.BatchNorm1d(4)
    other = copy.deepcopy(plain)

    def function(module, x):
        return checkpoint(module, x, use_reentrant=False).sin()

    compiled = bothways.compile(function, backend="eager")
    function(plain, leaf(3, 4)).sum().backward()
    compiled(other, leaf(3, 4)).sum().backward()
    assert same(other.state_dict(), plain.state_dict())


def change_the_weight(weight, x):
    weight.mul_(0.5)


def change_its_data(weight, x):
    weight.data.mul_(0.5)


def change_the_argument(weight, x):
    x.mul_(0.5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", [change_the_weight, change_its_data, change_the_argument])
@pytest.mark.parametrize("how", ["by name", "in a list", "by keyword"])
def test_a_checkpoint_reads_anew_what_it_is_not_called_with(how, change, backend):
    """PyTorch saves the arguments of the function, where a change is an error; a module's weights are read again."""

    def function(x, w):
        h = x * 2
        if how == "in a list":
            return checkpoint(lambda both: torch.tanh(both[0] @ both[1]), [h, w], use_reentrant=False), h
        if how == "by keyword":
            return checkpoint(lambda h, w: torch.tanh(h @ w), h, w=w, use_reentrant=False), h
        return checkpoint(lambda h: torch.tanh(h @ w), h, use_reentrant=False), h

    def changed_in_between(function, arguments):
        x, w = (argument.detach().clone().requires_grad_() for argument in arguments)
        result, h = function(x, w)
        with torch.no_grad():
            change(w, h)
        try:
            result.sum().backward()
        except RuntimeError as error:
            return {"raised": str(error).partition(" [")[0]}
        return {"gradients": (x.grad, w.grad)}

    arguments = leaf(3, 4), leaf(4, 4)
    agree(function, changed_in_between, arguments, arguments, backend=backend, programs=1, fullgraph=True)


def test_what_is_not_kept():
    def saved(function):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape) or tensor, lambda t: t):
            function(leaf(3, 4), leaf(4, 4))
        return kept

    def function(x, w):
        return checkpoint(block, x, w, use_reentrant=False)

    compiled = bothways.compile(function, backend="native", fullgraph=True)
    compiled(leaf(3, 4), leaf(4, 4))
    assert len(saved(compiled)) <= len(saved(function))


def test_a_tensor_that_leaves_by_a_side_road():
    def function(x, w):
        seen = []

        def noting(x):
            seen.append(x * 2)
            return seen[0] @ w

        return checkpoint(noting, x, use_reentrant=False), seen[0]

    check(function, leaf(3, 4), leaf(4, 4))

    def drawing(x, w):
        seen = []

        def noting(x):
            seen.append(F.dropout(x))
            return seen[0] @ w

        return checkpoint(noting, x, use_reentrant=False), seen[0]

    with pytest.raises(Unsupported, match="side road"):
        bothways.compile(drawing, backend="eager", fullgraph=True)(leaf(3, 4), leaf(4, 4))


def test_a_checkpoint_that_breaks():
    def reentrant(x, w):
        return checkpoint(block, x, w, use_reentrant=True)

    x, y, w = leaf(3, 4), leaf(3, 4), leaf(4, 4)
    reentrant(x, w).sum().backward()
    bothways.compile(reentrant, backend="eager")(y, w).sum().backward()
    assert same(y.grad, x.grad)


# torch.cond


@pytest.mark.parametrize("backend", BACKENDS)
def test_cond(backend):
    def function(x, w):
        return torch.cond(x.sum() > 0, lambda x: torch.sin(x) @ w, lambda x: x @ w - 1, (x,)) * 2

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    counter = CompileCounterWithBackend(backend)
    counted = bothways.compile(function, backend=counter, fullgraph=True)
    w = leaf(4, 4)
    for x in (torch.ones(3, 4), -torch.ones(3, 4), torch.ones(3, 4)):
        expected = torch.sin(x) @ w if x.sum() > 0 else x @ w - 1
        assert same(compiled(x, w), expected * 2) and same(counted(x, w), expected * 2)
        gradient = torch.autograd.grad(compiled(x, w).sum(), w)
        assert same(gradient, torch.autograd.grad((expected * 2).sum(), w))
    assert counter.frame_count == 1


def test_cond_of_what_is_known():
    def function(x, flag):
        return torch.cond(flag, lambda x: (x + 1, x), lambda x: (x - 1, x), (x,))

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert same(compiled(x, True), (x + 1, x)) and same(compiled(x, False), (x - 1, x))


def test_branches_that_differ_are_refused():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x[:1] + 1, lambda x: x + 1, (x,))

    with pytest.raises(Unsupported, match="branches"):
        bothways.compile(function, backend="eager", fullgraph=True)(torch.ones(2))


# Transforms: plain Python, the same results

TRANSFORMS = {
    "grad": lambda x: torch.func.grad(lambda y: (y**2).sum())(x),
    "grad and value": lambda x: torch.func.grad_and_value(lambda y: (y**2).sum())(x),
    "vmap": lambda x: torch.vmap(lambda y: y.sum() * y)(x),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](x),
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x[0]),
    "hessian": lambda x: torch.func.hessian(lambda y: (y**3).sum())(x[0]),
    "functional jacobian": lambda x: torch.autograd.functional.jacobian(torch.sin, x[0]),
    "functional hessian": lambda x: torch.autograd.functional.hessian(lambda y: (y**3).sum(), x[0]),
    "functional vjp": lambda x: torch.autograd.functional.vjp(torch.sin, x[0], x[0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(name):
    function = TRANSFORMS[name]
    compiled = bothways.compile(lambda x: function(x * 2), backend="native")
    x = leaf(3, 4).detach()
    for _ in range(2):
        assert same(compiled(x), function(x * 2))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.vmap])
def test_a_compiled_function_inside_a_transform(transform):
    def function(x):
        return (x**2).sum()

    compiled = bothways.compile(function, backend="native")
    x = leaf(3, 4).detach()
    compiled(x)
    assert same(transform(compiled)(x), transform(function)(x))


def test_functional_call():
    def function(module, x):
        doubled = {name: parameter * 2 for name, parameter in module.named_parameters()}
        return torch.func.functional_call(module, doubled, (x,))

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = list(module.parameters())
    compiled = bothways.compile(function, backend="native", fullgraph=True)
    for _ in range(2):
        x = leaf(3, 4)
        other = copy.deepcopy(module)
        expected, result = function(other, x), compiled(module, x)
        assert same(result, expected) and same(module.state_dict(), other.state_dict())
        result.sum().backward(), expected.sum().backward()
        assert same([p.grad for p in module.parameters()], [p.grad for p in other.parameters()])
        module.zero_grad()
    assert all(old is new for old, new in zip(before, module.parameters(), strict=True))
