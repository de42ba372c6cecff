"""Looking for a number among others asks whether they are equal; small ones that are equal are one object to Python."""

import pytest
import torch

import bothways


@pytest.mark.parametrize("among", ["list", "tuple", "index", "count", "remove"])
def test_a_number_that_changes_is_looked_for_among_numbers_that_change(among):
    def find(x, number, others):
        if among == "list":
            found = number in [*others, 7]
        elif among == "tuple":
            found = number in tuple(others)
        elif among == "index":
            found = [number, *others].index(number)
        elif among == "count":
            found = [*others, 3].count(number)
        else:
            kept = [number, *others]
            kept.remove(number)
            found = len(kept)
        return x + found

    compiled = bothways.compile(find, backend="eager")
    x = torch.ones(2)
    for number, others in ((3, [1, 2]), (4, [2, 3]), (5, [5, 4]), (300, [300, 4]), (6, [6, 6]), (2, [9, 8])):
        assert torch.equal(compiled(x, number, list(others)), find(x, number, list(others)))
    assert "unstable_guard" not in {found.code for one in bothways.history(compiled) for found in one.breaks}


NAN = float("nan")
ASKED = {
    "is": lambda number, others: [other is number for other in others],
    "in": lambda number, others: number in others,
    "==": lambda number, others: [number] == others[:1],
    "in a dict": lambda number, others: list(dict(enumerate(others)).values())[-1] is number,
}


@pytest.mark.parametrize("asked", ASKED)
def test_whether_a_number_is_the_object_that_others_hold(asked):
    function = ASKED[asked]
    compiled = bothways.compile(function, backend="eager")
    half = 1.5
    for number, others in (
        (2.5, [half]), (half, [half]), (half, [float("1.5")]), (NAN, [NAN]), (NAN, [float("nan")]), (NAN, [NAN]),
        (3.5, [half, float("3.5")]), (half, [2.5, half]), (4, [5]), (6, [6]), (10**9, [10**9 + 1]),
    ):  # fmt: skip
        for _ in range(2):
            assert compiled(number, others) == function(number, others)
    assert "unstable_guard" not in {found.code for one in bothways.history(compiled) for found in one.breaks}
