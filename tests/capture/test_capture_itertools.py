"""Standard-library functions written in C, compiled: itertools, functools, copy, bisect, heapq."""

import bisect
import collections
import copy
import functools
import heapq
import itertools
import operator
import sys

import pytest
import torch
from programs import agree_by_repr as agree

import bothways

X = torch.arange(3.0)


ITERTOOLS = [
    lambda: [*itertools.accumulate([1, 2, 3]), *itertools.accumulate([1, 2], operator.mul, initial=5)],
    lambda: [*itertools.chain([1], "a"), *itertools.chain.from_iterable([[1], [2]]), *itertools.chain()],
    lambda: list(itertools.compress("abc", [1, 0, 1])),
    lambda: list(itertools.islice(itertools.count(3, 2), 3)),
    lambda: list(itertools.islice(itertools.cycle("ab"), 5)),
    lambda: [
        *itertools.dropwhile(lambda v: v < 2, [1, 2, 1]),
        *itertools.takewhile(lambda v: v < 2, [1, 2, 1]),
    ],
    lambda: [*itertools.filterfalse(None, [0, 1]), *itertools.filterfalse(lambda v: v, [0, 1])],
    lambda: [(key, list(group)) for key, group in itertools.groupby("aabca")],
    lambda: [(key, list(group)) for key, group in itertools.groupby([1, 3, 2, 4], key=lambda v: v % 2)],
    lambda: [key for key, _ in itertools.groupby([1, 1, 2])],
    lambda: [
        list(itertools.islice("abcdef", *bounds)) for bounds in ((2,), (1, None), (1, 5, 2), (None,), (0,))
    ],
    lambda: [*itertools.pairwise([1, 2, 3]), *itertools.repeat("r", 2), *itertools.starmap(pow, [(2, 3)])],
    lambda: [*itertools.zip_longest([1], [1, 2], fillvalue="z"), *itertools.zip_longest()],
    lambda: [list(itertools.product(*pools)) for pools in (("ab", [1, 2]), (), ([1], []))],
    lambda: list(itertools.product([0, 1], repeat=3)),
    lambda: [list(itertools.permutations([1, 2, 3], r)) for r in (None, 0, 2, 4)],
    lambda: [list(itertools.combinations("abcd", r)) for r in (0, 2, 4, 5)],
    lambda: [list(itertools.combinations_with_replacement("abc", r)) for r in (0, 2)],
]


@pytest.mark.parametrize("program", ITERTOOLS)
def test_itertools(program):
    agree(program)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in Python 3.12")
def test_batched():
    agree(lambda: list(itertools.batched("abcde", 2)))


def test_the_branches_of_tee_share_their_source():
    def f():
        a, b = itertools.tee(iter([1, 2, 3]))
        taken = [next(a), next(a), next(b)]
        return taken, list(a), list(b)

    agree(f)


def test_a_slice_of_an_iterator_takes_its_whole_window():
    def f():
        numbers = iter(range(10))
        return list(itertools.islice(numbers, 0, 4, 3)), next(numbers)

    agree(f)


def test_a_group_ends_when_the_next_is_asked_for():
    def f():
        groups = itertools.groupby("aabb")
        (first_key, first), (second_key, second) = next(groups), next(groups)
        return first_key, list(first), second_key, list(second)

    agree(f)


def test_loops_over_itertools_build_one_graph():
    def f(x):
        for scale, shift in itertools.product([1, 2], [10, 20]):
            x = x * scale + shift
        return functools.reduce(operator.add, itertools.repeat(x, 3))

    agree(f, X)


def test_reduce_and_orders_of_one_s_own():
    def f(x):
        largest_first = sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))
        return (
            functools.reduce(lambda a, b: a + b, [x, x], x),
            functools.reduce(max, [1, 3, 2]),
            largest_first,
        )

    agree(f, X)


def test_counters():
    def f():
        counts = collections.Counter("abca")
        counts.update("bb")
        return counts, counts.most_common(1), counts["z"], sorted(counts.elements())

    agree(f)


def test_sorted_lists_and_heaps():
    def f():
        numbers, heap = [1, 2, 4], [5, 1, 4, 2]
        bisect.insort(numbers, 3)
        heapq.heapify(heap)
        heapq.heappush(heap, 0)
        popped = heapq.heappop(heap), heapq.heappushpop(heap, 9), heapq.heapreplace(heap, 7)
        places = (
            bisect.bisect(numbers, 2),
            bisect.bisect_left(numbers, 2),
            bisect.bisect([1, 2], 1, key=lambda v: -v),
        )
        return numbers, heap, popped, places, heapq.nlargest(2, [1, 5, 3]), heapq.nsmallest(2, [1, 5, 3])

    agree(f)


class Settings:
    def __init__(self):
        self.names = ["a"]
        self.size = 2


class Copied:
    def __copy__(self):
        return "a copy"


def test_copies_are_shallow_or_deep():
    def f(settings):
        shallow, deep = copy.copy(settings), copy.deepcopy(settings)
        shallow.size = 3
        deep.names.append("b")
        return shallow, deep

    settings = Settings()
    shallow, deep = bothways.compile(f, backend="eager", fullgraph=True)(settings)
    assert type(shallow) is Settings and shallow.names is settings.names and shallow.size == 3
    assert deep.names == ["a", "b"] and settings.names == ["a"] and settings.size == 2


def test_copies_of_everything_else():
    def f():
        shared = [1]
        pair = copy.deepcopy([shared, shared, (2, [3])])
        return (
            copy.copy(Copied()),
            copy.copy([1]),
            copy.copy((1,)),
            copy.copy({"a": 1}),
            pair,
            pair[0] is pair[1],
        )

    agree(f)


def test_complaints_are_python_s_own():
    def f():
        raised = []
        for action in (
            lambda: functools.reduce(operator.add, []),
            lambda: itertools.islice([], -1),
            lambda: itertools.islice([1], 1, 2, 0),
            lambda: itertools.combinations("a", -1),
            lambda: itertools.product([1], repeat=-1),
            lambda: itertools.zip_longest(3),
            lambda: itertools.accumulate(3),
            lambda: list(itertools.chain(3)),
            lambda: itertools.tee([], -1),
            lambda: operator.itemgetter(5)([1]),
            lambda: operator.attrgetter(3),
            lambda: heapq.heappop([]),
        ):
            try:
                raised.append(action())
            except Exception as error:
                raised.append((type(error).__name__, str(error)))
        return raised

    agree(f)


def test_every_iterator_of_itertools_has_a_stand_in():
    from bothways.capture import standins

    public = [getattr(itertools, name) for name in dir(itertools) if not name.startswith("_")]
    assert [item for item in public if callable(item) and standins.find(item) is None] == []


def listed(value):
    """What is left of iterators, up to some elements, and everything else as it is."""
    if isinstance(value, (tuple, list)):
        return [listed(item) for item in value]
    if hasattr(value, "__next__"):
        return [type(value), *(listed(item) for item in itertools.islice(value, 6))]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def leaves(function, *args, fullgraph=True):
    """The iterators that a function returns go on as those of plain Python do."""
    compiled = bothways.compile(function, backend="eager", fullgraph=fullgraph)
    for _ in range(2):
        assert listed(compiled(*args)) == listed(function(*args))


def test_untouched_iterators_leave_the_function():
    def function(x):
        return (
            itertools.compress("ABCDEF", [1, 0, 1, 0, 1, 1]), itertools.chain([1], [x]), itertools.count(x, 2),
            itertools.islice(itertools.count(), 2, 9, 3), itertools.accumulate([1, 2, 3]), itertools.cycle([1, x]),
            itertools.takewhile(lambda v: v < 3, [1, 2, 3]), itertools.dropwhile(lambda v: v < 2, [1, 2, 3]),
            itertools.starmap(lambda a, b: a + b, [(1, 2), (x, 3)]), itertools.pairwise([1, 2, 3]),
            itertools.repeat(x), itertools.repeat(7, 2),
        )  # fmt: skip

    leaves(function, torch.ones(2))


def test_iterators_leave_the_function_where_they_stand():
    def function(x):
        ones, numbers, sevens = itertools.repeat(1), itertools.count(2), itertools.repeat(7, 5)
        even, small = itertools.filterfalse(lambda v: v % 2, [1, 2, 3, 4, 6]), itertools.takewhile(bool, [3, 2, 0, 1])
        chosen = itertools.compress([x, x + 1, x + 2], [1, 1, 1])
        for _ in range(2):
            x = x + next(ones) + next(numbers) + next(sevens)
        return x, next(even), next(small), next(chosen), ones, numbers, sevens, even, small, chosen

    leaves(function, torch.ones(2))


def test_iterators_with_a_state_of_their_own_leave_where_they_stand():
    def function(x):
        numbers = [1, 2, 3, 4, 5, 6, 7]
        made = [
            itertools.chain([1, 2], [x], "ab"), itertools.accumulate(numbers), itertools.accumulate([None, 1], max_of),
            itertools.dropwhile(lambda v: v < 3, numbers), itertools.islice(numbers, 1, 6, 2),
            itertools.islice(iter(numbers), 2), itertools.islice(numbers, 1, None, 3), itertools.pairwise(numbers),
            itertools.zip_longest([1, 2, 3], [x], fillvalue="none"), itertools.cycle([1, x, 3]),
            itertools.product([1, 2], "ab", [x]), itertools.permutations([1, 2, 3], 2), itertools.cycle([1, 2]),
            itertools.combinations("abcd", 2), itertools.combinations_with_replacement([1, 2, 3], 2), iter(ByIndex()),
        ]  # fmt: skip
        taken = [next(each) for each in made]
        return x + 1, taken, [next(each) for each in made[:2]], [next(made[12]), next(made[12])], *made

    leaves(function, torch.ones(2))


class ByIndex:
    def __getitem__(self, index):
        return range(10, 14)[index]


def test_branches_of_tee_that_were_begun_are_made_by_plain_python():
    def function(x):
        one, other = itertools.tee([x, 2, 3])
        return x + next(one), one, other

    leaves(function, torch.ones(2), fullgraph=False)


def max_of(a, b):
    return a if b is None else b


def test_a_slice_that_leaves_takes_its_whole_window():
    def function(x):
        numbers = iter(range(10))
        part = itertools.islice(numbers, 0, 5, 3)
        return x + next(part), part, numbers

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for run in (function, compiled, compiled):
        _, part, numbers = run(torch.ones(2))
        assert list(part) == [3] and next(numbers) == 5


def test_groups_leave_where_they_stand():
    def function(x):
        groups = itertools.groupby([1, 1, 2, 2, 2, 3], lambda v: v)
        next(groups)
        key, group = next(groups)
        return x + next(group), group, groups

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for run in (function, compiled, compiled):
        _, group, groups = run(torch.ones(2))
        assert list(group) == [2, 2] and [(key, list(each)) for key, each in groups] == [(3, [3])]


class Keeping:
    """A class that copies what it holds in its own way."""

    def __init__(self, held):
        self.held = held

    def __deepcopy__(self, memo):
        return Keeping(copy.deepcopy(self.held, memo))


def test_what_is_met_twice_is_copied_once():
    def f(x):
        shared, names, frozen = [1], {2}, frozenset([Settings()])
        keeping = Keeping(shared)
        made = copy.deepcopy([keeping, keeping, Keeping(shared), shared, names, names, frozen, frozen])
        same = [made[0] is made[1], made[0].held is made[2].held, made[0].held is made[3], made[4] is made[5]]
        return x + 1, same, made[6] is made[7], made[6] is frozen, made[4] is names

    agree(f, X)


def test_a_memo_of_the_caller_s_is_read_and_filled():
    def f(x):
        numbers, memo = [1], {}
        first, second = copy.deepcopy(numbers, memo), copy.deepcopy(numbers, memo)
        return x + 1, first is second, len(memo)

    assert repr(bothways.compile(f, backend="eager")(X)) == repr(f(X))
