"""Templates for the generator of ``soaking.py`` around what was once wrong: each feature is a class of bugs.

A program with features is an everyday one in which the rows of those stand out. ``FEATURES`` has, for each name, rows
of expressions and of statements, as in ``soak_templates.py``, and a prelude.
"""

from typing import NamedTuple


class Feature(NamedTuple):
    expressions: dict = {}
    statements: list = []
    prelude: str = ""


# Hooks on tensors that a backward comes to, or does not.

_HOOKED = "{fresh=c} = {t} * 1\nif {c}.requires_grad:\n    {c}.register_hook(noting({s}))\n"
_SEVERAL = (
    "{fresh=c} = {t} * 1\nif {c}.requires_grad:\n    {c}.register_hook(noting('first'))\n"
    "    {c}.register_hook(noting('changes', 2.0))\n    {c}.register_hook(noting('last'))\n"
)
_KEPT = "{fresh=c} = {t} * 1\nif {c}.requires_grad:\n    {c}.retain_grad()\n    keep({c})\n"
_WAYS = [
    "{T} = {c}.detach() + {t}", "{T} = ({c} > 0).float() * {t}", "{T} = {c}.long().float() + {t}", "{T} = {c}.isnan().float() + {t}",
    "with torch.no_grad():\n    {T} = {c} * 2 + {t}", "{T} = torch.zeros_like({c}) + {t}", "{T} = {t}", "{T} = {c}.sin()",
    "{T} = {c} * {t}", "{T} = {c}.detach() * {c}", "{N} = int({c}.detach().sum().sign())", "{T} = ({c} * {t}).detach() + {t} * 2",
    "{T}, {T} = {c} * {tv}, {tv} * 3", "{T} = Doubled.apply({c}).detach() + {t}", "{T} = Doubled.apply({c}) + {t}",
]  # fmt: skip
HOOKS = Feature(
    statements=[
        *((2, _HOOKED + way) for way in _WAYS), *((1, _SEVERAL + way) for way in _WAYS), *((1, _KEPT + way) for way in _WAYS),
        (2, "{fresh=c}, {fresh=d} = {t} * 1, {t} * 2\nif {c}.requires_grad and {d}.requires_grad:\n    torch.autograd.graph.register_multi_grad_hook([{c}, {d}], noting('all'))\n{T} = {c}.detach() + {d}"),
        (1, "{fresh=c} = {t} * 1\nif {c}.requires_grad:\n    {fresh=h} = {c}.register_hook(noting('gone'))\n    {h}.remove()\n{T} = {c}.sin()"),
        (1, "{fresh=c} = {t} * 1\nif {c}.grad_fn is not None:\n    {c}.grad_fn.register_prehook(noting('before'))\n{T} = {c}.detach() + {t}"),
        (1, "{fresh=c} = {t} * 1\nif {c}.requires_grad:\n    for {N} in range(2):\n        {c}.register_hook(noting({s}))\n{L} = [{c}.detach(), {c} * 2]"),
    ],
    prelude='''
KEPT = []

def keep(t):
    KEPT.append(t)

def noting(name, factor=None):
    def hook(*grads):
        LOG.append(("hook", name, snapshot(list(grads))))
        return None if factor is None else grads[0] * factor
    return hook
''',
)  # fmt: skip

# Numbers with few digits, and whatever can see that a result was rounded or is too large.

_SMALL = ["{t}.half()", "{t}.bfloat16()"]
_SEEN_BY = [
    "({h} * 1000).isinf()", "({h} * 300 * 300 - {h} * 300 * 300).isnan()", "torch.isfinite(({h} * 40000).float())", "({h} / 3).floor()",
    "(({h} + 1) > {h})", "({h} * 0.1).sign()", "({h} + 1 == {h} + 1.0009)", "({h} * 7).round()", "(({h} * 100).clamp(-900, 900)).int()",
    "({h} * 1.001).double()", "({h} * 1.001 - {h}).float()", "torch.sign({h} * 1e-5 * 1e-4)", "({h} * 3).to(torch.bfloat16)", "(({h} * 2000) > 60000)",
    "({h} + 0.0004).trunc()", "(({h} * 900).exp() == torch.inf)", "({h} / 3 * 3 != {h})", "(({h} / 7).bool())",
]  # fmt: skip
HALVES = Feature(
    {"t": [f"{seen.replace('{h}', half)}.float()" for seen in _SEEN_BY for half in _SMALL] + [f"({half} * 2).float()" for half in _SMALL]}
)

# Values at the edges of what numbers can be.

_EDGES = [
    "abs", "neg", "relu", "sign", "signbit", "isnan", "isinf", "isfinite", "floor", "ceil", "round", "trunc", "sqrt", "rsqrt", "exp", "log",
    "log1p", "expm1", "sinh", "cosh", "tanh", "sigmoid", "reciprocal", "square", "erf", "atan", "nan_to_num", "logical_not", "frac",
]  # fmt: skip
_EDGE_LAYERS = ["relu6", "softshrink", "hardtanh", "hardswish", "silu", "softplus", "elu", "leaky_relu", "tanhshrink"]
# Not fmod and remainder: where a quotient overflows, eager gives NaN, and at the end of a tensor a number.
_EDGE_PAIRS = ["maximum", "minimum", "atan2", "copysign", "fmax", "fmin", "div", "eq", "lt", "true_divide", "ge", "logical_xor"]
# These read a sign, and that of a NaN that was computed is nobody's: eager's own loops do not agree about it.
_READ_SIGNS = ("signbit", "copysign")


def _edge(name):
    given = "special({t}).nan_to_num(1.0)" if name in _READ_SIGNS else "special({t})"
    return f"torch.{name}({given}).float()"


def _edge_pair(name, second):
    return f"torch.{name}(special({{tv=a}}), {second}{'.nan_to_num(1.0)' if name in _READ_SIGNS else ''}).float()"


SPECIAL = Feature(
    {
        "t": [
            "special({t})", *map(_edge, _EDGES),
            *(f"torch.nn.functional.{name}(special({{t}}))" for name in _EDGE_LAYERS),
            *(_edge_pair(name, "special({a}.neg())") for name in _EDGE_PAIRS),
            *(_edge_pair(name, "{a}") for name in _EDGE_PAIRS),
            "special({t}).double().sinh().float()", "special({t}).clamp(-1, 1)", "special({t}).sum()", "special({t}).amax()", "special({t}).reshape(-1).softmax(0)",
            "torch.fmod(special({t}), 3.0)", "(special({t}) > {t}).float()", "torch.where(special({t}).isnan(), {t}, 0.0)", "special({t}).half().float()",
        ]
    },
    prelude='''
EDGES = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 1e-45, math.inf, -math.inf, math.nan, 3.4e38, -3.4e38, 1.2e-38, 88.5, -88.5, 0.5, -0.5, 710.0])

def special(t):
    """Every other element is one of the edges; gradients go through the rest."""
    count = max(t.numel(), 1)
    edges = EDGES.repeat(count // len(EDGES) + 1)[:count].to(t.dtype)
    taken = torch.arange(count) % 2 == 0
    return torch.where(taken, edges, t.reshape(-1)).reshape(t.shape) if t.numel() else t
''',
)  # fmt: skip

# The same, with the signs of zeros looked at: comparisons do not tell them apart. Eager's own loops, over whole vectors
# and over what is left of them, do not agree about the signs of NaN, of what softshrink leaves nothing of, and of the
# larger one of 0.0 and -0.0; nor about gelu of infinity, which is no row at all.

SIGNS = Feature(
    {
        "t": [
            *(f"signs(torch.nn.functional.{name}(special({{t}})))" for name in _EDGE_LAYERS if name != "softshrink"),
            *(f"signs({_edge(name)})" for name in _EDGES),
            *(f"signs({_edge_pair(name, 'special({a}.neg())')})" for name in _EDGE_PAIRS if name not in ("maximum", "minimum")),
        ]
    },
    prelude=SPECIAL.prelude
    + '''
def signs(t):
    return (torch.signbit(t) & ~t.isnan()).float()
''',
)

# Bytes other than 0 and 1 that are taken for bools.

BOOLS = Feature(
    {
        "t": [
            f"{expression}.float()"
            for expression in (
                "truths({t})", "(~truths({t}))", "torch.logical_and(truths({t}), truths({t}).all())", "truths({t}).sum()", "truths({t}).int()",
                "(truths({t}) ^ True)", "truths({t}).cumsum(0)", "torch.where(truths({tv=a}), {a}, -{a})", "(truths({t}) == True)", "truths({t}).any()",
                "(truths({t}) & (truths({t}).sum() > 0))", "truths({t}).to(torch.uint8)", "truths({t}).view(torch.uint8)", "(truths({t}) * 3)",
            )
        ]
    },
    [(1, "{fresh=c} = octets({t})\n{fresh=d} = {c}.view(torch.bool)\n{c}.add_(2)\n{T} = {d}.float()"), (1, "{N} = int(truths({t}).sum())")],
    '''
def octets(t):
    return (t.detach().float().nan_to_num(1.0, 2.0, 3.0).abs() * 3).clamp(0, 200).to(torch.uint8)

def truths(t):
    return octets(t).view(torch.bool)
''',
)  # fmt: skip

# Functions that others replace between two calls. ``between`` says before each call which are.

PATCHED = Feature(
    {
        "t": [
            "torch.sin({t})", "{t}.sin()", "torch.nn.functional.relu({t})", "torch.nn.functional.linear({t}.reshape(1, -1), {t}.reshape(1, -1)[:, :1].detach() * 0 + {t}.reshape(1, -1).detach())",
            "({t} * math.sqrt(abs({n}) + 1))", "mine({t})", "mine({t}, {n})", "LAYER({t}.reshape(-1)[:1])", "({t} * time.time())", "({t} * random.random())",
        ],
        "n": ["len([1, 2, 3])", "int(math.sqrt(16))", "int(time.time())"],
        "b": ["isinstance(3, Registered)"],
    },
    prelude='''
import abc, random, time, builtins
from unittest import mock

def mine(t, by=2):
    return t * by

def other(t, by=5):
    return t - by

class Registered(abc.ABC):
    pass

LAYER = torch.nn.Linear(1, 1)
with torch.no_grad():
    LAYER.weight.fill_(0.5), LAYER.bias.fill_(1.0)

REPLACED = [
    ("torch.sin", lambda t: t * 2), ("torch.nn.functional.relu", lambda t: t + 1), ("torch.nn.functional.linear", lambda *given: given[0] * 3),
    ("torch.Tensor.sin", lambda t: t * 3), ("torch.nn.Linear.forward", lambda self, t: t * 7), ("math.sqrt", lambda n: 9.0),
    ("time.time", lambda: 4.0), ("random.random", lambda: 0.25),
]
ORIGINAL = mine.__code__, mine.__defaults__
ACTIVE = []

def between(number):
    """Replace other functions before each call; ``None`` puts back all."""
    while ACTIVE:
        ACTIVE.pop().stop()
    mine.__code__, mine.__defaults__ = ORIGINAL
    if number is None:
        return
    names = REPLACED if number >= 2 else [("time.time", lambda: 3.0), ("random.random", lambda: 0.5)]
    for path, function in names:
        ACTIVE.append(mock.patch(path, function))
        ACTIVE[-1].start()
    if number >= 2:
        mine.__defaults__ = (3,)
    if number >= 3:
        mine.__code__ = other.__code__
        Registered.register(int)
''',
)  # fmt: skip

# Tensors without memory in the middle.

META = Feature(
    {
        "t": ["({t} * {t}.to('meta').dim())", "(torch.zeros({tv=a}.to('meta').shape) + {a})", "({t} + torch.ones(3, device='meta').numel())"],
        "n": ["{t}.to('meta').numel()", "torch.ones({small}, device='meta').numel()", "{t}.new_ones(2, device='meta').dim()", "len({t}.to('meta').shape)"],
        "b": ["{t}.to('meta').is_meta", "({t}.to('meta').dtype is {t}.dtype)"],
    },
    [
        (2, "{fresh=c} = {t}.to('meta') * 2 + 1\nnote(list({c}.shape), {c}.device.type)"), (1, "{fresh=c} = torch.ones(2, 3, device='meta')\n{fresh=d} = ({c} @ {c}.t()).sin()\nnote(list({d}.shape))"),
        (1, "{fresh=c} = {t}.detach().new_zeros(3, device='meta')\n{c}.add_(1)\n{N} = {c}.numel()"), (1, "with torch.device('meta'):\n    {fresh=c} = torch.zeros(2)\nnote({c}.device.type)"),
    ],
)  # fmt: skip

# Factories, and variables called as they are.

_NAMES = ["empty", "full", "zeros", "ones", "torch_", "inputs", "result", "step", "self", "buffer", "out", "data"]
FACTORIES = Feature(
    {
        "t": [
            "torch.empty(2).fill_({n}).sum()", "torch.empty_like({t}).fill_(1.5)", "torch.full((2,), 1.5).sum()", "torch.full_like({t}, {n})", "torch.zeros(2, 2).sum()",
            "torch.empty(2, 2).zero_().sum()", "torch.ones(3)[:1]", "{t}.new_empty(2).copy_(torch.ones(2)).sum()", "torch.arange({small}).float().sum()", "torch.linspace(0, 1, 3).sum()",
            "torch.eye(2).sum()", "torch.tensor([1.5, {n}]).sum()", "torch.empty(0).sum()", "{t}.new_full((2,), 2.5).sum()", "torch.scalar_tensor(2.5)",
        ]
    },
    [
        *((1, f"{name} = {{t}} + 1\n{{T}} = torch.empty_like({name}).copy_({name}.detach()) + {name}") for name in _NAMES),
        *((1, f"{name} = torch.{name}\n{{T}} = {name}(2).sum() * 0 + {{t}}") for name in ("zeros", "ones")),
        (1, "empty = torch.empty(2)\nempty.fill_({n})\n{T} = empty.sum() + {t}"), (1, "{fresh=c} = torch.empty({n} % 3 + 1)\n{c}[:] = {n}\n{T} = {c}.sum() + {t}"),
    ],
)  # fmt: skip

# Writes to memory that several elements share, or that is read in the same step.

_ROWS = "{fresh=c} = ({t} * 1).reshape(1, -1).expand(3, -1)\n"
_WRITES = ("{c}.add_(1)", "{c}[0].mul_(2)", "{c}[1] = 3.0", "{c}.zero_()", "{c}[1:].clamp_(0, 1)", "{c}.copy_({c} * 2)")
_TRIED = "try:\n    %s\nexcept RuntimeError as error:\n    note('refused')\n"
OVERLAPS = Feature(
    statements=[
        *((2, _ROWS + _TRIED % write + "{T} = {c}[0]") for write in _WRITES),
        (2, "{fresh=c} = ({t} * 1).reshape(-1)\n" + _TRIED % "{c}[1:].add_({c}[:-1])" + "{T} = {c}"),
        (1, "{fresh=c} = ({t} * 1).reshape(-1)\n{fresh=h} = {c}.numel() // 2\n{c}[:{h}].mul_({c}[{h}:{h} * 2])\n{T} = {c}"),
        (1, "{fresh=c} = ({t} * 1).reshape(-1)\n{c}[::2].add_(1)\n{T} = {c}"),
        (1, "{fresh=c} = ({t} * 1).reshape(-1, 1).repeat(1, 4)\n{fresh=h} = {n} % 4\n{c}[:, {h}] = 2.0\n{c}[:1, {h}] += 1\n{T} = {c}[torch.tensor([0, 0]), {h}, None]"),
    ],
)  # fmt: skip

# Loops that break in the middle, over whatever there is to go over; iterators that are taken from before and after.

_OVER = [  # what gives something to loop over, and what one turn of it is assigned to
    ("{dv}.values()", "{T}"), ("{dv}.items()", "_, {T}"), ("{dv}", "{S}"), ("reversed({dv})", "{S}"), ("reversed({dv}.values())", "{T}"),
    ("itertools.islice({lv}, 4)", "{T}"), ("reversed({lv}[:4])", "{T}"), ("enumerate({dv}.values())", "{N}, {T}"), ("zip({dv}.values(), {i})", "{T}, {N}"),
    ("zip(produce({t}, 3), {dv}.items())", "{T}, _"), ("produce({t}, {small})", "{T}"), ("delegating({t})", "{T}"), ("cleaning({t}, {small})", "{T}"),
    ("(v * {n} for v in {l}[:4])", "{T}"), ("(v + w for v in {l}[:2] for w in {dv}.values())", "{T}"), ("map(lambda v: v + {n}, {l}[:4])", "{T}"),
    ("filter(lambda v: {b}, {l}[:4])", "{T}"), ("map(helper, {dv}.values())", "{T}"), ("itertools.chain({l}[:2], {dv}.values())", "{T}"),
    ("itertools.chain.from_iterable([{l}[:2], produce({t}, 2)])", "{T}"), ("itertools.accumulate({l}[:4])", "{T}"), ("itertools.pairwise({l}[:4])", "{T}, {T}"),
    ("itertools.zip_longest({i}[:3], {l}[:3], fillvalue=WEIGHT)", "_, {T}"), ("itertools.islice(itertools.cycle({l}[:2]), 3)", "{T}"), ("itertools.islice(itertools.count({n}), 3)", "{N}"),
    ("itertools.starmap(helper, [({t}, 1), ({t}, 2)])", "{T}"), ("itertools.product({l}[:2], {i}[:2])", "{T}, {N}"), ("itertools.takewhile(lambda v: {b}, {i}[:4])", "{N}"),
    ("set({i})", "{N}"), ("frozenset({i})", "{N}"), ("deque({l}[:3])", "{T}"), ("reversed(deque({i}[:3]))", "{N}"), ("range({small})", "{N}"), ("{s}", "{S}"),
    ("tuple({l}[:3])", "{T}"), ("vars({ov}).values()", "_"), ("BLOCKS", "{fresh=m}"), ("BLOCKS.children()", "{fresh=m}"), ("BLOCKS.named_children()", "_, {fresh=m}"),
    ("reversed(BLOCKS)", "{fresh=m}"), ("LAYERS.values()", "{fresh=m}"), ("LAYERS.items()", "_, {fresh=m}"), ("zip(BLOCKS, LAYERS.values())", "_, {fresh=m}"), ("enumerate(BLOCKS)", "{N}, {fresh=m}"),
    ("BLOCKS.named_modules()", "_, {fresh=m}"), ("(b for b in BLOCKS if {b})", "{fresh=m}"), ("itertools.chain(BLOCKS, LAYERS.values())", "{fresh=m}"),
]  # fmt: skip
_TURN = "    if isinstance({m}, Stage):\n        {T} = {m}({t})\n"
LOOPS = Feature(
    {"t": ["STACK({t})", "sum(BLOCKS.parameters(), {t})", "functools.reduce(lambda v, m: m(v), BLOCKS, {t})", "sum(cleaning({t}, 2), {t})"]},
    [
        *((2, f"for {item} in {over}:\n" + (_TURN if "m}" in item else "") + "    {loop}") for over, item in _OVER),
        *((1, f"for {item} in {over}:\n" + (_TURN if "m}" in item else "") + "    note({t})\n    {loop}\nelse:\n    {block}") for over, item in _OVER),
        *((1, f"{{fresh=c}} = iter({over})\nnext({{c}}, None)\n{{block}}\nnote(snapshot(list({{c}})))") for over, item in _OVER if "m}" not in item),
        (1, "for {N} in range(3):\n    note({t})\n    {T} = BLOCKS[{n} % 3]({t})"),
        (2, "{fresh=c} = cleaning({t}, 3)\n{T} = next({c})\nnote('begun')\n{T} = next({c}, {t})\n{block}\n{c}.close()"),
        (1, "{fresh=c} = patient({t})\nnext({c})\n{block}\n{T} = {c}.send({t})\nnote({t})\n{T} = {c}.throw(ValueError({s}))"),
        (1, "{fresh=c} = {dv}\nfor {S} in {c}:\n    note({s})\n    {c}[{s}] = {t}"), (1, "{D} = {d}\nfor {S} in {dv=a}:\n    {loop}\n    {a}[{key}] = {t}\n    note({t})"),
    ],
    """
class Stage(torch.nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.weight, self.breaks = torch.nn.Parameter(torch.full((1,), 0.5)), breaks
    def forward(self, t):
        t = t * self.weight
        return t * t.detach().sum().sign().item() + 1 if self.breaks else t.sin()

class Stack(torch.nn.Module):
    def __init__(self, *stages):
        super().__init__()
        self.stages = torch.nn.ModuleList(stages)
    def forward(self, t):
        for stage in self.stages:
            t = stage(t)
        return t

BLOCKS = torch.nn.ModuleList([Stage(False), Stage(True), Stage(False)])
LAYERS = torch.nn.ModuleDict({"a": Stage(True), "b": Stage(False)})
STACK = Stack(Stage(False), Stage(True), Stage(False), Stage(False))

def cleaning(t, count):
    try:
        for index in range(count):
            LOG.append(("makes", index))
            yield t * index
    except ValueError as error:  # when one goes that a variable held, is a matter of the exception that left the frame
        LOG.append(("thrown", str(error)))
    else:
        LOG.append("ended")
""",
)  # fmt: skip

# Views: of several at once, taken without gradients, of custom functions; changed, or used after their base was.

_BASE = "{fresh=c} = {t} * 1\nif {c}.dim() == 0 or {c}.shape[0] == 0:\n    {c} = torch.ones(2) * {c}.sum()\n"
_TAKEN = [
    "{c}.unbind(0)[0]", "{c}.split(1)[-1]", "{c}.chunk(2)[0]", "{c}.tensor_split(2)[0]", "{c}.split_with_sizes([{c}.shape[0]])[0]", "{c}.unbind(0)[0].view(-1)[:1]",
    "{c}.unsafe_split(1)[0]", "{c}.unsafe_chunk(2)[0]", "{c}[:1]", "{c}.detach()[0]", "{c}.unbind(0)[0].detach()", "Viewed.apply({c})", "ViewedTwice.apply({c})[0]", "unseen({c})", "{c}.data[0]",
]  # fmt: skip
_BETWEEN = ["", "", "note('between')\n", "note({t})\n", "{block}\n"]
_CHANGES = [
    "{v} += {t}.detach().sum()", "{v}.add_(1)", "{v}.mul_({t}.sum())", "{v}[...] = {n}", "{c} += 1", "{c}.mul_(2)", "with torch.no_grad():\n    {v}.add_(1)",
    "with torch.no_grad():\n    {c}.mul_(2)", "for {T} in {c}.unbind(0):\n    {T} += {n}", "torch._foreach_add_([{v}], 1.0)",
]  # fmt: skip
_LOOKS = ["{T} = {v} * 2", "{T} = {c} + {v}.sum()", "{T} = {c}.sin()", "{L} = [{c}, {v}]", "note({v}.is_leaf)", "{T} = {v}.detach()"]
VIEWS = Feature(
    {"t": ["unseen({tv}).sum()", "Viewed.apply({t}).sum()"]},
    [
        (1, _BASE + "{fresh=v} = " + take + "\n" + between + "try:\n    " + change.replace("\n", "\n    ") + "\nexcept RuntimeError as error:\n    note(str(error)[:90])\n" + look)
        for number, take in enumerate(_TAKEN)
        for place, change in enumerate(_CHANGES)
        for between, look in [(_BETWEEN[(number + place) % len(_BETWEEN)], _LOOKS[(number * 3 + place) % len(_LOOKS)])]
    ]
    + [(1, _BASE + "{fresh=v} = " + take + "\n" + change + "\n" + look) for take in _TAKEN[:6] for change in _CHANGES[:6] for look in _LOOKS[:2]],
    """
class Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.shape = t.shape
        return t.view_as(t)
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class ViewedTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t.view_as(t), t[:1]
    @staticmethod
    def backward(ctx, grad, other):
        return grad

def unseen(t):
    with torch.no_grad():
        return t.view_as(t)
""",
)  # fmt: skip

# Hooks on what is computed beside what a backward comes to.

BESIDE = Feature(
    statements=[
        *(
            (2, "{fresh=c} = {t} * 1\n{fresh=d} = " + way + "\nif {d}.requires_grad:\n    {d}.register_hook(noting({s}))\n" + look)
            for way in ["{c} * 2", "{c}.reshape(-1)[:1] * 1", "{c}.sum()", "{c}.reshape(-1)", "{c}.exp().sin()", "{c}.reshape(-1).unbind(0)[0]", "{c}.reshape(-1).max(0)[0]", "{c} + {t}"]
            for look in ["{T} = {c}.sin()", "{T} = {c}.cos()\n{N} = int({d}.detach().sum().sign())", "{T}, {T} = {c} * 2, {d} * 3", "note({c})\n{T} = {c} * {t}"]
        ),
    ],
    prelude=HOOKS.prelude,
)  # fmt: skip

# Tensors over the same bytes whose storages do not tell.

TWICE = Feature(
    {"t": ["again({mv})", "(again({mv}) * {t}.sum())"]},
    [
        *(
            (2, "{fresh=c} = {t}.detach().clone().reshape(-1)\n{fresh=d} = " + other + "\n" + between + change + "\n{T} = {c}.sum() * {t} + {d}.sum()")
            for other in ["again({c})", "again({c})[1:]", "again({c}.view_as({c}))", "again({c}[:1])"]
            for change in ["{c}.add_({n})", "{d}.mul_(2)", "{d}.copy_({d} * 2 + 1)", "torch.mul({c}, 2, out={c})"]
            for between in ["", "note('between')\n"]
        ),
        (3, "{fresh=d} = again({mv=m})\nnote('over')\n{m}.add_({n})\n{T} = {d} * {t}.sum()"),
        (2, "overwrite({mv=m}, again({m}))"), (2, "{T} = overwrite(again({mv=m}), {m}) + 0"),
    ],
    """
def again(t):
    return torch.from_numpy(t.detach().numpy())

def overwrite(t, other):
    t.add_(1)
    kept = other * 2
    t.mul_(0.5)
    return kept + other
""",
)  # fmt: skip

FEATURES: dict[str, Feature] = {
    "views": VIEWS,
    "beside": BESIDE,
    "twice": TWICE,
    "loops": LOOPS,
    "hooks": HOOKS,
    "halves": HALVES,
    "special": SPECIAL,
    "signs": SIGNS,
    "overlaps": OVERLAPS,
    "bools": BOOLS,
    "patched": PATCHED,
    "meta": META,
    "factories": FACTORIES,
}
