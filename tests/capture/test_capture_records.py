"""Records: dataclasses, named tuples, enums, ``SimpleNamespace``."""

import collections
import dataclasses
import enum
import types
import typing

import torch
from programs import agree, compare

import bothways
from bothways.testing import CompileCounter, same

X = torch.arange(4.0)


# Dataclasses


@dataclasses.dataclass
class Batch:
    size: int
    data: torch.Tensor = None
    tags: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.tags.append(self.size)


@dataclasses.dataclass(frozen=True)
class Config:
    width: int
    depth: int = 2


@dataclasses.dataclass(slots=True)
class Slim:
    a: int
    b: float = 1.0


@dataclasses.dataclass(order=True)
class Ranked:
    rank: int
    name: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass
class Parent:
    x: int
    y: dataclasses.InitVar[int] = 3
    k: int = dataclasses.field(default=1, kw_only=True)

    def __post_init__(self, y):
        self.z = y


@dataclasses.dataclass
class Child(Parent):
    w: int = 4


def test_dataclasses_are_made_and_changed():
    def program(x, batch):
        batch.data = x + batch.size
        made = Batch(3, batch.data)
        return made, made.tags, Batch(1).tags is Batch(1).tags, made.data is batch.data

    agree(program, (X, Batch(5)), (X, Batch(6)))


def test_dataclasses_have_text_equality_and_order():
    def program(x, config):
        ranks = sorted([Ranked(3, "c"), Ranked(1, "a")])
        return x + 1, repr(config), config == Config(1), config != Config(1, 3), ranks[0].name, Ranked(1) < Ranked(2)

    agree(program, (X, Config(1)), (X, Config(2)))


def test_a_dataclass_that_holds_itself_has_text():
    @dataclasses.dataclass
    class Node:
        next: object = None

    def program(x):
        node = Node()
        node.next = node
        return x + 1, repr(node)

    agree(program, (X,))


def test_frozen_dataclasses():
    def program(x, config):
        try:
            config.width = 3
        except dataclasses.FrozenInstanceError as error:
            return x + config.depth, str(error), Config(config.width, 5)

    agree(program, (X, Config(1)))


def test_frozen_dataclasses_as_keys():
    def program(x, config):
        table = {Config(1): 5, Config(2): 6}
        return x + table[config], config in table, hash(config) == hash(Config(1)), table

    agree(program, (X, Config(1)), (X, Config(2)))


def test_dataclasses_with_slots():
    def program(x, slim):
        slim.b = x + slim.a
        return slim, Slim(7), hasattr(slim, "__dict__")

    agree(program, (X, Slim(1)))


def test_dataclass_functions():
    def program(x, config):
        names = [field.name for field in dataclasses.fields(config)]
        replaced = dataclasses.replace(config, depth=9)
        plain = dataclasses.asdict(config), dataclasses.astuple(config)
        return x + replaced.depth, replaced, names, plain, dataclasses.is_dataclass(config)

    agree(program, (X, Config(1)), (X, Config(2)))


def test_inherited_fields():
    def program(x):
        child = Child(1, 5, 6, k=8)
        return x + child.x, child, child.z, Child(1).z

    agree(program, (X,))


# Named tuples


Pair = collections.namedtuple("Pair", "a b", defaults=[3])


class Sample(typing.NamedTuple):
    scale: int
    data: torch.Tensor = None

    def scaled(self):
        return self.scale * self.data

    @property
    def double(self):
        return self.scale * 2

    @classmethod
    def of(cls, data):
        return cls(1, data)


def test_named_tuples():
    def program(x):
        pair = Pair(x)
        replaced = pair._replace(b=5)
        a, b = replaced
        made = Pair._make([1, 2])
        return a + b, pair, replaced, pair.b, pair[1], Pair._fields, made, repr(made), made == (1, 2)

    agree(program, (X,))


def test_named_tuples_with_methods():
    def program(x, sample):
        made = Sample.of(x)
        return made.scaled(), sample.scaled(), sample.double, made._asdict(), isinstance(sample, tuple)

    agree(program, (X, Sample(2, X)), (X, Sample(3, X)))


class Doubled(collections.namedtuple("Doubled", "a b")):
    def __new__(cls, a):
        return super().__new__(cls, a, a * 2)

    @property
    def total(self):
        return self.a + self.b


def test_named_tuples_with_their_own_new():
    def program(x, doubled):
        made = Doubled(4)
        made.note = "n"
        return x + made.total, made == (4, 8), made.note, doubled.total, doubled[1]

    compiled = bothways.compile(program, backend=CompileCounter(), fullgraph=True)
    for given in (Doubled(1), Doubled(1), Doubled(2)):
        assert same(compiled(X, given), program(X, given))


# Enums


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1

    def pretty(self):
        return self.name.lower() + str(self.value)

    @property
    def double(self):
        return self.value * 2

    @classmethod
    def default(cls):
        return cls.GREEN


class Planet(enum.Enum):
    EARTH = (1.0, 2.0)
    MARS = (3.0, 4.0)

    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius

    @property
    def gravity(self):
        return self.mass / self.radius


class Level(enum.IntEnum):
    LOW = enum.auto()
    HIGH = enum.auto()


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


class Mode(str, enum.Enum):
    MAX = "max"
    MEAN = "mean"


def test_enum_members():
    def program(x, color):
        same = color is Color.RED, color == Color.GREEN, Color.CRIMSON is Color.RED, color in (Color.RED,)
        text = color.name, repr(color), str(color), f"{color}"
        return x + color.value, same, text, {Color.RED: "r"}.get(color), isinstance(color, Color), color

    agree(program, (X, Color.RED), (X, Color.GREEN))


def test_enum_classes():
    def program(x, color):
        members = [member.name for member in Color], len(Color), color in Color, Color.__members__["RED"]
        return x + Color.default().value, members, Color(2), Color["RED"], list(reversed(Color))

    agree(program, (X, Color.RED))


def test_enum_methods_and_attributes():
    def program(x, color, planet):
        return x * planet.gravity, color.pretty(), color.double, planet.mass, Planet.MARS.radius, planet.value

    agree(program, (X, Color.RED, Planet.EARTH), (X, Color.GREEN, Planet.MARS))


def test_int_enums_are_integers():
    def program(x, level):
        return x + level, level + 1, level < Level.HIGH, level == 1, [5, 6, 7][level], max(Level), range(level), -level

    agree(program, (X, Level.LOW), (X, Level.HIGH))


def test_flags():
    def program(x, access):
        writable = bool(access & Access.WRITE)
        return x + 1, access | Access.READ, ~access, Access.READ in access, writable, list(Access.BOTH)

    agree(program, (X, Access.READ), (X, Access.WRITE))


def test_enums_that_are_strings():
    def program(x, mode):
        y = x.max() if mode == "max" else x.mean()
        return y, mode.upper(), mode + "!", len(mode), {"max": 1}.get(mode), Mode("mean")

    agree(program, (X, Mode.MAX), (X, Mode.MEAN))


def test_an_attribute_of_a_member_that_changes_is_noticed():
    def program(x):
        return x * Planet.EARTH.mass

    compiled = bothways.compile(program, backend=CompileCounter(), fullgraph=True)
    compare(program, compiled, (X,))
    Planet.EARTH.mass = 7.0
    compare(program, compiled, (X,))
    Planet.EARTH.mass = 1.0


# SimpleNamespace


def test_simple_namespaces():
    def program(x, space):
        space.sum = x + space.a
        made = types.SimpleNamespace(p=1)
        made.q = 2
        return space, made, made == types.SimpleNamespace(p=1, q=2), made != made, repr(made), vars(made)

    agree(program, (X, types.SimpleNamespace(a=1)), (X, types.SimpleNamespace(a=2)))
