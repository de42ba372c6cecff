"""A seeded generator of functions that are called in many ways: what is compiled once meets what is nearly the same.

A program is a short function that looks at its arguments, changes them and computes with them, and a row of calls. Each
call is like one before, or differs from it in one or two things: a size, a dtype, a stride, who shares memory with whom,
a number where a tensor was, another kind of object, the mode around it, something in the world that was changed between.
``{t}`` and ``{u}`` are tensors of the function's, ``{c}`` is a condition, ``{i}`` a number.
"""

import random
import re

from soak_calls_prelude import PRELUDE

# What a function looks at.
LOOKS = [
    "{t}.shape", "{t}.dtype", "{t}.requires_grad", "{t}.is_leaf", "{t}.stride()", "{t}.is_contiguous()", "{t}.storage_offset()", "{t} is {u}", "a is b",
    "{t}._base is None", "{t}._is_view()", "{t}.data_ptr() == {u}.data_ptr()", "a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()",
    "{t}.grad is None", "a.grad", "type({t}).__name__", "isinstance({t}, nn.Parameter)", "{t}.is_inference()", "{t}.is_conj(), {t}.is_neg()",
    "{t}.grad_fn is None", "hasattr({t}, 'tag')", "getattr({t}, 'tag', 0)", "{t}.numel(), {t}.dim(), {t}.ndim", "{t}.element_size()", "{t}.is_floating_point()",
    "torch.is_grad_enabled()", "torch.is_inference_mode_enabled()", "torch.is_autocast_enabled('cpu')", "torch.get_default_dtype()", "torch.is_tensor(b)",
    "torch.get_autocast_dtype('cpu')", "torch.are_deterministic_algorithms_enabled()", "torch.is_anomaly_enabled()", "torch.ones(2).dtype", "torch.tensor(n)",
    "n", "type(n).__name__", "n is None", "isinstance(n, int)", "isinstance(n, (int, float))", "isinstance(b, torch.Tensor)", "n == 1", "n is True", "not n",
    "str(n)", "f'{{n!r}}'", "f'{{n:>4}}'", "repr(n)[:6]", "hash(n) if n == n and not torch.is_tensor(n) else 0", "math.copysign(1, n)", "n // 2, n % 3", "n / 2", "-n", "n ** 2", "abs(n)", "int(n)", "float(n)", "round(n, 1)",
    "[1, 2, 3][n]", "'abc'[n:]", "list(range(n)[:9])", "max(n, 2)", "min(n, 1.5)", "math.sqrt(n)", "math.floor(n)", "n == n", "n in (1, 2)", "{{1: 'a', 2.0: 'b'}}.get(n)", "n < 2", "divmod(n, 2)",
    "callable(f)", "getattr(f, '__name__', 'none')", "f is torch.sin", "f is None", "f == o.scaled", "isinstance(f, nn.Module)", "isinstance(f, functools.partial)", "getattr(f, '__self__', None) is o",
    "len(s)", "type(s).__name__", "isinstance(s, (list, tuple))", "s == []", "bool(s)", "[v is a for v in s]", "a in list(s)[:1]", "[v.shape for v in s]", "len({{id(v) for v in (a, b, *s)}})", "id(a) == id(b)",
    "sorted(d)", "list(d)", "len(d)", "'b' in d", "d.get('k', n)", "d['a'] is a", "list(d.values())[-1] is b", "type(d).__name__", "d == {{}}", "'k' in d and d['k']", "next(iter(d))",
    "type(o).__name__", "isinstance(o, Box)", "isinstance(o, tuple)", "o is None", "o.n", "o.kind", "o.kind is Kind.LOW", "type(o) is Sub", "hasattr(o, 'late')", "getattr(o, 'late', 0)", "getattr(o, 'autos', 0)",
    "o.n + 1", "dataclasses.is_dataclass(o)", "o.v is a", "o.v.shape", "o == o", "o in (None, o)", "getattr(o, 'count', -1)", "type(o).__mro__[1].__name__", "vars(o).keys() if hasattr(o, '__dict__') else 0",
    "Box.count", "Box.kind.name", "getattr(Box, 'late', 0)", "getattr(o, 'level', None)", "o.twice", "o.kind.value + 1", "bool(o)", "len(rest)", "rest", "flag", "flag is None", "sorted(kw)", "kw.get('extra')", "isinstance(flag, bool)",
    "NET.training", "NET.calls", "NET.scale", "NET.w.requires_grad", "NET.seen", "NET.last is a", "len(NET._forward_hooks)", "W.grad is None", "[name for name, p in NET.named_parameters() if p.requires_grad]", "type(NET.act).__name__", "NET.w.dtype",
    "G['n']", "G['t']", "len(G['list'])", "G['flag']", "G.get('more')", "sorted(G)", "TOTAL", "helper.__defaults__", "decorated.calls", "remembered(a)", "remembered({t})", "accumulated.__defaults__", "sorted(locals())[:4]", "G['f'] is helper",
]  # fmt: skip

# What a function computes and changes. Statements go on with h, or leave what they have to show in r.
STATEMENTS = [
    "h = {t} * 2", "h = {t} + {u}", "h = {t} * {i}", "h = {i} - {t}", "h = {t} ** n", "h = {t} / n", "h = n * {t}", "h = {t} + n", "h = torch.where({t} > 0, {t}, n)", "h = {t}.clamp(max=n)", "h = {t} % 3", "h = {t} // 2",
    "h = {t}.sum(n)", "h = {t}[n]", "h = {t}[:n]", "h = {t}[..., n:]", "h = {t}.roll(n)", "r = torch.full((2,), n)", "r = torch.arange(n)", "r = torch.zeros(n, 2)", "h = {t}.expand(2, *{t}.shape)", "h = {t}.reshape(-1)", "h = {t}.t()", "h = {t}.sum()",
    "h = {t}.sum(0)", "h = {t}.mean(-1, keepdim=True)", "h = {t}.softmax(-1)", "h = {t}.cumsum(0)", "h = {t}.sin().exp()", "h = {t} @ {u}.t()", "h = torch.cat([{t}, {t}])", "h = torch.stack([{t}, {u}])", "h = {t}.float()", "h = {t}.double() + {u}", "h = {t}.to({u}.dtype)",
    "h = {t}.to({u})", "h = {t}.type_as({u})", "h = {t}.new_ones(2)", "h = torch.zeros_like({t})", "r = torch.empty_like({t}).stride()", "r = ({t} * 1).stride()", "r = ({t} + {u}).stride()", "r = {t}.clone().stride()", "h = {t}.contiguous(); r = h is {t}", "h = {t}.view(-1)", "h = {t}.detach()", "h = {t}.clone()",
    "h = {t}[None]", "h = {t}.unsqueeze(0)", "h = {t}.squeeze()", "h = {t}.max()", "h = {t}.flip(0)", "h = {t}.real", "h = {t}.unbind(0)[0]", "h = {t}.chunk(2)[-1]", "h = {t}.broadcast_to({u}.shape)", "h = {t}.relu()", "h = F.dropout({t}, 0.5)", "h = {t} + torch.rand_like({t})", "r = torch.rand(2)",
    "h = F.linear({t}, NET.lin.weight)", "h = NET.lin({t})", "h = NET({t})", "h = NET.act({t}) * NET.w.sum()", "h = {t} * W", "h = {t} * NET.w.mean()", "h = F.layer_norm({t}, {t}.shape[-1:])", "r = {t}.sum().item()", "r = {t}.tolist()", "r = bool(({t} > 0).any())", "r = int({t}.sum())", "r = {t}.numpy()",
    "h = torch.tensor([1.0, 2.0]).sum() * {t}", "h = {t} + torch.tensor(n)", "h = torch.as_tensor(n) + {t}", "h = {t} + np.float32(2)", "h = torch.scalar_tensor(2) * {t}", "h = {t} if {c} else {u}", "h = a if b is None else a + b", "h = {t} * (n or 2)", "h = (n and {t}) if n is not None else {t}",
    # In place, where others may see it.
    "{t}.add_(1)", "a.add_(1)", "a.mul_(2)", "b.add_({i})", "b.mul_({t}.detach())", "a[0] = {i}", "a[:1].add_(1)", "a.t().add_(1)", "a.view(-1)[:2].zero_()", "b[..., 0] = 3", "a.copy_(b)", "b.copy_(a)", "h = h * 1; h.add_({u})", "h = h * 1; v = h[:1]; v.mul_(2); r = v",
    "c = b * 2; a.add_(1); r = c, b * 1", "c = a.sum(); b.add_(1); r = c, a.sum()", "a.zero_(); r = b + 1", "v = a[..., :1]; v.add_(1); r = b * 2", "v = b.view(-1); a.mul_(3); r = v * 1", "s[0].add_(1); r = a * 1", "s[-1].mul_(2); r = [v.sum() for v in s]", "d['a'].add_(1); r = b.sum()", "o.v.add_(1); r = a.sum()",
    "with torch.no_grad():\n    a.add_(1)", "with torch.no_grad():\n    {t}.mul_(0.5)", "a.data.add_(1)", "a.data = a.data * 2", "b.detach().add_(1)", "a += 1", "a += b", "a *= 2", "b -= a.detach()", "h += 1", "torch.add(a, 1, out=b)", "torch.mul(h.detach(), 2, out=a)", "torch.relu_(a)", "torch._foreach_add_([a, b], 1.0)", "torch._foreach_mul_(list(s), 2.0)",
    "a.requires_grad_()", "h = h.detach().requires_grad_()", "a.detach_()", "a.t_()", "a.unsqueeze_(0)", "a.resize_(2)", "a.set_(b)", "b.fill_(n)", "a.clamp_(-1, n)", "a.masked_fill_(a > 0, n)", "a.index_fill_(0, torch.tensor([0]), 2)", "a.swapaxes_(0, -1)", "NET.seen.add_(1)", "NET.w.data.mul_(0.5)", "with torch.no_grad():\n    NET.w.add_(0.1)", "with torch.no_grad():\n    W.mul_(0.9)",
    "a.tag = n", "a.tag = h", "b.tag = a", "del a.tag", "a.grad = None", "a.grad = torch.ones_like(a)", "a.grad.add_(1)", "h.tag = 1; r = h.tag",
    # Numbers, objects, containers, callables.
    "h = {t} * o.n", "h = {t} + o.v", "h = o.scaled({t})", "h = o.scaled({t}, by={i})", "h = o({t})", "o.n += 1", "o.n = {i}", "o.v = {t}", "o.v = h", "o.late = {i}", "del o.late", "o.twice = {t}", "h = o.twice", "o.level = n", "r = o.level", "o.items.append(h)", "r = len(o.items)", "o.items = [h]", "o.v, o.n = h, n", "Box.count += 1", "Box.kind = Kind.HIGH", "type(o).count = 3", "Box.late = n", "o.__class__ = Sub", "o.__dict__['n'] = 7",
    "with o as q:\n    h = {t} * q.n\n    {risk}", "with scope(n):\n    h = {t} + 1\n    {risk}", "with contextlib.suppress(KeyError, ValueError):\n    log('suppressing')\n    {risk}\n    h = {t} * 3", "r = copy.copy(o).n", "r = dataclasses.replace(o, n=4).n", "r = o._replace(n=9).n", "v1, n1 = o; r = n1", "r = dataclasses.asdict(o)['n']", "r = Frozen(h, n) == Frozen(a, n)", "r = Named(h, n)", "p = Box({t}, n); p.n += 1; r = p", "r = Data(h, items=[n])",
    "match o:\n    case Named(v1, n1): r = 'named', n1\n    case Sub(n=n1): r = 'sub', n1\n    case Box(v=v1, n=1): r = 'one', v1\n    case Box(): r = 'box'\n    case {{'n': n1}}: r = 'table', n1\n    case None: r = 'none'\n    case _: r = 'other'",
    "match n:\n    case None: r = 'none'\n    case bool(): r = 'bool'\n    case int() if n > 1: r = 'many'\n    case 1 | 1.0: r = 'one'\n    case float(): r = 'float'\n    case torch.Tensor(): r = 'tensor'\n    case str(): r = 'str'\n    case _: r = 'other'",
    "match list(s):\n    case []: r = 'empty'\n    case [v1]: h = v1 * 2\n    case [v1, v2] if v1 is v2: h = v1 * 3\n    case [v1, *v2]: h = v1 + len(v2)", "for v in s:\n    h = h + v.sum()", "for v in s:\n    v.add_(1)\nr = a * 1", "h = sum(s)", "h = sum([v.sum() for v in s])", "first, *others = s; h = first * len(others)", "h = s[-1] * 2", "h = s[n]", "s.append(h)", "s[0] = h", "s += [a]", "s = [*s, h]", "r = list(zip(s, s[1:]))", "r = [v * 2 for v in s if v.dim()]", "h = torch.stack(list(s))", "h = functools.reduce(operator.add, s)", "s.reverse()", "r = s.pop()", "r = sorted(s, key=lambda v: v.numel())", "r = [k for k, v in enumerate(s) if v is a]", "r = dict(enumerate(s))", "it = iter(s); h = next(it); r = list(it)",
    "h = d['a'] * 2", "h = d.get('b', a)", "d['new'] = h", "d['a'] = h", "r = d.pop('b', None)", "r = [(k, v) for k, v in d.items()]", "for k, v in d.items():\n    log(k, v)\n    h = h + v if k != 'k' else h", "d.update(k=n)", "r = d | {{'z': n}}", "r = {{**d, 'a': n}}", "d.setdefault('k', n)", "del d['b']", "d.clear()", "r = {{v: k for k, v in d.items()}}.get(a)", "r = {{a: 1, b: 2}}[a]", "ids = {{id(v): v for v in (a, b, *s)}}; r = len(ids)", "keyed = weakref.WeakKeyDictionary(); keyed[o] = n; r = keyed[o]", "seen = {{a}}; r = b in seen, h in seen", "r = max(d, key=len)",
    "h = f({t})", "h = f({t}); h = h * 2", "h = f(h) if callable(f) else h", "h = functools.partial(f, {t})()", "h = list(map(f, s))[0]", "h = [f(v) for v in s][-1]", "h = G['f']({t})", "g = f; h = g({t})", "h = (f or helper)({t})", "h = STEP({t})", "h = accumulated({t})", "h = decorated({t}, {i})", "h = helper({t}, k={i})", "h = helper({t}, *rest)", "h = helper({t}, **kw)", "h = silent({t})", "r = next(RUNNING)", "r = RUNNING.send({t})", "g = produced({t}, 3); next(g); r = next(g)", "r = list(produced({t}, {i}))", "r = list(tidy({t}, 2))", "for v in tidy({t}, {i}):\n    h = v", "for v in produced({t}, 3):\n    h = v\n    if {c}: break",
    "def local(t, k=n):\n    nonlocal h\n    h = h + 1\n    return t * k\nr = local({t})", "r = (lambda t, k=n: t * k)({t})", "if (m := {t}.sum()) is not None and {c}:\n    h = h + m", "h = h + len(rest)", "h = rest[0] * {t}", "h = {t} * (flag if flag is not None else 1)", "if flag:\n    h = h * 2", "h = {t} + kw.get('extra', 1)", "kw['more'] = h; r = sorted(kw)",
    "TOTAL += 1; r = TOTAL", "TOTAL = n", "G['n'] += 1; h = {t} * G['n']", "G['t'] = h.detach()", "h = {t} + G['t']", "G['list'].append(n)", "G['more'] = h", "G.pop('more', None)", "NET.scale = n", "NET.scale += 1; h = {t} * NET.scale", "NET.last = h.detach()", "NET.last = a", "h = {t} + NET.last", "NET.calls += 1; r = NET.calls", "NET.train({c})", "NET.act = nn.Tanh()", "helper.mark = n; r = helper.mark", "r = getattr(helper, 'mark', 0)", "helper_of = n; r = helper_of",
    # Modes, gradients inside, hooks.
    "with torch.no_grad():\n    h = {t} * 2", "with torch.enable_grad():\n    h = {t} * 2", "with torch.set_grad_enabled(bool({c})):\n    h = {t} * 2", "with torch.inference_mode():\n    r = {t} * 2", "with torch.inference_mode(bool({c})):\n    r = ({t} * 2).requires_grad", "with torch.autocast('cpu', dtype=torch.bfloat16):\n    h = F.linear({t}, NET.lin.weight)", "with torch.autocast('cpu', enabled={c}):\n    h = {t} @ {u}.t()\n    r = h.dtype", "with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):\n    h = NET.lin({t})", "with torch.no_grad():\n    with torch.enable_grad():\n        h = {t} * 2\n    r = h * 2", "torch.set_grad_enabled(False); h = {t} * 2; torch.set_grad_enabled(True)",
    "h = Scaled.apply({t}, {i})", "h = Turned.apply({t}, n)", "h = Marked.apply({t} * 1)", "h = Marked.apply(h * 1) + {u}", "c = {t} * 1\nif c.requires_grad: c.register_hook(lambda grad: log('hook', grad.sum()))\nh = c.sin()", "if a.requires_grad: a.register_hook(lambda grad: grad * 2)", "if h.requires_grad: h.retain_grad() if not h.is_leaf else None", "if h.requires_grad: h.register_hook(lambda grad: log('h', grad.shape))", "q = {t}.detach().clone().requires_grad_(); (q ** 2).sum().backward(); r = q.grad", "r = torch.autograd.grad((h * h).sum(), a, retain_graph=True, allow_unused=True)",
    "g, = torch.autograd.grad((a * a * h.detach().sum()).sum(), a, create_graph=True); h = g + 1", "(a * 2).sum().backward(); r = a.grad", "h.sum().backward(retain_graph=True); r = a.grad", "(W * {t}.detach()).sum().backward(); r = W.grad", "with torch.autograd.graph.saved_tensors_hooks(lambda v: (log('pack', v.shape), v)[1], lambda v: v):\n    h = {t}.sin()", "handle = NET.act.register_forward_hook(lambda m, i, o: o + 1); h = NET({t}); handle.remove()", "h = torch.func.grad(lambda v: v.pow(2).sum())({t})", "r = torch.func.vmap(lambda v: v * 2)({t})",
    "h = inner({t}, {i})", "h = inner({t}, n)", "r = changing(h * 1)", "r = changing(a)", "v = viewing(a); r = v._base is a", "h = viewing({t}) * 2", "v = viewing(a); v.add_(1); r = a * 1", "h = asking({t}); r = h is {t}", "with torch.no_grad():\n    h = asking({t})", "h = inner(inner({t}), k=o.n)",
    # Errors, and what is seen of them.
    "h = cleaning({t}, {i})", "r = cleaning(h, n)", "failing(n) if n == 2 else None", "if {c}: raise Problem(n)", "assert {c}, n", "assert a.dim() < 3, a.shape", "r = a.absent", "bothways.graph_break()", "log('at', n)", "log(h)", "log(a.shape)", "if {c}:\n    return h, n", "if {c}:\n    h = h * 2\nelse:\n    h = h - 1", "if {c}:\n    {risk}\nelse:\n    h = h + 1", "while h.sum() > 100:\n    h = h / 10", "for k in range(o.n):\n    h = h + k\n    if k > 2: break", "for k in range({t}.shape[0]):\n    h = h + {t}[k].sum()\n    if k > 1: break", "r = res[-1] if res else None", "res = res[-1:]", "del h; h = a", "a, b = b, a", "b = h", "a = a.detach()",
]  # fmt: skip
RISKS = [
    "raise KeyError(n)", "raise ValueError(n)", "failing(1)", "h = {t} @ torch.ones(7)", "r = d['missing']", "r = s[99]", "r = 1 // 0", "r = o.absent", "pass", "h = {t} * 5", "h = n + None", "{t}.add_(1)", "return h", "bothways.graph_break()", "a.view(77)", "r = int('z')",
]  # fmt: skip
CONDITIONS = [
    "n", "n == 1", "n is None", "a is b", "b is None", "flag", "flag is None", "rest", "a.requires_grad", "a.is_contiguous()", "a.dim() == 2", "a.shape[0] > 2", "a.shape == h.shape", "a.dtype == torch.float32", "isinstance(n, int)", "isinstance(b, torch.Tensor)", "torch.is_grad_enabled()", "NET.training", "isinstance(o, Box)", "o.n > 1", "o.kind is Kind.LOW", "len(s) > 1", "'b' in d", "callable(f)", "h.requires_grad", "h.is_leaf", "a.sum() > 0", "h.sum() > 0", "G['flag']", "G['n'] > 1", "TOTAL > 2", "hasattr(a, 'tag')", "a.is_inference()", "a._is_view()", "n in d", "a.shape[-1] == 4", "a.numel() == b.numel()", "type(o) is Sub", "a.grad is not None",
]  # fmt: skip
VALUES = {
    "t": ["a", "a", "b", "h", "h", "s[0]", "o.v", "(a * 1)"],
    "u": ["a", "b", "h", "b", "d['a']"],
    "i": ["n", "2", "3", "1", "o.n", "G['n']", "len(s)", "a.shape[0]", "0.5"],
    "c": CONDITIONS,
}

# What a call is made of: for each part what it may be, the usual first.
SHAPES = ["3, 4", "3, 4", "3, 4", "4, 4", "2, 4", "1, 4", "3, 1", "4", "1", "", "0, 4", "5, 4", "2, 3, 4", "4, 3"]
PARTS = {
    "a": [
        *["floats({shape})"] * 3, *["floats({shape}).requires_grad_()"] * 5, "floats({shape}).double()", "floats({shape}).double().requires_grad_()", "floats({shape}).bfloat16()", "floats({shape}).half().requires_grad_()", "torch.randint(-3, 5, ({shape},))", "floats({shape}) > 0", "torch.randint(0, 5, ({shape},), dtype=torch.uint8)", "floats(4, 3).t()",
        "floats(4, 3).t().requires_grad_()", "floats(3, 8)[:, ::2]", "floats(4, 4)[1:]", "floats(1, 4).expand(3, 4)", "floats({shape}).requires_grad_() * 1", "(floats({shape}).requires_grad_() * 1).detach()", "nn.Parameter(floats({shape}))", "floats(3, 4).requires_grad_()[:2]", "torch.complex(floats({shape}), floats({shape}))", "torch.complex(floats({shape}), floats({shape})).conj()",
        "graded(floats({shape}).requires_grad_())", "tagged(floats({shape}))", "torch.zeros({shape})", "NET.w", "W", "floats(2, 3, 4).transpose(1, 2)[0]", "floats(3, 4).requires_grad_().t()", "hooked(floats({shape}).requires_grad_())", "unseen(floats({shape}).requires_grad_())", "floats({shape}).as_strided((2, 2), (1, 1))" , "floats(1, 2, 3, 4).to(memory_format=torch.channels_last)", "nn.Parameter(floats({shape}), requires_grad=False)", "KEPT[-1]", "floats(2, 4).repeat(2, 1)[::2]",
    ],
    "b": [*["floats({shape})"] * 3, *["floats({shape}).requires_grad_()"] * 3, *["a"] * 4, "a.detach()", "a.detach()[:1]", "a.detach()[1:]", "a[:1]", "a.view(-1)", "a.detach().t()", "a.t()", "a * 1", "None", "2", "2.5", "torch.tensor(2.0)", "torch.tensor(3)", "NET.w", "W", "floats({shape}).double()", "a.clone()", "a.detach().clone()", "a.data", "floats(4)", "a.view_as(a)", "a.detach().view(-1)[:4]", "floats(1)", "infer({shape})", "a[..., :1]", "torch.randint(0, 3, ({shape},))", "unseen(a)", "again(a)"],
    "n": [*["2", "2", "1", "3"] * 2, "0", "-1", "4", "2.0", "0.5", "1.0", "True", "False", "None", "-0.0", "float('nan')", "float('inf')", "2 ** 40", "torch.tensor(2)", "torch.tensor(0.5)", "np.int64(2)", "np.float32(0.5)", "np.float64(1.5)", "'x'", "Level.TWO", "5", "6", "7", "1j", "torch.tensor(2.0, requires_grad=True)", "(1, 2)"],
    "o": [*["Box(a, 2)"] * 4, "Box(b, 1)", "Sub(a, 1)", "Sub(a, 3)", "Guarded(a, 2)", "Slotted(a, 2)", "Data(a, 2)", "Data(b)", "Frozen(a, 2)", "Named(a, 2)", "types.SimpleNamespace(v=a, n=2, kind=Kind.LOW)", "Table(v=a, n=2, kind=Kind.HIGH)", "SHARED", "SHARED", "None", "Box(a.detach(), 2.0)", "lately(Box(a, 2))", "own(Box(a, 2))", "Box(Box(a, 1), 2)", "Box(a, torch.tensor(2))", "Sub(b, True)"],
    "s": [*["[a, b]"] * 3, "[a]", "(a, b)", "[a, a]", "[]", "collections.deque([a, b])", "Named(a, b)", "[a, a.detach()]", "[a * 1, a * 1, a * 1]", "(a,)", "nn.ParameterList([nn.Parameter(torch.ones(4))])", "[a[:1], a[1:]]", "{'x': a}.values()", "[a, W, NET.w]", "LISTED", "torch.ones(2, 4)", "list(NET.parameters())[:2]", "[b, a]", "iter([a, a])", "a.unbind(0)"],
    "d": [*["{'a': a, 'b': b}"] * 3, "{'b': b, 'a': a}", "{'a': a}", "{'a': a, 'k': n}", "{'a': a, 'b': a}", "collections.OrderedDict(a=a, b=b)", "collections.defaultdict(list, a=a)", "{'a': a, 1: b}", "Table(a=a, b=b)", "types.MappingProxyType({'a': a, 'b': b})", "{}", "{'a': b, 'b': a}", "{'a': a.detach()}"],
    "f": [*["helper"] * 3, "other", "torch.sin", "torch.relu", "operator.neg", "lambda t: t * 3", "lambda t, by=n: t * by", "functools.partial(helper, k=2)", "functools.partial(helper, k=n)", "o.scaled", "NET", "nn.ReLU()", "nn.Tanh()", "Box", "None", "inner", "o", "torch.Tensor.cos", "decorated", "silent", "counting()", "STEP", "a.mul", "torch.jit.script(nn.ReLU())", "accumulated", "G['f']", "nn.Dropout(0.5).eval()", "closed(n)", "closed(a)"],
    "more": [*["**{}"] * 6, "flag=True", "flag=False", "flag=None", "flag=a", "flag=2", "extra=1", "extra=b", "*(1,)", "*(2, a)", "flag='x', k=3"],
}  # fmt: skip
AROUND = [
    *[""] * 9, "torch.no_grad()", "torch.no_grad()", "torch.inference_mode()", "torch.autocast('cpu', dtype=torch.bfloat16)", "torch.autocast('cpu', dtype=torch.float16)", "default(torch.float64)", "torch.autograd.detect_anomaly(check_nan=False)", "deterministic()", "torch.autograd.graph.saved_tensors_hooks(packed, lambda v: v)", "torch.autocast('cpu', enabled=False)", "torch.enable_grad()", "torch.device('cpu')", "torch.random.fork_rng()", "torch.autograd.set_multithreading_enabled(False)", "torch.inference_mode(False)", "torch.autograd.graph.save_on_cpu()",
]  # fmt: skip
BETWEEN = [
    *[""] * 12, "NET.eval()", "NET.train()", "NET.scale = 2", "NET.scale = 2.0", "NET.act = nn.Tanh()", "NET.act = nn.ReLU()", "NET.w.requires_grad_(False)", "NET.w.requires_grad_()", "NET.w.data = torch.ones(4)", "NET.w = nn.Parameter(torch.ones(4) * 2)", "NET.double()", "NET.float()", "NET.zero_grad()", "HANDLES.append(NET.register_forward_hook(lambda m, i, o: o * 2))", "[handle.remove() for handle in HANDLES]", "HANDLES.append(NET.act.register_forward_pre_hook(lambda m, i: (i[0] + 1,)))",
    "HANDLES.append(W.register_hook(lambda grad: log('W', grad.sum())))", "G['n'] = 2", "G['n'] = 2.5", "G['n'] += 1", "G['flag'] = not G['flag']", "G['t'] = torch.zeros(1)", "G['t'] = torch.ones(1, requires_grad=True)", "G['list'].append(2)", "G['f'] = other", "G['f'] = helper", "G['more'] = torch.ones(1)", "G.pop('more', None)", "TOTAL = 5", "TOTAL = 0", "Box.kind = Kind.HIGH", "Box.kind = Kind.LOW", "Box.late = 3", "del Box.late", "Box.scaled = lambda self, t, by=2: t + by", "Box.scaled = ORIGINAL", "Sub.scaled = ORIGINAL",
    "helper.__defaults__ = (3,)", "helper.__defaults__ = (1,)", "helper.__code__ = other.__code__", "helper = other", "SHARED.n = 4", "SHARED.n += 1", "SHARED.late = 1", "SHARED.__class__ = Sub", "SHARED.__class__ = Box", "SHARED.v = torch.ones(2)", "LISTED.append(torch.ones(1))", "LISTED.pop()", "LISTED.reverse()", "CACHE.clear()", "W.grad = None", "W.requires_grad_(False)", "W.requires_grad_()", "W.data = torch.ones(1) * 2", "STEP = counting()", "accumulated.__defaults__[0].clear()", "Net.forward = lambda self, t: t * 2", "Sub.__bool__ = lambda self: False", "Box.__len__ = lambda self: self.n", "Guarded.__getattribute__ = object.__getattribute__",
    "NET.lin = nn.Linear(4, 2)", "NET.register_buffer('seen', torch.ones(1))", "NET.last = torch.ones(1)", "NET.last = None", "Scaled.backward = staticmethod(lambda ctx, grad: (grad, None))", "Kind.LOW.mark = 1", "torch.manual_seed(7)", "nn.ReLU.forward = nn.Tanh.forward", "Level.ONE.mark = 2",
]  # fmt: skip
AFTER = [
    *["backward()"] * 6, "one_by_one()", "", "backward(retain_graph=True); backward()", "backward(); backward()", "twice()", "backward(which=-2)", "backward(which=0)", "changed(); backward()", "grads()", "backward(retain_graph=True); changed(); backward()",
]  # fmt: skip
HOLE = re.compile(r"(?<!\{)((?:\{\{)*)\{(t|u|i|c)\}")

TOOLS = """
SHARED = Box(torch.ones(3, 4), 2)
LISTED = [torch.ones(4), torch.ones(4)]
KEPT = [torch.ones(3, 4, requires_grad=True) * 2]

def graded(t):
    t.grad = torch.ones_like(t)
    return t

def tagged(t):
    t.tag = 3
    return t

def hooked(t):
    t.register_hook(lambda grad: grad * 3)
    return t

def unseen(t):
    with torch.no_grad():
        return t.view_as(t)

def again(t):
    return torch.from_numpy(t.detach().numpy())

def infer(*shape):
    with torch.inference_mode():
        return torch.randn(shape)

def lately(thing):
    thing.late = 2
    return thing

def own(thing):
    thing.scaled = lambda t, by=1: t * 10
    return thing

def closed(value):
    def function(t):
        return t * value
    return function

def packed(t):
    if ("packed", t.shape) not in LOG:  # where a graph fails, plain Python packs once more
        log("packed", t.shape)
    return t

@contextlib.contextmanager
def default(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)

@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
"""


class Writer:
    """Writes one program."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def program(self, statements=7, calls=12):
        lines = [self.statement() for _ in range(statements)]
        body = "\n".join(lines).replace("\n", "\n    ")
        rows = "\n".join(self.calls(calls))
        return (
            f"{PRELUDE}{TOOLS}\nCALLS = []\n{rows}\n\ndef target(a, b, n, o, s, d, f, *rest, flag=None, **kw):\n"
            f"    global TOTAL, helper_of\n    res, h = [], a * 2\n    {body}\n    return res, h\n"
        )

    # The function.

    def filled(self, template):
        before, risky, after = template.partition("{risk}")
        text = HOLE.sub(lambda hole: hole[1] + self.random.choice(VALUES[hole[2]]), before)
        text = text.replace("{{", "{").replace("}}", "}")
        return text + self.filled(self.random.choice(RISKS)) + self.filled(after) if risky else text

    def statement(self):
        """One with what it has to show, mostly where an error of it is caught."""
        if self.random.random() < 0.35:
            text = self.filled("r = " + self.random.choice(LOOKS))
        else:
            text = self.filled(self.random.choice(STATEMENTS))
        tells = "h = " in text and self.random.random() < 0.4
        show = "res.append(r)" if "r = " in text else "res.append(h)" if tells else ""
        if self.random.random() < 0.75:
            inside = f"{text}\n{show}".strip().replace("\n", "\n    ")
            return f"try:\n    r = None\n    {inside}\nexcept Exception as error:\n    res.append(shown(error))"
        return f"r = None\n{text}\n{show}".strip()

    # The calls.

    def calls(self, count):
        known = [{name: self.random.choice(options[:8]) for name, options in PARTS.items()}]
        known[0]["shape"], known[0]["around"] = self.random.choice(SHAPES[:4]), ""
        rows = [self.row(known[0])]
        while len(rows) < count:
            call = dict(self.random.choice([known[-1], known[-1], known[0], self.random.choice(known)]))
            if self.random.random() < 0.75:
                for _ in range(self.random.choice([1, 1, 1, 2, 3])):
                    self.change(call)
            known.append(call)
            rows.append(self.row(call))
        return rows

    def change(self, call):
        name = self.random.choice(
            ["a", "a", "b", "b", "n", "n", "o", "s", "d", "f", "more", "shape", "shape", "around"]
        )
        options = {"shape": SHAPES, "around": AROUND}.get(name) or PARTS[name]
        call[name] = self.random.choice(options)

    def row(self, call):
        shape = call["shape"]
        parts = {"between": self.random.choice(BETWEEN), **call, "after": self.random.choice(AFTER)}
        for name in "ab":
            parts[name] = call[name].replace("({shape},)", f"({shape},)" if shape else "()").replace("{shape}", shape)
        del parts["shape"]
        return f"CALLS.append(dict({', '.join(f'{name}={text!r}' for name, text in parts.items())}))"


def program(seed):
    """The source of one program."""
    return Writer(seed).program()
