"""User classes: construction, attributes, properties, descriptors, slots, inheritance, metaclasses."""

import abc
import functools
import typing

import pytest
import torch
from programs import agree, compare

import bothways
from bothways.errors import Unsupported
from bothways.testing import CompileCounter

X = torch.arange(4.0)


class Point:
    origin = (0, 0)

    def __init__(self, a, b=2):
        self.a, self.b = a, b

    def total(self):
        return self.a + self.b


# Construction and attributes


def test_objects_are_made_read_and_returned():
    def program(x, n):
        p = Point(x, b=n)
        p.c = p.total()
        return p, p.c, p.origin, Point.origin, p.__class__, type(p).__name__

    agree(program, (X, 3), (X, 4))


def test_objects_from_outside_are_read_and_changed():
    def program(x, p):
        p.a = x + p.b
        p.new = [p.a]
        del p.b
        return p.total if hasattr(p, "total") else None, hasattr(p, "b"), getattr(p, "b", "gone")

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

    def order(x, p):
        program(x, p)
        return list(vars(p)), x + 1

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


# Methods


class Base:
    def __new__(cls, *args):
        made = super().__new__(cls)
        made.made_as = cls.__name__
        return made

    def __init__(self, n=1):
        self.n = n

    @classmethod
    def create(cls, n):
        return cls(n)

    @staticmethod
    def twice(n):
        return n * 2

    def who(self):
        return ["Base"]


class Left(Base):
    def __init__(self, n=2):
        super().__init__(n + 1)

    @classmethod
    def create(cls, n):
        made = super().create(n)
        made.left = True
        return made

    def who(self):
        return ["Left", *super().who()]


class Right(Base):
    def who(self):
        return ["Right", *super(Right, self).who()]


class Both(Left, Right):
    def who(self):
        return ["Both", *super().who()]

    @property
    def parents(self):
        return super().who()

    def in_a_comprehension(self):
        return [super(Both, self).who() for _ in range(2)]


def test_inheritance_and_super():
    def program(x, b):
        made = Both.create(5)
        return x + made.n, made.made_as, made.left, made.who(), b.who(), b.parents, b.in_a_comprehension()

    agree(program, (X, Both()))


def test_class_and_static_methods():
    def program(x, b):
        return x + b.twice(2), Both.twice(3), b.create(1).n, Left.create(2).made_as, super(Left, b).who()

    agree(program, (X, Both()))


def test_classes_as_objects():
    def program(x, b):
        return (
            x + 1,
            isinstance(b, Right),
            isinstance(b, (int, Left)),
            issubclass(Both, Base),
            Both.__mro__,
            Both.__name__,
            type(b) is Both,
            b.__class__.__bases__,
            {Both: 1}[type(b)],
            Left == Left,
            Left != Right,
        )

    agree(program, (X, Both()))


def test_methods_are_values():
    def program(x, p, kept):
        method = p.total
        kept.append(method)
        return x + method(), method == p.total, method is p.total, method.__self__ is p, method.__func__ is Point.total

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    p, kept = Point(1), []
    assert compiled(X, p, kept)[1:] == program(X, p, [])[1:]
    assert kept == [p.total] and kept[0]() == 3


def test_functions_kept_in_a_class_are_called_as_python_calls_them():
    class Layer:
        activation = torch.relu  # a builtin, which does not bind
        scale = staticmethod(lambda x: x * 2)
        steps = [torch.sin, lambda x: x + 1]

        def shift(self, x):
            return x - 1

    def program(x, layer):
        for step in layer.steps:
            x = step(x)
        return Layer.activation(x), layer.activation(x), layer.scale(x), Layer.scale(x), Layer.shift(layer, x)

    agree(program, (X, Layer()))


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
        import copy

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


# Class attributes


def test_class_attributes_are_read_and_written():
    class Counted:
        count = 0

    class Derived(Counted):
        pass

    def program(x, o):
        Counted.count += 1
        Counted.fresh = x + 1
        return x + o.count + Derived.count, o.fresh, Derived.fresh

    compiled = bothways.compile(program, backend=CompileCounter(), fullgraph=True)
    first, second = compiled(X, Derived()), compiled(X, Counted())
    assert Counted.count == 2
    assert torch.equal(first[0], X + 2) and torch.equal(second[0], X + 4)
    assert torch.equal(Counted.fresh, X + 1) and Counted.fresh is second[1]


def test_class_attributes_are_deleted():
    class Holder:
        gone, kept = 1, 2

    def program(x):
        del Holder.gone
        return x + Holder.kept, hasattr(Holder, "gone"), hasattr(Holder(), "gone")

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    assert compiled(X)[1:] == (False, False)
    assert not hasattr(Holder, "gone")


def test_a_method_replaced_inside_is_used_from_then_on():
    class Greeter:
        def greet(self):
            return 1

    def program(x, g):
        before = g.greet()
        Greeter.greet = lambda self: 10
        return x + before + g.greet() + Greeter.greet(g)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, Greeter()), X + 21)
    assert Greeter().greet() == 10
    assert torch.equal(compiled(X, Greeter()), X + 30)


def test_changed_methods_are_noticed():
    class Base:
        def method(self):
            return 1

        @classmethod
        def of_class(cls):
            return 1

        @staticmethod
        def static():
            return 1

        @property
        def prop(self):
            return 1

        def base_only(self):
            return 1

    class Derived(Base):
        def base_only(self):
            return super().base_only() + 10

    derived = Derived()

    def program(x):
        d = derived
        return x + d.method() + d.of_class() + d.static() + d.prop + Derived.of_class() + d.base_only()

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    changes = [
        lambda: setattr(Base, "method", lambda self: 2),
        lambda: setattr(Derived, "method", lambda self: 3),
        lambda: setattr(derived, "method", lambda: 4),
        lambda: setattr(Base, "of_class", classmethod(lambda cls: 5)),
        lambda: setattr(Base, "static", staticmethod(lambda: 6)),
        lambda: setattr(Base, "prop", property(lambda self: 7)),
        lambda: setattr(Base, "base_only", lambda self: 8),
    ]
    compare(program, compiled, (X,))
    for change in changes:
        change()
        compare(program, compiled, (X,))
    assert counter.frame_count == 1 + len(changes)


def test_an_attribute_added_later_is_noticed():
    class Bare:
        pass

    bare = Bare()

    def program(x):
        return x + getattr(bare, "extra", 1) + getattr(Bare, "extra", 2), bool(bare), bare == 3

    compiled = bothways.compile(program, backend=CompileCounter(), fullgraph=True)
    compare(program, compiled, (X,))
    Bare.extra = 10
    compare(program, compiled, (X,))
    bare.extra = 20
    compare(program, compiled, (X,))
    Bare.__bool__ = lambda self: False
    compare(program, compiled, (X,))
    Bare.__eq__ = lambda self, other: True
    compare(program, compiled, (X,))


# Abstract classes, protocols, generics, metaclasses


def test_abstract_classes():
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self): ...

    class Square(Shape):
        def area(self):
            return 4

    def program(x):
        try:
            Shape()
        except TypeError as error:
            message = str(error)
        return x + Square().area(), isinstance(Square(), Shape), message

    agree(program, (X,))


@typing.runtime_checkable
class HasTotal(typing.Protocol):
    def total(self): ...


@typing.runtime_checkable
class HasA(typing.Protocol):
    a: int


def test_protocols():
    def program(x, o):
        return x + 1, isinstance(o, HasTotal), isinstance(o, HasA), isinstance(3, HasTotal)

    agree(program, (X, Point(1)), (X, Dynamic()), (X, [1]))


T = typing.TypeVar("T")


class Stack(typing.Generic[T]):
    def __init__(self, *items: T):
        self.items = list(items)


class IntStack(Stack[int]):
    pass


def test_generic_classes():
    def program(x):
        typed = Stack[int](1, 2)
        return x + typed.items[0], IntStack(3).items, Stack(x).items, typed.__orig_class__

    agree(program, (X,))


class Meta(type):
    def helper(cls):
        return 5

    @property
    def label(cls):
        return "<" + cls.__name__ + ">"

    def __len__(cls):
        return 7

    def __getitem__(cls, key):
        return key

    def __iter__(cls):
        return iter([1, 2])

    def __contains__(cls, item):
        return item == 3

    def __add__(cls, other):
        return "added"

    def __getattr__(cls, name):
        return "made " + name

    def __bool__(cls):
        return False


class WithMeta(metaclass=Meta):
    pass


def test_metaclasses_define_what_classes_can_do():
    def program(x):
        c = WithMeta
        return x + c.helper(), c.label, len(c), c[4], list(c), 3 in c, c + 1, c.something, bool(c), type(c)

    agree(program, (X,))


class Singleton(type):
    instances = {}

    def __call__(cls, *args):
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__(*args)
        return cls.instances[cls]


def test_a_metaclass_decides_what_calling_a_class_does():
    class Only(metaclass=Singleton):
        def __init__(self, n):
            self.n = n

    def program(x):
        return x + Only(3).n, Only(4).n, Only(5) is Only(6)

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    got = compiled(X)
    assert torch.equal(got[0], X + 3) and got[1:] == (3, True)
    assert Singleton.instances.pop(Only).n == 3


def test_defining_a_class_inside_stops_the_capture():
    def program(x):
        class Inner:
            value = 2

        return x + Inner.value

    with pytest.raises(Unsupported, match="class"):
        bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert torch.equal(bothways.compile(program, backend="eager")(X), X + 2)
