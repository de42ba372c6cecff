"""Templates of programs on tensors of all dtypes, layouts and sizes, beside numbers of all kinds.

A statement is tried on the arguments of the first calls while a program is written, and what eager refuses is left out;
the last call has other dtypes, and may be refused. Each statement leaves what it has to show in ``r``.
"""

import random
import re
import types
import warnings

DTYPES = "float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64".split()
HALVES = {"float16", "bfloat16", "half"}
TEMPLATES = [
    "torch.{bin}({a}, {b})", "torch.{bin}({a}, {b})", "torch.{bin}({a}, {b})", "torch.{bin}({a}, {b})", "{a} {op} {b}", "{a} {op} {b}", "{a} {op} {b}",
    "{a} {op} {b}", "{a} {op} {b}", "{a} {op} {num}", "{a} {op} {num}", "{a} {op} {num}", "{a} {op} {num}", "{a} {op} {num}", "{num} {op} {a}",
    "{num} {op} {a}", "{num} {op} {a}", "{num} {op} {a}", "torch.{un}({a})", "torch.{un}({a})", "torch.{un}({a})", "torch.{un}({a})", "torch.{un}({a})",
    "torch.{bin}({a}, {num})", "{a}.{bin}({num})", "torch.{red}({a})", "{a}.{red}({dim})", "{a}.{red}({dim})",
    "{a}.sum({dim}, keepdim=True, dtype=torch.{dt})", "{a}.mean(dtype=torch.{dt})", "{a}.prod(dtype=torch.{dt})", "{a}.cumsum({dim}, dtype=torch.{dt})",
    "{a}.std({dim}, correction=0)", "torch.var_mean({a}, {dim})", "{a}.amax(({dim},), keepdim=True)", "{a}.norm(p={num})", "{a}.aminmax()",
    "torch.where({a} > {num}, {a}, {b})", "torch.where({a} > {num}, {a}, {num})", "torch.where({a} != 0, {num}, {b})",
    "torch.where({a}.bool(), {num}, {num})", "torch.clamp({a}, {num}, {num})", "{a}.clamp(min={num})", "{a}.clamp(max={b})",
    "torch.addcmul({a}, {b}, {b}, value={num})", "torch.addcdiv({a}, {b}, {b}, value={num})", "torch.lerp({a}, {b}, {num})",
    "{a}.add({b}, alpha={num})", "{a}.sub({num}, alpha={num})", "torch.div({a}, {b}, rounding_mode='floor')",
    "torch.div({a}, {num}, rounding_mode='trunc')", "{a}.round(decimals=1)", "{a}.masked_fill({a} > 1, {num})", "{a}.fill_diagonal_({num})",
    "{a}.to(torch.{dt})", "{a}.to(torch.{dt}).to(torch.{dt})", "{a}.type_as({b})", "{a}.view(torch.{dt})", "{a}.float()", "{a}.long() // {num}",
    "{a}.byte() - 200", "{a}.char() * 100", "{a}.bool() + {a}.bool()", "-{a}.byte()", "{a}.half() * 300", "({a}.short() * 300) // 7",
    "torch.result_type({a}, {num})", "torch.promote_types({a}.dtype, {b}.dtype)", "torch.can_cast({a}.dtype, {b}.dtype)", "{a}.dtype.itemsize",
    "torch.finfo({a}.dtype).eps", "torch.tensor({num}) {op} {a}", "torch.tensor({num}, dtype=torch.{dt}) {op} {a}",
    "torch.full((2,), {num}) {op} {num}", "torch.full_like({a}, {num})", "torch.ones_like({a}) * {num}", "torch.arange({num}, 5, dtype=torch.{dt})",
    "torch.arange(3) {op} {num}", "torch.linspace({num}, 3, 4)", "{a}.new_tensor([{num}, 2])", "torch.tensor([{num}, {num}])", "torch.as_tensor({num})",
    "torch.stack([{a}, {b}])", "torch.cat([{a}, {b}])", "torch.cat([{a}, {a}.{T}()[:, :1]], {dim})", "torch.hstack([{a}, {b}])",
    "torch.zeros(0) + {a}[:0, :0].sum()", "{a}[:0].sum({dim})", "{a}[:0].amax(1)", "{a}[:, :0].prod(1)", "{a}[:0].max(1)[0]", "{a}[:0].mean()",
    "torch.cat([{a}[:0], {a}])", "{a}[:0].cumsum(0)", "{a}[[]].any()", "{a}[:, :0] @ {a}[:0]", "{a}.t()", "{a}.t() + {b}.t()", "{a}.t().contiguous()",
    "{a}[:, ::2]", "{a}[::2].clone()", "{a}.flip(0)", "{a}.t().clone() * 2", "{a}[None].expand(2, -1, -1) + 1",
    "{a}.unsqueeze(-1).expand(-1, -1, 2).clone()", "({a}.t() * 2).stride()",
    "({a}[None, :, :, None].to(memory_format=torch.channels_last) * 2).stride()", "{a}.as_strided((2, 2), (1, 2))",
    "{a}.as_strided((2,), (1,), 1).clone()", "torch.empty_like({a}.t()).stride()", "torch.zeros_like({a}.t())", "{a}.reshape(-1)[1:3]", "{a}.ravel()",
    "{a}.unfold(0, 2, 1)", "{a}.diagonal()", "{a}.movedim(0, 1) * 1", "{a}.tile(2)", "{a}.repeat(1, 2)", "{a}.roll(1)", "{a}.rot90()",
    "torch.tril({a})", "torch.triu({a}, 1)", "{a}.sort({dim}, descending=True, stable=True)", "{a}.argsort({dim}, stable=True)", "{a}.topk(1, {dim})",
    "{a}.kthvalue(1, {dim})", "torch.unique({a})", "{a}.nonzero()", "{a}.unique_consecutive()", "torch.bucketize({a}, torch.tensor([0., 1.]))",
    "torch.searchsorted(torch.tensor([0., 1., 2.]), {a}.float())", "torch.histc({a}.float(), 4)", "torch.bincount({a}.abs().long().reshape(-1) % 5)",
    "{a}[{ix}]", "{a}[{ix}, {ix}]", "{a}[..., {ix}]", "{a}[{ix}, None, {ix}]", "{a}[{a} > 0]", "{a}[{a}.sum(1) > 0]",
    "{a}[torch.tensor([True] + [False] * (len({a}) - 1))]", "{a}[torch.tensor([0, 1]), torch.tensor([[1], [0]])]", "{a}[[0, 1], ...]",
    "{a}[:, [1, 0]][..., None]", "{a}[torch.tensor(1)]", "{a}[torch.tensor([1, -1])]", "{a}[1, ...].sum()", "{a}[True]", "{a}[False]",
    "{a}[None, True]", "{a}[-1:]", "{a}[5:]", "{a}[:-5]", "{a}[k % 2]", "{a}[k % 2:]", "{a}[slice(None, k % 3)]", "{a}[torch.tensor([0]), 1:]",
    "{a}[1:, torch.tensor([0, 0])]", "{a}.take(torch.tensor([0, -1]))", "{a}.index_select(1, torch.tensor([1, 0, 1]))",
    "{a}.gather(1, torch.tensor([[1, 0]]))", "torch.take_along_dim({a}, torch.tensor([[0]]), 0)", "{a}.select(0, -1)", "{a}.narrow(1, 0, 1)",
    "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c",
    "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c",
    "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c",
    "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c",
    "c = {a}.clone()\n    {w}\n    r = c", "c = {a}.clone()\n    {w}\n    r = c", "c = ({a} * 1).t()\n    {w}\n    r = c",
    "c = ({a} * 1).t()\n    {w}\n    r = c", "c = ({a} * 1).t()\n    {w}\n    r = c", "c = ({a} * 1).t()\n    {w}\n    r = c",
    "c = ({a} * 1).t()\n    {w}\n    r = c", "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c",
    "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c", "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c",
    "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c", "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c",
    "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c", "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c",
    "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c", "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c",
    "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c", "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c",
    "d = {a}.clone()\n    c = d{vw}\n    {w}\n    r = d, c", "c = {a}.clone()\n    d = c{vw}\n    {w}\n    r = d * 2, c",
    "c = {a}.clone()\n    d = c{vw}\n    {w}\n    r = d * 2, c", "c = {a}.clone()\n    d = c{vw}\n    {w}\n    r = d * 2, c",
    "c = {a}.clone()\n    d = c{vw}\n    {w}\n    r = d * 2, c", "c = {a}.clone()\n    d = c{vw}\n    {w}\n    r = d * 2, c",
    "c = {a}.clone()\n    d = c{vw}\n    {w}\n    r = d * 2, c", "c = torch.zeros(2, 3, dtype=torch.{dt})\n    {w}\n    r = c",
    "o = torch.empty(0, dtype=torch.{dt})\n    torch.{bin}({a}, {b}, out=o)\n    r = o",
    "o = torch.zeros_like({a})\n    torch.{un}({a}, out=o)\n    r = o",
    "o = torch.zeros_like({a}.t()).t()\n    q = torch.add({a}, {num}, out=o)\n    r = o, q is o",
    "o = {a}.clone()\n    torch.cumsum(o, 0, out=o)\n    r = o",
    "o = torch.empty({a}.shape, dtype=torch.{dt})\n    torch.sum({a}, 0, out=o)\n    r = o",
    "o = torch.zeros(3, 3, dtype=torch.{dt})\n    o[:2, :2] = {a}[:2, :2]\n    r = o",
    "o = torch.zeros(4, dtype=torch.{dt})\n    torch.cat([{a}[0, :2], {b}[0, :2]], out=o)\n    r = o",
    "u, v = {a}.clone().split(1)[:2]\n    u.add_(1)\n    r = u, v", "p = {a}.clone()\n    for q in p.unbind(1): q.mul_({num})\n    r = p",
    "p = {a}.clone()\n    q1, q2 = p.chunk(2)\n    q1.copy_(q2 * 2)\n    r = p", "r = {a}[0, 0].item()", "r = {a}[0].tolist()",
    "r = {a}.sum().item() {op} 2", "r = float({a}[0, 0].abs()) + int({a}[0, 1].abs() * 2)", "r = {a}.numpy() if not {a}.requires_grad else 0",
    "r = bool({a}[0, 0] == {a}[0, 0])", "r = [v.item() for v in {a}[0]]",
    "r = {a}.shape[0] * {a}.stride(0) + {a}.element_size() + {a}.storage_offset()", "r = {a}.data_ptr() == {a}.t().data_ptr()",
    "r = ({a}.shape + (1,), {a}.size(), {a}.shape[:1], {a}.shape.numel())",
    "r = {a}.is_floating_point(), {a}.is_complex(), {a}.is_signed(), {a}.nbytes", "r = len({a}), {a}.ndim, {a}.itemsize", "r = list({a})[0]",
    "r = {a}.tolist() == {b}.tolist()", "r = torch.equal({a}, {b}), torch.allclose({a}.float(), {a}.float())",
    "r = {a}.is_contiguous(), {a}.t().is_contiguous()", "r = sorted([v for v in {a}.reshape(-1)[:3].float()], key=lambda t: k)[0]",
    "r = max({a}[0, 0].float(), {a}[0, 1].float())", "r = sum([v for v in {a}])", "a1, *a2 = {a}\n    r = a1, len(a2)",
    "r = {a} is {a}[...], {a}.real.dtype", "r = torch.view_as_real({a} + 0j)", "r = ({a} + 1j).conj() * {b}", "r = ({a} * 1j).imag",
    "r = torch.complex({a}.float(), {b}.float()).abs()", "r = torch.einsum('ij,kj->ik', {a}, {b})", "r = {a} @ {b}.t()", "r = torch.mm({a}, {b}.t())",
    "r = {a}.float().softmax({dim})", "r = torch.nn.functional.one_hot({a}.abs().long() % 4)", "r = torch.nn.functional.pad({a}, (1, -1), value={num})",
    "r = torch.scatter_add(torch.zeros(4, 3, dtype={a}.dtype), 0, torch.tensor([[0, 1, 0]]), {a}[:1, :1].expand(1, 3))",
    "r = torch.zeros(5, dtype={a}.dtype).scatter_reduce(0, {a}.abs().long().reshape(-1) % 5, {a}.reshape(-1), '{rd}', include_self={tf})",
    "r = torch.zeros(5, 2, dtype={a}.dtype).index_reduce(0, torch.tensor([0, 1, 0]), {a}[:1, :1].expand(3, 2), '{rd2}', include_self={tf})",
    "r = {a}.diff(), {a}.trapezoid() if False else 0", "r = torch.meshgrid({a}[0], {b}[0], indexing='ij')[0]",
    "r = torch.broadcast_tensors({a}, {a}[:1])[1]", "r = torch.cartesian_prod({a}[0], {a}[1])", "r = torch.block_diag({a}, {b})",
    "r = torch.combinations({a}[0])", "r = torch.isin({a}, torch.tensor([1, 2]))", "r = torch.isclose({a}, {b})",
    "r = {a}.tensor_split(2)[0], {a}.vsplit([1])[0]", "r = torch.dist({a}.float(), {b}.float())",
    "r = torch.addmm({a}, {a}, {a}.new_ones({a}.shape[1], {a}.shape[1]))", "r = torch.cdist({a}.float(), {b}.float())",
    "r = {a}.repeat_interleave(torch.tensor([1, 2] + [0] * (len({a}) - 2)), 0)", "r = {a}.float().quantile(0.5)", "r = torch.cov({a}.float())",
    "r = {a}.logical_not().sum({dim})", "r = torch.bitwise_not({a}.int()).byte()", "r = torch.logit({a}.sigmoid())",
    "r = torch.nn.functional.gelu({a})", "r = torch.threshold({a}, 0, {num})",
    "c = {a}.clone()\n    r = [c[0, 0].item(), c[0].tolist(), {seen}]\n    {pw}\n    r.append(c)",
    "c = {a}.clone()\n    r = [c[0, 0].item(), c[0].tolist(), {seen}]\n    {pw}\n    r.append(c)",
    "c = {a}.clone()\n    d = c{vw}\n    r = [c[0, 0].item(), d.tolist()]\n    {pw}\n    r += [c, d]",
]  # fmt: skip
WRITES = [
    "c {iop} {b}", "c {iop} {num}", "c {iop} {a}", "c[{ix}] = {num}", "c[{ix}] = {b}[{ix}]", "c[{ix}] {iop} {num}", "c[..., 0] {iop} {num}",
    "c[c > {num}] = {num}", "c[c > 0] {iop} 2", "c[[0, 1]] = {b}[[1, 0]]", "c[:, [1, 0]] = c[:, [0, 1]]", "c[torch.tensor([0, 0])] += 1",
    "c.index_put_((torch.tensor([0, 0]),), {b}[:1], accumulate=True)", "c.{bin}_({b})", "c.{bin}_({num})", "c.{un}_()", "c.copy_({b})",
    "c.copy_({b}[:1])", "c.fill_({num})", "c.masked_fill_(c > 1, {num})", "c.clamp_({num}, 3)", "c.add_({b}, alpha={num})",
    "c.addcmul_({b}, {b}, value={num})", "c.lerp_({b}, {num})", "c.scatter_(0, torch.tensor([[0, 1]]), {num})",
    "c.scatter_add_(0, torch.tensor([[0, 0]]), {b}[:1, :2])", "c.index_add_(0, torch.tensor([1, 1]), {b}[:2], alpha={num})",
    "c.index_fill_(1, torch.tensor([0]), {num})", "c.index_copy_(0, torch.tensor([1, 0]), {b}[:2])", "c.masked_scatter_(c > 0, {b})", "c.cumsum_(0)",
    "c.t_()", "c.unsqueeze_(0)", "c.transpose_(0, 1)", "c.squeeze_()", "c.zero_()", "c.data.add_(1)", "c.detach().mul_({num})",
    "c.view(-1)[:2] = {num}", "c.reshape(-1)[1] = {num}", "c[0], c[1] = c[1].clone(), c[0].clone()", "c[0] = c[1]", "c[1:] = c[:-1].clone()",
    "c[:, 0], c[:, 1] = {num}, {num}", "c[True] = {num}", "c[None, 0] = {num}", "c[torch.tensor(0)] = {num}", "c[...] = {b}", "c[k % 2] = {num}",
    "c.put_(torch.tensor([0, 1]), {a}.reshape(-1)[:2])", "c.tril_()", "c.swapaxes_(0, 1)", "c.resize_(1, 1)", "c.set_({b}.clone())",
    "torch.where(c > 0, c, {b}, out=c)", "torch.add(c, {num}, out=c)", "torch._foreach_add_([c], {num})", "torch._foreach_mul_([c], [{b}])",
    "c.fmod_({num})", "c.remainder_({num})", "c.floor_divide_({num})", "c.__ilshift__(1)", "c.bernoulli_(0.5)", "c.random_(3)", "c.uniform_()",
    "c.exponential_()", "c.normal_()", "c.geometric_(0.5)", "c.fill_diagonal_({num})", "c.renorm_(2, 0, 1.0)", "c.logical_or_({b})",
    "c.nan_to_num_({num})",
]  # fmt: skip
VIEWS = ['[0]', '[:, 0]', '.t()', '.view(-1)', '[1:]', '[..., ::2]', '.unsqueeze(0)', '.diagonal()', '.expand(2, -1, -1)[0]', '.reshape(-1)', '[None]', '.detach()', '.data', '.unbind(1)[0]', '.split(1)[1]', '.as_strided((2, 2), (1, 2))', '.transpose(0, 1)[0]', '.t()[0][None]', ".view_as(d if 'd' in dir() else c)", '.narrow(0, 1, 1)', '.flatten()', '.permute(1, 0)', '.real', '.swapaxes(0, 1)', '.squeeze()', '.chunk(2)[0].t()', '.unfold(1, 2, 1)', '.movedim(0, 1)', '[torch.tensor([0, 1])]', '.T', '.mT', '.contiguous()']  # fmt: skip
HOLES = {
    "num": "2 -3 0 1 0.5 -1.5 2.5 True False 7 -1 k f 100 1.0".split(),
    "bin": (
        "add sub mul div true_divide floor_divide remainder fmod pow maximum minimum eq ne lt ge atan2 copysign "
        "logical_and logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift fmax fmin "
        "hypot gcd lcm rsub ldexp logaddexp nextafter heaviside xlogy float_power "
    ).split(),
    "op": "+ - * / // % ** & | ^ << >> == != < <= > >=".split(),
    "iop": "+= -= *= /= //= %= &= |= ^= <<= >>= **=".split(),
    "un": (
        "abs neg sign square sqrt rsqrt exp log log2 log10 log1p expm1 sin cos tan tanh sigmoid relu floor ceil round "
        "trunc frac reciprocal isnan isinf isfinite signbit logical_not bitwise_not positive conj_physical angle erf "
        "erfc exp2 sinc deg2rad nan_to_num sgn isposinf asin acosh lgamma digamma i0 "
    ).split(),
    "red": (
        "sum mean prod amax amin any all std var argmax argmin nansum nanmean logsumexp count_nonzero cumsum cumprod "
        "cummax norm median mode sort max min unbind "
    ).split(),
    "dt": DTYPES, "dim": ["0", "1", "-1"], "ix": ['0', '1', '-1', '0:1', '1:', '::2', '[0, 1]', '[1, 0, 1]', 'None', '...', 'torch.tensor([1, 0])', 'torch.tensor(1)', ':', 'k % 2', 'slice(0, 1)', 'torch.tensor([[0], [1]])', 'True', '-2:', ':-1'],
    "pw": ["added(c)", "turned(c)", "resized(c)", "replaced(c)", "c.resize_(1, 1)", "c.set_({b}.clone())", "{w}"],
    "seen": ["c.numpy()", "c.t().numpy()", "f'{c[0, 1].item():.2f}'", "min(c[0, 1].item(), {num})", "bool(c[0, 0] > 0)", "c[0].sum().item() {op} 2"],
    "w": WRITES, "vw": VIEWS, "T": ["t"], "tf": ["True", "False"],
    "rd": "sum prod mean amax amin".split(), "rd2": "prod mean amax amin".split(),
}  # fmt: skip
FEW, MANY = ["a", "b", "a", "p"], ["a", "b", "a", "b", "p", "q", "z", "a.t()", "b[:, :2]", "a[0]", "s0"]
LAST = ["b.add_(1)", "b[0] = k", "p.copy_(p * 2)", "b.t().mul_(2)", "p[:, 0] += 1", "q.zero_()", "b.bitwise_not_()", "p.fill_(f)"]  # fmt: skip
HOLE = re.compile(r"\{(\w+)\}")

HEAD = """import math
import torch
import bothways

GIVEN = {given}

def make(call):
    k, f, n, m, dtypes, needs_grad, layout = GIVEN[call]
    generator = torch.Generator().manual_seed(call)

    def one(n, m, name):
        dtype = getattr(torch, name)
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(n, m, generator=generator, dtype=dtype) * 2
        whole = torch.randint(-4, 6, (n, m), generator=generator)
        return whole > 0 if dtype is torch.bool else whole.to(dtype)

    first, second = dtypes
    a = [one(n, m, first), one(m, n, first).t(), one(n, 2 * m, first)[:, ::2]][layout]
    b, p, q = one(n, m, second), one(n, m, first), one(1, m, second)
    if needs_grad and a.is_floating_point():
        a.requires_grad_()
    return a, b, p, q, one(1, 1, second)[0, 0], one(1, 1, first)[0], k, f

@bothways.disable
def added(c):
    c.add_(1)

@bothways.disable
def turned(c):
    c.t_()

@bothways.disable
def resized(c):
    c.resize_(1, 1)

@bothways.disable
def replaced(c):
    c.data = torch.zeros_like(c)

def target({parameters}):
"""
PARAMETERS = "a, b, p, q, s0, z, k, f"
TRIED = 4  # calls, those before the one with other dtypes


def filled(source: random.Random, template: str) -> str:
    names = MANY if source.random() < 0.35 else FEW
    while True:
        text = HOLE.sub(lambda hole: source.choice(HOLES.get(hole[1], names)), template)
        if text == template:
            return text if "r = " in text else f"r = {text}"
        template = text


def is_taken(statement: str, module: types.ModuleType) -> bool:
    """Whether eager takes a statement in the first calls."""
    space = dict(vars(module))
    try:
        exec(f"def tried({PARAMETERS}):\n    c = d = r = None\n    {statement}\n    return r", space)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for call in range(TRIED):
                space["tried"](*module.make(call))
    except Exception:
        return False
    return True


def program(source: random.Random, statements: int = 16) -> str:
    """The source of one program: ``make`` gives the arguments of ``target``."""
    first, second, third, fourth = (source.choice(DTYPES) for _ in range(4))
    dtypes = first, first if source.random() < 0.3 else second
    call = (source.choice([2, 3, 5]), source.choice([0.5, 2.0, -1.5]), source.choice([2, 3]), source.choice([2, 3, 4]))
    given = [(*call, dtypes, False, 0)] * 2
    given.append((4, 2.5, 4, 3, dtypes, source.random() < 0.4, 0))
    given.append((6, 1.5, 3, 5, dtypes, source.random() < 0.4, source.choice([0, 1, 2])))
    given.append((3, 0.5, 3, 3, (third, fourth), False, 0))
    head = HEAD.format(given=given, parameters=PARAMETERS)
    module = types.ModuleType("tried")
    exec(head + "    pass", vars(module))
    lines: list[str] = []
    for _ in range(400):
        text = filled(source, source.choice(TEMPLATES))
        if len(lines) < statements and is_taken(text, module):
            lines.append("bothways.graph_break()\n    " * (source.random() < 0.07) + f"{text}\n    res.append(r)")
    last = source.choice(LAST)
    body = "\n    ".join([*lines, *([last] if source.random() < 0.4 and is_taken(last, module) else [])])
    tolerance = 2e-2 if HALVES & {*dtypes, third, fourth, *re.findall(r"\w+", body)} else 1e-4
    return f"{head}    res, c, d = [], None, None\n    {body}\n    return res\n\nTOLERANCE = {tolerance}\n"
