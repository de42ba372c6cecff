"""What is known of a compiled graph: one record beside the function, whoever compiled it."""

import pytest
import torch

import bothways
from bothways import trace
from bothways.backends.aot import run_and_forget, run_as_is
from bothways.backends.native import compile_kernels
from bothways.runtime.compiled_graph import CompiledGraph, described, known_of

X = torch.ones(8, 8)


def wave(x):
    return ((x.sin() + 1).cos(),)


def test_a_function_of_another_backend_promises_nothing():
    def run(x):
        return (x,)

    assert known_of(run) == CompiledGraph()
    assert known_of(run).read_inputs is None and not known_of(run).writes_at_end


def test_one_that_takes_a_list_says_so_as_pytorchs_compilers_do():
    def run(values):
        return tuple(values)

    run._boxed_call = True
    assert known_of(run) == CompiledGraph(takes_list=True)


def test_facts_are_added_one_after_the_other():
    def run(values):
        return tuple(values)

    described(described(run, takes_list=True), key="abc")
    assert known_of(run) == CompiledGraph(takes_list=True, key="abc")
    assert run._boxed_call


@pytest.mark.parametrize("compile, takes_list", [(run_as_is, False), (run_and_forget, True)])
def test_graphs_that_run_as_aten_operations(compile, takes_list):
    graph = trace(wave)(X)
    known = known_of(compile(graph, [X]))
    assert known.takes_list == takes_list and known.is_below_autograd and not known.looks_at_grad_mode


@pytest.mark.parametrize("takes_list", [False, True])
def test_kernels(takes_list):
    run = compile_kernels(trace(wave)(X), [X], name="graph", takes_list=takes_list)
    known = known_of(run)
    assert known.takes_list == takes_list and known.key is not None
    [result] = run([X]) if takes_list else run(X)
    torch.testing.assert_close(result, wave(X)[0])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("grad", [False, True])
def test_what_a_program_calls_is_told_when_it_writes(backend, grad):
    def update(x, w):
        x.add_((w * 2).detach())
        return (w.sin() * x.sum()).sum()

    compiled = bothways.compile(update, backend=backend)
    w = torch.ones(8, 8, requires_grad=grad)
    for _ in range(2):
        plain, own = torch.zeros(8, 8), torch.zeros(8, 8)
        torch.testing.assert_close(compiled(own, w), update(plain, w))
        torch.testing.assert_close(own, plain)
    [compilation] = bothways.history(compiled)
    [run] = [value for name, value in compilation.program.namespace.items() if name.startswith("_graph_")]
    assert known_of(run).writes_at_end
