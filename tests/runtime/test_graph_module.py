"""Graphs whose Python is generated late are graphs like others, whatever looks at them."""

import copy
import inspect
import pickle

import torch
import torch.fx

import bothways
from bothways.runtime.graph_module import graph_module


def doubled():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.mul, (x, 2)),))
    return graph_module(graph)


def is_generated(module):
    return "_code" in module.__dict__


def test_code_is_generated_when_it_is_first_wanted():
    for want in (
        lambda module: module(torch.ones(2)),
        lambda module: module.forward(torch.ones(2)),
        lambda module: module.code,
        str,
        lambda module: module.recompile(),
    ):
        module = doubled()
        assert not is_generated(module)
        want(module)
        assert is_generated(module)
        assert module.forward(torch.ones(2))[0].tolist() == [2, 2]


def test_it_looks_like_a_graph_module():
    module, plain = doubled(), torch.fx.GraphModule(torch.nn.Module(), doubled().graph)
    assert isinstance(module, torch.fx.GraphModule) and type(module).__name__ == type(plain).__name__
    assert module.print_readable(print_output=False) == plain.print_readable(print_output=False)
    assert module.code == plain.code
    assert str(inspect.signature(module.forward)) == str(inspect.signature(plain.forward))


def test_copies_and_pickles_run():
    for again in (copy.deepcopy(doubled()), pickle.loads(pickle.dumps(doubled())), copy.copy(doubled())):
        assert again(torch.ones(2))[0].tolist() == [2, 2]


def test_an_edited_graph_runs_after_recompile():
    module = doubled()
    module(torch.ones(2))
    next(node for node in module.graph.nodes if node.op == "call_function").target = torch.add
    assert module(torch.ones(2))[0].tolist() == [2, 2]
    module.recompile()
    assert module(torch.ones(2))[0].tolist() == [3, 3]


def test_forward_can_be_replaced():
    module = doubled()
    module.forward = lambda x: "mine"
    assert module.forward(torch.ones(2)) == "mine" and module(torch.ones(2)) == "mine"


def test_a_compiled_function_generates_no_code_of_its_graph():
    compiled = bothways.compile(lambda x: (x.sin() * 2).sum())
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    (graph,) = bothways.explain(compiled).graphs
    assert not is_generated(graph)
    assert "sin" in graph.code


def test_sizes_are_readable():
    compiled = bothways.compile(lambda x: x.sin() * 2, backend="eager")
    compiled(torch.ones(3))
    (graph,) = bothways.explain(compiled).graphs
    assert 'sin: "f32[3]" = l_x_.sin()' in graph.print_readable(print_output=False)
