"""More templates for the generator of ``soaking.py``: what is rarer in programs, and where capture has to be exact.

Descriptors, slots, metaclasses, coroutines, generators that are talked to, slices of every kind, views changed in
place, derivatives taken inside, hooks, dtypes that change.
"""

EXPRESSIONS = {
    "t": [
        "Slotted({t}).half", "Slotted({t}, {n}).t", "run(later({t}, {n}))", "{t}.double().sin().float()", "({t} > 0).float()",
        "{t}.reshape(-1)[::2].sum()", "{t}.reshape(-1).flip(0)[:1]", "{t}[None, ..., None].squeeze()", "{t}.reshape(-1)[: {n} % 3 + 1].sum()",
        "torch.zeros({n} % 4 + 1).sum() + {t}", "(torch.arange(len({l}) + 1).sum() * {t})", "{t}.flatten()[1:].cumsum(0).sum()",
        "Doubled.apply({t})", "torch.nn.functional.softmax({t}.reshape(-1), 0).max()", "({t}.expand(2, *{tv}.shape)[0] if {tv}.dim() else {t})",
        "torch.stack([{tv}, {tv}])[-1]", "{t}.mul(2).relu_()", "cached({n}) * {t}", "Slotted({t}).by({n})", "{t}.unsqueeze(0).squeeze(0)",
    ],
    "n": [
        "len(Slotted)", "Slotted(WEIGHT, {n}).n", "Slotted(WEIGHT).unknown", "{t}.numel()", "({tv}.shape or (1,))[0]", "sum([1, 2, 3, 4][{n}::-1])",
        "len('abcdef'[:{n}:-1])", "range(10)[{n}]", "slice(None, {n}, -1).indices(6)[1]", "Shade.DARK.value", "Shade({n} % 2 + 1).twice",
        "{i}.count({n})", "(lambda a, /, b=1, *, c={n}: a + b + c)({n})",
    ],
    "b": [
        "(Slotted({tv}) == Slotted({tv}, {n}))", "(Slotted(WEIGHT) < Slotted(WEIGHT, {n}))", "{t}.is_leaf", "torch.is_grad_enabled()",
        "(Shade({n} % 2 + 1) is Shade.DARK)", "({t}.dtype is torch.float32)", "{t}.is_contiguous()", "isinstance({n}, (int, str))",
    ],
    "i": ["{i}[::-1]", "{i}[None:-1:None]", "list(range(5, -5, -2))[{n}:]", "[1, 2, 3, 4][-{small}:]", "list({t}.shape)", "[*map(int, str(abs({n})))]"],
    "l": ["list({t}.reshape(-1).split(2))[:3]", "[*{t}.detach().reshape(-1).chunk(2)]", "list(delegating({t}))"],
    "s": ["Shade.DARK.name", "f'{{{tv}.shape}}'[:12]", "str({tv}.dtype)", "Slotted.__name__"],
}  # fmt: skip

STATEMENTS = [
    (2, "{fresh=c} = patient({t})\nnext({c})\n{c}.send({t})\n{T} = {c}.throw(ValueError({s}))\n{c}.close()"),
    (1, "{fresh=c} = patient({t})\nnext({c})\ntry:\n    {c}.send(None)\nexcept StopIteration as stop:\n    {T} = stop.value"),
    (2, "{fresh=c} = Slotted({t}, {n})\n{c}.half = {t}\n{T} = {c}.half + {c}.t\nif {b}:\n    del {c}.n\nnote({c}.n)"),
    (2, "async def {fresh=c}(value):\n    async with Asking({s}):\n        async for part in several(value, {small}):\n            note(part)\n    return await later(value, {n})\n{T} = run({c}({t}))"),
    (2, "{fresh=c} = {t}.detach().clone().requires_grad_()\n({c} * {n}).tanh().sum().backward()\n{T} = {c}.grad"),
    (2, "{fresh=c} = {t}.detach().requires_grad_()\n{T}, = torch.autograd.grad(({c} * {c}).sum(), {c})"),
    (2, "(MODEL.weight.sum() * {n}).backward()"), (1, "MODEL.weight.grad = None"), (1, "MODEL.zero_grad()"),
    (2, "{fresh=c} = {t} * 1\nif {c}.requires_grad:\n    {c}.register_hook(lambda g: LOG.append('hooked'))\n{T} = {c}"),
    (1, "{fresh=c} = {t} * 1\nif {c}.requires_grad:\n    {c}.register_hook(lambda g: g * 2)\n{T} = {c}.sin()"),
    (1, "{mv}.requires_grad_({b})"), (1, "{mv}.grad = torch.ones_like({mv})"), (1, "{T} = {t}.detach()\n{T} = {t} + 1"),
    (1, "{mv}.view(-1)[1:3].mul_({n})"), (1, "{mv}.t()[0].add_({n})"), (1, "{mv}[:, 1] = {mv}[:, 0]"), (1, "{mv}[..., ::2].zero_()"), (1, "{mv}.data.add_({n})"),
    (1, "{fresh=c} = {mv}.unsqueeze(0)\n{c}.mul_(2)\nnote({c}.shape == (1, *{mv}.shape))"), (1, "{lv}[0].detach().add_({n})"), (1, "{dv}['a'].mul_({n} % 3)"),
    (1, "{fresh=c} = {t} * 1\n{fresh=d} = {c}.reshape(-1)\n{d}[0] = {n}\n{c}.add_({d}.sum().detach())\n{T} = {c}"),
    (1, "{fresh=c} = {t}.double()\n{c} += {n}\n{T} = {c}.float()"), (1, "{fresh=c} = {t} > 0\n{c}[...] = {b}\n{T} = {c}.float()"),
    (2, "match ({n}, {l}):\n    case (0, [{T}, *{L}]):\n        {block}\n    case ({N}, []):\n        {block}\n    case (int() as {N}, [{T}]) if {b}:\n        {block}"),
    (1, "match {ov}:\n    case Base(count=0 | 1):\n        {block}\n    case Base(value={T}, count={N}):\n        {block}"),
    (1, "match {s}:\n    case 'a' | 'ab':\n        {block}\n    case str() as {S}:\n        {block}"),
    (1, "with torch.set_grad_enabled({b}):\n    {block}"), (1, "@torch.no_grad()\ndef {F}(value):\n    global total\n    {function}\n    return value * 2"),
    (1, "@functools.wraps(helper)\ndef {F}(*args, **named):\n    return helper(*args, **named) * {n}"), (1, "{T} = functools.partial(helper, depth={small})({t}, shift={t})"),
    (1, "{N}, *{I} = sorted([*{i}, {n}], key=lambda v: (-v, v))"), (1, "for {N}, *_ in zip({i}, {l}, strict=False):\n    {loop}"),
    (1, "{D} = collections.defaultdict(lambda: WEIGHT, {d})\nnote({dv}[{key}])"), (1, "{fresh=c} = iter({i})\nfor {N} in iter(lambda: next({c}, None), None):\n    {loop}"),
]  # fmt: skip

PRELUDE = '''
class Halved:
    """A data descriptor."""
    def __set_name__(self, owner, name):
        self.name = "_" + name
    def __get__(self, thing, kind=None):
        return self if thing is None else getattr(thing, self.name) / 2
    def __set__(self, thing, value):
        LOG.append("set")
        setattr(thing, self.name, value)

class Counting(type):
    """A metaclass that counts."""
    def __call__(cls, *args):
        COUNTS["made"] = COUNTS.get("made", 0) + 1
        return super().__call__(*args)
    def __len__(cls):
        return COUNTS.get("made", 0) % 5

class Slotted(metaclass=Counting):
    __slots__ = ("t", "_half", "n")
    half = Halved()
    def __init__(self, t, n=0):
        self.t, self.n, self.half = t, n, t
    def __eq__(self, other):
        return isinstance(other, Slotted) and self.n == other.n
    def __hash__(self):
        return hash(self.n)
    def __lt__(self, other):
        return self.n < other.n
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return len(name)
    @property
    def by(self):
        return self.t.__mul__

class Shade(enum.Enum):
    LIGHT = 1
    DARK = 2
    @property
    def twice(self):
        return self.value * 2

class Asking:
    def __init__(self, name):
        self.name = name
    async def __aenter__(self):
        LOG.append(("asked", self.name))
    async def __aexit__(self, kind, error, traceback):
        LOG.append(("answered", self.name, kind is None))

async def later(t, n):
    LOG.append("later")
    return t * n

async def several(t, count):
    for index in range(count):
        yield t + index

def run(coroutine):
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value

def patient(t):
    while True:
        try:
            got = yield t
        except ValueError as error:
            LOG.append(("thrown", str(error)))
            t = t * 2
        else:
            if got is None:
                return t
            t = t + got

def delegating(t):
    yield from produce(t, 2)
    yield t * 2

@functools.lru_cache(maxsize=None)
def cached(n):
    return n % 4 + 1

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.save_for_backward(t)
        return t * 2
    @staticmethod
    def backward(ctx, grad):
        t, = ctx.saved_tensors
        return grad * 2 + t * 0
'''
