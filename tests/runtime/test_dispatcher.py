"""The dispatcher: several programs of one function, the order they are tried in, the limit, and why it was missed."""

import inspect
import linecache
import logging
import os
import traceback
import warnings

import pytest
import torch
from pythons import run_python

import bothways
from bothways import config, errors, pipeline
from bothways.capture import capture
from bothways.testing import CompileCounter

X = torch.arange(4.0)


def scale(x, n):
    return x * n


def test_several_programs_of_one_function():
    counter = CompileCounter()
    compiled = bothways.compile(scale, backend=counter, dynamic=False)
    for _ in range(3):
        for n in (1, 2, 3):
            assert torch.equal(compiled(X, n), X * n)
    assert counter.frame_count == 3


def test_the_program_hit_last_is_tried_first():
    compiled = bothways.compile(scale, dynamic=False)
    for n in (1, 2, 3):
        compiled(X, n)
    dispatcher = compiled.__bothways__.dispatcher
    assert [program_n(program) for program in dispatcher.by_recency] == [3, 2, 1]
    compiled(X, 1)
    assert program_n(dispatcher.by_recency[0]) == 1
    assert dispatcher.text.index("n == 1") < dispatcher.text.index("n == 3")
    compiled(X, 2)
    assert program_n(dispatcher.by_recency[0]) == 2


def program_n(program):
    return next(int(check.text.partition("== ")[2]) for check in program.checks if check.text.startswith("L['n'] =="))


def test_the_compiled_function_stays_one_object():
    compiled = bothways.compile(scale)
    kept = compiled
    for n in (1, 2, 1):
        assert torch.equal(kept(X, n), X * n)
    assert kept is compiled


# The limit


def test_after_the_limit_the_function_is_plain_with_one_warning():
    counter = CompileCounter()
    compiled = bothways.compile(scale, backend=counter, dynamic=False)
    with config.patch(recompile_limit=3), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(20):
            assert torch.equal(compiled(X, n), X * n)
    assert counter.frame_count == 3
    assert len(caught) == 1
    message = caught[0]
    assert message.category is errors.RecompileLimitWarning
    assert message.filename == __file__, "the warning points at the user's call"
    for part in ("scale", "3 times", "config.recompile_limit", "L['n'] == 2", "as a tensor"):
        assert part in str(message.message)


def test_the_warning_of_a_continuation_names_the_users_line():
    def program(x, n):
        bothways.graph_break()
        return x * n

    compiled = bothways.compile(program, backend="eager", dynamic=False)
    with config.patch(recompile_limit=2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(4):
            assert torch.equal(compiled(X, n), X * n)
    assert [message.category for message in caught] == [errors.RecompileLimitWarning]
    assert caught[0].filename == __file__


def test_programs_from_before_the_limit_are_still_used():
    calls = []

    def backend(graph, inputs):
        def run(*args):
            calls.append(1)
            return graph(*args)

        return run

    compiled = bothways.compile(scale, backend=backend, dynamic=False)
    with config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (1, 2, 3):
            compiled(X, n)
    calls.clear()
    assert torch.equal(compiled(X, 1), X)
    assert torch.equal(compiled(X, 3), X * 3)
    assert len(calls) == 1


def test_reset_lifts_the_limit():
    counter = CompileCounter()
    compiled = bothways.compile(scale, backend=counter)
    with config.patch(recompile_limit=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(X, 1)
        compiled(X, 2)
    bothways.reset()
    compiled(X, 5)
    assert counter.frame_count == 2


# Why a program was missed


def test_error_on_recompile():
    compiled = bothways.compile(scale)
    with config.patch(error_on_recompile=True):
        compiled(X, 1)
        compiled(X, 1)
        with pytest.raises(errors.RecompileError, match=r"scale would be compiled again: L\['n'\] == 1"):
            compiled(X, 2)
        assert torch.equal(compiled(X, 1), X)


def test_inputs_that_raise_are_no_recompilation():
    @bothways.compile
    def program(x, n):
        if n < 0:
            raise ValueError(n)
        return x * n

    with config.patch(error_on_recompile=True):
        for _ in range(2):
            with pytest.raises(ValueError, match="-1"):
                program(X, -1)
            assert torch.equal(program(X, 2), X * 2)
    assert len(bothways.history(program)) == 2


def test_reasons_are_kept():
    compiled = bothways.compile(scale)
    compiled(X, 1)
    compiled(X, 2)
    compiled(torch.ones(7), 2)
    reasons = bothways.explain(compiled).recompilations
    assert len(reasons) == 2
    assert reasons[0].startswith("L['n'] == 1")
    assert reasons[1].startswith("L['x'].shape == (4,)")
    assert all(__file__ in reason for reason in reasons)


def test_reasons_are_logged(caplog):
    compiled = bothways.compile(scale)
    with config.patch(logs="recompiles"), caplog.at_level(logging.WARNING, logger="bothways"):
        compiled(X, 1)
        assert not caplog.records
        compiled(X, 2)
    assert len(caplog.records) == 1
    assert "L['n'] == 1" in caplog.text


def test_the_environment_asks_for_logs():
    script = "import torch, bothways; f = bothways.compile(lambda x, n: x * n); [f(torch.ones(2), n) for n in (1, 2)]"
    environment = {**os.environ, "BOTHWAYS_LOGS": "recompiles"}
    done = run_python(["-c", script], env=environment, check=True)
    assert "[bothways] recompiles:" in done.stderr
    assert "L['n'] == 1" in done.stderr


@pytest.mark.parametrize(
    ("topic", "part"), [("guards", "L['x'].shape == (4,)"), ("programs", "return"), ("graphs", "def forward")]
)
def test_other_topics(topic, part, caplog):
    with config.patch(logs=topic), caplog.at_level(logging.WARNING, logger="bothways"):
        bothways.compile(scale)(X, 1)
    assert part in caplog.text


def test_breaks_are_logged(caplog):
    with config.patch(logs="breaks"), caplog.at_level(logging.WARNING, logger="bothways"):
        bothways.compile(lambda x: 1 if x.sum() else 2)(X)
    assert "[tensor_" in caplog.text and "hint:" in caplog.text


# Generated source


def test_generated_source_can_be_read():
    compiled = bothways.compile(scale)
    compiled(X, 3)
    filename = compiled.__code__.co_filename
    assert filename.startswith("<bothways scale")
    source = "".join(linecache.getlines(filename))
    assert source.startswith("def scale(x, n):")
    assert "n == 3" in source
    assert inspect.getsource(compiled.__code__) == source


def test_generated_source_is_shown_in_full_tracebacks(monkeypatch):
    monkeypatch.setenv("BOTHWAYS_TRACEBACKS", "full")

    def backend(graph, inputs):
        def run(*args):
            raise RuntimeError("kernel failed")

        return run

    with pytest.raises(RuntimeError, match="kernel failed") as raised:
        bothways.compile(scale, backend=backend)(X, 3)
    text = "".join(traceback.format_exception(raised.value))
    assert "_graph_1(x)" in text


# Programs that are no use




def test_a_program_whose_guards_fail_at_once_is_dropped(monkeypatch):
    compiled = bothways.compile(scale)

    def capture_with_a_restless_guard(*args, **kwargs):
        captured = capture(*args, **kwargs)
        first = captured.program.checks[0]
        captured.program.checks = (type(first)("False", "L['x'] is restless", first.where), *captured.program.checks)
        return captured

    monkeypatch.setattr(pipeline, "capture", capture_with_a_restless_guard)
    for _ in range(10):
        assert torch.equal(compiled(X, 2), X * 2)
    compilations = bothways.history(compiled)
    assert [one.program for one in compilations] == [None] * 3, "a function like this is left alone after a while"
    [found, *_] = compilations[0].breaks
    assert found.code == "unstable_guard" and "restless" in found.reason


def test_the_same_break_with_other_shapes_is_the_same_break():
    compiled = bothways.compile(lambda x: x + 1 if x.sum() > 0 else x)
    for size in range(1, 5):
        x = torch.ones(size)
        assert torch.equal(compiled(x), x + 1)
    assert len(bothways.explain(compiled).breaks) == 1


# Backends


def test_a_backend_that_raises():
    def backend(graph, inputs):
        raise ValueError("no kernel for this")

    compiled = bothways.compile(scale, backend=backend)
    with pytest.raises(errors.BackendFailed, match="no kernel for this") as raised:
        compiled(X, 2)
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(errors.BackendFailed):
        compiled(X, 2)


def test_an_empty_graph_is_not_sent_to_a_backend():
    counter = CompileCounter()
    compiled = bothways.compile(lambda x, n: (x, n + 1), backend=counter)
    for _ in range(2):
        assert compiled(X, 2)[1] == 3
        assert compiled(X, 2)[0] is X
    assert counter.frame_count == 0
    assert len(bothways.history(compiled)) == 1


# When bothways itself goes wrong


def test_an_internal_error_says_so(monkeypatch):
    compiled = bothways.compile(scale)

    def broken(*args, **kwargs):
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(pipeline, "capture", broken)
    with pytest.raises(errors.InternalError, match="scale: ZeroDivisionError: inside"):
        compiled(X, 2)
    with config.patch(suppress_errors=True):
        assert torch.equal(compiled(X, 2), X * 2)
