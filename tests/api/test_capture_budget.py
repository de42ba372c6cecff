"""Captures that come to nothing may take so many times what the calls take: then the function is plain, and says so."""

import warnings

import pytest
import torch

import bothways
from bothways import config, errors
from bothways.driver import limits
from bothways.record.counters import counters
from bothways.testing import same


def captures_of(compiled):
    return len(bothways.history(compiled))


def warned(calls):
    """The warnings that a function is plain from now on, as texts."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calls()
    return [str(each.message) for each in caught if each.category is errors.RecompileLimitWarning]


@pytest.fixture
def times(monkeypatch):
    """What a capture takes and what a call takes, on a clock that is asked around each."""
    taken = {"capture": 1.0, "call": 0.01}
    now, asked = [0.0], []

    def clock():
        # Before the capture, after it, and after the call that came through.
        now[0] += (0.0, taken["capture"], taken["call"])[len(asked) % 3]
        asked.append(now[0])
        return now[0]

    monkeypatch.setattr(limits, "clock", clock)
    return taken


def not_captured(x, place):
    """A break where hooks for saved tensors are in force, each at a line of its own: none is met three times."""
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda packed: packed):
        if place == 0:
            bothways.graph_break()
        if place == 1:
            bothways.graph_break()
        if place == 2:
            bothways.graph_break()
        if place == 3:
            bothways.graph_break()
        if place == 4:
            bothways.graph_break()
        if place == 5:
            bothways.graph_break()
        return x + place


def call_at_places(compiled, count=12):
    x = torch.ones(3)
    for number in range(count):
        assert same(compiled(x, number % 6), x + number % 6)


def test_captures_in_vain_have_a_budget_after_which_the_function_is_plain_and_says_so(times):
    compiled = bothways.compile(not_captured, backend="eager", dynamic=False)
    said = warned(lambda: call_at_places(compiled))
    assert captures_of(compiled) == limits.FREE + 1
    assert len(said) == 1
    for part in ("not_captured", "4 captures", "4 s", "100 times", "config.wasted_capture_ratio", "from now on"):
        assert part in said[0]
    assert "[graph_break]" in said[0] and "hint: " in said[0]


def test_the_budget_is_as_large_as_the_calls_are_long(times):
    times["call"] = 0.1  # a tenth of a capture: 20 are allowed
    compiled = bothways.compile(not_captured, backend="eager", dynamic=False)
    assert warned(lambda: call_at_places(compiled)) == []
    assert captures_of(compiled) > limits.FREE + 1


def test_the_budget_can_be_set_and_left_out(times):
    with config.patch(wasted_capture_ratio=0):
        compiled = bothways.compile(not_captured, backend="eager", dynamic=False)
        assert warned(lambda: call_at_places(compiled)) == []
        assert captures_of(compiled) > limits.FREE + 1
    bothways.reset()
    times["call"] = 0.1
    with config.patch(wasted_capture_ratio=5):
        compiled = bothways.compile(not_captured, backend="eager", dynamic=False)
        assert len(warned(lambda: call_at_places(compiled))) == 1
        assert captures_of(compiled) == limits.FREE + 1


def test_reset_renews_the_budget(times):
    compiled = bothways.compile(not_captured, backend="eager", dynamic=False)
    assert len(warned(lambda: call_at_places(compiled))) == 1
    bothways.reset()
    assert len(warned(lambda: call_at_places(compiled))) == 1
    assert captures_of(compiled) == limits.FREE + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_is_called_at_a_break_has_a_budget_of_its_own(backend, monkeypatch):
    def caller(x, place):
        y = x.sin()
        bothways.graph_break()
        return not_captured(x, place) + y

    monkeypatch.setattr(limits, "clock", lambda: float(counters["frames"]["total"]))  # only captures take time
    compiled = bothways.compile(caller, backend=backend, dynamic=False)

    def calls():
        for number in range(12):
            x = torch.randn(3)
            assert same(caller(x, number % 6), compiled(x, number % 6))

    said = warned(calls)
    assert len(said) == 1 and said[0].startswith("not_captured runs as plain Python")
    state = compiled.__bothways__
    assert not state.dispatcher.is_plain, "the caller is compiled"
    assert [part()._pool.budget.captures for part in state.history.parts].count(limits.FREE + 1) == 1


def test_captures_that_come_to_something_cost_nothing(times):
    compiled = bothways.compile(lambda x, n: x * n, backend="eager", dynamic=False)

    def calls():
        for number in range(6):
            compiled(torch.ones(3), number)

    assert warned(calls) == []
    assert compiled.__bothways__._pool.budget.captures == 0


@pytest.mark.parametrize("value", ["20", 1.5, True, None])
def test_the_budget_is_a_number(value):
    with pytest.raises(TypeError, match=r"config\.wasted_capture_ratio must be an int"):
        config.wasted_capture_ratio = value
    with pytest.raises(ValueError, match=r"config\.wasted_capture_ratio"):
        config.wasted_capture_ratio = -1
