"""Objects with operators: arithmetic, comparison, containers, iteration, conversion, contexts, calls."""

import copy
import functools
import operator

import pytest
import torch
from programs import agree

import bothways
from bothways.testing import CompileCounter, same

X = torch.arange(4.0)
BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()


class Traced:
    """Notes which of its methods ran."""

    def __init__(self, v):
        self.v = v

    def __repr__(self):
        return f"Traced({self.v!r})"


def _method(kind, name):
    return lambda self, *other: (kind + name, self.v, getattr(other[0], "v", other[0]) if other else None)


def _in_place(name):
    def method(self, other):
        self.v = (name, self.v)
        return self

    return method


for name in BINARY:
    setattr(Traced, f"__{name}__", _method("", name))
    setattr(Traced, f"__r{name}__", _method("r", name))
    setattr(Traced, f"__i{name}__", _in_place(name))
for name in "neg pos invert abs lt le gt ge eq ne".split():
    setattr(Traced, f"__{name}__", _method("", name))


def test_binary_operators():
    def program(x, a, b):
        return x + 1, a + b, a - 1, a * 2.0, a / b, a // b, a % b, a**b, a @ b, a & b, a | b, a ^ b, a << b, a >> b

    agree(program, (X, Traced(1), Traced(2)), (X, Traced(3), Traced(2)))


def test_reflected_operators():
    def program(x, a):
        return x + 1, 1 - a, "s" + a, [1] + a, (1,) * a, 2**a, None | a, 1.5 // a

    agree(program, (X, Traced(1)))


def test_in_place_operators():
    def program(x, a):
        before = a
        a += 1
        a -= 1
        a @= 2
        a **= 2
        a |= 3
        return x + 1, a is before, a.v

    agree(program, (X, Traced(1)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_product_of_matrices_in_place_is_another_tensor(backend):
    def program(x):
        before, row = x, x[0]
        x @= x
        row @= before
        before //= 1
        return x, before, row, operator.imatmul(before, row), x is before

    x = torch.arange(9.0).view(3, 3) / 2
    assert same(program(x.clone()), bothways.compile(program, backend=backend, fullgraph=True)(x.clone()))


def test_in_place_operators_fall_back_to_plain_ones():
    class Plain:
        def __init__(self, v):
            self.v = v

        def __add__(self, other):
            return Plain(self.v + other)

    def program(x, p):
        before = p
        p += x
        return p.v, p is before, before.v

    agree(program, (X, Plain(1)))


def test_unary_operators_and_comparisons():
    def program(x, a, b):
        return x + 1, -a, +a, ~a, abs(a), a < b, a <= 1, a > b, a >= b, a == b, a != b, 1 < a

    agree(program, (X, Traced(1), Traced(2)))


def test_not_implemented_asks_the_other_side():
    class Shy:
        def __add__(self, other):
            return NotImplemented

        def __eq__(self, other):
            return NotImplemented

    class Bold:
        def __radd__(self, other):
            return "bold"

    def program(x, shy):
        try:
            shy + 1
        except TypeError as error:
            message = str(error)
        return x + 1, shy + Bold(), message, shy == shy, shy == Shy(), shy != 1, shy is not None

    agree(program, (X, Shy()))


def test_a_subclass_on_the_right_is_asked_first():
    class Base:
        def __add__(self, other):
            return "base"

    class Derived(Base):
        def __radd__(self, other):
            return "derived"

    def program(x):
        return x + 1, Base() + Derived(), Base() + Base(), Derived() + Base()

    agree(program, (X,))


def test_operators_on_tensors_inside_objects():
    class Dual:
        def __init__(self, value, slope):
            self.value, self.slope = value, slope

        def __mul__(self, other):
            if not isinstance(other, Dual):
                other = Dual(other, 0.0)
            return Dual(self.value * other.value, self.value * other.slope + self.slope * other.value)

        __rmul__ = __mul__

        def __add__(self, other):
            return Dual(self.value + other.value, self.slope + other.slope)

        def __getitem__(self, key):
            return Dual(self.value[key], self.slope[key])

    def program(x):
        d = Dual(x, torch.ones_like(x))
        y = d * d * 3 + x * d
        return y.value, y.slope, y[1:].slope, sum([d, d], start=d).value

    agree(program, (X,))


class Box:
    def __init__(self):
        self.held, self.log = {}, []

    def __getitem__(self, key):
        self.log.append(("get", key))
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value

    def __delitem__(self, key):
        del self.held[key]

    def __contains__(self, key):
        return key in self.held

    def __len__(self):
        return len(self.held)

    def __iter__(self):
        return iter(list(self.held))

    def __reversed__(self):
        return iter("reversed")

    def __call__(self, *args, **kwargs):
        return args, kwargs

    def __enter__(self):
        self.log.append("enter")
        return 11

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", kind, str(value)))
        return kind is ValueError


def test_container_methods():
    def program(x, box):
        box["k"] = x + 1
        box[1, 2] = 3
        del box[1, 2]
        return box["k"], len(box), "k" in box, "z" not in box, list(box), list(reversed(box)), bool(Box()), box.log

    agree(program, (X, Box()))


def test_calling_objects():
    def program(x, box):
        return x + 1, box(1, *[2], k=3), callable(box), callable(3), list(map(box, [1]))

    agree(program, (X, Box()))


def test_objects_as_context_managers():
    def program(x, box):
        with box as entered:
            x = x + entered
        with box:
            raise ValueError("kept")
        try:
            with box, Box():
                raise KeyError("passed on")
        except KeyError:
            box.log.append("caught")
        return x, box.log

    agree(program, (X, Box()))


class Shown:
    def __str__(self):
        return "str"

    def __repr__(self):
        return "repr"

    def __format__(self, spec):
        return "format " + spec

    def __bool__(self):
        return False

    def __int__(self):
        return 5

    def __float__(self):
        return 2.5

    def __index__(self):
        return 2

    def __complex__(self):
        return 1j

    def __round__(self, digits=None):
        return ("round", digits)

    def __divmod__(self, other):
        return "divmod"

    def __hash__(self):
        return 42

    def __eq__(self, other):
        return isinstance(other, Shown)


def test_conversions():
    def program(x, s):
        numbers = int(s), float(s), complex(s), bool(s), round(s), round(s, 2), divmod(s, 1)
        return x + 1, numbers, not s, [0, 1, 2][s], range(s)

    agree(program, (X, Shown()))


def test_text():
    def program(x, s):
        direct = str(s), repr(s), format(s, "x"), repr([s])
        return x + 1, direct, f"{s} {s!r} {s:>3}", "%s %r" % (s, s), "{0} {0!r}".format(s)

    agree(program, (X, Shown()))


def test_objects_as_keys_by_their_own_hash_and_equality():
    def program(x, s):
        table = {s: 1}
        table[Shown()] = 2
        return x + table[Shown()], len(table), s in {Shown()}, hash(s)

    agree(program, (X, Shown()))


def test_objects_in_sets_and_lists_by_their_own_equality():
    class Item:
        def __init__(self, v):
            self.v = v

        def __eq__(self, other):
            return self.v == other.v

        def __hash__(self):
            return hash(self.v)

    def program(x, given):
        items = set(given)
        items.add(Item(1))
        items.add(Item(2))
        return x + len(items), Item(2) in items, [Item(1), Item(2)].index(Item(2)), sorted(item.v for item in items)

    agree(program, (X, [Item(1)]), (X, [Item(3)]))


def test_objects_as_keys_by_identity():
    class Key:
        pass

    first, second = Key(), Key()
    table = {first: 1.0, second: 2.0}

    def program(x, key):
        made = Key()
        inner = {made: 3.0}
        return x + table[key] + inner[made], made in inner, key in inner

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    for key in (first, second, first):
        assert torch.equal(compiled(X, key)[0], program(X, key)[0])
    assert counter.frame_count == 2


class CountTo:
    def __init__(self, n):
        self.n, self.i = n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.i >= self.n:
            raise StopIteration
        self.i += 1
        return self.i


class ByIndex:
    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * 10


class ByGenerator:
    def __iter__(self):
        yield 1
        yield from [2, 3]


def test_user_defined_iterators():
    def program(x, it):
        first = next(it)
        rest = list(it)
        return x + first, rest, next(it, "end"), [n for n in CountTo(2)], sum(CountTo(3)), dict(enumerate(CountTo(2)))

    agree(program, (X, CountTo(3)), (X, CountTo(4)))


def test_iteration_by_index_and_by_generator():
    def program(x):
        by_index = list(ByIndex()), 20 in ByIndex(), sorted(ByIndex(), reverse=True)
        return x + 1, by_index, [*ByGenerator()], max(ByGenerator())

    agree(program, (X,))


def test_sorting_and_ordering():
    @functools.total_ordering
    class Version:
        def __init__(self, n):
            self.n = n

        def __lt__(self, other):
            return self.n < other.n

        def __eq__(self, other):
            return self.n == other.n

    def program(x, versions):
        versions.sort()
        a, b = versions[:2]
        ordered = [v.n for v in sorted(versions, reverse=True)]
        return x + a.n, ordered, max(versions).n, min(versions).n, a <= b, a > b, a >= a

    agree(program, (X, [Version(3), Version(1), Version(2)]))


def test_copying_objects():
    class Copied:
        def __copy__(self):
            made = Copied()
            made.copied = True
            return made

    class Ordinary:
        def __init__(self):
            self.items, self.n = [1], 2

    def program(x, o):
        c = copy.copy(o)
        c.n = 3
        return x + o.n, c.n, c.items is o.items, copy.copy(Copied()).copied, copy.copy([x])

    agree(program, (X, Ordinary()))


USES = (
    len,
    iter,
    next,
    lambda o: o[0],
    lambda o: o + 1,
    lambda o: -o,
    lambda o: o < 1,
    lambda o: o(),
    lambda o: 1 in o,
)


def test_objects_without_a_method_raise_type_errors():
    class Bare:
        pass

    def program(x, bare):
        seen = []
        for use in USES:
            try:
                use(bare)
            except TypeError as error:
                seen.append(str(error))
        return x + 1, seen

    agree(program, (X, Bare()))
