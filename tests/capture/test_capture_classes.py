"""User classes: construction, methods, inheritance, class attributes, abstract and generic classes, metaclasses."""

import abc
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


# Construction


def test_objects_are_made_read_and_returned():
    def program(x, n):
        p = Point(x, b=n)
        p.c = p.total()
        return p, p.c, p.origin, Point.origin, p.__class__, type(p).__name__

    agree(program, (X, 3), (X, 4))


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


def test_new_goes_up_the_hierarchy():
    class Tagged(Base):
        def __new__(cls, n):
            made = super().__new__(cls, n)
            made.tag = made.made_as + "!"
            return made

    def program(x):
        made = Tagged(3)
        return x + made.n, made.made_as, made.tag

    agree(program, (X,))


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

    agree(program, (X, Point(1)), (X, Both()), (X, [1]))


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


def test_what_happens_when_an_object_goes_away_happens():
    gone = []

    class Resource:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            gone.append(self.name)

    @bothways.compile(backend="eager")
    def program(x):
        resource = Resource("inside")
        return x * len(resource.name)

    for count in (1, 2):
        assert torch.equal(program(X), X * 6)
        assert gone == ["inside"] * count
    with pytest.raises(Unsupported, match="__del__"):
        bothways.compile(program, backend="eager", fullgraph=True)(X)


def test_defining_a_class_inside_stops_the_capture():
    def program(x):
        class Inner:
            value = 2

        return x + Inner.value

    with pytest.raises(Unsupported, match="class"):
        bothways.compile(program, backend="eager", fullgraph=True)(X)
    assert torch.equal(bothways.compile(program, backend="eager")(X), X + 2)
