"""What Python says of operands that do not fit, and of formats that a kind does not have: the same type and words."""

import functools
from collections import defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
from agreeing import agree

Point = namedtuple("Point", "x y")


class Unknown:
    """Declines to be added and multiplied."""

    def __radd__(self, other):
        return NotImplemented

    __rmul__ = __radd__


class Whole:
    def __int__(self):
        return 7


def unpacked(n):
    first, _ = n
    return first


def added_in_place(n):
    n += None
    return n


def to_the_power_in_place(n):
    n **= None
    return n


def a_field_set(n):
    n = Point(n, 2)
    n.x = 1


# The name of a class that is written in C has its module in it, where Python itself says it.
COMPLAINTS = {
    "partial": lambda n: functools.partial(n, 1).func,
    "partial of nothing": lambda n: functools.partial(),
    "a list's index": lambda n: [1][n],
    "a tuple's index": lambda n: (1,)[n],
    "a bound of a slice": lambda n: [1, 2][n:],
    "a bound of a tensor's slice": lambda n: torch.ones(2)[:n],
    "added to a list": lambda n: [1] + n,
    "added to a tuple": lambda n: (1,) + n,
    "added to a text": lambda n: "a" + n,
    "added to a deque": lambda n: deque([1]) + n,
    "times a list": lambda n: [1] * n,
    "a list times it": lambda n: n * [1],
    "times a text": lambda n: "a" * n,
    "divmod": lambda n: divmod(n, 1),
    "round": lambda n: round(n),
    "reversed": lambda n: list(reversed(n)),
    "getattr": lambda n: getattr(n, n),
    "list.append": lambda n: list.append(n, 1),
    "given as arguments": lambda n: max(*n, 1),
    "given as keywords": lambda n: dict(**n),
    "in a list": lambda n: [*n],
    "unpacked": unpacked,
    "an attribute of its class": lambda n: type(n).absent,
    "in place": added_in_place,
    "to the power, in place": to_the_power_in_place,
    "a field of a named tuple": a_field_set,
    "to the power": lambda n: n**1,
    "sorted": lambda n: sorted([n, 1]),
    "%d": lambda n: "%d" % (n,),
    "a format": lambda n: f"{n:>8}",
    "a format of a list": lambda n: f"{[n]:>8}",
    "format()": lambda n: "{:>8}".format((n,)),  # noqa: UP032
}
OPERANDS = {
    "deque": lambda: deque([1]),
    "defaultdict": lambda: defaultdict(int, {"a": 1}),
    "partial": lambda: functools.partial(len),
    "an object": Unknown,
    "another object": Whole,
    "a number of NumPy": lambda: np.float32(2),
    "None": lambda: None,
    "a number": lambda: 2,
}


def raised(function, make):
    try:
        return {"gives": function(torch.ones(1), make())}
    except Exception as error:
        return {"gives": (type(error).__name__, str(error))}


@pytest.mark.parametrize("ask", COMPLAINTS.values(), ids=COMPLAINTS)
def test_python_says_the_same_of_what_does_not_fit(ask):
    def caught(x, n):
        try:
            return x + 1, ask(n)
        except Exception as error:
            return x + 2, type(error).__name__, str(error)

    agree(caught, raised, *OPERANDS.values(), *OPERANDS.values())


SUMS = {
    "a list and it": lambda n: [1, 2] + n,
    "it and a tuple": lambda n: n + (1, 2),
    "sizes and it": lambda n: torch.ones(2, 3).shape + n,
    "deque": lambda n: deque([1]) + n,
    "from a list": lambda n: [1, 2] - n,
    "is it one": lambda n: [1, 2] == n,
    "is it less": lambda n: (1, 2) < n,
    "how often": lambda n: [1, 2] * n if isinstance(n, np.integer) else n,
}


@pytest.mark.parametrize("number", [np.float32(2), np.float64(1.5), np.int64(2), np.bool_(True)])
@pytest.mark.parametrize("combine", SUMS.values(), ids=SUMS)
def test_a_number_of_numpy_makes_arrays_of_sequences(combine, number):
    def program(x, n):
        total = combine(n)
        return x + 1, type(total).__name__, total

    agree(program, raised, lambda: number, lambda: number)
