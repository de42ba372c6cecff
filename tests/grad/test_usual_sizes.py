"""Backwards of a graph for all sizes: those of sizes that were there before ask no more than those of one size do."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

import bothways
from bothways.grad.nodes.node import CompiledNode


def program(x, w):
    return (F.gelu(x @ w) * x).sum(0).tanh()


def gradients(function, x, w):
    leaf = w.detach().requires_grad_()
    return torch.autograd.grad(function(x, leaf).sum(), leaf)[0]


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_sizes_that_were_there_before_take_the_usual_way(backend, monkeypatch):
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    w = torch.randn(4, 4)
    asked = []
    run_backward = CompiledNode.run_backward
    monkeypatch.setattr(CompiledNode, "run_backward", lambda *args: [asked.append(1), run_backward(*args)][1])
    for turn in range(4):  # 3 rows are the first program's at first, and then that of all sizes
        for rows in (3, 5, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(gradients(compiled, x, w), gradients(program, x, w))
        if turn < 2:
            asked.clear()
    assert asked == [] and len(bothways.history(compiled)) == 2


def test_more_sizes_than_are_kept_at_hand(monkeypatch):
    monkeypatch.setattr("bothways.grad.differentiated.MOST_BOUND", 2)
    compiled = bothways.compile(program, fullgraph=True)
    w = torch.randn(4, 4)
    for rows in (3, 5, 7, 9, 5, 9, 3):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(gradients(compiled, x, w), gradients(program, x, w))


def test_zeros_of_both_signs_are_two_numbers():
    def scaled(x, number):
        return (x.sin() * x.cos() * number).tanh()

    compiled = bothways.compile(scaled, fullgraph=True)
    for number in (0.5, 0.25, 0.0, -0.0, 0.0):
        x = torch.ones(3, requires_grad=True)
        result, expected = compiled(x, number), scaled(x, number)
        assert torch.equal(torch.signbit(result), torch.signbit(expected))
        found, right = (torch.autograd.grad(value.sum(), x)[0] for value in (result, expected))
        assert torch.equal(torch.signbit(found), torch.signbit(right))


def test_graphs_of_sizes_are_let_go_with_the_function():
    compiled = bothways.compile(program, fullgraph=True)
    w = torch.randn(4, 4)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4)
        gradients(compiled, x, w)
    leaf = w.requires_grad_()
    graph = weakref.ref(compiled(x, leaf).grad_fn.graph)
    assert graph() is not None
    del compiled
    gc.collect()
    assert graph() is None
