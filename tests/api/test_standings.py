"""Where a function stands, with all that goes on after its breaks or is called there: compiled or plain, and why."""

import inspect
import warnings

import pytest
import torch

import bothways
from bothways import config, explain
from bothways.errors import RecompileLimitWarning
from bothways.record.standing import State

X = torch.ones(3)
LINE = "{name}, from line {line} on"


def standings(compiled):
    return [str(standing) for standing in bothways.explain(compiled).standings]


def line_of(function, text):
    """The line of the source in which a text stands."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_before_any_call():
    def function(x):
        return x + 1

    compiled = bothways.compile(function)
    name = function.__qualname__
    assert standings(compiled) == [f"{name}: not called yet"]
    assert explain(compiled).details == (
        f"{name}: 0 programs, 0 operations, 0 breaks\nno graphs.\n    {name}: not called yet\n"
        "This is what has happened so far; nothing was run for this explanation."
    )


def test_a_function_that_is_compiled():
    def function(x):
        return x + 1

    compiled = bothways.compile(function)
    compiled(X)
    assert standings(compiled) == [f"{function.__qualname__}: compiled, 1 program"]
    compiled(X.double())
    assert standings(compiled) == [f"{function.__qualname__}: compiled, 2 programs"]
    compiled.__bothways__.reset()
    assert standings(compiled) == [f"{function.__qualname__}: not called yet"]


def test_without_tensor_operations():
    compiled = bothways.compile(lambda n: n + 1)
    compiled(2)
    [standing] = standings(compiled)
    assert standing.endswith("compiled, 1 program without tensor operations")


def test_the_limit_names_the_guard_that_failed_last():
    def function(x, flag):
        return x + 1 if flag else x - 1

    compiled = bothways.compile(function)
    name, where = function.__qualname__, f"{__file__}:{line_of(function, 'if flag')} in {function.__qualname__}"
    with config.patch(recompile_limit=1), pytest.warns(RecompileLimitWarning) as warned:
        compiled(X, True)
        assert not explain(compiled).plain_from_now_on
        compiled(X, False)
    guard = f"L['flag'] is True (assumed at {where})"
    assert str(warned[0].message) == (
        f"{name} was compiled 1 time (config.recompile_limit), and calls that fit none of these programs run as "
        f"plain Python from now on. The guard that failed last: {guard}. Pass what changes as a tensor, keep it "
        "constant, or raise config.recompile_limit."
    )
    assert standings(compiled) == [
        f"{name}: compiled, 1 program; calls that fit none of them run as plain Python from now on: it was "
        f"compiled 1 time (config.recompile_limit); the guard that failed last: {guard}"
    ]
    assert explain(compiled).plain_from_now_on and bothways.explain(compiled).plain_from_now_on


def test_a_continuation_that_met_the_limit():
    flags = iter([True, False, False])

    def function(x):
        y = x + 1
        bothways.graph_break()
        return y * 2 if bothways.disable(lambda: next(flags))() else y * 3

    compiled = bothways.compile(function)
    with config.patch(recompile_limit=1), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            compiled(X)
    line = line_of(function, "y * 3")
    first, *_, last = standings(compiled)
    assert first == f"{function.__qualname__}: compiled, 1 program"
    title = LINE.format(name=function.__qualname__, line=line)
    assert last.startswith(f"{title}: compiled, 1 program; calls that fit none of them run as plain Python from now")
    assert f"<what line {line} has computed> is True" in last
    assert bothways.explain(compiled).plain_from_now_on
    assert str(warned[0].message).startswith(f"{title} was compiled 1 time (config.recompile_limit)")


def callee(x, flag):
    bothways.graph_break()
    return x + 1 if flag else x - 1


def test_a_callee_that_met_the_limit():
    def function(x, flag):
        return callee(x, flag) * 2

    compiled = bothways.compile(function)
    with config.patch(recompile_limit=1), pytest.warns(RecompileLimitWarning):
        for flag in (True, False):
            torch.testing.assert_close(compiled(X, flag), function(X, flag))
    explanation = explain(compiled)
    assert explanation.plain_from_now_on and not compiled.__bothways__.dispatcher.is_plain
    plain = [standing for standing in explanation.standings if standing.for_good]
    line = line_of(callee, "graph_break")
    assert [standing.name for standing in plain] == [f"callee, from line {line} on"]
    assert f"    callee, from line {line} on: compiled, 1 program; calls that fit none of them" in explanation.details


def test_a_generator_function_is_plain_and_after_some_calls_for_good():
    def numbers(x):
        yield x + 1

    compiled = bothways.compile(numbers)
    why = f"the function is a generator [generator_escapes] at {__file__}:{line_of(numbers, 'def')} in"
    list(compiled(X))
    assert standings(compiled)[0].startswith(f"{numbers.__qualname__}: plain Python so far: {why}")
    for _ in range(3):
        list(compiled(X))
    assert standings(compiled)[0].startswith(f"{numbers.__qualname__}: plain Python from now on: {why}")
    assert bothways.explain(compiled).plain_from_now_on


def test_a_coroutine_function():
    async def later(x):
        return x + 1

    compiled = bothways.compile(later)
    compiled(X).close()
    assert "plain Python so far: the function is a coroutine [async]" in standings(compiled)[0]


def test_calls_that_raise():
    def function(x, n):
        if n < 0:
            raise ValueError(n)
        return x * n

    compiled = bothways.compile(function)
    with pytest.raises(ValueError):
        compiled(X, -1)
    why = f"ValueError leaves the function [exception_escapes] at {__file__}:{line_of(function, 'raise')} in"
    assert standings(compiled)[0].startswith(f"{function.__qualname__}: plain Python so far: {why}")
    compiled(X, 2)
    assert standings(compiled)[0].startswith(
        f"{function.__qualname__}: compiled, 1 program; other calls ran as plain Python: {why}"
    )


def test_a_rest_that_only_the_frame_itself_can_run():
    def function(x):
        y = x + 1
        names = locals()
        return y * len(names)

    compiled = bothways.compile(function)
    torch.testing.assert_close(compiled(X), function(X))
    name, line = function.__qualname__, line_of(function, "locals()")
    assert standings(compiled) == [
        f"{name}: compiled, 1 program",
        f"{name}, from line {line} on: plain Python from now on: locals() is not supported (builtin: locals) "
        f"[call_unknown] at {__file__}:{line} in {name}",
    ]


def test_callees_that_are_made_for_each_call():
    def made(n):
        def scale(x):
            bothways.graph_break()
            return x * n

        return scale

    def function(x, scale):
        return scale(x) + 1

    compiled = bothways.compile(function)
    for n in range(2, 10):
        torch.testing.assert_close(compiled(X, made(n)), X * n + 1)
    left = [standing for standing in bothways.explain(compiled).standings if standing.state is State.PLAIN]
    assert [str(standing) for standing in left] == [
        f"{made(1).__qualname__}: plain Python from now on: more than 4 functions were made from this code, and "
        "each would be compiled for itself"
    ]


def test_stances():
    def function(x):
        return x + 1

    compiled = bothways.compile(function)
    name = function.__qualname__
    with bothways.set_stance("eager_on_recompile"):
        compiled(X)
        assert standings(compiled) == [f"{name}: plain Python: the stance is 'eager_on_recompile'"]
    compiled(X)
    with bothways.set_stance("force_eager"):
        assert standings(compiled) == [f"{name}: plain Python: the stance is 'force_eager'"]
        assert not bothways.explain(compiled).plain_from_now_on
    with bothways.set_stance("default", force_backend="eager"):
        assert "1 as captured (the backend is eager)" in explain(compiled)(X).details
    assert standings(compiled) == [f"{name}: compiled, 1 program"]


def test_a_function_that_was_redefined():
    def function(x):
        return x + 1

    def other(x):
        return x + 2

    compiled = bothways.compile(function)
    compiled(X)
    function.__code__ = other.__code__
    torch.testing.assert_close(compiled(X), X + 2)
    assert f"{function.__qualname__}: compiled, 1 program" in standings(compiled)


def test_calls_that_are_traced():
    def function(x):
        return x + 1

    compiled = bothways.compile(function)
    compiled(X)
    with pytest.warns(bothways.errors.TracedWarning):
        torch.func.vmap(compiled)(X)
    [standing] = standings(compiled)
    assert standing.startswith(f"{function.__qualname__}: compiled, 1 program; other calls ran as plain Python: ")
    assert standing.endswith("is active")
