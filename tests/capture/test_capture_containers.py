"""Lists, tuples, dictionaries, sets and deques in compiled functions: made, read, changed, returned, guarded.

``agree`` runs a program plainly and compiled on equal arguments and compares results and arguments by their
reprs, which show types, order and content; the second compiled call has to find the first one's program.
"""

import copy
import enum
import typing
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from types import MappingProxyType

import pytest
import torch
from agreeing import agree, assert_same
from programs import complaints

import bothways

X = torch.arange(3.0)


def captures(compiled):
    return len(bothways.history(compiled))


def reprs_agree(program, *args):
    return agree(program, results_and_arguments, args, args, programs=1, fullgraph=True)


def results_and_arguments(function, args):
    args = copy.deepcopy(args)
    return {"result": repr(function(*args)), "arguments afterwards": repr(args)}


def reprs_agree_again(compiled, program, *args):
    assert_same(results_and_arguments(program, args), results_and_arguments(compiled, args), "another call")


# Lists


@pytest.mark.parametrize(
    "program",
    [
        lambda l: (l[0], l[-1], l[1:], l[::-1], len(l), bool(l), 2 in l),
        lambda l: l + [l.index(2), l.count(1)],
        lambda l: (l * 2, 2 * l, l == [3, 1, 2], l < [3, 2], l != l[:]),
        lambda l: [l.pop(), l.pop(0), l],
        lambda l: [l.sort(), l],
        lambda l: [l.sort(key=lambda v: -v, reverse=True), l],
        lambda l: [l.insert(1, "x"), l.remove(1), l.reverse(), l],
        lambda l: [l.extend(range(2)), l.extend(l), l.copy() is l, l],
        lambda l: [l.clear(), l, not l],
        lambda l: (repr(l), str(l), f"{l}", f"{l!r:>12}"),
        lambda l: [v * 2 for v in l if v > 1],
    ],
)
def test_lists_work_as_in_python(program):
    reprs_agree(program, [3, 1, 2])


def test_subscripts_and_slices_are_assigned_and_deleted():
    def f(l):
        l[0] = "first"
        l[1:2] = [7, 8]
        l[::2] = "abc"
        del l[-1]
        del l[:1]
        l += (4,)
        l *= 2
        return l

    reprs_agree(f, [1, 2, 3, 4])


def test_a_list_that_grows_while_it_is_iterated():
    def f(l):
        for v in l:
            if v < 5:
                l.append(v + 3)
        return l

    reprs_agree(f, [1, 2])


def test_complaints_of_lists_are_python_s_own():
    def f(l):
        return complaints(
            [
                lambda: l[9],
                lambda: l["a"],
                lambda: l + 1,
                lambda: l * 1.5,
                lambda: l < 3,
                lambda: -l,
                lambda: {l: 1},
                lambda: l.append(),
                lambda: l.sort(1),
                lambda: l.pop(9),
                lambda: [].pop(),
                lambda: l.remove(9),
                lambda: l.index(9),
                lambda: l.__setitem__(9, 1),
                lambda: l.__setitem__(slice(0, 1), 3),
                lambda: l.__setitem__(slice(0, 3, 2), [1, 2, 3]),
                lambda: setattr(l, "a", 1),
                lambda: l.nothing,
            ]
        )

    reprs_agree(f, [3, 2, 1])


def test_the_argument_itself_is_changed_and_returned():
    def f(x, l):
        l.append(x + 1)
        return l

    argument = [1]
    result = bothways.compile(f, backend="eager", fullgraph=True)(X, argument)
    assert result is argument
    assert len(argument) == 2 and torch.equal(argument[1], X + 1)


def test_elements_are_assigned_and_appended_at_once():
    def f(x, l):
        l[0] = x
        l.append(x)

    compiled = reprs_agree(f, X, [1, 2, 3])
    reprs_agree_again(compiled, f, X, ["other"])
    assert captures(compiled) == 1


def test_elements_change_places_without_being_copied():
    def f(l):
        l[0], l[1] = l[1], l[0]

    first, second = object(), [1]
    argument = [first, second]
    bothways.compile(f, backend="eager", fullgraph=True)(argument)
    assert argument[0] is second and argument[1] is first


def test_one_list_by_two_names_is_one_list():
    def f(a, b):
        a.append(1)
        b.append(2)
        return a is b

    compiled = bothways.compile(f, backend="eager", fullgraph=True)
    same = []
    assert compiled(same, same) is True and same == [1, 2]
    left, right = [], []
    assert compiled(left, right) is False and (left, right) == ([1], [2])


def test_an_alias_seen_at_capture_is_not_assumed_later():
    def f(a, l):
        a.append(1)
        return l[0]

    compiled = bothways.compile(f, backend="eager", fullgraph=True)
    shared = []
    assert compiled(shared, [shared]) is shared
    other = ["other"]
    assert compiled([], [other]) is other


def test_what_is_returned_twice_is_one_object():
    def f(x):
        inner = [x]
        return inner, {"again": inner}

    one, other = bothways.compile(f, backend="eager", fullgraph=True)(X)
    assert one is other["again"] and one[0] is X


def test_containers_that_contain_themselves():
    def f():
        l, d = [1], {}
        l.append(l)
        d["self"] = d
        return l, d, repr(l), repr(d)

    l, d, l_text, d_text = bothways.compile(f, backend="eager", fullgraph=True)()
    assert l[1] is l and d["self"] is d
    assert (l_text, d_text) == ("[1, [...]]", "{'self': {...}}")


# Tuples, sizes, slices

Point = namedtuple("Point", "x y")


class Named(typing.NamedTuple):
    x: int
    y: int = 2

    def total(self):
        return self.x + self.y

    def __add__(self, other):
        return "added"


@pytest.mark.parametrize(
    "program, argument",
    [
        (lambda t: (t[0], t[::-1], t + (4,), t * 2, t.index(2), t.count(1), hash(t)), (1, 2, 3)),
        (lambda t: (t < (1, 3), t == (1, 2, 3), (1,) < (1, 0), repr(t), repr(t[:1])), (1, 2, 3)),
        (lambda t: [*t, *(t if t else ())], (1, 2)),
        (lambda p: (p.x, p[1], p._replace(x=5), p._asdict(), p._fields, p + (1,), p == (1, 2)), Point(1, 2)),
        (lambda p: (repr(p), Point(y=1, x=2), Point._make([3, 4]), type(p) is Point), Point(1, 2)),
        (lambda n: (n.total(), n + n, Named(3), n._replace(y=9)), Named(1)),
        (lambda s: (s.start, s.stop, s.step, s.indices(5), repr(s), [1, 2, 3, 4][s]), slice(1, 3)),
    ],
)
def test_tuples_and_slices_work_as_in_python(program, argument):
    reprs_agree(program, argument)


def test_a_shape_is_a_size():
    def f(x):
        s = x.shape
        return s, s[0], s[:1], s + (1,), (1,) + s, s * 2, s.numel(), s == (2, 3), repr(s), tuple(s), list(s)

    reprs_agree(f, torch.zeros(2, 3))


def test_structured_results_keep_their_names():
    def f(x):
        found = x.max(dim=0)
        return found.values, found[1], tuple(found), found

    compiled = bothways.compile(f, backend="eager", fullgraph=True)
    result = compiled(torch.eye(2))[3]
    assert type(result) is torch.return_types.max
    assert torch.equal(result.values, torch.ones(2))


def test_complaints_of_tuples_are_python_s_own():
    def f(t):
        return complaints(
            [
                lambda: t[9],
                lambda: t["a"],
                lambda: t.index(9),
                lambda: t + [1],
                lambda: t.__setitem__,
                lambda: {(1, []): 1},
            ]
        )

    reprs_agree(f, (1, 2))


# Dictionaries


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    "program",
    [
        lambda d: (d["a"], d.get("z"), d.get("z", 5), "a" in d, len(d), bool(d), list(d)),
        lambda d: [d.pop("a"), d.pop("z", 0), d.setdefault("b", 9), d.setdefault("c", 9), d],
        lambda d: [d.update({"b": 5}, z=6), d.update([("q", 1)]), d.popitem(), d],
        lambda d: (d | {"b": 9}, {**d, "x": 1}, d == {"b": 2, "a": 1}, dict(d, e=1), d.copy() is d),
        lambda d: (list(d.items()), list(d.values()), list(reversed(d)), repr(d.keys()), str(d.items())),
        lambda d: (d.keys() & {"a"}, sorted(d.keys() | "q"), d.items() - {("a", 1)}, d.keys() == {"a", "b"}),
        lambda d: (
            ("a", 1) in d.items(),
            2 in d.values(),
            d.keys().isdisjoint("q"),
            d.keys() <= {"a", "b", "c"},
        ),
        lambda d: ({"a"} < d.keys(), {"a", "b"} == d.keys(), {"c"} | d.keys() == {"a", "b", "c"}),
        lambda d: ({k: v + 1 for k, v in d.items()}, dict.fromkeys("xy", 0), repr(d), d.keys().mapping["a"]),
        lambda d: [d.clear(), d.__setitem__("n", 1), d],
    ],
)
def test_dictionaries_work_as_in_python(program):
    reprs_agree(program, {"a": 1, "b": 2})


def test_the_order_of_keys_follows_what_happened_to_them():
    def f(d):
        value = d.pop("a")
        d["a"] = value
        d["new"] = 0
        d["b"] = 5
        return list(d)

    compiled = reprs_agree(f, {"a": 1, "b": 2})
    reprs_agree_again(compiled, f, {"b": 2, "a": 1})
    reprs_agree_again(compiled, f, {"new": 1, "a": 1, "c": 0})


def test_complaints_of_dictionaries_are_python_s_own():
    def f(d):
        return complaints(
            [
                lambda: d["z"],
                lambda: d.pop("z"),
                lambda: {}.popitem(),
                lambda: d[[]],
                lambda: [d.pop(k) for k in list(d) if d.pop(k)],
                lambda: [d.update({k + k: 1}) for k in d],
                lambda: d | 3,
                lambda: d < d,
                lambda: dict(3),
                lambda: dict([1]),
                lambda: dict([(1, 2, 3)]),
                lambda: hash(d),
            ]
        )

    reprs_agree(f, {"a": 1, "b": 2})


def test_keys_of_every_kind():
    table = {Color.RED: 1, torch.float32: 2, int: 3, (1, "a"): 4, None: 5, 1.5: 6, True: 7, len: 8}

    def f(d):
        return (
            d[Color.RED],
            Color.BLUE in d,
            d[torch.float32],
            d[int],
            d[1, "a"],
            d[None],
            d[1.5],
            d[1],
            d[len],
            len(d),
        )

    compiled = bothways.compile(f, backend="eager", fullgraph=True)
    assert compiled(table) == f(table) == (1, False, 2, 3, 4, 5, 6, 7, 8, 8)


def test_a_default_dictionary_makes_what_is_missing():
    def f(d):
        d["x"].append(1)
        d["y"].append(2)
        return "z" in d, d.get("z"), len(d)

    compiled = reprs_agree(f, defaultdict(list, x=[0]))
    reprs_agree_again(compiled, f, defaultdict(list))
    reprs_agree_again(compiled, f, defaultdict(list, y=[5]))


def test_checking_the_guards_adds_nothing_to_a_default_dictionary():
    compiled = bothways.compile(lambda d: d["x"] + 1, backend="eager", fullgraph=True)
    assert compiled(defaultdict(int, x=1)) == 2
    empty = defaultdict(list)
    with pytest.raises(TypeError):
        compiled(empty)
    assert list(empty) == ["x"]  # put there by the program, once


def test_ordered_dictionaries():
    def f(d):
        d.move_to_end("a")
        d.move_to_end("c", last=False)
        first = d.popitem(last=False)
        return first, d == OrderedDict(b=2, a=1), d == OrderedDict(a=1, b=2), repr(d)

    reprs_agree(f, OrderedDict(a=1, b=2, c=3))


def test_views_stay_alive():
    d = {"a": 1}
    keys, items = bothways.compile(lambda d: (d.keys(), d.items()), backend="eager", fullgraph=True)(d)
    d["b"] = 2
    assert list(keys) == ["a", "b"] and list(items) == [("a", 1), ("b", 2)]


def test_read_only_views():
    def f(proxy):
        own = {"x": 1}
        view = MappingProxyType(own)
        own["y"] = 2
        return proxy["a"], "z" in proxy, list(proxy), dict(proxy), view["y"], view, proxy

    compiled = bothways.compile(f, backend="eager", fullgraph=True)
    for content in ({"a": 1}, {"a": 1}, {"a": 1, "b": 2}):
        assert repr(compiled(MappingProxyType(content))) == repr(f(MappingProxyType(content)))


# Sets


@pytest.mark.parametrize(
    "program",
    [
        lambda s: (1 in s, 9 in s, len(s), bool(s), sorted(s), repr(frozenset({1}))),
        lambda s: [sorted(r) for r in (s | {9}, s & {1, 2}, s - {1}, s ^ {1, 7}, s.union([4], [5]))],
        lambda s: (
            s <= {1, 2, 3},
            s > {1},
            s == {3, 2, 1},
            s.issubset([1]),
            s.issuperset([1]),
            s.isdisjoint([7]),
        ),
        lambda s: [s.add(4), s.discard(1), s.remove(2), s.discard(77), sorted(s)],
        lambda s: [
            s.update([7], (8,)),
            s.difference_update({1}),
            s.intersection_update({7, 8, 2}),
            sorted(s),
        ],
        lambda s: [s.clear(), s.add(1), s],
        lambda s: (
            frozenset(s) == s,
            hash(frozenset([1])) == hash(frozenset([1])),
            {frozenset(s): 1}[frozenset([1, 2, 3])],
        ),
        lambda s: {v % 2 for v in s},
    ],
)
def test_sets_work_as_in_python(program):
    reprs_agree(program, {1, 2, 3})


def test_operators_change_a_set_in_place():
    def f(s):
        before = s
        s |= {7}
        s -= {1}
        s ^= {2, 8}
        s &= {7, 8}
        return s is before, sorted(s)

    reprs_agree(f, {1, 2})


def test_complaints_of_sets_are_python_s_own():
    def f(s):
        return complaints(
            [
                lambda: s.remove(9),
                lambda: set().pop(),
                lambda: {[]},
                lambda: s | [1],
                lambda: s + s,
                lambda: s[0],
                lambda: hash(s),
                lambda: [s.add(v + 100) for v in s],
                lambda: frozenset().add(1),
            ]
        )

    reprs_agree(f, {1, 2})


def test_adding_what_is_there_already_is_not_assumed_later():
    def f(s):
        s.add(1)

    compiled = reprs_agree(f, {1})
    reprs_agree_again(compiled, f, set())


# Deques


@pytest.mark.parametrize("argument", [deque([5, 6]), deque([5, 6], 2), deque([], 3)])
def test_deques_keep_their_bound(argument):
    def f(d):
        d.append(1)
        d.appendleft(0)
        d.extend([2, 3])
        return d.popleft(), d[-1], len(d), d.maxlen, repr(d)

    reprs_agree(f, argument)


def test_the_other_methods_of_deques():
    def f(d):
        d.rotate(1)
        d.extendleft([1, 2])
        d.remove(5)
        d.insert(1, "q")
        d[0] = "z"
        del d[1]
        d.reverse()
        return d == deque(d), d + d, d * 2, d.count(1), d.index(1), list(reversed(d)), deque("abc", maxlen=2)

    reprs_agree(f, deque([5, 6]))


def test_complaints_of_deques_are_python_s_own():
    def f(d):
        return complaints(
            [
                lambda: d[9],
                lambda: d[1:],
                lambda: d.remove(9),
                lambda: d.index(9),
                lambda: deque().pop(),
                lambda: deque([], -1),
                lambda: [d.append(v) for v in d],
                lambda: d + [1],
                lambda: hash(d),
            ]
        )

    reprs_agree(f, deque([1, 2]))


# Subclasses of the built-in containers


class Stack(list):
    def top(self):
        return self[-1]


class Doubling(dict):
    def __missing__(self, key):
        return key * 2


def test_subclasses_of_containers():
    def f(stack, table, counter):
        stack.append(1)
        stack[0] = 5
        table["x"] = 1
        counter["a"] += 1
        counter.update("zz")
        return stack.top(), len(stack), table["q"], table.get("q"), counter["none"], counter.most_common(1)

    compiled = reprs_agree(f, Stack([1, 2]), Doubling(a=1), Counter("ab"))
    reprs_agree_again(compiled, f, Stack([1]), Doubling(q=3), Counter())


class Recent(deque):
    pass


def test_subclasses_made_inside():
    def f():
        stack, table, counter, recent = Stack([1]), Doubling(x=1), Counter("aab"), Recent([1, 2], 2)
        stack.append(2)
        table["y"] = 2
        recent.append(3)
        return stack, table, counter, counter + counter, recent, type(stack) is Stack

    reprs_agree(f)


# Guards: what the program depended on, and nothing else


def test_appending_does_not_depend_on_what_is_there():
    compiled = reprs_agree(lambda x, l: l.append(x), X, [1, 2])
    for other in ([], [5], ["a", None, 3]):
        compiled(X, other)
    assert captures(compiled) == 1


def test_reading_one_element_does_not_depend_on_the_others():
    def f(l):
        return l[0] + 1

    compiled = reprs_agree(f, [1, 2])
    reprs_agree_again(compiled, f, [1])
    reprs_agree_again(compiled, f, [1, "other", None])
    assert captures(compiled) == 1
    reprs_agree_again(compiled, f, [2])
    assert captures(compiled) == 2


@pytest.mark.parametrize(
    "program",
    [
        len,
        lambda l: l[-1:],
        lambda l: [v for v in l],
        lambda l: not l,
        lambda l: l == [1, 2],
        lambda l: 5 in l,
        lambda l: l.pop(),
    ],
)
def test_a_different_length_is_noticed(program):
    def f(l):
        return program(l)

    compiled = reprs_agree(f, [1, 2])
    reprs_agree_again(compiled, f, [1, 2, 3])


def test_an_index_that_was_out_of_range_is_noticed_when_it_is_not():
    def f(l):
        try:
            return l[2]
        except IndexError:
            return "short"

    compiled = reprs_agree(f, [1, 2])
    reprs_agree_again(compiled, f, [1, 2, 3])
    reprs_agree_again(compiled, f, [])


def test_an_element_that_was_only_passed_on_has_to_be_there():
    def f(l):
        try:
            return l[1]
        except IndexError:
            return "short"

    compiled = reprs_agree(f, [1, 2])
    reprs_agree_again(compiled, f, [1])


def test_presence_and_absence_of_keys_are_noticed():
    def f(d):
        return d.get("a"), "b" in d

    compiled = reprs_agree(f, {"a": 1})
    reprs_agree_again(compiled, f, {})
    reprs_agree_again(compiled, f, {"a": 1, "b": 2})
    reprs_agree_again(compiled, f, {"a": None})


def test_other_keys_do_not_matter():
    def f(d):
        d["out"] = d["a"] + 1
        return d["out"]

    compiled = reprs_agree(f, {"a": 1})
    reprs_agree_again(compiled, f, {"z": 0, "a": 1})
    reprs_agree_again(compiled, f, {"a": 1, "out": "old", "q": 2})
    assert captures(compiled) == 1


def test_iteration_depends_on_keys_and_their_order():
    def f(d):
        return [k for k in d]

    compiled = reprs_agree(f, {"a": 1, "b": 2})
    reprs_agree_again(compiled, f, {"b": 2, "a": 1})
    reprs_agree_again(compiled, f, {"a": 1})
    reprs_agree_again(compiled, f, {})


def test_equal_keys_of_other_types_are_told_apart():
    def f(d):
        return list(d)

    compiled = reprs_agree(f, {1: 0})
    reprs_agree_again(compiled, f, {True: 0})
    reprs_agree_again(compiled, f, {1.0: 0})


def test_another_type_of_container_is_noticed():
    def f(c):
        return c[0], type(c).__name__

    compiled = reprs_agree(f, [1, 2])
    reprs_agree_again(compiled, f, (1, 2))
    reprs_agree_again(compiled, f, {0: 1})


def test_content_of_sets_is_noticed():
    def f(s):
        return 1 in s, len(s)

    compiled = reprs_agree(f, {1, 2})
    reprs_agree_again(compiled, f, {2, 3})
    reprs_agree_again(compiled, f, set())
