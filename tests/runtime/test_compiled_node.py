"""The autograd node of a compiled graph: what it saves, when that is freed, and which backward it runs."""

import gc
import weakref

import pytest
import torch

import bothways
from bothways.grad.differentiated import DifferentiatedGraph
from bothways.grad.nodes import usual as usual_module
from bothways.testing import same

BACKENDS = ["aot_eager", "native"]


def program(x, w):
    return ((x * w).tanh() + x).relu() * w


GRAPHS = []  # those that this test has differentiated


def differentiated():
    """The graph behind the only function that this test has compiled."""
    [graph] = GRAPHS
    return graph


@pytest.fixture(autouse=True)
def graphs_are_noted(monkeypatch):
    original = DifferentiatedGraph.__init__

    def noted(graph, *args, **kwargs):
        original(graph, *args, **kwargs)
        GRAPHS.append(graph)

    monkeypatch.setattr(DifferentiatedGraph, "__init__", noted)
    yield
    GRAPHS.clear()


def inputs(*sizes):
    return torch.randn(*sizes), torch.randn(*sizes, requires_grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_backward_of_the_last_step_is_used_without_looking_for_it(backend, monkeypatch):
    compiled = bothways.compile(program, backend=backend)
    x, w = inputs(4, 3)
    compiled(x, w).sum().backward()
    graph = differentiated()
    assert graph.usuals.newest
    monkeypatch.setattr(type(graph), "run_backward", None)  # which is not looked at
    for _ in range(2):
        x, w = inputs(4, 3)
        assert same(torch.autograd.grad(compiled(x, w).sum(), w), torch.autograd.grad(program(x, w).sum(), w))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_laid_out_in_turn_get_their_own_backward(backend):
    compiled = bothways.compile(program, backend=backend)
    given = [
        torch.randn(4, 3), torch.randn(3, 4).t(), torch.ones(()).expand(4, 3), torch.randn(4, 3),
        torch.zeros(8, 6)[::2, ::2], torch.randn(4, 3, dtype=torch.complex64).imag,
        torch.randn(4, 3, dtype=torch.complex64).conj().imag, torch._efficientzerotensor(4, 3),
    ]  # fmt: skip
    for tangent in [*given, *given]:
        x, w = inputs(4, 3)
        expected = torch.autograd.grad(program(x, w), w, tangent)
        assert same(torch.autograd.grad(compiled(x, w), w, tangent), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_moment_decides_again_at_every_backward(backend):
    compiled = bothways.compile(program, backend=backend)

    class Noting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    for _ in range(2):
        x, w = inputs(4, 3)
        plain, result = program(x, w), compiled(x, w)
        expected = torch.autograd.grad(plain.sum(), w, retain_graph=True)
        assert same(torch.autograd.grad(result.sum(), w, retain_graph=True), expected)
        total, seen = result.sum(), []
        with Noting():
            assert same(torch.autograd.grad(total, w, retain_graph=True), expected)
        assert not any(function is torch.Tensor.mul for function in seen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert same(torch.autograd.grad(result.sum(), w, retain_graph=True), expected)
        [first] = torch.autograd.grad(result.sum(), w, create_graph=True)
        [other] = torch.autograd.grad(plain.sum(), w, create_graph=True)
        assert same(torch.autograd.grad(first.sum(), w), torch.autograd.grad(other.sum(), w))


@pytest.mark.parametrize("backend", BACKENDS)
def test_saved_tensors_are_checked_and_freed_as_in_eager(backend):
    compiled = bothways.compile(program, backend=backend)
    for function in (program, compiled, compiled):
        x, w = inputs(4, 3)
        result = function(x, w).sum()
        result.backward(retain_graph=True)
        result.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            result.backward()
        result = function(x, w)
        x.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_saved_goes_with_the_backward(backend):
    compiled = bothways.compile(lambda x, w: program(x.sin(), w), backend=backend)
    for _ in range(2):
        x, w = inputs(4, 3)
        result = compiled(x, w)
        held = [weakref.ref(value) for value in result.grad_fn.saved_tensors if value is not x and value is not w]
        total = result.sum()
        total.backward()
        gc.collect()
        assert all(reference() is None for reference in held)
        with pytest.raises(RuntimeError, match="second time"):
            total.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_c_the_node_looks_for_its_backward(backend, monkeypatch):
    monkeypatch.setattr(usual_module, "call_library", lambda: None)
    compiled = bothways.compile(program, backend=backend)
    for _ in range(3):
        x, w = inputs(4, 3)
        assert same(torch.autograd.grad(compiled(x, w).sum(), w), torch.autograd.grad(program(x, w).sum(), w))
    assert not differentiated().usuals.newest


@pytest.mark.parametrize("backend", BACKENDS)
def test_some_results_have_no_gradient(backend):
    def several(x, w):
        return (x * w).tanh(), (x * w).exp() + w, (x > 0)

    compiled = bothways.compile(several, backend=backend)
    for wanted in ((0,), (1,), (0, 1), (0,), (1,)):
        x, w = inputs(4, 3)
        totals = [sum(function(x, w)[place].sum() for place in wanted) for function in (compiled, several)]
        assert same(*(torch.autograd.grad(total, w) for total in totals))


# What is so small that a node costs more than it saves.


@pytest.mark.parametrize("operations, compiles", [(2, ()), (4, ("native",)), (6, ("native", "aot_eager"))])
@pytest.mark.parametrize("backend", BACKENDS)
def test_small_graphs_are_left_to_autograd(backend, operations, compiles):
    def chain(x, w):
        for _ in range(operations // 2):
            x = (x * w).sin()
        return x

    x, w = inputs(10)
    with bothways.config.patch(kernels_for_small_graphs=False):
        result = bothways.compile(chain, backend=backend)(x, w)
    assert (type(result.grad_fn).__name__ == "CompiledNodeBackward") is (backend in compiles)
    assert same(torch.autograd.grad(result.sum(), w), torch.autograd.grad(chain(x, w).sum(), w))
