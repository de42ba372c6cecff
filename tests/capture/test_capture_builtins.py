"""Built-in functions and types compiled: the same results, laziness and complaints as plainly."""

import collections.abc
import inspect
import keyword
import math
import operator
import typing

import pytest
import torch
import torch.utils._pytree
from programs import agree_by_repr as agree
from programs import complaints
from torch.fx.experimental.symbolic_shapes import guard_int, guard_or_false, statically_known_true, sym_eq, sym_or

import bothways

X = torch.arange(3.0)
WORDS = ("is", "as", "if", "is")
IN_WORDS, STARTS = frozenset(WORDS).__contains__, "is".startswith


class Money:
    def __init__(self, amount):
        self.amount = amount

    def __lt__(self, other):
        return self.amount < other.amount

    def __gt__(self, other):
        return self.amount > other.amount

    def __add__(self, other):
        return Money(self.amount + other.amount)

    def __radd__(self, other):
        return Money(self.amount + other)

    def __len__(self):
        return self.amount

    def __getitem__(self, index):
        if index >= self.amount:
            raise IndexError
        return index

    def __round__(self, digits=None):
        return f"about {self.amount}"

    def __int__(self):
        return self.amount

    def __index__(self):
        return self.amount

    def __format__(self, spec):
        return f"{self.amount}{spec}"

    def __repr__(self):
        return f"Money({self.amount})"


NUMBERS = [
    lambda: (abs(-3), round(2.567, 1), round(2.5), divmod(7, 2), pow(2, 3), pow(2, 5, 7), 7 // 2, -7 % 3),
    lambda: (int("3"), int("ff", 16), int(2.9), float("1.5"), complex(1, 2), bool([]), bytes([65]), str(1.5)),
    lambda: (
        chr(65),
        ord("A"),
        hex(255),
        bin(3),
        oct(8),
        ascii("é"),
        format(3.14159, ".2f"),
        hash("a") == hash("a"),
    ),
    lambda: (math.sqrt(4), math.floor(2.5), math.prod([1, 2, 3]), math.hypot(3, 4), math.gcd(4, 6), math.inf),
    lambda: (
        round(Money(3)),
        int(Money(3)),
        [1, 2, 3, 4][Money(2)],
        f"{Money(3):€}",
        len(Money(2)),
        list(range(Money(2))),
    ),
]


@pytest.mark.parametrize("program", NUMBERS)
def test_numbers_and_text(program):
    agree(program)


AGGREGATES = [
    lambda: (
        min(3, 1, 2),
        max([1, 5, 2]),
        max("a", "bb", key=len),
        min([], default=0),
        min((2, "b"), (2, "a")),
    ),
    lambda: (sum([1, 2]), sum([0.1] * 10), sum([[1], [2]], []), sum([Money(1), Money(2)]), sum([], 5)),
    lambda: (any([0, 1]), all([]), any([]), all([1, 0])),
    lambda: (
        sorted([3, 1, 2]),
        sorted("bca", reverse=True),
        sorted([Money(2), Money(1)]),
        max(Money(1), Money(2)),
    ),
    lambda: sorted([("b", 1), ("a", 1), ("c", 0)], key=lambda pair: pair[1]),
    lambda: sorted([("b", 1), ("a", 1), ("c", 0)], key=lambda pair: pair[1], reverse=True),
]


@pytest.mark.parametrize("program", AGGREGATES)
def test_aggregates(program):
    agree(program)


ITERATION = [
    lambda: (list(zip([1, 2], "ab")), list(zip()), list(zip([1], [2], strict=True))),
    lambda: (list(map(lambda a, b: a + b, [1, 2], [3, 4])), list(map(str, (1, 2)))),
    lambda: (list(filter(None, [0, 1, 2])), list(filter(lambda v: v > 1, [0, 1, 2]))),
    lambda: (list(enumerate("ab", 1)), list(range(1, 10, 3)), range(5)[1:3], 3 in range(5)),
    lambda: [list(reversed(s)) for s in ([1, 2], (1, 2), range(3), "abc", {"a": 1, "b": 2}, Money(3))],
    lambda: (
        next(iter([1])),
        next(iter([]), 9),
        list(iter([3, 2, 0, 5].pop, 0)),
        [*iter("ab")],
        list(Money(3)),
    ),
    lambda: (
        list("ab"),
        tuple([1]),
        set([1]),
        frozenset([2]),
        dict(a=1),
        dict([("b", 2)], c=3),
        dict(zip("xy", (1, 2))),
    ),
]


@pytest.mark.parametrize("program", ITERATION)
def test_iteration(program):
    agree(program)


def test_iterators_take_no_more_than_python_does():
    def f():
        taken = []

        def source():
            for number in range(10):
                taken.append(number)
                yield number

        numbers = source()
        lazy = map(lambda v: v * 2, filter(lambda v: v % 2, numbers))
        first = next(lazy)
        pairs = list(zip("ab", numbers))
        return first, pairs, any(v > 6 for v in numbers), taken

    agree(f)


def test_sum_adds_while_it_iterates():
    def f(x):
        def growing():
            for _ in range(3):
                x.add_(1)
                yield x

        return sum(growing())

    compiled = bothways.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), f(torch.zeros(2)))


def test_iterators_leave_the_function_where_they_are():
    def f(l):
        a, b, c, d, e, g = iter(l), zip(l, "abc"), enumerate(l), iter(range(5)), iter("abc"), reversed(l)
        for iterator in (a, b, c, d, e, g):
            next(iterator)
        return a, b, c, d, e, g, map(str, l), iter(())

    plain, compiled = f([1, 2, 3]), bothways.compile(f, backend="eager", fullgraph=True)([1, 2, 3])
    assert [(type(it), list(it)) for it in compiled] == [(type(it), list(it)) for it in plain]


def test_an_iterator_that_left_still_sees_its_list():
    numbers = [1, 2]
    iterator = bothways.compile(lambda l: iter(l), backend="eager", fullgraph=True)(numbers)
    next(iterator)
    numbers.append(3)
    assert list(iterator) == [2, 3]


CLASSES = [
    lambda: (
        isinstance(1, int),
        isinstance(True, (str, (float, int))),
        isinstance("a", int | str),
        issubclass(bool, int),
    ),
    lambda: (type(1), type([]) is list, type(Money(1)).__name__, isinstance(Money(1), Money), type(None)),
    lambda: (
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping),
        isinstance([], typing.Hashable),
    ),
    lambda: (callable(len), callable(Money), callable(Money(1)), callable(lambda: 0)),
    lambda: (
        hasattr([], "append"),
        hasattr([], "zz"),
        getattr([], "zz", 3),
        getattr(Money(4), "amount"),
        list(vars(Money(5))),
    ),
]


@pytest.mark.parametrize("program", CLASSES)
def test_classes_and_attributes(program):
    agree(program)


def test_attributes_are_set_and_deleted():
    def f(m):
        setattr(m, "extra", [1])
        setattr(m, "amount", 7)
        delattr(m, "gone")
        return hasattr(m, "gone"), m.extra

    for function in (f, bothways.compile(f, backend="eager", fullgraph=True)):
        money = Money(1)
        money.gone = 1
        assert function(money) == (False, [1])
        assert vars(money) == {"amount": 7, "extra": [1]}


def test_methods_taken_from_their_types():
    def f():
        l, append = [], list.append
        append(l, 1)
        bound = l.append
        bound(2)
        return (
            l,
            str.upper("a"),
            str.join("-", ["a", "b"]),
            dict.get({"a": 1}, "a"),
            int.__add__(1, 2),
            bound.__self__ is l,
        )

    agree(f)


OPERATORS = [
    lambda: (operator.add(1, 2), operator.mul([1], 2), operator.lt(1, 2), operator.neg(3), operator.not_(0)),
    lambda: (
        operator.contains([1], 1),
        operator.getitem({"a": 1}, "a"),
        operator.is_(None, None),
        operator.index(3),
    ),
    lambda: (
        operator.iadd([1], [2]),
        operator.concat([1], [2]),
        operator.truth([]),
        operator.countOf([1, 1], 1),
    ),
    lambda: (
        operator.indexOf([1, 2], 2),
        operator.length_hint([1]),
        operator.itemgetter(1)([1, 2]),
        operator.pow(2, 3),
    ),
    lambda: (operator.itemgetter(0, "a")({0: 1, "a": 2}), operator.attrgetter("real", "imag")(3)),
    lambda: (operator.attrgetter("amount.real")(Money(3)), operator.methodcaller("index", 2)([1, 2])),
]


@pytest.mark.parametrize("program", OPERATORS)
def test_operator_functions(program):
    agree(program)


FORMATS = [
    lambda m, l: ("%s %d" % (m, 3), "%s" % l, "%(a)s" % {"a": m}, "%r" % m, "%d" % m, "%s %s" % (1, l)),
    lambda m, l: (
        "{} {!r:>9}".format(m, m),
        "{0.amount}".format(m),
        "{a[0]}".format(a=l),
        "{a}".format_map({"a": m}),
    ),
    lambda m, l: (f"{m} {m!r} {m:>} {l} {l!r:>8}", str([m]), repr({"a": (m,)}), "{}".format((m, 1))),
]


@pytest.mark.parametrize("program", FORMATS)
def test_text_of_objects(program):
    agree(program, Money(3), [1, 2])


def test_tensors_pass_through():
    def f(x):
        return (
            abs(x - 2),
            pow(x, 2),
            sum([x, x]),
            sum((x,), x),
            operator.add(x, 1),
            list(map(torch.neg, [x])),
            len(x),
        )

    agree(f, X)


def test_complaints_are_python_s_own():
    def f():
        return complaints(
            [
                lambda: len(3),
                lambda: len(),
                lambda: max([]),
                lambda: max(),
                lambda: max(1, 2, default=3),
                lambda: sum("ab"),
                lambda: sum(["a"]),
                lambda: sum([], ""),
                lambda: sorted([1, "a"]),
                lambda: sorted([1], 2),
                lambda: next(3),
                lambda: next(iter([])),
                lambda: iter(3),
                lambda: isinstance(1, 3),
                lambda: issubclass(1, int),
                lambda: getattr([], "zz"),
                lambda: getattr([], 3),
                lambda: int("x"),
                lambda: float("x"),
                lambda: range("a"),
                lambda: range(1, 2, 0),
                lambda: list(zip([1], [1, 2], strict=True)),
                lambda: list(zip([1, 2], [1], strict=True)),
                lambda: list(zip([1], [1], [], strict=True)),
                lambda: zip(1),
                lambda: map(len),
                lambda: list.append(3, 1),
                lambda: list.append(),
                lambda: str.join(1, 2),
                lambda: abs("a"),
                lambda: abs([]),
                lambda: round("a"),
                lambda: divmod(1, 0),
                lambda: divmod([], 1),
                lambda: chr(-1),
                lambda: math.sqrt(-1),
                lambda: reversed(3),
                lambda: reversed({1}),
                lambda: hash([]),
                lambda: tuple(1, 2),
                lambda: set(3),
                lambda: dict(1, 2),
                lambda: operator.add(1),
                lambda: operator.indexOf([], 1),
                lambda: slice(),
            ]
        )

    agree(f)


@pytest.mark.parametrize(
    "call", [lambda x: print(x), lambda x: id(x + 1), lambda x: math.sqrt(x), lambda x: globals()]
)
def test_what_reaches_outside_stops_the_capture(call):
    def f(x):
        return call(x)

    with pytest.raises(bothways.errors.Unsupported, match="call_unknown"):
        bothways.compile(f, backend="eager", fullgraph=True)(torch.ones(1))


class Family:
    pass


class Child(Family):
    pass


def test_where_an_object_lies():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.ones(2), torch.zeros(2)

        def forward(self, x, wanted):
            known = {id(self): 1, id(self.first): 2, id(Family): 3}
            return x * known.get(wanted, 0)

    model = Model()
    compiled = bothways.compile(model, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for wanted, factor in ((model, 1), (model.first, 2), (model.second, 0), (Family, 3), (model, 1)):
        assert compiled(x, id(wanted)).tolist() == [factor, factor]
    model.first, model.second = model.second, model.first
    assert compiled(x, id(model.first)).tolist() == [2, 2]
    assert compiled(x, id(model.second)).tolist() == [0, 0]


def test_the_subclasses_of_a_class_may_become_more():
    def function(x):
        return x + len(Family.__subclasses__()), Family.__subclasses__()[0]

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.zeros(1)
    assert compiled(x) == function(x) == (torch.ones(1), Child)
    another = type("Another", (Family,), {})
    assert compiled(x)[0].item() == 2 and another in Family.__subclasses__()


def test_the_text_of_a_function():
    def one():
        pass

    def two():
        pass

    compiled = bothways.compile(lambda f, x: (x + 1, str(f), f"{f!r}"), backend="eager", fullgraph=True)
    for function in (one, two, one):
        assert compiled(function, torch.zeros(1))[1:] == (str(function), repr(function))


def test_arguments_are_bound_to_a_signature():
    def inner(a, b, *rest, c=10, d=11, **named):
        pass

    def function(x, apply_defaults):
        signature = inspect.signature(inner)
        bound = signature.bind(1, x, 3, d=12, e=15)
        bound.arguments["d"] = 13
        if apply_defaults:
            bound.apply_defaults()
        return bound.args, bound.kwargs, bound.arguments, x + 1

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for apply_defaults in (True, False):
        torch.testing.assert_close(compiled(x, apply_defaults), function(x, apply_defaults))


def test_descriptors_are_read_by_hand():
    def function(x, descriptor):
        return descriptor.__get__(x), torch.Tensor.ndim.__get__(x)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(2, 3)
    for descriptor in (torch.Tensor.shape, torch.Tensor.dtype, torch.Tensor.shape):
        assert compiled(x, descriptor) == function(x, descriptor)


def test_methods_that_are_bound_to_constants():
    def function(x, word):
        return x + keyword.iskeyword(word), STARTS("s", 1), WORDS.index(word), IN_WORDS(word)

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for word in ("is", "if", "as", "is"):
        torch.testing.assert_close(compiled(x, word), function(x, word))


def test_questions_about_sizes():
    def function(x):
        if guard_or_false(x.size(0) == 3) or sym_or(x.size(0) == 4, x.size(0) > 6):
            return x + guard_int(x.size(1))
        return x - int(statically_known_true(sym_eq(x.shape[1:], (2,))))

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for size in (3, 5, 4, 8, 3):
        torch.testing.assert_close(compiled(torch.ones(size, 2)), function(torch.ones(size, 2)))


def test_torch_asserts():
    def function(x, size):
        torch._assert(x.shape[0] == size, f"shape {x.shape}")
        return x + 1

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2), 2).tolist() == [2, 2]
    with pytest.raises(AssertionError, match="shape"):
        compiled(torch.ones(2), 3)


def test_structured_results_are_made_and_taken_apart():
    def function(x):
        result = torch.max(x, 0)
        again = torch.return_types.max([value + 1 for value in result])
        doubled = torch.utils._pytree.tree_map(lambda value: value * 2, result)
        return again, again.values, again.indices, type(result)(tuple(result)), doubled

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.randn(3, 2)
    for mine, other in zip(compiled(x), function(x), strict=True):
        assert type(mine) is type(other)
        torch.testing.assert_close(tuple(mine), tuple(other))
