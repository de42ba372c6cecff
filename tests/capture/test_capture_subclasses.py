"""User subclasses of built-in types, and the library's own: Counter, UserDict, UserList, ChainMap."""

import collections

import torch
from programs import agree

import bothways

X = torch.arange(4.0)


class MyList(list):
    def second(self):
        return self[1]


class MyDict(dict):
    def __missing__(self, key):
        return key * 2


class MySet(set):
    pass


class MyTuple(tuple):
    pass


class MyInt(int):
    def twice(self):
        return self * 2


class MyFloat(float):
    pass


class MyStr(str):
    pass


class UpperDict(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key.upper(), value)


class LoudError(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code

    def __str__(self):
        return f"{self.code}: {self.args[0]}!"


def test_lists():
    def program(x):
        made = MyList([1, 2])
        made.tag = "t"
        joined = made + [3]
        made[0] = x + 1
        made.append(4)
        return made, type(made), made.second(), type(joined), made[1:], made.tag, len(made), MyList([1]) == [1]

    agree(program, (X,))


def test_in_place_operators_give_the_object_itself():
    def program(x, items, table, names):
        kept = items, table, names
        items += [1]
        items *= 2
        table |= {"z": 1}
        names |= {5}
        names -= {1}
        same = items is kept[0], table is kept[1], names is kept[2]
        return x + len(items), same, type(items), type(table), type(names)

    agree(program, (X, MyList([3]), MyDict(a=1), MySet({1, 2})))


def test_dictionaries():
    def program(x, table):
        table["k"] = x + 1
        table.tag = 3
        seen = table["zz"], table.get("zz"), "zz" in table, len(table), list(table), type(table | {})
        table.update(b=2)
        table.pop("a")
        return seen, table, dict(table), {**table}, table.tag

    agree(program, (X, MyDict(a=1)))


def test_overridden_methods_and_super():
    def program(x, table):
        table["k"] = x + 1
        made = UpperDict()
        made["q"] = 1
        return table, made, made == {"Q": 1}

    agree(program, (X, UpperDict()))


def test_deques_default_dictionaries_and_ordered_ones():
    class Queue(collections.deque):
        def push(self, item):
            self.appendleft(item)
            return self

    class Groups(collections.defaultdict):
        pass

    def program(x, queue):
        last = Queue([1, 2], maxlen=2).push(3)
        groups = Groups(list)
        groups["a"].append(queue.push(x + 1)[0])
        return queue, last, last.maxlen, groups, type(groups), groups.default_factory

    agree(program, (X, Queue([5])))


def test_tuples():
    def program(x, given):
        made = MyTuple((x + 1, 2))
        made.name = "n"
        return made, type(made), made.name, given + (3,), type(given + (3,)), given[0], {given: 3}[(1, 2)], given < (3,)

    agree(program, (X, MyTuple((1, 2))))


def test_sets():
    def program(x, names):
        names.add(6)
        return x + len(names), sorted(names), type(names | {1}), 6 in names

    agree(program, (X, MySet({1, 2})))


def test_integers():
    def program(x, n):
        numbers = n + 1, 7 - n, 2**n, -n, abs(n), n.twice(), divmod(n, 2), int(n), n == 3, n < 5
        text = f"{n:03d}", str(n)
        return x + n, numbers, text, [1, 2, 3, 4][n], range(n), {n: 1}.get(3), torch.zeros(n), type(n), bool(n)

    agree(program, (X, MyInt(3)), (X, MyInt(2)))


def test_floats_and_strings():
    def program(x, f, s):
        numbers = f + 1, f < 3, round(f, 1), -f, int(f), f.is_integer()
        text = s + "a", "a" + s, s.upper(), len(s), s[0], f"{s}", s == "ab", {"ab": 1}[s], "a" in s, list(s), "%s" % s
        return x + f, numbers, text

    agree(program, (X, MyFloat(2.25), MyStr("ab")), (X, MyFloat(2.5), MyStr("ab")))


def test_numbers_and_strings_made_inside_keep_their_class():
    def program(x):
        n = MyInt(3)
        n.tag = 1
        return n, type(n), x * n, MyStr("a"), type(MyStr("a") + "b")

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    assert type(compiled(X)[0]) is MyInt and compiled(X)[0].tag == 1
    agree(program, (X,))


def test_exceptions():
    def program(x):
        try:
            raise LoudError(3, "message")
        except Exception as error:
            caught = error
        return x + caught.code, caught.args, str(caught), isinstance(caught, LoudError)

    agree(program, (X,))


def test_counters():
    def program(x, counted):
        counted["a"] += 1
        letters = collections.Counter("hello")
        letters.update(["l"])
        return x + counted["zz"], counted, letters.most_common(1), letters + letters, letters - counted, letters.total()

    agree(program, (X, collections.Counter(a=1)))


def test_user_dicts_and_user_lists():
    class Shouting(collections.UserDict):
        def __setitem__(self, key, value):
            super().__setitem__(key.upper(), value)

    def program(x, shouting):
        shouting["k"] = x + 1
        items = collections.UserList([1])
        items.append(2)
        return shouting["K"], "K" in shouting, list(shouting), shouting.pop("K"), items.data, items[0]

    agree(program, (X, Shouting()))


def test_chain_maps():
    def program(x, a, b):
        chained = collections.ChainMap(a, b)
        chained["n"] = x + chained["k"]
        return chained["n"], list(chained), len(chained)

    agree(program, (X, {"j": 1}, {"k": 2}))
