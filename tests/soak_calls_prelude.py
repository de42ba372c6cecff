"""What programs of many calls begin with: kinds of objects that stand for each other, functions, a module, state."""

PRELUDE = '''
import collections, contextlib, copy, dataclasses, enum, functools, itertools, math, operator, types, typing, weakref
import numpy as np
import torch
import torch.nn as nn, torch.nn.functional as F
import bothways

LOG = []
def log(*parts):
    LOG.append(tuple(part.detach().clone() if isinstance(part, torch.Tensor) else part for part in parts))

def floats(*shape):
    return torch.randn(shape)

# Objects of many kinds that have v and n.

class Kind(enum.Enum):
    LOW = 1
    HIGH = 2

class Level(enum.IntEnum):
    ONE = 1
    TWO = 2

class Checked:
    """Keeps what it is given, if that may be kept."""
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, thing, owner=None):
        return self if thing is None else thing.__dict__.get(self.name, 5)
    def __set__(self, thing, value):
        if value is None:
            raise ValueError(f"{self.name[1:]} is missing")
        log("set", self.name, value)
        thing.__dict__[self.name] = value

class Box:
    kind, count = Kind.LOW, 0
    def __init__(self, v, n=1):
        self.v, self.n, self.items = v, n, [v]
        type(self).count += 1
    @property
    def twice(self):
        log("twice")
        return self.v * 2
    @twice.setter
    def twice(self, value):
        self.v = value / 2
    def scaled(self, t, by=2):
        self.n += 1
        return t * by + self.n
    def __call__(self, t):
        return t + self.n
    def __enter__(self):
        log("enter", self.n)
        return self
    def __exit__(self, kind, error, trace):
        log("exit", kind and kind.__name__)
        return kind is KeyError

class Sub(Box):
    kind = Kind.HIGH
    level = Checked()
    def scaled(self, t, by=3):
        return super().scaled(t, by) - 1
    def __getattr__(self, name):
        if name.startswith("auto"):
            return len(name)
        raise AttributeError(f"no {name}")

class Guarded(Box):
    def __setattr__(self, name, value):
        log("setattr", name)
        object.__setattr__(self, name, value)

class Slotted:
    __slots__ = ("v", "n", "late")
    kind, count = Kind.LOW, 0
    def __init__(self, v, n=1):
        self.v, self.n = v, n
    def scaled(self, t, by=2):
        return t * by
    def __call__(self, t):
        return t * self.n

@dataclasses.dataclass
class Data:
    v: object
    n: int = 1
    items: list = dataclasses.field(default_factory=list)
    kind: typing.ClassVar = Kind.LOW
    def scaled(self, t, by=2):
        self.items.append(by)
        return t + by
    def __call__(self, t):
        return t - self.n

@dataclasses.dataclass(frozen=True)
class Frozen:
    v: object = dataclasses.field(compare=False)
    n: int = 1
    kind = Kind.HIGH
    def scaled(self, t, by=2):
        return t / by

class Named(typing.NamedTuple):
    v: object
    n: int = 1
    kind = Kind.LOW
    def scaled(self, t, by=2):
        return t - by

class Table(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None
    __setattr__ = dict.__setitem__

class Problem(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code

# Functions with and without state.

def helper(t, k=1):
    return t * k + 1

def other(t, k=1):
    return t - k

def accumulated(t, seen=[]):
    seen.append(len(seen))
    return t + len(seen)

def counting():
    count, last = 0, None
    def step(t):
        nonlocal count, last
        count += 1
        last, before = t.detach().clone(), last
        return t * count if before is None or before.shape != t.shape else t * count + before
    return step

def counted(function):
    @functools.wraps(function)
    def inner(*args, **options):
        inner.calls += 1
        return function(*args, **options)
    inner.calls = 0
    return inner

@counted
def decorated(t, k=1):
    return t * k

@torch.no_grad()
def silent(t):
    return t * 2

def produced(t, count):
    for index in range(min(count, 100)):
        got = yield t * index
        if got is not None:
            log("got", got)
    log("ended")

def tidy(t, count):
    try:
        for index in range(min(count, 100)):
            yield t + index
    finally:
        log("closed")

@contextlib.contextmanager
def scope(name):
    log("in", name)
    try:
        yield name
    except KeyError as error:
        log("kept", str(error))
    finally:
        log("out", name)

def failing(code):
    raise Problem(code)

def cleaning(t, code):
    try:
        if code == 1:
            raise ValueError(code)
        if code == 2:
            return t * 2
        log("through")
    except ValueError as error:
        raise Problem(code) from error
    finally:
        log("cleaned", code)
    return t

STEP = counting()
RUNNING = produced(torch.ones(1), 100)
G = {"n": 1, "t": torch.ones(1), "list": [1], "f": helper, "flag": False}
TOTAL = 0
CACHE = {}

def remembered(t):
    """By what tensors are, not by their numbers."""
    key = id(t)
    if key not in CACHE:
        CACHE[key] = t, t.shape
        return "new"
    return CACHE[key][1]

# Compiled on their own, when anything is.

@compiled
def inner(t, k=1):
    return t.sin() * k

@compiled
def changing(t):
    t.add_(1)
    return t.sum()

@compiled
def viewing(t):
    return t.reshape(-1)[:2]

@compiled
def asking(t):
    return t if t.requires_grad and torch.is_grad_enabled() else t + 1

# Gradients of one's own.

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, k):
        ctx.save_for_backward(t)
        ctx.k = k
        return t * t * k
    @staticmethod
    def backward(ctx, grad):
        t, = ctx.saved_tensors
        log("scaled", ctx.k)
        return 2 * t * grad * ctx.k, None

class Turned(torch.autograd.Function):
    @staticmethod
    def forward(t, by):
        return t * by
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.by = inputs[1]
    @staticmethod
    def backward(ctx, grad):
        return -grad * ctx.by, None

class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        return t.mul_(2)
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.lin, self.act = nn.Linear(4, 4), nn.ReLU()
        self.register_buffer("seen", torch.zeros(()))
        self.calls, self.scale, self.last = 0, 1.0, None
    def forward(self, t):
        self.calls += 1
        if self.training:
            self.seen += 1
        return self.act(t * self.scale) * self.w.sum()

torch.manual_seed(0)
NET = Net()
W = torch.ones(1, requires_grad=True)
HANDLES = []
ORIGINAL = Box.scaled
STATE = ["LOG", "NET", "W", "G", "TOTAL", "Box", "Sub"]

def watched():
    """What classes and functions hold."""
    return Box.count, Sub.count, Box.kind, accumulated.__defaults__, decorated.calls, len(CACHE), hasattr(Box, "late")
'''
