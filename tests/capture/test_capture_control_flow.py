"""Loops, branches and ``match`` inside compiled functions: all of them are decided while capturing."""

import collections
import dataclasses
import enum

import pytest
import torch
from programs import agree

import bothways
from bothways.errors import Unsupported

X = torch.arange(4.0)


# Loops


def test_for_with_break_continue_and_else():
    def program(x, n):
        trail = []
        for i in range(n):
            if i == 1:
                continue
            if i == 4:
                trail.append("break")
                break
            x = x + i
            trail.append(i)
        else:
            trail.append("else")
        for _ in ():
            pass
        else:
            trail.append("empty")
        return x, trail, i

    agree(program, (X, 3), (X, 6), (X, 1))


def test_while_with_break_continue_and_else():
    def program(x, n):
        trail = []
        while n:
            n -= 1
            if n == 2:
                continue
            if n == 7:
                break
            trail.append(n)
        else:
            trail.append("else")
        while True:
            x = x * 2
            n += 1
            if n > 1:
                break
        return x + n, trail

    agree(program, (X, 4), (X, 9), (X, 0))


def test_nested_loops_and_early_return():
    def program(x, n):
        found = []
        for i in range(n):
            for j in range(i):
                if j == 2:
                    break
                if (i + j) % 3 == 2:
                    continue
                found.append((i, j))
            else:
                if i == 5:
                    return x * i, found
                continue
            found.append("broken")
        return x + n, found

    agree(program, (X, 4), (X, 7))


def test_loops_over_everything_that_iterates():
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    class Indexed:
        def __getitem__(self, index):
            if index == 3:
                raise IndexError(index)
            return index * 10

    def program(x, n):
        seen = []
        for iterable in (
            [1, n],
            (n,),
            "ab",
            b"ab",
            {"k": n},
            {"k": n}.items(),
            {n},
            range(n, 0, -1),
            zip("ab", range(n)),
            enumerate("ab", n),
            map(lambda v: v + n, [1, 2]),
            filter(None, [0, n]),
            reversed([1, n]),
            Countdown(n),
            Indexed(),
            iter([n]),
            (v for v in range(n)),
        ):
            for item in iterable:
                seen.append(item)
        for row in x:
            x = x + row
        return x, seen

    agree(program, (X, 3), (X, 2))


def test_a_list_may_grow_while_it_is_iterated():
    def program(x, n):
        values = [n]
        for value in values:
            if value > 0:
                values.append(value - 1)
        return x + len(values), values

    agree(program, (X, 3), (X, 5))


def test_what_goes_wrong_while_iterating_is_python_s_own():
    def program(x, n):
        texts = []
        mapping = {"a": 1}
        try:
            for key in mapping:
                mapping[key + "b"] = n
        except RuntimeError as error:
            texts.append(str(error))
        try:
            for _ in n:
                pass
        except TypeError as error:
            texts.append(str(error))
        try:
            for a, b in [(1, 2), (1, 2, 3)]:
                texts.append(a + b)
        except ValueError as error:
            texts.append(str(error))
        return x + n, texts

    agree(program, (X, 3), (X, 4))


# Branches


def test_branches_on_python_values():
    def program(x, n, flag, items, text, nothing):
        if n > 2:
            x = x + 1
        elif n == 2:
            x = x + 2
        else:
            x = x + 3
        if not flag:
            x = x * 2
        if items and not nothing:
            x = x - len(items)
        if text:
            x = x / 2
        if nothing is None:
            x = x + 10
        if x.shape[0] > 3 and x.dtype is torch.float32:
            x = x + 100
        return x

    agree(program, (X, 3, True, [1], "", None), (X, 2, False, [], "a", 0), (X[:2].double(), 1, 0, (), "b", None))


def test_a_branch_on_tensor_data_is_a_break():
    def program(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(Unsupported) as caught:
        bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert caught.value.break_.code == "tensor_branch"
    assert caught.value.break_.where.text == "if x.sum() > 0:"


def test_truth_follows_bool_and_len():
    class Truth:
        def __init__(self, value):
            self.value = value

        def __bool__(self):
            return self.value > 1

    class Sized:
        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

    def program(x, n):
        verdicts = []
        for it in (Truth(n), Sized(n - 1), Truth(0), object(), X is None, print, int):
            verdicts.append("yes" if it else "no")
            verdicts.append((it or "other") == "other")
            verdicts.append(bool(it) is (not (not it)))
        return x + n, verdicts

    agree(program, (X, 1), (X, 2))


# Match


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Named:
    __match_args__ = ("first", "second")

    def __init__(self, first, second):
        self.first = first
        if second is not None:
            self.second = second


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


Pair = collections.namedtuple("Pair", "left right")


def describe(subject):
    match subject:
        case None | True:
            return "singleton"
        case 0 | 1 as small:
            return "small", small
        case -3.5 | 2j:
            return "number"
        case "text" | b"bytes":
            return "literal"
        case Level.HIGH:
            return "value"
        case int(number) if number > 100:
            return "guard", number
        case bool() | float():
            return "type"
        case str(text):
            return "str", text
        case []:
            return "empty"
        case [one]:
            return "one", one
        case Pair(left=1, right=other):
            return "pair", other
        case ("go", direction, *rest):
            return "go", direction, rest
        case [first, *_, last] if first == last:
            return "ends", first
        case [[a, b], *_]:
            return "nested", a, b
        case (1, _) | (_, 1):
            return "either"
        case list() | tuple():
            return "sequence"
        case {"kind": "circle", "radius": radius}:
            return "circle", radius
        case {"kind": kind, **rest} if rest:
            return "kind", kind, rest
        case {1: _, Level.LOW: low}:
            return "keys", low
        case {}:
            return "mapping"
        case Point(0, 0):
            return "origin"
        case Point(x=0, y=y):
            return "on the axis", y
        case Point(x, y):
            return "point", x, y
        case Named(first, second):
            return "named", first, second
        case Named(first=("a" | "b") as first):
            return "named without second", first
        case _:
            return "anything"


SUBJECTS = [
    [None, True, False, 0, 1],
    [2, 500, -3.5, 2.5, 2j],
    ["text", b"bytes", "other", b"other", Level.HIGH, Level.LOW],
    [[], [5], (), (5,), range(2)],
    [["go", "up"], ("go", "up", 1, 2), [1, 2, 1], [[1, 2], 3]],
    [(1, 7), (7, 1), (7, 7, 8), Pair(1, 2), Pair(2, 3)],
    [{"kind": "circle", "radius": 2}, {"kind": "circle"}, {"kind": "square", "side": 1}, {}, {1: 2, Level.LOW: 3}],
    [Point(0, 0), Point(0, 3), Point(1, 2), Named("a", "b"), Named("a", None), Named("c", None)],
    [collections.deque([5]), collections.OrderedDict(kind="x", more=1), collections.defaultdict(int), ..., {5}],
]


@pytest.mark.parametrize("subjects", SUBJECTS, ids=lambda subjects: type(subjects[0]).__name__)
def test_match_from_outside(subjects):
    def program(x, subject):
        return x + 1, describe(subject)

    first, *others = subjects
    agree(program, (X, first), *[(X, other) for other in others])


def test_match_of_what_is_made_inside():
    def program(x, n):
        made = [Point(n, 0), Point(0, n), (n, "go"), ("go", n), {"kind": n, "b": 1}, Pair(1, n), Named(n, 2), f"{n}"]
        return x + n, [describe(subject) for subject in made]

    agree(program, (X, 3), (X, 0))


def test_match_of_tensors_and_shapes():
    def program(x, y):
        match x, y.shape:
            case torch.Tensor() as a, (rows, columns):
                return a + rows * columns
            case torch.Tensor(), (size,):
                return y * size

    agree(program, (X, X), (X, torch.ones(2, 3)))


def test_match_mistakes_raise_type_errors():
    def program(x, n):
        texts = []
        try:
            match Point(1, n):
                case Point(1, 2, 3):
                    pass
        except TypeError as error:
            texts.append(str(error))
        try:
            match Point(1, n):
                case Point(1, x=1):
                    pass
        except TypeError as error:
            texts.append(str(error))
        try:
            match n:
                case int(3, 4):
                    pass
        except TypeError as error:
            texts.append(str(error))
        return x + n, texts

    agree(program, (X, 3), (X, 4))


def test_match_binds_names_and_falls_through():
    def program(x, values):
        total = 0
        for value in values:
            match value:
                case [a, b]:
                    total += a * b
                case {"n": a}:
                    total += a
                case a:
                    total += 1000
        return x + total, a

    agree(program, (X, [[1, 2], {"n": 5}, 3]), (X, [[1, 2], {"n": 6}]), (X, [{"m": 1}]))
