"""Tracebacks show the user's lines, without frames of ours between them where Python allows."""

import sys
import traceback
from pathlib import Path

import pytest
import torch
from pythons import run_python

import bothways
from bothways.errors import OWN_CODE
from bothways.runtime.tracebacks import HIDDEN, without_own

ROOT = Path(__file__).parent.parent.parent
X = torch.ones(300, requires_grad=True)


def helper(x, n):
    if n > 3:
        raise ValueError("too large")
    return x * n


def frames_of(function, *args):
    """The frames of what a call raises: (function, line of source)."""
    with pytest.raises((ValueError, RuntimeError, IndexError)) as caught:
        function(*args)
    return [(frame.name, frame.line) for frame in traceback.extract_tb(without_own(caught.value.__traceback__))]


def own_frames(error):
    trace, found = error.__traceback__, 0
    while trace is not None:
        found += trace.tb_frame.f_code.co_filename.startswith(OWN_CODE)
        trace = trace.tb_next
    return found


def test_a_first_call_has_two_frames_of_ours_at_most():
    compiled = bothways.compile(lambda x, n: helper(x, n))
    with pytest.raises(ValueError) as caught:
        compiled(X, 5)
    assert own_frames(caught.value) <= 2
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == 'raise ValueError("too large")'


def test_what_cannot_be_captured_under_fullgraph_says_so_and_no_more():
    def prints(x):
        print("no")
        return x

    with pytest.raises(bothways.errors.Unsupported) as caught:
        bothways.compile(prints, fullgraph=True)(X)
    assert own_frames(caught.value) <= 2


def test_the_variable_shows_everything(monkeypatch):
    monkeypatch.setenv("BOTHWAYS_TRACEBACKS", "full")
    with pytest.raises(ValueError) as caught:
        bothways.compile(lambda x, n: helper(x, n))(X, 5)
    assert own_frames(caught.value) > 2


def test_without_frames_of_ours_it_is_that_of_plain_python():
    def plain(x, n):
        y = x + 1
        return helper(y, n)

    compiled = bothways.compile(plain)
    expected = frames_of(plain, X, 5)
    assert frames_of(compiled, X, 5) == expected
    assert frames_of(compiled, X, 5) == expected  # the second call hits


def test_after_a_break_as_well():
    def plain(x, n):
        y = x + 1
        bothways.graph_break()
        return helper(y, n)

    compiled = bothways.compile(plain)
    expected = frames_of(plain, X, 5)
    assert frames_of(compiled, X, 5) == expected == frames_of(compiled, X, 5)


def test_an_error_in_a_hook_points_at_its_line():
    def hook(gradient):
        raise ValueError("in the hook")

    @bothways.compile
    def hooked(x):
        y = (x * 2).sin()
        y.register_hook(hook)
        return (y * y).sum()

    assert frames_of(hooked(X).backward)[-1] == ("hook", 'raise ValueError("in the hook")')


def test_an_error_in_a_custom_backward_points_at_its_line():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.view(7, 9)

    @bothways.compile
    def custom(x):
        return Doubled.apply(x * 2).sum()

    assert frames_of(custom(X).backward)[-1] == ("backward", "return gradient.view(7, 9)")


def test_in_a_whole_step_too():
    def hook(gradient):
        raise ValueError("in the hook")

    @bothways.compile
    def step(x):
        y = (x * 2).sin()
        y.register_hook(hook)
        y.sum().backward()

    for _ in range(2):
        frames = frames_of(step, X)
        assert ("step", "y.sum().backward()") in frames and frames[-1][0] == "hook"


def test_pytest_is_told_to_leave_our_frames_out():
    compiled = bothways.compile(lambda x: x + 1)
    assert compiled.__globals__[HIDDEN] is True


SCRIPT = """
import torch, threading, bothways

def inner(x):
    raise KeyError("gone")

@bothways.compile
def outer(x):
    print("a break", flush=True)
    return inner(x + 1)

def run():
    outer(torch.ones(3))

"""


@pytest.mark.parametrize("end", ["run()", "t = threading.Thread(target=run); t.start(); t.join()"])
def test_what_is_not_caught_is_shown_without_our_frames(end, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT + end + "\n")
    finished = run_python(["script.py"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"})
    assert "KeyError: 'gone'" in finished.stderr
    assert "return inner(x + 1)" in finished.stderr and 'raise KeyError("gone")' in finished.stderr
    assert "bothways/" not in finished.stderr and "<bothways" not in finished.stderr


def test_a_hook_of_the_users_stays():
    before = sys.excepthook
    try:
        sys.excepthook = own = lambda *given: None
        bothways.compile(lambda x: x)
        assert sys.excepthook is own
    finally:
        sys.excepthook = before
