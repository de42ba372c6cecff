"""Views that show what is there already are not taken, and what a graph gives stays the same, object by object."""

import pytest
import torch

import bothways
from bothways.backends.aot import aot
from bothways.lower.host.aten_calls import function_of
from bothways.lower.host.needless_views import drop_needless_views
from bothways.testing import same

X, W, BIAS = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)


def operations(graph):
    return [str(node.target).split(".")[1] for node in graph.graph.nodes if node.op == "call_function"]


PROGRAMS = {
    "transposed back": (lambda x: (x.t().t().sin(),), (X,), ["sin"]),
    "the same view twice": (lambda x: (x.t().sin() + x.t().cos(),), (X,), ["t", "sin", "cos", "add"]),
    "by other operations": (lambda x: (x.t().sin() + x.permute(1, 0).cos(),), (X,), ["t", "sin", "cos", "add"]),
    "a view of a view": (lambda x: (x.view(12).view(2, 6).sin(),), (X,), ["view", "sin"]),
    "a view that others read": (
        lambda x: (x.view(12).view(2, 6).sin(), x.view(12).cos()), (X,), ["view", "view", "sin", "cos"],
    ),
    "sizes as before": (lambda x: (x.view(12).view(3, 4).sin(),), (X,), ["sin"]),
    "a sum that kept its dimension": (lambda x: (x.sum([0], True).view(4).sin(),), (X,), ["sum", "sin"]),
    "a sum over several": (lambda x: (x[None].sum([0, -1], True).view(3).sin(),), (X,), ["unsqueeze", "sum", "sin"]),
    "a sum that is read as it is": (
        lambda x: (x.sum([0], True).sin(), x.sum([0], True).view(4)), (X,), ["sum", "sin", "sum"],
    ),
    "a layer": (lambda x, w, b: (torch.addmm(b, x, w.t()),), (X, W, BIAS), ["linear"]),
    "a layer without a bias": (lambda x, w: (x @ w.t(),), (X, W), ["linear"]),
    "a matrix as a bias": (
        lambda x, w, b: (torch.addmm(b[None], x, w.t()),), (X, W, BIAS), ["unsqueeze", "t", "addmm"],
    ),
    "a product with factors": (
        lambda x, w, b: (torch.addmm(b, x, w.t(), alpha=2),), (X, W, BIAS), ["t", "addmm"],
    ),
    "a weight that others read": (
        lambda x, w: (x @ w.t(), w.t() * 2), (X, W), ["t", "mm", "mul"],
    ),
    "another view": (lambda x: (x.t().reshape(4, 3, 1).sin(), x.view(4, 3, 1).cos()), (X,), None),
    "an expanded row": (lambda x: (x[0].expand(3, 4) + x[0].expand(3, 4),), (X,), None),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("takes_list", [False, True])
def test_what_a_graph_gives_stays_the_same(name, takes_list):
    program, args, expected = PROGRAMS[name]
    graph = bothways.trace(program)(*args)
    run = function_of(graph, takes_list=takes_list)
    assert expected is None or operations(graph) == expected
    found = run(list(args)) if takes_list else run(*args)
    for one, other in zip(found, program(*args), strict=True):
        assert one.stride() == other.stride() and torch.equal(one, other)


def test_what_is_returned_is_an_object_of_its_own():
    def program(x):
        y = x.sin()
        return y, y.t().t(), x.t().t(), y.t()

    graph = bothways.trace(program)(X)
    drop_needless_views(graph.graph)
    [output] = graph.graph.find_nodes(op="output")
    returned = output.args[0]
    assert len(set(returned)) == 4 and all(node.op == "call_function" for node in returned)


def test_a_backward_transposes_no_weight_back():
    layer = torch.nn.Linear(4, 5)
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return function_of(graph, takes_list=True)

    def program(x):
        return layer(x).relu()

    compiled = bothways.compile(program, backend=aot(fw_compiler=keep))
    x = torch.randn(3, 4, requires_grad=True)
    for value in (x, x.detach().clone().requires_grad_(), torch.randn(2, 4, requires_grad=True)):
        gradients = torch.autograd.grad(compiled(value).sum(), [value, *layer.parameters()])
        assert same(gradients, torch.autograd.grad(program(value).sum(), [value, *layer.parameters()]))
    forward, backward = graphs[:2]
    assert operations(forward) == ["linear", "relu"]
    assert sorted(operations(backward)) == ["mm", "mm", "sum", "t", "threshold_backward"]
