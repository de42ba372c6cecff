"""A number that is another one at each call is looked for among the keys of a dictionary, or in a set.

It is compared with each key, so that one program serves all numbers that are no key; where something is kept under a
new number at each call, that line is plain Python's.
"""

import pytest
import torch
from agreeing import agree

import bothways

MILESTONES, RATES = {4, 9, 14}, {4: 0.5, 9: 0.25, 2.5: 3.0, "name": 1.0, True: 7.0}


def in_a_set(x, step):
    return x * 2 if step in MILESTONES else x


def in_a_set_of_its_own(x, step):
    return x * 2 if step not in {4, 9, 14} else x


def in_a_frozen_set(x, step):
    return x * 2 if step // 2 in frozenset((2, 3)) else x


def in_a_dictionary(x, step):
    return x * RATES[step] if step in RATES else x


def with_a_default(x, step):
    return x * RATES.get(step, 1.0)


def a_quotient(x, step):
    return x * RATES.get(step / 2, 1.0)


def observe(function, step):
    return {"result": function(torch.ones(3), step)}


@pytest.mark.parametrize(
    ("program", "programs"),
    [(in_a_set, 5), (in_a_set_of_its_own, 5), (in_a_frozen_set, 4), (in_a_dictionary, 6), (with_a_default, 6)],
)
def test_a_number_is_compared_with_the_keys(program, programs):
    compiled = agree(program, observe, *range(20), *range(20), fullgraph=True)
    assert len(bothways.history(compiled)) <= programs


def test_quotients_are_right_as_well():
    agree(a_quotient, observe, *range(12))


def test_a_set_that_changes_is_looked_at_again():
    wanted = {3, 5}

    def change(function, step):
        wanted.clear()
        wanted.update({3, 5} if step < 10 else {12, 13})
        return {"result": function(torch.ones(3), step)}

    agree(lambda x, step: x * 2 if step in wanted else x, change, *range(16))


def kept_in_a_dictionary(kept, x, step):
    kept[step] = x.sum().item()
    return x * 2


def kept_in_a_set(kept, x, step):
    kept.add(step)
    return x * 2


def looked_for_first(kept, x, step):
    if step not in kept:
        kept[step] = 0
    kept[step] += 1
    return x * 2


@pytest.mark.parametrize(
    ("program", "kind"), [(kept_in_a_dictionary, dict), (kept_in_a_set, set), (looked_for_first, dict)]
)
def test_what_is_kept_under_a_new_number_each_time_is_for_python(program, kind):
    kept = {}

    def observe_kept(function, step):
        own = kept.setdefault(function, kind())
        return {"result": function(own, torch.ones(3), step), "kept": kind(own)}

    compiled = agree(program, observe_kept, *range(20))
    assert not bothways.explain(compiled).plain_from_now_on


def test_under_fullgraph_each_number_has_a_program():
    kept = {}

    def observe_kept(function, step):
        own = kept.setdefault(function, {})
        return {"result": function(own, torch.ones(3), step), "kept": own}

    agree(kept_in_a_dictionary, observe_kept, *range(6), fullgraph=True)
