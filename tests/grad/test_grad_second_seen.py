"""Second derivatives go through results that people hook, keep the gradient of or ask about, from the first call on."""

import pytest
import torch
import torch.nn.functional as F
from seeding import seeded

import bothways

BACKENDS = ["aot_eager", "native"]


@pytest.fixture(autouse=True)
def small_graphs():
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def second(function, look):
    """What is seen of two second derivatives, each of a call of its own."""
    torch.manual_seed(0)
    weight = torch.randn(4, 4, requires_grad=True)
    seen = []
    for _ in range(2):
        x = torch.randn(5, 4, requires_grad=True)
        y = function(x, weight)
        seen += look(x, y)
        seen += [x.grad, weight.grad]
        weight.grad = None
    return seen


def hooked(x, y):
    calls = []
    y.register_hook(lambda gradient: (calls.append(gradient.detach()), gradient * 3)[1])
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    first.pow(2).sum().backward()
    return calls


def kept(x, y):
    y.retain_grad()
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    first.pow(2).sum().backward()
    return [y.grad]


def asked(x, y):
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return list(torch.autograd.grad(first.pow(2).sum(), y))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("look", [hooked, kept, asked])
def test_a_result_that_the_backward_reads_is_on_the_way(look, backend):
    def function(x, weight):
        return (x @ weight).tanh()

    expected = second(function, look)
    found = second(bothways.compile(function, backend=backend), look)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("look", [hooked, kept, asked])
def test_it_is_for_sizes_that_change_too(look, backend):
    """The second derivative of an embedding is one that PyTorch follows for plain sizes only."""

    def function(tokens, table, weight):
        return (F.layer_norm(F.embedding(tokens, table), (4,)).flatten(1) @ weight @ weight).tanh()

    def seen(function):
        torch.manual_seed(0)
        weight = torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
        results = []
        for size in (5, 5, 3, 4, 4):
            table = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
            results += [*look(table, function(torch.randint(7, (size, 2)), table, weight)), table.grad, weight.grad]
            weight.grad = None
        return results

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    torch.testing.assert_close(seen(compiled), seen(function), rtol=1e-6, atol=1e-9)
    assert len(bothways.history(compiled)) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_inside_is_called_for_second_derivatives(backend):
    def function(x, weight):
        h = (x @ weight).tanh()
        h.register_hook(lambda gradient: gradient * 3)
        return (h @ weight).tanh()

    def look(x, y):
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return [first.detach()]

    expected = second(function, look)
    found = second(bothways.compile(function, backend=backend), look)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_changing_the_result_between_the_two_is_an_error(backend):
    def function(x, weight):
        return (x @ weight).tanh()

    for run in (function, bothways.compile(function, backend=backend)):
        for _ in range(2):
            x, weight = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
            y = run(x, weight)
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            with torch.no_grad():
                y.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                first.pow(2).sum().backward()


# Results that are hooked, of graphs whose inputs would notice a gradient that is None.


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.tanh()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (result,) = ctx.saved_tensors
        return grad * (1 - result * result)


def _after_a_hooked_leaf(x, w, log):
    h = (x * 1).chunk(2, -1)[0].repeat(1, 2) * w
    h = h.tanh()
    h.register_hook(lambda grad: log.append(grad.detach().clone()) or grad * 2.0)
    return h.exp().mean()


def _after_a_custom_function(x, w, log):
    h = Tanh.apply(x * 1)
    h.grad_fn.register_hook(lambda given, got: log.append("post"))
    h = h * h.sin() + h + h.sin()
    h = Tanh.apply(h)
    h.register_hook(lambda grad: grad * 3.0)
    return h.square().mean()


@pytest.mark.parametrize("program", [_after_a_hooked_leaf, _after_a_custom_function])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_second_derivatives_go_through_hooks_of_results_whatever_the_inputs_are(program, backend):
    def seen(function, size):
        generator = seeded(size)
        x, w = (torch.randn(*shape, generator=generator).double().requires_grad_() for shape in ((size, 4), (4,)))
        log = []
        w.register_hook(lambda grad: log.append(grad.detach().clone()))
        loss = function(x, w, log)
        first = torch.autograd.grad(loss, [x, w], create_graph=True, allow_unused=True)
        penalty = sum(each.square().sum() for each in first if each is not None)
        (loss + penalty).backward()
        return [*first, x.grad, w.grad, *log]

    compiled = bothways.compile(program, backend=backend)
    for size in (3, 3, 5, 3):
        for expected, found in zip(seen(program, size), seen(compiled, size), strict=True):
            if isinstance(expected, torch.Tensor):
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
            else:
                assert found == expected
