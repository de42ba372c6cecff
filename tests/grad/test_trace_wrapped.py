"""``trace_wrapped``: plain Python calls the function, ``trace`` keeps one opaque call, compiled code looks into it."""

import functools

import pytest
import torch
from torch.fx import GraphModule

import bothways
from bothways import trace_wrapped
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]


def square(x):
    return x * x


def squared(grad):
    return trace_wrapped(grad, fn=square)


class Counter:
    def __init__(self):
        self.calls = 0


def counted(x, *, counter):
    counter.calls += 1
    return x * x


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def wrapped_calls(module: GraphModule):
    return [node for node in module.graph.nodes if "trace_wrapped" in node.name]


def test_plain_python_calls_the_function():
    x, y = leaf(0.5, 0.5), leaf(0.5, 0.5)
    x.register_hook(squared)
    (x * y).backward(torch.tensor([2.0, 2.0]))
    assert torch.equal(x.grad, (y * 2).detach() ** 2)


def test_keywords_reach_the_function():
    counter = Counter()
    assert torch.equal(trace_wrapped(torch.ones(2) * 3, fn=counted, counter=counter), torch.full((2,), 9.0))
    assert counter.calls == 1


def test_trace_records_one_opaque_call_that_runs_the_function():
    x = leaf(0.5, 0.5)
    traced = bothways.trace(squared)(x)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_function", "output"]
    assert len(wrapped_calls(traced)) == 1
    assert "trace_wrapped" in traced.print_readable(print_output=False)
    assert torch.equal(traced(x), torch.tensor([0.25, 0.25]))
    assert torch.equal(traced(leaf(3.0, 1.0)), torch.tensor([9.0, 1.0]))


def test_tracing_runs_no_side_effect_and_running_the_graph_does():
    counter = Counter()
    traced = bothways.trace(lambda grad: trace_wrapped(grad, fn=functools.partial(counted, counter=counter)))(
        torch.ones(2)
    )
    assert counter.calls == 0
    assert torch.equal(traced(torch.full((2,), 2.0)), torch.full((2,), 4.0))
    traced(torch.ones(2))
    assert counter.calls == 2


def test_the_trace_goes_on_around_the_call():
    traced = bothways.trace(lambda grad: squared(grad + 1).sin())(torch.ones(2))
    assert torch.equal(traced(torch.ones(2)), torch.full((2,), 4.0).sin())
    assert len(wrapped_calls(traced)) == 1


def test_it_needs_a_tensor_when_traced():
    with pytest.raises(TypeError, match="needs a tensor"):
        bothways.trace(lambda x: x + trace_wrapped(1, fn=lambda n: n))(torch.ones(2))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", ["input", "intermediate", "output"])
def test_compiled_functions_with_it_in_a_hook_agree_with_plain(backend, where):
    def program(x, y):
        if where == "input":
            x.register_hook(squared)
        product = x * y
        if where == "intermediate":
            product.register_hook(squared)
        result = product.sin()
        if where == "output":
            result.register_hook(squared)
        return result

    sides = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        found = []
        for scale in (2.0, 2.0, 3.0):
            x, y = leaf(0.5, 0.25), leaf(0.5, 2.0)
            function(x, y).backward(torch.tensor([scale, scale]))
            found.append((x.grad, y.grad))
        sides.append(found)
    assert difference(*sides) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_side_effects_happen_once_for_each_backward(backend):
    counter = Counter()

    def program(x):
        y = x * 2
        y.register_hook(lambda grad: trace_wrapped(grad, fn=functools.partial(counted, counter=counter)))
        return y.cos()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for calls in (1, 2, 3):
        x = leaf(0.5, 0.25)
        compiled(x).sum().backward()
        assert counter.calls == calls
        expected = leaf(0.5, 0.25)
        inner = -(expected * 2).sin()
        assert torch.allclose(x.grad, (inner * inner * 2).detach())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_forward_looks_into_the_function(backend):
    graphs = []

    def keep(gm, inputs):
        graphs.append(gm)
        return bothways.backends.lookup_backend(backend)(gm, inputs)

    compiled = bothways.compile(lambda x: squared(x) + 1, backend=keep, fullgraph=True)
    x = torch.full((2,), 3.0)
    assert torch.equal(compiled(x), torch.full((2,), 10.0))
    assert torch.equal(compiled(x + 1), torch.full((2,), 17.0))
    (graph,) = graphs
    assert [node.name for node in graph.graph.nodes if node.op.startswith("call")] == ["mul", "add"]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return squared(grad) * 2


def test_the_compiled_backward_of_a_custom_function_inlines_it():
    backward_graphs = []

    def keep(gm, inputs):
        backward_graphs.append(gm)
        return gm.forward

    backend = bothways.backends.aot(fw_compiler=lambda gm, inputs: gm.forward, bw_compiler=keep)
    compiled = bothways.compile(lambda x: Squared.apply(x).sin(), backend=backend, fullgraph=True)
    x, expected = leaf(0.5, 0.25), leaf(0.5, 0.25)
    compiled(x).sum().backward()
    Squared.apply(expected).sin().sum().backward()
    assert torch.equal(x.grad, expected.grad)
    (graph,) = backward_graphs
    assert not wrapped_calls(graph)
    assert sum("mul" in node.name for node in graph.graph.nodes) >= 2


def test_the_drop_in_offers_it_under_the_names_of_pytorch():
    bothways.install()
    try:
        from torch._dynamo._trace_wrapped_higher_order_op import trace_wrapped as theirs
        from torch.fx.experimental.proxy_tensor import make_fx

        traced = make_fx(lambda grad: theirs(grad, fn=square))(torch.ones(2))
        assert len(wrapped_calls(traced)) == 1
        assert torch.equal(traced(torch.full((2,), 3.0)), torch.full((2,), 9.0))
    finally:
        bothways.uninstall()


@pytest.mark.parametrize("wrong", [3, None, "sin", torch.ones(2)])
def test_trace_takes_functions(wrong):
    with pytest.raises(bothways.errors.InvalidTarget, match="trace takes a function of tensors"):
        bothways.trace(wrong)
    with pytest.raises(TypeError, match="a mapping of operations to functions is expected"):
        bothways.trace(torch.sin, decompositions=3)
