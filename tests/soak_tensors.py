"""A seeded generator of programs on tensors: operations in place of every kind, views, dtypes, reads of old values.

A program is written while it runs: each statement is tried on the tensors that are there, and what eager refuses is left
out. So it knows no rules of shapes and dtypes, and sizes may be large enough for kernels to have something to decide.
``{f}`` is a variable with floating-point numbers, ``{i}`` with integers, ``{b}`` with bools, ``{v}`` any, ``{w}`` one that
is written to, ``{l}`` one like the first of the statement; ``{dim}`` is one of its dimensions, ``{cut}`` an index.
"""

import random
import re
import warnings

import torch

# What floating-point numbers a program has, and how close its results have to be.
PRECISIONS = {"float64": 1e-8, "float32": 2e-3, "bfloat16": 6e-2, "float16": 2e-2}

UNARY = "sin cos tanh sigmoid abs neg square relu exp floor sign erf atan expm1 frac trunc round".split()
BINARY = "add sub mul maximum minimum atan2 fmax hypot copysign".split()
INTEGERS = "int64 int32 int16 uint8 int8".split()
NUMBERS = "0 1 2 3 -1 0.5 1.5 -2 True 7".split()
WHOLE = "1 2 3 -1 True 5".split()

EXPRESSIONS = [
    *(f"{{f}}.{name}()" for name in UNARY), *(f"torch.{name}({{f}}, {{g}})" for name in BINARY),
    *["({f} + {g})", "({f} - {g})", "({f} * {g})", "({f} * {f})", "({f} + {num})", "({num} - {f})", "({f} * {num})"] * 2,
    "({f} / ({g}.abs() + 1))", "({f} / 3)", "({f} // 2)", "({f} % 3)", "({v} * {v})", "({v} + {v})", "({v} + {num})", "({f} ** 2)", "torch.pow({num}, {f})",
    "({i} + {i})", "({i} * {num})", "({i} / 2)", "({i} // 3)", "({i} % 3)", "(-{i})", "({i} ** 2)", "({i} << 1)", "({i} & 3)", "({i} ^ {i})", "({i} * {b})",
    "({b} & {b})", "({b} | {b})", "(~{b})", "({b} ^ {b})", "({b} * {f})", "({b} + {num})", "({b} + {b})", "({b} * {b})",
    "({f} > {g})", "({f} <= {num})", "({i} == {i})", "({v} != {v})", "({i} < {num})", "{f}.isnan()", "torch.logical_xor({v}, {v})", "{v}.bool()", "({f} == {f})",
    *["torch.where({b}, {f}, {g})", "torch.where({b}, {f}, {num})", "torch.where({f} > {num}, {f}, {l})", "torch.where({b}, {v}, {v})"] * 2,
    "{f}.masked_fill({b}, {num})", "{f}.clamp({num}, 3)", "{f}.clamp(min={g})", "torch.lerp({f}, {g}, 0.25)", "torch.addcmul({f}, {g}, {g}, value=0.5)",
    "F.gelu({f})", "F.silu({f})", "F.softplus({f})", "F.leaky_relu({f}, 0.1)", "F.hardtanh({f})", "F.threshold({f}, 0.1, 2.0)", "F.mse_loss({f}, {l})", "F.normalize({f}, dim={dim})",
    # Over dimensions.
    *["{f}.sum()", "{f}.sum({dim})", "{f}.sum({dims})", "{f}.sum({dim}, keepdim=True)", "{f}.mean({dim})", "{f}.mean({dims}, keepdim=True)", "{f}.amax({dim})", "{f}.amin({dims})"] * 2,
    "{f}.var({dim})", "{f}.std({dim}, keepdim=True)", "{f}.norm(dim={dim})", "{f}.logsumexp({dim})", "{f}.softmax({dim})", "{f}.log_softmax({dim})", "{f}.cumsum({dim})", "{f}.prod({dim})",
    "{f}.max({dim})[0]", "{f}.max({dim})[1]", "{f}.argmax({dim})", "{f}.argmin({dim}, keepdim=True)", "{i}.sum({dim})", "{i}.amax({dim})", "{i}.cumsum({dim})", "{i}.prod()", "{i}.argmax()",
    "{b}.sum({dim})", "{b}.any({dim})", "{b}.all({dim}, keepdim=True)", "{b}.cumsum({dim})", "{f}.sort({dim})[0]", "{f}.sort({dim}, stable=True)[1]", "{f}.topk(2, dim={dim})[0]", "{f}.median()",
    "{f}.cummax({dim})[0]", "{f}.count_nonzero({dim})", "{f}.sum({dim}, dtype=torch.float64)", "{i}.float().mean({dim})", "F.layer_norm({f}, {f}.shape[-1:])", "{f}.std_mean({dim})[1]",
    # The same elements at other places.
    *["{v}.transpose({dim}, -1)", "{v}.reshape(-1)", "{v}.flatten()", "{v}.unsqueeze({dim})", "{v}[{cut}]", "{v}[{cut}, {cut}]", "{v}[..., {cut}]", "{v}.flip({dim})", "{v}.contiguous()", "{v}.clone()"] * 2,
    "{v}.t()", "{v}.view(-1)", "{v}[None]", "{v}[..., None]", "{v}.squeeze()", "{v}.expand(2, *{v}.shape)", "{v}.unsqueeze({dim}).expand(*{v}.unsqueeze({dim}).shape)", "{v}.roll(1, {dim})",
    "{v}.narrow({dim}, 1, 2)", "{v}.select({dim}, 1)", "{v}.unfold({dim}, 3, 2)", "{v}.diagonal()", "{v}.chunk(2, {dim})[-1]", "{v}.split(3, {dim})[0]", "{v}.unbind({dim})[1]", "{v}.movedim(0, -1)",
    "{v}.unflatten({dim}, (2, -1))", "{v}.permute(*reversed(range({v}.dim())))", "{v}.repeat(2, *[1] * ({v}.dim() - 1))", "{v}.tril()", "{v}.triu(1)", "{v}.rot90() if {v}.dim() > 1 else {v}", "{v}.view_as({v})",
    "{v}.repeat_interleave(2, {dim})", "{v}.as_strided({v}.shape, {v}.stride())", "{v}.detach()", "{v}.swapaxes(0, -1)", "{v}.mT", "{v}.diff(dim={dim})", "{v}.expand_as({l})", "{v}.resolve_conj()",
    *["torch.cat([{v}, {l}], {dim})", "torch.cat([{v}[{cut}], {l}])", "torch.stack([{v}, {l}], {dim})", "F.pad({f}, (1, 2))", "F.pad({f}, (-1, 1), value=2.0)", "torch.cat([{v}, {v}, {l}], -1)"] * 2,
    "F.pad({f}[None], (1, 1), mode='reflect')", "F.pad({f}[None], (2, 1), mode='circular')", "torch.hstack([{v}, {l}])", "{f}.new_zeros(3)", "torch.zeros_like({f})", "torch.ones_like({v}, dtype=torch.float32)",
    # By index.
    *["{v}.index_select({dim}, {i}.reshape(-1)[:4].abs() % {v}.shape[{dim}])", "{v}[{i}.reshape(-1)[:5].long() % {v}.shape[0]]", "{v}.gather({dim}, {i}.long().expand_as({l}).abs() % {v}.shape[{dim}])"] * 2,
    "{v}.gather({dim}, {f}.argsort({dim}))", "torch.take_along_dim({f}, {f}.argmax({dim}, keepdim=True), {dim})", "{v}.take({i}.long().abs() % 7)", "{v}[[2, 0, 1]]", "{v}[:, [0, 2]]", "{v}[{b}.reshape(-1)[:1].expand({v}.shape[0])]",
    "{f}.scatter({dim}, {f}.argsort({dim})[{cut}], {num})", "{f}.scatter_add({dim}, {f}.argsort({dim}), {l})", "{f}.index_add({dim}, torch.tensor([0, 2, 0]), {f}.narrow({dim}, 0, 3))", "{v}.index_fill({dim}, torch.tensor([1, 2]), {num})",
    "{f}.index_copy({dim}, torch.tensor([2, 0]), {f}.narrow({dim}, 0, 2))", "{f}.masked_scatter({b}, {l})", "{f}.index_put((torch.tensor([0, 1, 0]),), {f}[2], accumulate=True)", "{f}.scatter_reduce({dim}, {f}.argsort({dim}), {l}, 'amax')",
    # Of which the formula of a gradient reads less than what is saved.
    *["torch.take_along_dim({f}, {f}.argsort({dim}), {dim})", "{f}.gather({dim}, {f}.argsort({dim})[{cut}])", "{f}.sgn()", "{f}.div({g}, rounding_mode='floor')", "{f}.cummin({dim})[0]", "{f}.scatter_reduce({dim}, {f}.argsort({dim}), {l}, 'sum')"] * 2,
    "F.one_hot({i}.long().abs() % 4, 4)", "F.embedding({i}.long().abs() % 3, {f})", "torch.bucketize({f}, torch.tensor([-1.0, 0.0, 1.0]))", "{v}.slice_scatter({v}[1:3] * 2, 0, 1, 3)", "{v}.select_scatter({v}[0] + 1, 0, 2)",
    # Products, dtypes, factories.
    "({f} @ {g}.t())", "({f} @ {f}.transpose(-1, -2))", "torch.outer({f}.reshape(-1)[:6], {g}.reshape(-1)[:5])", "torch.einsum('ij,kj->ik', {f}, {g})", "F.linear({f}, {f}[:3])", "torch.addmm({f}, {g}, {g})",
    "{v}.to(torch.{float})", "{v}.to(torch.{float})", "{v}.to(torch.{int})", "{v}.float()", "{f}.type_as({v})", "{i}.view(-1)", "torch.arange({v}.shape[0])", "torch.tensor({num})", "torch.full_like({f}, {num})",
    "(torch.arange({f}.shape[-1]) * {f})", "({f} * torch.tensor(2.5))", "({f} + torch.tensor(2))", "({i} + torch.tensor(2.5))", "({i} + torch.tensor(3, dtype=torch.int64))", "({f}.sum() * {g})", "({f} * {f}.mean())", "torch.rand_like({f})", "F.dropout({f}, 0.5)",
]  # fmt: skip

# What is written: a whole tensor, or part of one.
_PLACES = ["{w}", "{w}", "{w}", "{w}[{cut}]", "{w}[{cut}, {cut}]", "{w}[..., {cut}]", "{w}.t()", "{w}.transpose(0, -1)", "{w}.view(-1)", "{w}.view(-1)[{cut}]", "{w}.narrow({dim}, 1, 2)", "{w}.unsqueeze(0)", "{w}.diagonal()", "{w}.data",
           "{w}.detach()", "{w}.unbind({dim})[1]", "{w}.split(3)[1]", "{w}.expand(2, *{w}.shape)", "{w}.flip(0)", "{w}.unfold(0, 3, 1)"]  # fmt: skip
_WRITES = [
    *[".copy_({l})", ".copy_({v})", ".add_({num})", ".add_({l})", ".mul_({num})", ".mul_({v})", ".sub_({l}, alpha=2)", ".div_(2)", ".zero_()", ".fill_({num})"] * 2,
    ".masked_fill_({b}, {num})", ".masked_fill_({l} > 0, {num})", ".clamp_(-1, 2)", ".relu_()", ".neg_()", ".square_()", ".abs_()", ".sin_()", ".tanh_()", ".lerp_({l}, 0.5)", ".addcmul_({l}, {l}, value=0.1)", ".floor_()",
    ".index_fill_({dim}, torch.tensor([0, 1]), {num})", ".index_add_(0, torch.tensor([0, 1, 0]), {l}[:3])", ".index_copy_(0, torch.tensor([2, 0]), {l}[:2])", ".index_put_((torch.tensor([1, 0]),), {l}[:2])",
    ".index_put_((torch.tensor([0, 1, 0]),), {l}[:3], accumulate=True)", ".index_put_(({l} > 0,), torch.tensor({num}).to({l}.dtype))", ".scatter_(0, {l}.argsort(0), {l})", ".scatter_add_(0, {l}.argsort(0), {l})", ".masked_scatter_({b}, {l})",
    ".cumsum_(0)", ".logical_not_()", ".bitwise_and_(3)", ".fill_diagonal_(2)", ".tril_()", ".copy_({l}.flip(0))", ".copy_({l}.roll(1, 0))", ".bernoulli_(0.5)", ".exp_().clamp_(max=3)", ".pow_(2)", ".fmod_(2)", ".erf_()", ".sign_()",
]  # fmt: skip
_ASSIGNED = ["[{cut}] = {num}", "[{cut}] = {v}", "[{cut}] += {num}", "[{cut}] *= {l}[{cut}]", "[...] = {l}", "[..., {cut}] = {num}", "[:, {cut}] = {v}", "[{b}] = {num}", "[{l} > 0] = {num}", "[{l} > 0] += 1", "[[1, 0]] = {l}[:2]",
             "[1:] = {l}[:-1]", "[:-1] += {l}[1:]", "[::2] = {l}[1::2]", "[1:] = {w}[:-1].clone()", "[0] = {w}[1]", " += {v}", " *= {num}", " -= {l}", " /= 2", "[{i}.reshape(-1)[:3].long() % 3] = {num}", "[torch.tensor(1)] = {num}"]  # fmt: skip
STATEMENTS = [
    *(place + write for place in _PLACES for write in _WRITES),
    *(place + write for place in ("{w}", "{w}", "{w}.t()", "{w}.view(-1)", "{w}.detach()") for write in _ASSIGNED if not (place != "{w}" and write.startswith(" "))) ,
    *["torch.add({l}, {v}, out={w})", "torch.mul({l}, 2, out={w})", "torch.sin({l}, out={w})", "torch.cat([{l}, {l}], out={w})", "torch.sum({l}, {dim}, out={w})", "torch.where({b}, {l}, {l}, out={w})", "torch.clamp({l}, 0, 1, out={w})"] * 4,
    *["torch._foreach_add_([{w}, {v}], {num})", "torch._foreach_mul_([{w}], [{l}])", "torch._foreach_copy_([{w}], [{l}])", "{w}.set_({l})", "{w}.data = {l}.detach().clone()", "{w}.data = {l}.detach()", "{w}.t_()", "{w}.unsqueeze_(0)",
      "{w}.squeeze_()", "{w}.transpose_(0, -1)", "{w}.resize_({l}.shape)", "{w}.resize_as_({l})", "{w}.swapaxes_(0, -1)", "torch.relu_({w})", "F.relu({w}, inplace=True)", "F.dropout({w}, 0.5, inplace=True)", "torch.nn.init.constant_({w}, 2.0)",
      "{w}.as_strided_({w}.shape, {w}.stride())", "{w}.normal_()", "{w}.uniform_(0, 1)", "{w}.random_(0, 5)", "{w}.detach_()", "{w}.requires_grad_()", "torch.clamp_({w}, 0, 2)", "{w}.__setitem__(0, {num})", "{w}.squeeze_(0).unsqueeze_(0)"] * 2,
]  # fmt: skip

_SHAPES = ["n, m", "n, m", "m, n", "n", "m", "n, 1", "1, m", "k, n, m", "n, k, 3", "m, m", "", "1", "n, k", "2, n, m"]
INPUTS = [
    *["floats({shape})"] * 6, *["floats({shape}).requires_grad_()"] * 4, "integers({shape})", "integers({shape}).to(torch.{int})", "integers({shape}).bool()", "floats({shape}) > 0", "floats({shape}).to(torch.{float})",
    "floats(m, n).t()", "floats(n, m + 3)[:, 1:-2]", "floats(n, 2 * m)[:, ::2]", "floats(1, m).expand(n, m)", "floats(n + 1, m)[1:]", "floats(k, m, n).transpose(1, 2)", "floats(n, m).t().requires_grad_()",
    "{old}", "{old}.detach()", "{old}.detach()[{cut}]", "{old}.detach().view(-1)", "{old}.detach().t()", "({old} * 1)", "{old}[{cut}] * 1", "torch.tensor(2.0)", "torch.tensor(3)", "floats({shape}).round()", "({old} * 2)[{cut}]",
]  # fmt: skip
CUTS = "0 1 -1 : 1: :-1 ::2 1:4 -3: 2:-1 None ... 1::3".split()

PRELUDE = """import torch
import torch.nn.functional as F
import bothways

GENERATOR = torch.Generator()
WIDTH = torch.{precision}

def floats(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64).to(WIDTH)

def integers(*shape):
    return torch.randint(-4, 9, shape, generator=GENERATOR)
"""
HOLE = re.compile(r"\{(\w+)\}")


class Writer:
    """Writes one program, and runs it meanwhile."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.precision = self.random.choice([*["float64"] * 4, *["float32"] * 3, "bfloat16", "float16"])
        self.space = {}
        self.names, self.lines = [], []
        self.first = self.read = None

    def program(self):
        prelude = PRELUDE.format(precision=self.precision)
        sizes = [self.sizes(), self.sizes()]
        exec(prelude, self.space)
        self.space["GENERATOR"].manual_seed(1)
        self.space.update(zip("nmk", sizes[0], strict=True))
        given = self.random.randint(2, 5)
        while len(self.names) < given:
            self.attempt(self.random.choice(INPUTS), "abcdefgh"[len(self.names)])
        arguments, made = list(self.names), list(self.lines)
        self.lines.clear()
        for _ in range(1000):
            if len(self.lines) >= 14:
                break
            self.statement()
        returned = self.random.sample(self.names, min(len(self.names), self.random.randint(1, 5)))
        if self.names[-1] not in returned:
            returned.append(self.names[-1])
        inputs = "\n    ".join(["GENERATOR.manual_seed(seed)", *made, f"return {', '.join(arguments)},"])
        body = "\n    ".join([*self.lines, f"return {', '.join(returned)},"])
        return f"{prelude}\nSIZES = {sizes}\n\ndef inputs(seed, n, m, k):\n    {inputs}\n\ndef target({', '.join(arguments)}):\n    {body}\n"

    def sizes(self):
        return self.random.choice([5, 8, 17, 24, 40]), self.random.choice([6, 9, 16, 33]), self.random.choice([2, 3, 4])

    def statement(self):
        if self.random.random() < 0.45:
            text, name = self.random.choice(STATEMENTS), None
        else:
            text, name = self.random.choice(EXPRESSIONS), f"t{len(self.names)}"
        before = len(self.lines)
        is_written = self.attempt(text, name)
        if is_written and name is not None:
            self.read = self.first
        if is_written and self.random.random() < 0.04:
            self.lines.insert(before, "bothways.graph_break()")

    def attempt(self, template, name):
        """Write a statement, if eager takes it and its numbers stay small."""
        try:
            text = self.fill(template)
        except LookupError:
            return False
        if name is not None:
            text = f"{name} = {text}"
        lines = f"with torch.no_grad():\n        {text}" if name is None and self.random.random() < 0.3 else text
        kept = {each: self.space[each] for each in self.names}
        try:
            exec(lines.replace("        ", "    "), self.space)
            fits = all(map(fit, (self.space[each] for each in (*self.names, *([name] if name else ())))))
        except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
            fits = False
        if not fits and any(not fit(value) for value in kept.values()):
            raise Spoiled  # something that is there was changed
        if not fits:
            self.space.update(kept)
            return False
        if name is not None:
            self.names.append(name)
        self.lines.append(lines)
        return True

    # Holes.

    def fill(self, template):
        self.first = None
        holes = {
            "shape": lambda: self.random.choice(_SHAPES), "float": lambda: self.random.choice(["float32", "float64", self.precision]), "int": lambda: self.random.choice(INTEGERS),
            "num": lambda: self.random.choice(NUMBERS), "cut": lambda: self.random.choice(CUTS), "old": lambda: self.variable(), "dim": self.dim, "dims": self.dims, "l": self.like, "v": self.variable, "w": self.written,
            "f": lambda: self.variable(lambda t: t.is_floating_point()), "g": lambda: self.like() if self.random.random() < 0.5 else self.variable(lambda t: t.is_floating_point()),
            "i": lambda: self.variable(lambda t: not t.is_floating_point() and t.dtype is not torch.bool), "b": lambda: self.variable(lambda t: t.dtype is torch.bool),
        }  # fmt: skip
        same = {}  # in one statement, most holes of a kind are the same variable

        def hole(match):
            name = match.group(1)
            if name in ("dim", "f", "v", "w", "l") and name in same and self.random.random() < 0.8:
                return same[name]
            same[name] = text = holes[name]()
            return text

        return HOLE.sub(hole, template)

    def variable(self, accepted=lambda t: True):
        """One of the variables; the later ones more often."""
        names = [name for name in self.names if accepted(self.space[name])]
        name = names[max(self.random.randrange(len(names)), self.random.randrange(len(names)))] if names else None
        if name is None:
            raise LookupError
        self.first = self.first or name
        return name

    def written(self):
        """One of the variables; often what was just read, and may be saved."""
        name = self.random.choice(self.names) if self.names else None
        if self.read in self.names and self.random.random() < 0.3:
            name = self.read
        self.first = self.first or name
        return name

    def like(self):
        if self.first is None:
            return self.variable()
        one = self.space[self.first]
        alike = [name for name in self.names if (self.space[name].shape, self.space[name].dtype) == (one.shape, one.dtype)]
        return self.random.choice(alike)

    def dim(self):
        dims = self.space[self.first].dim() if self.first else 1
        return str(self.random.randrange(-dims, dims)) if dims else "0"

    def dims(self):
        dims = self.space[self.first].dim() if self.first else 1
        return str(tuple(self.random.sample(range(dims), self.random.randint(1, dims)))) if dims else "0"


class Spoiled(Exception):
    """A statement that was refused has changed something all the same."""


def fit(value):
    """Whether the numbers of a tensor are few, and none so large that rounding would decide what comes of it."""
    if not isinstance(value, torch.Tensor) or value.numel() > 8000:
        return False
    return value.numel() == 0 or bool((value.detach().abs().double() < 200).all() if value.dtype is not torch.bool else True)


def program(seed):
    """The source of a program: ``inputs(seed, *SIZES[…])`` makes arguments of ``target``."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in range(100):
            try:
                return Writer(seed * 1000 + part).program()
            except Spoiled:
                continue
    raise AssertionError(f"no program for seed {seed}")
