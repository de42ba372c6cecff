"""What users say about their functions and tensors: disable, allow_in_graph, graph_break and the marks."""

import pytest
import torch

import bothways
from bothways import errors
from bothways.testing import CompileCounter

X = torch.arange(4.0)



def test_disable_keeps_a_function_plain():
    compiling = []

    @bothways.disable
    def helper(x):
        compiling.append(bothways.is_compiling())
        return x + 1

    def program(x):
        return helper(x) * 2

    assert helper.__name__ == "helper"
    assert torch.equal(bothways.compile(program)(X), (X + 1) * 2)
    assert compiling == [False]
    with pytest.raises(errors.Unsupported) as raised:
        bothways.compile(program, fullgraph=True)(X)
    assert raised.value.break_.code == "call_disabled"


def test_disable_and_compile_in_either_order():
    def program(x):
        return x + 1

    counter = CompileCounter()
    disabled = bothways.disable(program)
    assert bothways.compile(disabled, backend=counter) is disabled
    assert torch.equal(bothways.disable(bothways.compile(program, backend=counter))(X), X + 1)
    assert counter.frame_count == 0


def test_allow_in_graph_records_one_call():
    @bothways.allow_in_graph
    def helper(x):
        return torch.sin(x) + torch.cos(x)

    counter = CompileCounter()
    compiled = bothways.compile(lambda x: helper(x) * 2, backend=counter, fullgraph=True)
    assert torch.equal(compiled(X), helper(X) * 2)
    assert counter.op_count == 2


def test_graph_break_ends_the_graph():
    def program(x):
        x = x + 1
        bothways.graph_break()
        return x * 2

    assert torch.equal(bothways.compile(program)(X), program(X))
    with pytest.raises(errors.Unsupported) as raised:
        bothways.compile(program, fullgraph=True)(X)
    assert raised.value.break_.code == "graph_break"


def test_assume_constant_result_calls_once():
    calls = []

    @bothways.assume_constant_result
    def factor():
        calls.append(1)
        return 3

    compiled = bothways.compile(lambda x: x * factor(), fullgraph=True)
    assert torch.equal(compiled(X), X * 3)
    assert torch.equal(compiled(X), X * 3)
    assert len(calls) == 1


def test_is_compiling_is_true_inside_a_capture_only():
    def program(x):
        return x + 1 if bothways.is_compiling() else x - 1

    assert torch.equal(program(X), X - 1)
    assert torch.equal(bothways.compile(program, fullgraph=True)(X), X + 1)


def test_marks_on_dimensions_are_checked():
    bothways.mark_dynamic(torch.ones(2, 3), [0, -1])
    bothways.mark_static(torch.ones(2, 3))
    with pytest.raises(IndexError, match="dimension 5"):
        bothways.mark_dynamic(torch.ones(2, 3), 5)
    with pytest.raises(errors.InvalidTarget):
        bothways.mark_static(3, 0)


def test_decorators_reject_what_they_cannot_mark():
    for decorator in (bothways.disable, bothways.allow_in_graph, bothways.assume_constant_result):
        with pytest.raises(errors.InvalidTarget):
            decorator(3)
