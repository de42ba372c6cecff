"""Attributes of objects: stored, deleted, computed by properties and descriptors, kept in slots, made on demand."""

import copy
import enum
import functools
import sys

import pytest
import torch
from programs import agree, compare

import bothways
from bothways.testing import CompileCounter, same

X = torch.arange(4.0)


class Point:
    origin = (0, 0)

    def __init__(self, a, b=2):
        self.a, self.b = a, b

    def total(self):
        return self.a + self.b


# Attributes stored in the object


def test_objects_from_outside_are_read_and_changed():
    def program(x, p):
        p.a = x + p.b
        p.new = [p.a]
        del p.b
        return hasattr(p, "total"), hasattr(p, "b"), getattr(p, "b", "gone")

    agree(program, (X, Point(1)), (X, Point(1, 3)))


def test_an_attribute_with_another_value_is_another_program():
    def program(x, p):
        return x + p.a

    counter = agree(program, (X, Point(1)), (X, Point(2)), (X, Point(1.0)), (X, Point(1, b=5)))
    assert counter.frame_count == 3  # b is never read


def test_any_string_can_name_an_attribute():
    def program(x, p):
        setattr(p, "class", x + 1)
        setattr(p, "two words", 2)
        return getattr(p, "class") * 2, getattr(p, "two words"), getattr(p, "if", 3)

    agree(program, (X, Point(1)))


def test_attributes_keep_their_order():
    def program(x, p):
        p.c = 3
        del p.a
        p.a = x + 1
        return list(vars(p))

    agree(program, (X, Point(1)))
    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    plain, other = Point(1), Point(1)
    program(X, plain), compiled(X, other)
    assert list(vars(other)) == list(vars(plain)) == ["b", "c", "a"]


def test_deleting_what_is_not_there_raises():
    def program(x, p):
        seen = []
        for name in ("nothing", "origin", "total"):
            try:
                delattr(p, name)
            except AttributeError as error:
                seen.append(str(error))
        return x + 1, len(seen)

    agree(program, (X, Point(1)))


def test_the_instance_dictionary():
    def program(x, p):
        vars(p)["n"] = x + 1
        p.__dict__.update(m=1, k=2)
        popped = p.__dict__.pop("k")
        del p.__dict__["a"]
        same = p.__dict__ == {"b": 2, "n": p.n, "m": 1}
        return p.__dict__, popped, same, "n" in vars(p), len(vars(p)), {**vars(p)}, p.__dict__ is vars(p)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    p, q = Point(1), Point(1)
    expected, got = program(X, p), compiled(X, q)
    assert got[0] is q.__dict__ and list(vars(q)) == list(vars(p))
    assert got[1:5] == expected[1:5]
    agree(program, (X, Point(1)))


def test_a_dictionary_entry_that_a_property_hides():
    class Cached:
        @property
        def size(self):
            if "size" not in self.__dict__:
                self.__dict__["size"] = 3
            return self.__dict__["size"]

    def program(x, c):
        return x + c.size, vars(c)

    agree(program, (X, Cached()))


# Properties and descriptors


class Celsius:
    def __init__(self):
        self._degrees = 1

    @property
    def degrees(self):
        return self._degrees

    @degrees.setter
    def degrees(self, value):
        self._degrees = value * 2

    @degrees.deleter
    def degrees(self):
        del self._degrees

    @property
    def fixed(self):
        return 7

    @functools.cached_property
    def computed(self):
        return self._degrees * 100


def test_properties_with_setter_and_deleter():
    def program(x, c):
        c.degrees = x + 1
        c.degrees += 1
        before = c.degrees
        del c.degrees
        return before, hasattr(c, "degrees")

    agree(program, (X, Celsius()))


def test_a_property_without_a_setter_raises():
    def program(x, c):
        try:
            c.fixed = 1
        except AttributeError as error:
            return x + 1, str(error)

    agree(program, (X, Celsius()))


def test_cached_properties_are_computed_once():
    def program(x, c):
        c.computed
        c._degrees = 50
        return x + c.computed, vars(c)

    agree(program, (X, Celsius()))


class Scaled:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        if instance is None:
            return "the descriptor"
        return getattr(instance, self.name, 7)

    def __set__(self, instance, value):
        setattr(instance, self.name, value * 3)

    def __delete__(self, instance):
        delattr(instance, self.name)


class Labelled:
    def __init__(self, label):
        self.label = label

    def __get__(self, instance, owner=None):
        return self.label, owner.__name__, instance is None


class Described:
    scaled = Scaled()
    labelled = Labelled(3)


def test_descriptors():
    def program(x, d):
        before = d.scaled
        d.scaled = x
        stored = d.scaled
        del d.scaled
        return before, stored, d.scaled, Described.scaled, d.labelled, Described.labelled

    agree(program, (X, Described()))


def test_a_descriptor_that_changes_is_noticed():
    class Holder:
        labelled = Labelled(3)

    holder = Holder()

    def program(x):
        return x + holder.labelled[0]

    compiled = bothways.compile(program, backend=CompileCounter(), fullgraph=True)
    compare(program, compiled, (X,))
    Holder.__dict__["labelled"].label = 10
    compare(program, compiled, (X,))
    Holder.labelled = Labelled(20)
    compare(program, compiled, (X,))
    holder.labelled = [30]
    compare(program, compiled, (X,))


# Slots


class Slotted:
    __slots__ = ("a", "b", "__weakref__")
    fixed = 9

    def __init__(self):
        self.a = 1


class MoreSlots(Slotted):
    __slots__ = ("c",)


def test_slots():
    def program(x, s):
        had_b = hasattr(s, "b")
        s.b = x + s.a
        del s.a
        made = MoreSlots()
        made.c = 3
        return s.b, had_b, hasattr(s, "a"), hasattr(s, "__dict__"), made.a, made.c

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    for _ in range(2):
        plain, other = Slotted(), Slotted()
        assert repr(compiled(X, other)) == repr(program(X, plain))
        assert not hasattr(other, "a") and torch.equal(other.b, plain.b)
    assert counter.frame_count == 1


def test_slots_take_nothing_else():
    def program(x, s):
        seen = []
        for name in ("other", "fixed"):
            try:
                setattr(s, name, 1)
            except AttributeError as error:
                seen.append(str(error))
        return x + 1, seen

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    expected, got = program(X, Slotted())[1], compiled(X, Slotted())[1]
    assert len(got) == 2 and got[1] == expected[1]


# Attributes made on demand


class Dynamic:
    def __init__(self):
        self.real = 1

    def __getattr__(self, name):
        if name.startswith("made_"):
            return name[5:]
        raise AttributeError(name)


class Recording:
    def __init__(self):
        object.__setattr__(self, "log", [])

    def __getattribute__(self, name):
        return 99 if name == "magic" else object.__getattribute__(self, name)

    def __setattr__(self, name, value):
        self.log.append(name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        self.log.append("del " + name)
        super().__delattr__(name)


class Forwarding:
    def __init__(self, target):
        object.__setattr__(self, "_target", target)

    def __getattr__(self, name):
        return getattr(self._target, name)

    def __setattr__(self, name, value):
        setattr(self._target, name, value)

    def __deepcopy__(self, memo):
        return Forwarding(copy.deepcopy(self._target, memo))


def test_getattr():
    def program(x, d):
        return x + d.real, d.made_up, hasattr(d, "missing"), getattr(d, "missing", 4)

    agree(program, (X, Dynamic()))


def test_getattribute_setattr_and_delattr():
    def program(x, r):
        r.a = x + 1
        r.b = 1
        del r.b
        return r.magic, r.a, hasattr(r, "b"), r.log

    agree(program, (X, Recording()))


def test_a_proxy_passes_everything_on():
    def program(x, f):
        f.sum = x + f.a
        return f.sum, f.total(), f._target

    agree(program, (X, Forwarding(Point(1))))


def test_a_property_itself_is_asked_what_it_is():
    class Held:
        @property
        def count(self):
            return 3

    def function(x):
        read = Held.count.fget(Held())
        return x * read if isinstance(Held.count, property) and Held.count.fset is None else -x

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), function(x))
    Held.count = property(lambda self: 5)
    assert torch.equal(compiled(x), function(x))
    Held.count = property(lambda self: 5, lambda self, value: None)
    assert torch.equal(compiled(x), function(x))


def test_a_distribution_whose_arguments_are_properties_is_made():
    def mixed(x):
        rate = torch.tensor(0.4)
        share = torch.distributions.Beta(rate, rate, validate_args=True).sample()
        return share * x + (1 - share) * x.flip(0)

    compiled = bothways.compile(mixed, backend="eager", fullgraph=True)
    x = torch.randn(4)
    results = []
    for function in (mixed, compiled):
        torch.manual_seed(0)
        results.append((function(x), torch.get_rng_state()))
    assert all(map(torch.equal, *results))


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="class methods wrap nothing but functions since Python 3.13")
def test_a_class_method_around_a_property():
    class Box(enum.IntEnum):
        X, Y, Z = range(3)

        @classmethod
        @property
        def POINT(cls):
            return slice(cls.X, cls.Y + 1)

    class Base:
        size = 2
        doubled = classmethod(property(lambda cls: cls.size * 2))

    class Wide(Base):
        size = 3

    def program(x, wide):
        return x[..., Box.POINT] * wide.doubled, Base.doubled, Wide.doubled

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    changes = [lambda: None, lambda: setattr(Wide, "size", 5), lambda: setattr(Wide, "doubled", 9)]
    for change in (*changes, lambda: setattr(Base, "doubled", classmethod(property(lambda cls: 7)))):
        change()
        for _ in range(2):
            assert same(compiled(torch.ones(2, 3), Wide()), program(torch.ones(2, 3), Wide()))
