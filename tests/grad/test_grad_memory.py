"""A compiled backward frees what was saved as it goes, as eager's does."""

import pytest
import torch
import torch.fx
from torch.autograd.profiler import profile

import bothways
from bothways.backends.aot import run_and_forget

BYTES = 4 * 256 * 256


def layers(x, *weights):
    for weight in weights:
        x = torch.softmax(x * weight, -1)  # what it gives is kept, and cannot be computed again
    return x.sum()


def peak(function, args):
    """The most that is allocated in one step, in tensors; every gradient is one of them."""
    for _ in range(3):
        for arg in args:
            arg.grad = None
        with profile(use_cpu=True, profile_memory=True) as profiler:
            function(*args).backward()
    held = most = 0
    for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most / BYTES


def test_saved_values_are_freed_when_they_were_last_read():
    args = [torch.randn(256, 256, requires_grad=True) for _ in range(40)]
    compiled = bothways.compile(layers, backend="aot_eager", fullgraph=True)
    assert 39 < peak(compiled, args) <= peak(layers, args) + 0.1


def test_a_retained_graph_keeps_them():
    args = [torch.randn(256, 256, requires_grad=True) for _ in range(4)]
    loss = bothways.compile(layers, backend="aot_eager", fullgraph=True)(*args)
    first, second = (torch.autograd.grad(loss, args, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_a_graph_that_forgets_its_inputs_fails_at_its_own_line():
    class Fails(torch.nn.Module):
        def forward(self, a, b):
            c = a.sin()
            return (c @ b,)

    values = [torch.ones(2, 3), torch.ones(2, 3)]
    run = run_and_forget(torch.fx.symbolic_trace(Fails()), values)
    with pytest.raises(RuntimeError) as caught:
        run(values)
    assert not values
    assert "matmul" in str(caught.traceback[-1].statement)
