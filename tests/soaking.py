"""A seeded generator of small Python programs, from a grammar of templates.

A template is source text with holes: ``{t}`` is an expression that gives a tensor, ``{tv}`` a variable that holds one,
``{T}`` a variable that is assigned one; ``{block}`` stands for statements, ``{loop}`` for those of a loop. A hole with
a label (``{tv=a}``) is the same text wherever the label stands (``{a}``). Everything ends: loops are bounded, and what
grows is cut. A program may raise; it then has to raise the same when it is compiled.
"""

import itertools
import random
import re

import soak_features
import soak_templates

# The kinds of expressions: t tensor, n int, b bool, s string, l list of tensors, i list of ints, d dict of tensors,
# o object. Templates that have only variables and constants in them end an expression.
EXPRESSIONS = {
    "t": [
        "{tv}", "{tv}", "{tv}", "{tv}", "{tv}", "WEIGHT", "{ov}.value",
        "torch.relu({t})", "{t}.sin()", "torch.tanh({t})", "(-{t})", "({t} + {t})", "({t} - {t})", "({t} * {t}).tanh()",
        "({t} * {n})", "({t} / 2 + {n})", "torch.where({t} > 0, {t}, {t})", "({t} if {b} else {t})",
        "(*{l}, {t})[0]", "[{t}, *{lv}][-1]", "{lv}[{n} % len({lv})]", "{dv}['a']", "{dv}.get({key}, {t})",
        "{ov}.scaled({t})", "{ov}({t}, by={n})", "{ov}.double", "({ov} + {t})", "{ov}[{n} % 4]", "MODEL({t})",
        "helper({t}, {small})", "helper({t}, depth={small}, shift={t})", "recursive({t}, {small})",
        "sum({l}, {t})", "sum(produce({t}, {small}), {t})", "next(produce({t}, 2))", "(lambda v, k={n}: v * k)({t})",
        "{t}.reshape(-1)[0]", "{t}.t()", "{t}.sum()", "{t}.view(-1)[:1]", "{t}.clone()", "{t}.detach()",
        "max({t}, {t}, key=lambda v: {n})", "functools.reduce(lambda a, b: a + b, {l}, {t})", "[*{l}, {t}][0]",
        "note({t})", "({t} * note({n}))", "({t} * {t}.sum().sign().item())", "torch.tensor({t}.tolist()).sum()",
        "dict(k={t}, **{dv})['k']", "(lambda *a, **k: a[0] + k['b'])({t}, b={t})", "{fv}({t})", "Pair({t}, {n}).left",
        "operator.add({t}, {t})", "getattr({ov}, 'value')", "torch.stack([{t}.sum(), {t}.sum()]).sum()",
        "(torch.ones(2, 2) * len({l}))", "slow({t})", "untouched(helper, {t}, {small})", "zeros_like({t})",
    ],
    "n": [
        "{nv}", "{nv}", "0", "1", "2", "3", "(-1)", "total", "{ov}.count", "{ov}.count", "LIMIT",
        "({n} + {n})", "({n} - {n})", "({n} * {n} % 5)", "({n} % 3)", "({n} // 2)", "len({l})", "len({dv})", "abs({n})",
        "min({n}, {n})", "max({n}, {n}, 1)", "sum({i})", "int({b})", "{t}.dim()", "({n} if {b} else {n})", "len({s})",
        "note({n})", "next(iter({i}), {n})", "(*{i}, 1)[0]", "[2, *{iv}][-1]", "len({ov})", "COUNTS['a']",
        "int({t}.sum().sign())", "divmod({n}, 3)[1]", "(lambda: {n})()", "(hash(({n}, {n})) % 7)", "len(set({i}))",
        "int('{small}')", "math.floor({n} / 2)", "sorted([*{i}, 1])[0]", "({n} & 3)", "(({n} ^ 1) % 8)", "Pair(None, {n}).right",
        "len([v for v in {i} if v > {n}])", "(id({ov}) % 1)", "len(str({n}))", "(bool({n}) + 1)",
    ],
    "b": [
        "True", "False", "({n} < 2)", "({n} > 1)", "({n} < {n})", "({n} == {n})", "{bv}", "(not {b})", "({b} and {b})", "({b} or {b})",
        "({key} in {dv})", "({n} in {i})", "isinstance({ov}, Derived)", "({ov} is {ov})", "({tv} is {tv})", "({tv} is not None)",
        "hasattr({ov}, 'late')", "note({b})", "({t}.sum() > 0)", "bool({t}.mean() < 0.1)", "({s} == 'ab')", "any(v > 1 for v in {i})",
        "all(v > 0 for v in {i})", "(0 <= {n} < 3)", "{t}.requires_grad", "{s}.startswith('a')", "({n} in {ov})",
        "({t}.shape == {t}.shape)", "bool({ov})", "callable({fv})", "({t} > 0).all()",
    ],
    "s": [
        "{sv}", "{sv}", "'a'", "'ab'", "f'{{{nv}}}'", "({s} + {s})[:5]", "{s}.upper()", "{s}[::-1]", "note({s})",
        "str({n})", "f'{{{nv}:>3}}|{{{sv}!r}}'[:9]", "('%d' % {n})", "'-'.join([{s}, {s}])[:6]", "type({ov}).__name__",
        "{ov}.kind", "repr({i})[:7]", "'{{}}{{}}'.format({n}, {s})[:6]", "{s}.replace('a', 'b')", "','.join(sorted({dv}))",
    ],
    "l": [
        "{lv}", "{lv}", "[{t}]", "[{t}, {t}]", "[*{l}, {t}][:4]", "{l}[:2]", "{l}[::-1]", "list({l})", "({l} + {l})[:4]",
        "[v * {n} for v in {l}]", "[v for v in {l} if {b}]", "[a + b for a, b in zip({l}, {l})]", "list({dv}.values())[:4]",
        "[note(v) for v in {l}]", "list(produce({t}, {small}))", "list(map(lambda v: v + {n}, {l}))", "list({ov})",
        "[v for w in [{l}, {l}] for v in w][:4]", "sorted({l}, key=lambda v: {n})",
        "list(filter(lambda v: {b}, {l}))", "note({l})", "list(itertools.chain({l}, {l}))[:4]", "list(reversed({l}))",
        "[v for _, v in sorted({dv}.items(), key=lambda kv: kv[0])]", "list({t}.reshape(-1).unbind(0))[:2]", "{l}.copy()",
    ],
    "i": [
        "{iv}", "{iv}", "[1, 2]", "[{n}, {n}]", "list(range({small}))", "[v * 2 for v in {i}][:4]", "{i}[1:]", "sorted({i})",
        "([{n}] * {small})", "sorted({{v % 3 for v in {i}}})", "[k for k, v in enumerate({l})]", "list({rv})[:3]", "note({i})",
        "[a for a, in zip({i})]", "list(dict.fromkeys({i}))", "[v if v else {n} for v in {i}]", "[int(v) for v in torch.tensor({i}).tolist()]",
        "[note(v) for v in {i}]", "list(deque({i}, maxlen=2))", "[*range({small}), {n}]", "{t}.sum().sign().int().view(1).tolist()",
    ],
    "d": [
        "{dv}", "{dv}", "{{'a': {t}}}", "{{'a': {t}, 'b': {t}}}", "dict({dv})", "{{**{dv}, {key}: {t}}}", "{{k: v * 2 for k, v in {dv}.items()}}",
        "dict(zip('ab', {l}))", "({dv} | {{{key}: {t}}})", "note({d})", "{{k: note(v) for k, v in {dv}.items()}}", "{dv}.copy()",
    ],
    "o": [
        "{ov}", "{ov}", "Base({t})", "Base({t}, {n})", "Derived({t}, count={n})", "note({ov})", "({ov} if {b} else {ov})", "{ov}.copy()",
    ],
    "key": ["'a'", "'b'", "'c'", "{sv}"],
    "small": ["0", "1", "2", "3", "2", "3"],
}  # fmt: skip

STATEMENTS = [
    (14, "{T} = {t}"), (5, "{N} = {n}"), (3, "{S} = {s}"), (4, "{L} = {l}"), (3, "{I} = {i}"), (3, "{D} = {d}"), (3, "{O} = {o}"),
    (3, "{tw=a} = {a} + {t}"), (2, "{tw} += {t}"), (2, "{nw} += {n} % 5"), (1, "{T}, {N} = {t}, {n}"), (1, "{T}, *{L} = [{t}, *{l}]"),
    (1, "[{T}, ({N}, {T})] = [{t}, ({n}, {t})]"), (1, "{T} = {T} = {t}"),
    (6, "note('at', {n})"), (4, "note({t})"), (2, "note({s}, {i})"), (2, "bothways.graph_break()"), (1, "print_like({s}, {t})"),
    (5, "if {b}:\n    {block}"), (4, "if {b}:\n    {block}\nelse:\n    {block}"), (2, "if {b}:\n    {block}\nelif {b}:\n    {block}\nelse:\n    {block}"),
    (4, "for {N} in range({small}):\n    {loop}"), (2, "for {T} in {l}[:3]:\n    {loop}"), (2, "for {N}, {T} in enumerate({l}[:3]):\n    {loop}"),
    (1, "for {S}, {T} in list({dv}.items())[:3]:\n    {loop}"), (1, "for {T}, {N} in zip({l}[:3], {i}):\n    {loop}"),
    (2, "for {N} in range({small}):\n    {loop}\nelse:\n    {block}"), (1, "for {T} in produce({t}, {small}):\n    {loop}"),
    (1, "for {T} in {tv}.detach().reshape(-1):\n    note({t})"), (1, "for {T} in {lv}:\n    note('over', {n})"),
    (2, "{fresh=c} = 0\nwhile {c} < {small} and {b}:\n    {c} += 1\n    {loop}"), (1, "{fresh=c} = 0\nwhile {c} < 2:\n    {c} += 1\n    {loop}\nelse:\n    {block}"),
    (2, "{fresh=c} = {t}.detach().float().abs().sum() + 1\nwhile {c} < 20:\n    {c} = {c} * 3\n    {loop}"),
    (1, "{fresh=c} = 0\nwhile True:\n    {c} += 1\n    if {c} > {small}:\n        break\n    {loop}"),
    (3, "try:\n    {risky}\nexcept {errors}:\n    {block}"), (3, "try:\n    {risky}\nexcept {errors} as error:\n    note(type(error).__name__, str(error)[:60])\n    {block}"),
    (2, "try:\n    {block}\nfinally:\n    {block}"), (1, "try:\n    {risky}\nfinally:\n    {block}"), (2, "try:\n    {risky}\nexcept {errors}:\n    {block}\nelse:\n    {block}\nfinally:\n    {block}"),
    (1, "try:\n    {risky}\nexcept {errors} as error:\n    if {b}:\n        raise Problem({s}) from error"), (1, "try:\n    {risky}\nexcept {errors}:\n    {block}\n    if {b}:\n        raise"),
    (1, "try:\n    {risky}\nexcept KeyError:\n    {block}\nexcept (ValueError, Problem) as error:\n    note(repr(error), repr(error.__context__))"),
    (1, "try:\n    {risky}\nexcept {errors}:\n    try:\n        {risky}\n    except {errors} as second:\n        note(repr(second), repr(second.__context__))"),
    (3, "with Manager({s}):\n    {block}"), (1, "with Manager({s}, True):\n    {risky}"), (1, "with Manager({s}) as {O}, Manager('second', True):\n    {risky}"),
    (2, "with scope({s}):\n    {block}"), (2, "with torch.no_grad():\n    {block}"), (1, "with contextlib.suppress({errors}):\n    {risky}"),
    (1, "with {ov} as {O}:\n    {block}"), (1, "with torch.enable_grad(), scope({s}) as {S}:\n    {block}"),
    (1, "with contextlib.ExitStack() as stack:\n    stack.enter_context(scope('stacked'))\n    stack.callback(note, 'left')\n    {block}"),
    (2, "match {n}:\n    case 0:\n        {block}\n    case 1 | 2:\n        {block}\n    case {N} if {b}:\n        {block}\n    case _:\n        {block}"),
    (1, "match {i}:\n    case [{N}, *_]:\n        {block}\n    case []:\n        {block}"), (1, "match {ov}:\n    case Derived(count={N}):\n        {block}\n    case Base():\n        {block}"),
    (1, "match {dv}:\n    case {{'a': {T}, **others}}:\n        note(sorted(others))"),
    (2, "{lv}.append({t})"), (1, "{lv}.insert(0, {t})"), (1, "if {lv=a}:\n    {a}.pop()"), (1, "{lv}[:] = {l}"), (1, "{lv}.extend({l}[:2])"), (1, "{lv}[:1] = [{t}]"),
    (1, "{lv}.reverse()"), (1, "del {lv}[3:]"), (1, "{lw} += [{t}]"), (1, "{iv}.append({n})"), (1, "{iv}.sort()"), (1, "del {iv}[4:]"),
    (2, "{dv}[{key}] = {t}"), (1, "{dv}.update(b={t})"), (1, "{dv}.pop({key}, None)"), (1, "{dv}.setdefault({key}, {t})"),
    (1, "{rw=a} = (*{a}, {n})"), (1, "{kv}[{s}] = {n}"), (1, "note(sorted({kv}), {rv})"), (1, "if ({T=a} := {t}).sum() > 0:\n    note({a})"),
    (2, "{ov}.value = {t}"), (2, "{ov}.count += {n} % 3"), (1, "{ov}.late = {n}"), (1, "if hasattr({ov=a}, 'late'):\n    del {a}.late"), (1, "setattr({ov}, 'count', {n})"),
    (1, "{ov}.double = {t}"), (1, "{ov}.seen.append({n})"), (1, "{ov}[{n}] = {t}"), (1, "Base.kind = {s}"), (1, "{ow} += {t}"),
    (3, "total += {n} % 5"), (1, "total = {n}"), (1, "COUNTS['a'] += 1"), (1, "COUNTS[{s}] = {n}"), (1, "SEEN.append({n})"), (1, "SEEN[-2:] = [{n}]"),
    (1, "RECENT.append({n})"), (1, "RECENT.appendleft(RECENT.pop())"), (1, "NAMES.add({s})"), (1, "NAMES.discard({s})"), (1, "MODEL.calls += 1"), (1, "MODEL.scale = {n}"),
    (1, "with torch.no_grad():\n    WEIGHT.mul_(0.5)"), (1, "MODEL.buffer.add_({n})"), (1, "MODEL.last = {t}"),
    (2, "{mv}.add_({n})"), (1, "{mv}[0] = {n}"), (1, "{mv}.mul_(0.5)"), (1, "{fresh=c} = {t} * 1\n{c}.add_({n})\nnote({c})\n{c}.mul_(2)\n{T} = {c}"),
    (1, "{fresh=c} = {t} * 1\n{c}.view(-1)[:1].add_({n})\n{T} = {c}"), (1, "{fresh=c} = {mv}[:1]\nnote('view')\n{c}.sub_({n})"),
    (3, "def {F}(value, by={n}):\n    global total\n    {function}\n    return value * by"), (2, "{F} = lambda value, k={n}: value + k + {tv}"),
    (2, "def {F}(value):\n    global total\n    nonlocal {nw=a}\n    {a} += 1\n    {function}\n    return value + {a}"),
    (1, "def {F=f}(value, *more, last={s}, **named):\n    global total\n    note(last, len(more), sorted(named))\n    {function}\n    return value\n{T} = {f}({t}, 1, last='z', k=2)"),
    (2, "{T} = {fv}({t})"), (1, "{fresh=c} = produce({t}, 3)\n{T} = next({c})\nnote('between')\n{T} = next({c}, {t})"),
    (1, "{fresh=c} = (v * {n} for v in {l})\n{T} = sum({c}, {t})"), (1, "{fresh=c} = iter({l})\n{T} = next({c}, {t})\nnote({n})\n{L} = list({c})"),
    (1, "{fresh=c} = talk({t})\nnext({c})\n{T} = {c}.send({t})\n{c}.close()"),
    (2, "assert {t}.sum() < 1e6, 'large'"), (1, "assert {b} or {n} < 9, {s}"), (1, "{T=a} = {t}\ndel {a}\n{a} = WEIGHT"), (1, "import colorsys\n{N} = int(colorsys.ONE_THIRD * 9)"),
    (1, "note(sorted(name for name in locals() if len(name) == 1))"), (1, "class Local:\n    by = {n}\n    def apply(self, v):\n        return v * self.by\n{T} = Local().apply({t})"),
    (1, "{T}, {N} = Pair({t}, {n}).both()"), (1, "{N} = sum(v for v in {i} if v != {n})"), (1, "{T} = torch.cat([{t}.reshape(-1)[:1], {t}.reshape(-1)[:1]]).sum() + {t}"),
    (1, "{O} = copy.copy({ov})"), (1, "{L} = [w for v in {lv} if (w := v + {nv}) is not None]\nnote(len({lv}))"), (1, "if {b}:\n    return {t}"), (1, "if {n} > 5:\n    raise Problem({s}, {n})"), (1, "fail({s}) if {n} > 5 else None"),
]  # fmt: skip

for kind, rows in soak_templates.EXPRESSIONS.items():
    EXPRESSIONS[kind] += rows
STATEMENTS += soak_templates.STATEMENTS

LOOP_STATEMENTS = [(3, "if {b}:\n    break"), (3, "if {b}:\n    continue"), (1, "if {b}:\n    note('out')\n    break")]
RISKY_STATEMENTS = [
    (3, "fail({s})"), (3, "raise Problem({s}, {n})"), (2, "raise ValueError({s})"), (1, "{T} = {dv}['missing']"), (1, "{T} = {lv}[9]"),
    (1, "{N} = {n} // 0"), (1, "{ov}.absent"), (1, "{T} = torch.ones(2) @ torch.ones(3)"), (1, "next(iter([]))"), (1, "int({s})"), (1, "raise KeyError({n})"),
    (2, "if {b}:\n    fail({s})"), (1, "return {t}"), (1, "{N} = undefined_name"), (1, "{tv}.add_(1)"), (1, "del {dv}[{key}]"), (1, "{iv}.remove({n})"), (1, "{T}, {T} = {l}"),
    (1, "del {ov}.late"), (1, "{N} = {iv}.index({n})"), (1, "{T} = {ov}[9]"), (1, "assert {b}, {s}"), (1, "{T} = {t}.unbind(0)[2]"), (1, "{t}.not_there()"),
]  # fmt: skip
ERRORS = ["ValueError", "Problem", "Exception", "KeyError", "(ValueError, Problem)", "LookupError", "Exception", "Exception", "Exception"]

PRELUDE = '''
class Problem(Exception):
    """An exception of the user's."""

class Base:
    kind = "base"
    def __init__(self, value, count=0):
        self.value, self.count, self.seen = value, count, []
    def scaled(self, t):
        global total
        self.count += 1
        {method0}
        return t * 0.5
    @property
    def double(self):
        return self.value * 2
    @double.setter
    def double(self, t):
        self.value = t / 2
    def __call__(self, t, by=1):
        self.seen.append(by)
        return t + self.value * by
    def __add__(self, t):
        return self.value + t
    def __iadd__(self, t):
        self.value = self.value + t
        return self
    def __iter__(self):
        yield self.value
        yield self.value + 1
    def __len__(self):
        return len(self.seen) + 1
    def __getitem__(self, index):
        if index > 3:
            raise IndexError(index)
        return self.value + index
    def __setitem__(self, index, t):
        self.seen.append(index)
        self.value = t
    def __contains__(self, number):
        return number in self.seen
    def __enter__(self):
        LOG.append(("enter", self.kind, self.count))
        return self
    def __exit__(self, kind, error, traceback):
        LOG.append(("exit", None if kind is None else kind.__name__))
        return False
    def copy(self):
        return type(self)(self.value, count=self.count)

class Derived(Base):
    kind = "derived"
    def __init__(self, value, count=1):
        super().__init__(value, count)
        self.extra = {small}
    def scaled(self, t):
        global total
        {method1}
        t = super().scaled(t)
        return t + self.extra
    def __bool__(self):
        return self.count > 0

@dataclasses.dataclass
class Pair:
    left: object
    right: int = 0
    def both(self):
        return self.left, self.right

class Manager(Base):
    def __init__(self, name, swallows=False):
        super().__init__(torch.ones(1))
        self.name, self.swallows = name, swallows
    def __enter__(self):
        LOG.append(("in", self.name))
        return self
    def __exit__(self, kind, error, traceback):
        LOG.append(("out", self.name, None if error is None else str(error)))
        return self.swallows

@contextlib.contextmanager
def scope(name):
    LOG.append(("begin", name))
    try:
        yield name
    except Problem as error:
        LOG.append(("problem", name))
        raise
    finally:
        LOG.append(("end", name))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1,), 0.5))
        self.register_buffer("buffer", torch.ones(1))
        self.calls, self.scale, self.last = 0, 1, None
    def forward(self, t):
        global total
        self.calls += 1
        {method2}
        return t * self.weight + self.buffer * self.scale

def helper(t, depth=1, *, shift=0):
    global total
    {method3}
    return t + depth + shift

def recursive(t, depth):
    global total
    if depth <= 0:
        return t.sin()
    {method4}
    return recursive(t * 0.5, depth - 1) + depth

def produce(t, count):
    global total
    for index in range(count):
        {method5}
        yield t + index

def talk(t):
    got = yield t
    while got is not None:
        LOG.append("got")
        got = yield got + t
'''

SETUP = '''
LOG = []
total = 1
LIMIT = 3
SEEN, COUNTS, NAMES, RECENT = [0, 1], {"a": 1}, {"a"}, deque([1, 2], maxlen=4)
WEIGHT = torch.full((1,), 0.25)
MODEL = Model()

@bothways.disable
def note(*what):
    LOG.append(tuple(snapshot(item) for item in what))
    return what[0]

@bothways.disable
def print_like(*what):
    LOG.append(("printed", *(snapshot(item) for item in what)))

@bothways.disable
def fail(message):
    LOG.append(("fail", message))
    raise ValueError(message)

@bothways.disable
def untouched(function, *args):
    return function(*args)

def slow(t):
    LOG.append("slow")
    return torch.from_numpy(t.detach().clone().numpy()) * 0.5

def zeros_like(t):
    return torch.zeros(t.shape, dtype=t.dtype) + t.numel()
'''

IMPORTS = """import collections, contextlib, copy, dataclasses, enum, functools, itertools, math, operator
from collections import deque
import torch
import bothways
"""
TARGET = """
def target(x, y, n, items, table, thing, *rest, flag=True, **options):
    global total
    {body}
    return {t}, {n}, {o}, {l}
"""
HOLE = re.compile(r"(?<!\{)((?:\{\{)*)\{(\w+)(?:=(\w+))?\}")
VARIABLES = {"tv": "t", "nv": "n", "sv": "s", "lv": "l", "iv": "i", "dv": "d", "ov": "o", "fv": "f", "mv": "m", "rv": "r", "kv": "k", "bv": "b"}
OWN = {"tw": "t", "nw": "n", "lw": "l", "ow": "o", "rw": "r"}
ASSIGNED = dict(zip("TNSLIDOF", "tnslidof", strict=True))


class Missing(Exception):
    """A template asks for a variable of a kind of which there is none."""


class Scope:
    """The variables of a function by kind: those that may be read, and its own, that may be assigned."""

    def __init__(self, readable=(), own=()):
        self.readable = {kind: list(names) for kind, names in dict(readable).items()}
        self.own = {kind: list(names) for kind, names in dict(own).items()}

    def copy(self):
        return Scope(self.readable, self.own)

    def add(self, kind, name):
        for table in (self.readable, self.own):
            if name not in table.setdefault(kind, []):
                table[kind].append(name)


class Writer:
    """Fills templates; ``size`` is how many statements it may still write, ``features`` what is to stand out."""

    def __init__(self, seed, size=9, features=()):
        self.random, self.size = random.Random(seed), size
        self.features = [soak_features.FEATURES[name] for name in features]
        self.standing_out = [row for feature in self.features for row in feature.statements]
        self.numbers = itertools.count()
        self.depth = 0
        self.forbidden = []  # calls that could come back here

    def program(self):
        classes = self.fill(PRELUDE, Scope())
        parameters = Scope({"t": ["x", "y"], "n": ["n"], "s": [], "l": ["items"], "i": ["SEEN"], "d": ["table"], "o": ["thing"],
                            "m": ["y"], "r": ["rest"], "k": ["options"], "b": ["flag"]},
                           {"t": ["x"], "n": ["n"], "l": ["items"], "r": ["rest"]})  # fmt: skip
        body = "s = 'ab'\np = [1, n]\nv = x * 2"
        for kind, name in (("s", "s"), ("i", "p"), ("t", "v")):
            parameters.add(kind, name)
        rest = self.statements(parameters, 3, self.size)
        target = self.fill(TARGET.replace("{body}", indented(f"{body}\n{rest}", 4)), parameters)
        preludes = "\n".join([soak_templates.PRELUDE, *(feature.prelude for feature in self.features)])
        return f"{IMPORTS}\n{classes}\n{SETUP}\n{preludes}\n{target}"

    # Statements.

    def statements(self, scope, low, high, *extra, depth=3):
        count = self.random.randint(low, high)
        return "\n".join(self.statement(scope, depth, *extra) for _ in range(count)).replace("{", "{{").replace("}", "}}")

    def statement(self, scope, depth, *extra):
        table = STATEMENTS + [row for rows in extra for row in rows] * 3
        while True:
            if self.features and not self.forbidden and self.random.random() < STANDS_OUT:
                table = self.standing_out or table
            (_, template), = self.random.choices(table, [weight for weight, _ in table])
            if depth <= 0 and re.search(r"\{(block|loop|risky|function)\}", template):
                continue
            if any(word in template for word in self.forbidden):
                continue
            trial = scope.copy()
            try:
                text = self.fill(template, trial, depth, extra)
            except Missing:
                continue
            scope.readable, scope.own = trial.readable, trial.own
            return text

    def fill(self, template, scope, depth=3, extra=()):
        """The template with every hole filled, from left to right."""
        labels, pending = {}, []

        def hole(match):
            before, name, label = match.groups()
            if name in labels:
                return before + labels[name]
            if name in BLOCKS:
                while pending:
                    scope.add(*pending.pop())
                column = match.start() - (template.rfind("\n", 0, match.start()) + 1)
                text = indented(self.block(name, scope, depth, extra), column)
            else:
                text = self.part(name, scope, pending)
            if label:
                labels[label] = text
            return before + text

        text = HOLE.sub(hole, template)
        for kind, name in pending:
            scope.add(kind, name)
        return text.replace("{{", "{").replace("}}", "}")

    def block(self, name, scope, depth, extra):
        if name.startswith("method"):
            inner = Scope({"t": ["t"], "n": ["LIMIT"], "i": ["SEEN"]}, {"t": ["t"]})
            self.forbidden = CALLS[int(name[-1]) :]
            text = self.statements(inner, 0, 1, depth=1) or "pass"
            self.forbidden = []
            return text
        if name == "function":
            inner = Scope(scope.readable)
            for table in (inner.readable, inner.own):
                table.setdefault("t", []).append("value")
            inner.readable.pop("f", None)
            return self.statements(inner, 0, 2, depth=1) or "pass"
        inner = scope.copy()
        more = {"loop": [LOOP_STATEMENTS], "risky": [*extra, RISKY_STATEMENTS], "block": extra}[name]
        text = self.statements(inner, 1, 3, *more, depth=depth - 1)
        if self.random.random() < 0.1:  # names that are bound only sometimes
            scope.readable, scope.own = inner.readable, inner.own
        return text

    # Names and expressions.

    def part(self, name, scope, pending):
        if name == "fresh":
            return f"c{next(self.numbers)}"
        if name == "errors":
            return self.random.choice(ERRORS)
        if name in VARIABLES:
            return self.variable(scope.readable.get(VARIABLES[name]))
        if name in OWN:
            return self.variable(scope.own.get(OWN[name]))
        if name in ASSIGNED:
            kind = ASSIGNED[name]
            known = scope.own.get(kind, [])
            made = self.random.choice(known) if known and self.random.random() < 0.5 else f"{kind}{next(self.numbers)}"
            pending.append((kind, made))
            return made
        return self.expression(name, scope)

    def variable(self, known):
        if not known:
            raise Missing
        return self.random.choice(known)

    def expression(self, kind, scope):
        self.depth += 1
        try:
            while True:
                templates = EXPRESSIONS[kind]
                own = [row for feature in self.features for row in feature.expressions.get(kind, ())]
                if own and not self.forbidden and self.depth < 4 and self.random.random() < STANDS_OUT:
                    templates = own
                template = self.random.choice(templates if self.depth < 4 else templates[:6])
                if any(word in template for word in self.forbidden):
                    continue
                try:
                    return self.fill(template, scope)
                except Missing:
                    continue
        finally:
            self.depth -= 1


STANDS_OUT = 0.3  # how often the rows of features are taken, where there are any
# Functions with generated bodies, in the order of the prelude: each calls only those before it.
CALLS = [".scaled(", "super().scaled(", "MODEL(", "helper", "recursive(", "produce(", "delegating("]
BLOCKS = frozenset({"block", "loop", "risky", "function", *(f"method{level}" for level in range(len(CALLS)))})


def indented(text, columns):
    return text.replace("\n", "\n" + " " * columns)


def program(seed, features=()):
    """The source of one program; without features it is an everyday one."""
    return Writer(seed, features=features).program()
