"""The road from a call to a program, walked by hand: each stage is a plain call, and writes to one record."""

import pytest
import torch

from bothways.backends import lookup_backend
from bothways.capture import Capture
from bothways.capture.program.guard_text import inner_names
from bothways.errors import BackendFailed, Unsupported
from bothways.pipeline import MissedCall, Options, Verdict, capture_call, compile_call, compile_graph
from bothways.record.compilation import Compilation
from bothways.runtime.dispatcher import Dispatcher

X = torch.linspace(0, 1, 64).reshape(8, 8)
EVERYWHERE = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])


def wave(x, scale):
    return torch.relu(x * scale).sin() @ x


def missed(function, backend="eager", **arguments):
    return MissedCall(function, arguments, Options(lookup_backend(backend), backend), "0_")


def test_a_call_is_captured_into_a_graph_guards_and_a_program():
    captured = capture_call(missed(wave, x=X, scale=2))
    assert isinstance(captured, Capture) and captured.program.op_count == 4
    assert any(check.text == "L['scale'] == 2" for check in captured.program.checks)
    assert "torch.relu" in captured.graph.print_readable(print_output=False)


@EVERYWHERE
def test_a_captured_graph_becomes_a_function(backend):
    captured = capture_call(missed(wave, x=X, scale=2))
    run = compile_graph(captured.graph, captured.inputs, lookup_backend(backend))
    [result] = run(X)
    torch.testing.assert_close(result, wave(X, 2))


def test_a_backend_of_the_users_does_both_stages_in_its_way():
    graphs = []

    def noting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    captured = capture_call(missed(wave, x=X, scale=2))
    [result] = compile_graph(captured.graph, captured.inputs, noting)(X)
    torch.testing.assert_close(result, wave(X, 2))
    assert graphs == [captured.graph]


@EVERYWHERE
def test_the_program_that_comes_out_is_what_a_dispatcher_takes(backend):
    record = Compilation("wave", backend)
    captured = compile_call(missed(wave, backend, x=X, scale=2), record, lambda captured: Verdict.COMPILE)

    def miss(x, scale):
        return "a miss"

    dispatcher = Dispatcher(wave, miss, inner_names)
    function = dispatcher.take()
    dispatcher.add(captured.program)
    torch.testing.assert_close(function(X, 2), wave(X, 2))
    torch.testing.assert_close(function(X + 1, 2), wave(X + 1, 2))
    assert function(X, 3) == "a miss" and function(X[:4, :4], 2) == "a miss"
    assert {"capture", "program"} <= set(record.seconds) and record.graph is captured.graph


def test_the_driver_may_refuse_and_then_nothing_is_compiled():
    record = Compilation("wave", "native")
    assert compile_call(missed(wave, "native", x=X, scale=2), record, lambda captured: Verdict.REFUSE) is None
    assert set(record.seconds) == {"capture"} and record.outcome is None and record.graphs == []


def test_a_program_for_one_call_runs_the_graph_as_captured():
    record = Compilation("wave", "native")
    captured = compile_call(missed(wave, "native", x=X, scale=2), record, lambda captured: Verdict.ONCE)
    assert captured.program.namespace[captured.graph_key] == captured.graph.forward
    assert record.graph is None and record.kernels == 0


def test_what_cannot_be_captured_and_what_a_backend_raises_leave_the_road():
    def numbers(x):
        yield x

    def failing(graph, inputs):
        raise ZeroDivisionError("no")

    with pytest.raises(Unsupported, match="generator"):
        capture_call(missed(numbers, x=X))
    captured = capture_call(missed(wave, x=X, scale=2))
    with pytest.raises(BackendFailed, match="'failing' raised ZeroDivisionError: no"):
        compile_graph(captured.graph, captured.inputs, failing)
