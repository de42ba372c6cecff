"""What programs on objects begin with: classes with all that a class may define, functions and generators."""

PRELUDE = '''
import math, operator, functools, itertools, collections, contextlib, dataclasses, enum, types, typing, copy, weakref, abc, string, re, bisect, heapq, numbers, torch, bothways
from collections import *
LOG = []
G = {"n": 0, "t": None}
REG = []
TOTAL = 0
def log(*a): LOG.append(repr(a) if not any(isinstance(v, torch.Tensor) for v in a) else len(a))

class Meta(type):
    made = 0
    def __call__(cls, *a, **k):
        Meta.made += 1
        obj = super().__call__(*a, **k)
        REG.append(cls.__name__)
        return obj
    def __getattr__(cls, name):
        if name.startswith("dyn_"): return len(name)
        raise AttributeError(name)
    def __contains__(cls, x): return x == cls.__name__
    def __iter__(cls): return iter([1, 2])
    def __len__(cls): return 4

class Typed:
    def __init__(self, kind, default=None): self.kind, self.default = kind, default
    def __set_name__(self, owner, name): self.name = "_t_" + name
    def __get__(self, obj, owner=None):
        if obj is None: return self
        log("get", self.name)
        return obj.__dict__.get(self.name, self.default)
    def __set__(self, obj, value):
        if not isinstance(value, self.kind): raise TypeError(f"{self.name[3:]} must be {self.kind.__name__}, not {type(value).__name__}")
        obj.__dict__[self.name] = value
    def __delete__(self, obj): del obj.__dict__[self.name]

class NonData:
    def __get__(self, obj, owner): return ("nondata", obj is None)

class A(metaclass=Meta):
    count = 0
    shared = []
    num = Typed(int, 7)
    nd = NonData()
    def __init__(self, v, n=1, *rest, **kw):
        self.v, self.n, self.rest = v, n, rest
        self.__dict__.update(kw)
        type(self).count += 1
    def __init_subclass__(cls, tag=None, **kw):
        super().__init_subclass__(**kw); cls.tag = tag
    def step(self, t): self.n += 1; return t * self.n
    @classmethod
    def make(cls, v, *a): return cls(v, *a)
    @staticmethod
    def stat(t, k=2): return t + k
    @property
    def prop(self): log("prop"); return self.n * 2
    @prop.setter
    def prop(self, val): self.n = val // 2
    @prop.deleter
    def prop(self): self.n = -1
    @functools.cached_property
    def cached(self): log("cached", self.n); return self.n + 100
    def __eq__(self, o): return isinstance(o, A) and self.n == o.n if not isinstance(o, str) else NotImplemented
    def __hash__(self): return hash(self.n)
    def __lt__(self, o): return self.n < (o.n if isinstance(o, A) else o)
    def __repr__(self): return f"{type(self).__name__}({self.n})"
    def __str__(self): return f"<{self.n}>"
    def __format__(self, spec): return f"[{spec}:{self.n}]"
    def __bool__(self): return self.n % 2 == 1
    def __len__(self): return abs(self.n) % 7
    def __iter__(self):
        for i in range(len(self)): yield self.v * i
    def __contains__(self, x): return x == self.n
    def __getitem__(self, i):
        log("getitem", i)
        if isinstance(i, slice): return i.indices(5)
        if isinstance(i, tuple): return len(i)
        return self.v * (i if isinstance(i, int) else 1)
    def __setitem__(self, i, val): log("setitem", i); self.__dict__["item"] = val
    def __delitem__(self, i): log("delitem", i); self.n = 0
    def __call__(self, t, *a, k=1, **kw): return t * k + len(a) + len(kw)
    def __add__(self, o): return A(self.v, self.n + (o.n if isinstance(o, A) else o)) if isinstance(o, (A, int)) else NotImplemented
    def __radd__(self, o): return ("radd", self.n, o) if isinstance(o, int) else NotImplemented
    def __iadd__(self, o): self.n += 1; return self
    def __sub__(self, o): return NotImplemented
    def __neg__(self): return -self.n
    def __abs__(self): return abs(self.n)
    def __int__(self): return self.n
    def __index__(self): return self.n % 3
    def __float__(self): return self.n + 0.5
    def __round__(self, nd=None): return ("round", nd)
    def __enter__(self): log("enter", self.n); return self
    def __exit__(self, t, e, tb): log("exit", t and t.__name__, str(e)); return self.n % 2 == 0
    def __getattr__(self, name):
        if name.startswith("auto"): log("getattr", name); return len(name)
        raise AttributeError(f"no {name}")
    def __matmul__(self, o): return "mat"
    def __rmatmul__(self, o): return "rmat"
    def __divmod__(self, o): return (self.n, o)
    def __reversed__(self): return iter([3, 2, 1])
    def __copy__(self): return A(self.v, self.n + 10)

class B(A, tag="b"):
    count = 100
    def __init__(self, v, n=2, **kw): super().__init__(v, n, 9, **kw); self.b = [n]
    def step(self, t): return super().step(t) + 1
    @property
    def prop(self): return super().prop + 1
    @prop.setter
    def prop(self, val): A.prop.fset(self, val + 2)
    def __rsub__(self, o): return ("rsub", o)
    def __setattr__(self, name, val): log("setattr", name); object.__setattr__(self, name, val)
    def __delattr__(self, name): log("delattr", name); super().__delattr__(name)

class Mix:
    def step(self, t): log("mix"); return super().step(t) * 2
    def extra(self): return self.__class__.__mro__[1].__name__
class C(Mix, B, tag="c"): pass

class S:
    __slots__ = ("a", "b", "__weakref__")
    def __init__(self, a, b=None): self.a = a; self.b = b
class S2(S):
    __slots__ = ("c",)

@dataclasses.dataclass
class D:
    x: object
    n: int = 3
    items: list = dataclasses.field(default_factory=list)
    total: int = dataclasses.field(init=False, default=0)
    def __post_init__(self): self.total = self.n * 2
@dataclasses.dataclass(frozen=True, order=True)
class F:
    a: int
    b: int = 2
    t: object = dataclasses.field(default=None, compare=False, repr=False)
@dataclasses.dataclass(slots=True, kw_only=True)
class K:
    p: int = 1
    q: object = None

class NT(typing.NamedTuple):
    t: object
    n: int = 4
    def twice(self): return self.n * 2
P = collections.namedtuple("P", "x y", defaults=[3])
class E(enum.Enum):
    R = 1
    Gn = 2
    ALIAS = 1
    def nxt(self): return E.Gn if self is E.R else E.R
class IE(enum.IntEnum):
    LO = 1
    HI = 5
class FL(enum.Flag):
    X = enum.auto()
    Y = enum.auto()
class SE(str, enum.Enum):
    one = "one"
class MyList(list):
    def append(self, v): log("append"); super().append(v)
    def __getitem__(self, i): return ("ml", super().__getitem__(i))
class MyDict(dict):
    def __missing__(self, k): self[k] = k; return k
    def __setitem__(self, k, v): log("set", k); super().__setitem__(k, v)
class MyInt(int):
    def __add__(self, o): return MyInt(int(self) + o + 1)
class MyStr(str):
    pass
class MyTuple(tuple):
    def __new__(cls, *a): return super().__new__(cls, a)
class MyErr(Exception):
    def __init__(self, code, *a): super().__init__(f"code {code}", *a); self.code = code
class MyErr2(MyErr, ValueError): pass

class Single:
    inst = None
    def __new__(cls, *a):
        if cls.inst is None: cls.inst = super().__new__(cls)
        return cls.inst
    def __init__(self, n=0): self.n = n
class Bor(abc.ABC):
    @abc.abstractmethod
    def go(self): ...
    @classmethod
    def __subclasshook__(cls, k): return True if any("go" in c.__dict__ for c in k.__mro__) else NotImplemented
class HasGo:
    def go(self): return 1
class Gen(typing.Generic[typing.TypeVar("T")]):
    def __class_getitem__(cls, k): return (cls.__name__, k)

def deco(k):
    def wrap(fn):
        @functools.wraps(fn)
        def inner(*a, **kw):
            inner.calls += 1
            return fn(*a, **kw) * k
        inner.calls = 0
        return inner
    return wrap
@deco(3)
def decorated(t, n=1): return t + n
def mutdef(t, acc=[], seen={}): acc.append(len(acc)); seen[len(acc)] = 1; return t * len(acc)
@functools.singledispatch
def sd(v): return ("other", v)
@sd.register
def _(v: int): return ("int", v)
@sd.register(list)
def _(v): return ("list", len(v))
@sd.register(A)
def _(v): return ("A", v.n)
@functools.lru_cache
def lru(n, m=1): log("lru", n); return n * 3 + m
def gen(t, n):
    got = 0
    try:
        for i in range(n):
            got = yield t + i
            if got is not None: log("got", got)
    except ValueError as e:
        log("valueerror", str(e)); yield t * 100
    except GeneratorExit:
        log("exit"); raise
    finally:
        log("fin")
    return ("done", got)
def outer(t, n):
    r = yield from gen(t, n)
    log(r)
    r2 = yield from [t, t * 2]
    return r
@contextlib.contextmanager
def cm(name, swallow=False):
    log("in", name)
    try: yield name + "!"
    except (ValueError, MyErr) as e:
        log("cm", repr(e))
        if not swallow: raise
    else: log("fine")
    finally: log("out", name)
def counter():
    n = 0
    def inc(by=1):
        nonlocal n
        n += by
        return n
    def get(): return n
    return inc, get
def finret(n):
    try:
        if n > 2: raise ValueError(n)
        return ("try", n)
    except ValueError:
        return "except"
    finally:
        if n > 4: return "finally"
def looper(n):
    out = []
    for i in range(5):
        try:
            if i == n: continue
            if i == n + 2: break
            out.append(i)
        finally:
            out.append(-i)
    else:
        out.append("else")
    return out
def kw(a, /, b, *c, d=4, e, **f): return (a, b, c, d, e, sorted(f))
'''
