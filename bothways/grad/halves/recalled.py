"""What a memo remembers of a function, looked at before it is believed.

Facts of another shape than those that were noted, or that name inputs and results which are not there, are forgotten:
the function is traced again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from bothways.grad.halves.facts import FactMemo, Facts, facts_from
from bothways.record.outcomes import SavedValue


class NotThisFunction(Exception):
    """What is remembered cannot be about this function."""


@dataclass(frozen=True)
class Groups:
    """Outputs that have nothing to do with each other, by their places."""

    groups: list[list[int]]


@dataclass(frozen=True)
class Changing:
    """Inputs that are changed where autograd looks, by their places."""

    places: tuple[int, ...]


@dataclass(frozen=True)
class Forward:
    """The facts of a function, and its compiled forward."""

    facts: Facts
    run: Callable[..., Any]
    saved: list[SavedValue] = field(default_factory=list)  # for people


def recall_function(memo: FactMemo | None, inputs: int, outputs: int | None) -> Groups | Changing | Forward | None:
    """What is remembered of a function of so many inputs and, where that is known, outputs."""

    def look(memo: FactMemo, known: Any) -> Groups | Changing | Forward | None:
        if set(known) == {"groups"}:
            return Groups(_checked_groups(known["groups"], outputs))
        if set(known) == {"renewed"}:
            return Changing(_checked_places(known["renewed"], inputs))
        facts = _checked_facts(known["facts"], inputs, outputs)
        results = len(facts.differentiable) + len(facts.changed) + len(facts.saved_positions)
        run = memo.program(known["program"], inputs, results)
        return None if run is None else Forward(facts, run, [_checked_value(value) for value in known["saved"]])

    return _recalled(memo, look)


def recall_backward(memo: FactMemo | None, values: int, gradients: int) -> Callable[..., Any] | None:
    """A compiled backward of so many values that gives so many gradients."""
    return _recalled(memo, lambda memo, known: memo.program(known["program"], values, gradients))


def _recalled(memo: FactMemo | None, look: Callable[[FactMemo, Any], Any]) -> Any:
    known = None if memo is None else memo.recall()
    if memo is None or known is None:
        return None
    try:
        answer = look(memo, known)
    except (NotThisFunction, AttributeError, IndexError, KeyError, TypeError, ValueError):
        answer = None
    if answer is None:  # also when the program is gone: it may come back under another key
        memo.forget()
    return answer


def _checked_value(value: Any) -> SavedValue:
    _expect([type(one) for one in value] == [str, str, int, str, bool])
    return SavedValue(*value)


def _checked_groups(groups: Any, outputs: int | None) -> list[list[int]]:
    places = sorted(place for group in groups for place in group)
    expected = list(range(len(places) if outputs is None else outputs))
    if places != expected or not all(type(place) is int for place in places) or not all(groups) or len(groups) < 2:
        raise NotThisFunction("groups")
    return [list(group) for group in groups]


def _checked_places(places: Any, inputs: int) -> tuple[int, ...]:
    _expect(bool(places) and all(type(place) is int for place in places) and _are_places(places, inputs))
    return tuple(places)


# Of what the items of a fact are.
ITEMS: dict[str, tuple[type, ...]] = {
    "differentiable": (bool,), "views": (bool,),
}  # fmt: skip


# More changes of one input in a graph than there can be.
MOST_CHANGES = 1 << 20


def _checked_facts(data: dict[str, Any], inputs: int, outputs: int | None) -> Facts:
    facts = facts_from(data)
    results = len(facts.differentiable)
    for fact in fields(facts):
        value = getattr(facts, fact.name)
        if fact.name in ("has_backward", "is_random", "is_turned"):
            _expect(type(value) is bool)
        elif fact.name != "outputs":
            _expect(type(value) is tuple and all(type(item) in ITEMS.get(fact.name, (int,)) for item in value))
    for name in [*(fact.name for fact in fields(facts) if fact.name.endswith("_inputs")), "changed"]:
        _expect(_are_places(getattr(facts, name), inputs))
    _expect(len(facts.counts) == len(facts.changed) and len(facts.versions) == results)
    _expect(all(0 <= count < MOST_CHANGES for count in (*facts.counts, *facts.versions)))
    _expect(outputs is None or len(facts.outputs) == outputs)
    _expect(len(facts.new_positions) == len(facts.new_inputs) and set(facts.new_inputs) <= set(facts.changed))
    kept = len(facts.needed_inputs) + len(facts.saved_positions)
    _expect(_are_places(facts.live, kept) and _are_places(facts.new_positions, kept))
    _expect(_are_places(facts.own_positions, kept) and len(facts.own_positions) == len(facts.own_versions))
    _expect(len(facts.views) == results and _are_places(list(dict.fromkeys(facts.recounted)), inputs))
    _expect(all(place >= 0 for place in facts.saved_positions))
    _expect(len(facts.leads) == results and not len(facts.pieces) % 2)
    _expect(all(0 <= pair < 1 << results for pair in facts.pieces[::2]))
    _expect(all(0 <= pair < 1 << inputs for pair in (*facts.pieces[1::2], *facts.leads)))
    for output in data["outputs"]:
        if output is not None:
            kind, place = output
            _expect(type(place) is int and 0 <= place < (results if kind.endswith("result") else inputs))
    return facts


def _are_places(places: Sequence[int], count: int) -> bool:
    return all(0 <= place < count for place in places) and len(set(places)) == len(places)


def _expect(holds: bool) -> None:
    if not holds:
        raise NotThisFunction("facts")
