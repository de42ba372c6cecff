"""Explanations of compiled functions, by the state behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bothways.driver.compiled import CompiledFunction
from bothways.driver.everyone import everyone
from bothways.record.backwards import backwards
from bothways.report.explanation import Explanation


def explained_state(state: CompiledFunction, **call: Any) -> Explanation:
    """The explanation of one function; ``call`` is what is known of a call that was made for it."""
    state = state.acting
    return Explanation(
        state.original.__qualname__,
        list(state.history.compilations),
        state.standings,
        backwards.in_code(state.original.__code__),
        **call,
    )


def explained_states(states: Iterable[CompiledFunction]) -> list[Explanation]:
    """The explanations of functions, of which those that share their programs are one, in the order they came."""
    whole = {id(state.history): state for state in states if not state.is_alone}
    explained = [explained_state(state) for state in whole.values() if state.history.compilations]
    return sorted(explained, key=lambda one: one.compilations[0].number)


def explained_everyone() -> list[Explanation]:
    """Those of all functions that were called."""
    return explained_states(everyone())
