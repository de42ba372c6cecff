"""What the backward of a custom function calls is compiled with it, and looked at again when the backward runs."""

import pytest
import torch

import bothways
from bothways.testing import difference


def slope(grad, x):
    return grad * x.cos()


class Helped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return slope(grad, x)


def test_a_helper_of_the_backward_is_compiled_with_it():
    backwards = []

    def keep(graph, inputs):
        backwards.append(graph)
        return graph.forward

    backend = bothways.backends.aot(fw_compiler=lambda graph, inputs: graph.forward, bw_compiler=keep)
    compiled = bothways.compile(lambda x: Helped.apply(x * 2).exp(), backend=backend, fullgraph=True)
    x, plain = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    Helped.apply(plain * 2).exp().sum().backward()
    assert torch.equal(x.grad, plain.grad)
    (graph,) = backwards
    assert torch.ops.aten.cos.default in {node.target for node in graph.graph.nodes}


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_helper_replaced_between_forward_and_backward_is_the_one_that_runs(monkeypatch, create_graph):
    compiled = bothways.compile(lambda x: Helped.apply(x * 2).exp(), backend="aot_eager", fullgraph=True)
    original = slope
    sides = []
    for function in (lambda x: Helped.apply(x * 2).exp(), compiled):
        found = []
        for helper in (original, lambda grad, x: grad * 5, original):
            x = torch.ones(3, requires_grad=True)
            result = function(x).sum()
            monkeypatch.setitem(globals(), "slope", helper)
            found.append(torch.autograd.grad(result, x, create_graph=create_graph))
            monkeypatch.setitem(globals(), "slope", original)
        sides.append(found)
    assert difference(*sides) is None
