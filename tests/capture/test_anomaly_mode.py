"""Anomaly mode in and around compiled functions; and modes that are put back when a graph fails in between."""

import warnings

import pytest
import torch
from agreeing import agree
from hooking import BACKENDS, numbers

import bothways

pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
    pytest.mark.filterwarnings("ignore:Error detected in"),
]


@pytest.fixture(autouse=True)
def mode_is_off_again():
    yield
    torch.autograd.set_detect_anomaly(False)


def outcome(function, backward=True):
    """What the call and its backward raise, and the mode afterwards."""
    x = numbers(3)
    try:
        result = function(x)
        if backward:
            result.sum().backward()
        raised = None
    except Exception as error:
        raised = type(error).__name__, str(error)
    state = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(False)
    return raised, state, None if x.grad is None else repr(x.grad)


def check(program, backend):
    outcomes = []

    def observe(function, _):
        outcomes.append(outcome(function))
        return dict(zip(("raised", "mode afterwards", "gradient"), outcomes[-1], strict=True))

    agree(program, observe, 1, 2, backend=backend, programs=1, fullgraph=True)
    return outcomes[0]


def test_set_for_good_the_backward_names_the_operation(backend):
    def program(x):
        y = x * 2
        torch.autograd.set_detect_anomaly(True)
        return (y - y).sqrt() * 0

    raised, state, _ = check(program, backend)
    assert "SqrtBackward0" in raised[1] and state == (True, True)


def test_a_context_ends(backend):
    def program(x):
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            y = x.sin()
        with torch.autograd.detect_anomaly():
            z = (y - y).sqrt() * 0
        return z

    raised, state, _ = check(program, backend)
    assert raised is None and state == (False, True)


def test_around_the_call(backend):
    def program(x):
        return (x - x).sqrt() * 0

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    sides = []
    for function in (program, compiled, compiled):
        with torch.autograd.detect_anomaly():
            sides.append(outcome(function))
    assert sides[0] == sides[1] == sides[2] and "SqrtBackward0" in sides[0][0][1]
    assert outcome(compiled)[0] is None


@pytest.mark.parametrize("action", ["always", "default", "error"])
def test_the_warning_stands_at_the_users_line(action, backend):
    def program(x):
        with torch.autograd.detect_anomaly():
            return x.sin()

    sides = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            raised = [outcome(function)[0] for _ in range(3)]
        sides.append((raised, [(str(w.message), w.filename, w.lineno, w.category) for w in caught]))
    assert sides[0] == sides[1]


def test_modes_are_as_before_when_the_graph_fails(backend):
    def autocast(x, index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x[index]

    def no_grad(x, index):
        with torch.no_grad():
            return x[index]

    def anomaly(x, index):
        with torch.autograd.detect_anomaly():
            return x[index]

    def packed(x, index):
        with torch.autograd.graph.save_on_cpu():
            return x[index]

    for program in (autocast, no_grad, anomaly, packed):
        compiled = bothways.compile(program, backend=backend, fullgraph=True)
        compiled(numbers(3), torch.tensor([0]))
        for _ in range(2):
            with pytest.raises(IndexError):
                compiled(numbers(3), torch.tensor([7]))
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu") and not torch.is_anomaly_enabled()
        with torch.autograd.graph.disable_saved_tensors_hooks("none is left"):
            pass
