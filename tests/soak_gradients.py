"""Templates of programs that take gradients: custom functions of every kind, modules that change, hooks, backwards inside.

``{t}`` is a tensor, ``{i}`` a number, ``{mode}`` what a module is to do. Each statement leaves what it has to show in
``r``, or goes on with ``h``.
"""

import random
import re

PRELUDE = '''
import torch, math, functools, copy, contextlib, warnings, bothways
import torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.autograd.function import once_differentiable
LOG = []
def log(*a): LOG.append(tuple(v.detach().clone() if isinstance(v, torch.Tensor) else v for v in a))
class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k): ctx.save_for_backward(x); ctx.k = k; return x * x * k
    @staticmethod
    def backward(ctx, g): x, = ctx.saved_tensors; log("sq", ctx.k); return 2 * x * g * ctx.k, None
class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        a, b = x * 2, (y > 0)
        ctx.mark_non_differentiable(b); ctx.set_materialize_grads(False); ctx.save_for_backward(y)
        return a, b, x + y
    @staticmethod
    def backward(ctx, ga, gb, gc):
        log("two", ga is None, gb is None, gc is None, ctx.needs_input_grad)
        y, = ctx.saved_tensors
        gx = None if ga is None else ga * 2
        if gc is not None: gx = gc if gx is None else gx + gc
        return gx, (gc * y.sign() if gc is not None and ctx.needs_input_grad[1] else None)
class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): x.mul_(3); ctx.mark_dirty(x); return x
    @staticmethod
    def backward(ctx, g): return g * 3
class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x.exp()); return ctx.saved_tensors[0] if False else x.exp()
    @staticmethod
    @once_differentiable
    def backward(ctx, g): return g * ctx.saved_tensors[0]
class New(torch.autograd.Function):
    @staticmethod
    def forward(x, n): return x * n, x.sum()
    @staticmethod
    def setup_context(ctx, inputs, output): ctx.n = inputs[1]; ctx.save_for_backward(inputs[0], output[1])
    @staticmethod
    def backward(ctx, g, gs): x, s = ctx.saved_tensors; return g * ctx.n + gs * s, None
class Ident(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x
    @staticmethod
    def backward(ctx, g): return -g
class ViewF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, g): return g * 0.5
class Obj(torch.autograd.Function):
    @staticmethod
    def forward(ctx, lst, d): ctx.n = len(lst); return lst[0] * 2 if not d else lst[0] * d["a"]
    @staticmethod
    def backward(ctx, g): return None, None
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): return g.clamp(-0.5, 0.5)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3); self.w = nn.Parameter(torch.ones(3)); self.register_buffer("buf", torch.zeros(3)); self.register_buffer("cnt", torch.tensor(0)); self.register_buffer("tmp", torch.ones(1), persistent=False)
        self.ps = nn.ParameterList([nn.Parameter(torch.full((3,), float(i))) for i in range(2)]); self.md = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.ReLU()})
        self.bn = nn.BatchNorm1d(3); self.do = nn.Dropout(0.5); self.calls = 0; self.hist = []; self.last = None; self.ln = nn.LayerNorm(3)
        self.pd = nn.ParameterDict({"k": nn.Parameter(torch.ones(3) * 2)})
    def forward(self, x, mode=0):
        self.calls += 1
        if mode == 0: return self.lin(x) * self.w
        if mode == 1: self.buf = self.buf + x.detach().mean(0); self.cnt += 1; return x + self.buf
        if mode == 2: self.buf.mul_(0.9).add_(x.detach().sum(0)); return x * self.cnt
        if mode == 3: self.hist.append(x.shape[0]); self.last = x.detach(); return self.md["b"](self.md["a"](x)) + self.ps[0] + self.ps[1]
        if mode == 4: return self.bn(x) if x.shape[0] > 1 else x
        if mode == 5: return self.do(x)
        if mode == 6: return sum(p.sum() for p in self.parameters()) * x
        if mode == 7: return self.ln(x) * self.pd["k"]
        return x
torch.manual_seed(0)
NET = Net()
OPT = torch.optim.SGD(NET.parameters(), lr=0.1, momentum=0.9)
W = torch.ones(3, requires_grad=True)
B = torch.zeros(3)
STATE = ["LOG", "NET", "W", "B"]
'''
STATEMENTS = [
    "h = {t} * 2", "h = {t}.sin() + W", "h = Sq.apply({t}, {i})", "h, m, c = Two.apply({t}, {t})",
    "h, m, c = Two.apply({t}, {t}); h = h * 2 if {i} % 2 else c", "m = Two.apply({t}, h)[1]; r = m.requires_grad, m.dtype",
    "c = {t} * 1; h = Dirty.apply(c); r = c is h, c.requires_grad", "c = {t} * 1; d = c.view(-1); Dirty.apply(c); r = d", "h = Once.apply({t})",
    "h, s = New.apply({t}, {i}); r = s", "h = Ident.apply({t}); r = h is x, h.is_leaf", "h = ViewF.apply({t})", "h = Obj.apply([{t}], {{}})",
    "h = Obj.apply([{t}, 1], {{'a': {i}}}) + {t}", "h = Clip.apply({t})", "h = NET({t}, {mode})", "h = NET({t}, {mode}); h = NET(h, {mode})",
    "NET.eval(); h = NET({t}, {mode}); NET.train()", "r = NET.calls, len(NET.hist)", "NET.train({i} % 2 == 0); r = NET.bn.training",
    "r = [n for n, p in NET.named_parameters()][:2], sum(p.numel() for p in NET.parameters())", "NET.w.data.mul_(0.9)",
    "with torch.no_grad():\n    NET.w.add_(0.1)", "with torch.no_grad():\n    NET.lin.weight[0] = {i}", "NET.buf = {t}.detach().sum(0)",
    "NET.zero_grad()", "NET.zero_grad(set_to_none=False)", "r = NET.w.grad is None",
    "NET.requires_grad_({i} % 2 == 0); h = NET({t}, 0); NET.requires_grad_(True)",
    "NET.w.requires_grad_(False); h = NET({t}); NET.w.requires_grad_(True)", "sd = NET.state_dict(); r = list(sd)[:3]", "NET.last = {t}.detach()",
    "r = NET.last", "NET.extra = {i}; r = NET.extra; del NET.extra", "NET.lin.bias.grad = torch.ones(3)",
    "h = functools.reduce(lambda a, l: l(a), [NET.lin, NET.md['b'], NET.ln], {t})",
    "h = torch.func.functional_call(NET, {{'w': torch.full((3,), 2.0)}}, ({t},))",
    "hd = NET.lin.register_forward_hook(lambda m, a, o: o + 1); h = NET({t}); hd.remove()",
    "hd = NET.register_forward_pre_hook(lambda m, a: (a[0] * 2, *a[1:])); h = NET({t}, 0); hd.remove()",
    "hd = NET.lin.register_full_backward_hook(lambda m, gi, go: log('bwd', len(gi))); h = NET({t}, 0); (h.sum() * 0.1).backward(); hd.remove()",
    "hd = NET.w.register_hook(lambda g: g * 2); NET({t}, 0).sum().backward(); hd.remove()",
    "hd = NET.w.register_post_accumulate_grad_hook(lambda p: log('acc', p.grad.sum())); NET({t}).sum().backward(); hd.remove()",
    "OPT.zero_grad(); (NET({t}, {mode}).sum() * 0.01).backward() if NET({t}, 0).requires_grad else None; OPT.step()", "NET({t}, 0).mean().backward()",
    "NET({t}, 3).pow(2).mean().backward(); r = NET.ps[0].grad", "nn.utils.clip_grad_norm_(NET.parameters(), 1.0)",
    "r = nn.utils.clip_grad_value_(NET.parameters(), 0.1)", "W.grad = None", "(W * {t}.detach()).sum().backward()", "r = W.grad",
    "W.grad.mul_(0.5) if W.grad is not None else None", "with torch.no_grad():\n    if W.grad is not None: W -= 0.1 * W.grad", "W.data = W.data * 0.9",
    "q = {t}.detach().clone().requires_grad_(); (q ** 3).sum().backward(); r = q.grad",
    "q = {t}.detach().requires_grad_(); g, = torch.autograd.grad((q ** 3).sum(), q, create_graph=True); g2, = torch.autograd.grad(g.sum(), q); r = g2",
    "q = {t}.detach().clone().requires_grad_(); y1 = q * 2; y1.retain_grad(); y1.pow(2).sum().backward(); r = y1.grad, q.grad",
    "q = {t}.detach().clone().requires_grad_(); y1 = q.exp(); r = torch.autograd.grad([y1.sum(), (y1 * 2).sum()], [q], allow_unused=True)",
    "q = {t}.detach().clone().requires_grad_(); z1 = torch.zeros(2, requires_grad=True); r = torch.autograd.grad(q.sum(), [q, z1], allow_unused=True)[1]",
    "q = {t}.detach().clone().requires_grad_(); r = torch.autograd.grad(q.sum(), [q, torch.zeros(2, requires_grad=True)], materialize_grads=True, allow_unused=True)",
    "q = {t}.detach().clone().requires_grad_(); torch.autograd.backward([(q * 2).sum(), (q * 3).sum()], inputs=[q]); r = q.grad",
    "q = {t}.detach().clone().requires_grad_(); o = q.sin(); o.backward(torch.ones_like(o), retain_graph=True); o.backward(torch.ones_like(o)); r = q.grad",
    "q = {t}.detach().clone().requires_grad_(); o = q.sin().sum(); o.backward(); o.backward()",
    "r = torch.autograd.functional.jacobian(lambda v: v.sin(), {t}.detach()[0])", "r = torch.func.grad(lambda v: (v ** 2).sum())({t}.detach())",
    "r = torch.func.vmap(lambda v: v * 2 + v.sum())({t}.detach())", "r = torch.func.jvp(torch.sin, ({t}.detach(),), (torch.ones_like({t}),))",
    "f, vj = torch.func.vjp(torch.tanh, {t}.detach()); r = vj(torch.ones_like(f))",
    "r = torch.func.vmap(torch.func.grad(lambda v: v.pow(3).sum()))({t}.detach())", "r = torch.func.jacrev(lambda v: v.cumsum(0))({t}.detach()[0])",
    "h = checkpoint(lambda v: v.sin() * W, {t}, use_reentrant=False)", "h = checkpoint(NET, {t}, 0, use_reentrant=False)",
    "h = checkpoint(lambda v: F.dropout(v, 0.5), {t}, use_reentrant=False)", "with torch.no_grad():\n    h = {t} * 2",
    "with torch.no_grad():\n    with torch.enable_grad():\n        h = {t} * 2",
    "with torch.set_grad_enabled({i} % 2 == 0):\n    h = {t} * 3\n    r = torch.is_grad_enabled()",
    "with torch.inference_mode():\n    r = ({t} * 2).is_inference()", "torch.set_grad_enabled(False); h = {t} * 2; torch.set_grad_enabled(True)",
    "@torch.no_grad()\ndef ng(v): return v * 2\nh = ng({t})",
    "with torch.autocast('cpu', dtype=torch.bfloat16):\n    h = F.linear({t}, NET.lin.weight)\n    r = h.dtype\nh = h.float()",
    "with torch.autocast('cpu', enabled=False):\n    h = NET({t}, 0)", "with torch.autograd.set_detect_anomaly(False):\n    h = {t} * 2",
    "with torch.autograd.graph.saved_tensors_hooks(lambda v: (log('pack'), v * 1)[1], lambda v: v):\n    h = {t}.sin()",
    "with torch.autograd.graph.save_on_cpu():\n    h = {t}.sin()", "with torch.random.fork_rng():\n    r = torch.rand(2)",
    "torch.manual_seed({i}); r = torch.randn(2)", "h = F.dropout({t}, 0.3)", "r = torch.bernoulli(torch.full((2,), 0.5))",
    "gen = torch.Generator().manual_seed({i}); r = torch.rand(2, generator=gen)", "c = {t} * 1; c.add_({i}); h = c", "c = {t} * 1; c[0] = 0; h = c",
    "c = {t} * 1; v = c[1:]; v.mul_(2); h = c; r = v", "c = {t} * 1; v = c.view(-1); c.sin_(); h = v.sum() + {t}; r = v",
    "c = {t}.exp(); c.add_(1); h = c", "c = {t}.detach().clone(); v = c.t(); v.add_({t}.detach().t()); h = c + {t}; r = v",
    "c = {t}.detach().clone(); c.mul_(W); h = c; r = c.is_leaf", "c = {t}.detach().clone(); c[0] = W * 2; h = c",
    "c = {t}.detach().clone(); v = c[0]; v.copy_(W); r = v.requires_grad, c.requires_grad; h = c",
    "c = {t} * 1; c.detach_(); r = c.requires_grad, c.is_leaf", "c = {t} * 1; d = c.detach(); d.add_(1); h = c",
    "c = {t} * 1; c.data = c.data * 2; h = c + {t}", "c = ({t} * 1).requires_grad_(); r = c.is_leaf",
    "c = {t}.detach().clone().requires_grad_(); c.add_(1)", "c = {t}.detach().clone().requires_grad_(); d = c.view(-1); d.add_(1)",
    "with torch.no_grad():\n    c = {t}.detach().clone().requires_grad_(); c.add_(1); r = c",
    "c = {t} * 1; a1, a2 = c.split([1, c.shape[0] - 1]); h = torch.cat([a2, a1])", "c = {t} * 1; a1 = c.unbind(0)[0]; a1.mul_(2)",
    "c = {t} * 1; ck = c.chunk(2)[0]; ck.add_(1)", "c = {t} * 1; c.unsqueeze_(0); h = c[0]; r = c.shape", "c = {t} * 1; c.t_(); h = c.t()",
    "c = {t} * 1; c.masked_fill_(c > 0, {i}); h = c", "c = {t} * 1; c.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 3) * W); h = c",
    "c = {t} * 1; c.scatter_(0, torch.tensor([[0, 0, 0]]), W[None] * 2); h = c", "c = {t} * 1; torch.relu_(c); h = c",
    "c = torch.empty_like({t}.detach()); torch.mul({t}.detach(), 2, out=c); h = c + {t}", "c = {t} * 1; c.clamp_(min=0).mul_(2); h = c",
    "c = {t} * 1; s1 = c.sum(); c.zero_(); h = s1 * {t}", "c = {t} ** 2; e = c * c; c.add_(1); h = e", "c = {t} * 1; c.copy_({t}[:1]); h = c",
    "c = {t} * 1; v = c.diagonal(); v.fill_(0); h = c", "c = {t} * 1; v = c.expand(2, -1, -1)[0]; v.add_(1); h = c",
    "c = {t} * 1; v = c.as_strided((2,), (1,)); v.mul_(3); h = c", "B.add_({t}.detach().sum(0))", "B.copy_(W.detach())", "B[0] += {i}", "r = B * {t}",
    "c = {t} * 1\nif c.requires_grad: c.register_hook(lambda g: g * 2)\nh = c.sin()",
    "c = {t} * 1\nif c.requires_grad: c.register_hook(lambda g: log('hook', g.sum()))\nh = c * 2",
    "c = {t} * 1\nif c.requires_grad: c.retain_grad()\nh = c * 2", "r = h.grad_fn is None, h.requires_grad, h.is_leaf",
    "r = type(h.grad_fn).__name__ if {i} > 90 else 0", "r = h._version, {t}._is_view()", "r = h.grad if h.is_leaf else None",
    "c = {t} * 1\nif c.requires_grad:\n    c.register_hook(lambda g: g * 0); c.sum().backward(retain_graph=True)",
    "c = {t} * W\nif c.requires_grad:\n    torch.autograd.graph.register_multi_grad_hook([c, W * 1], lambda gs: log('multi', [g is None for g in gs]))\nh = c",
    "c = {t} * 2\nif c.requires_grad: c.grad_fn.register_hook(lambda gi, go: log('gf', len(gi)))\nh = c",
    "c = {t} * 2\nif c.requires_grad: c.grad_fn.register_prehook(lambda go: (go[0] * 3,))\nh = c", "h = F.layer_norm({t}, (3,))",
    "h = F.softmax({t}, -1).log()", "h = {t} @ W", "h = torch.einsum('ij,j->i', {t}, W)",
    "h = F.cross_entropy({t}, torch.zeros({t}.shape[0], dtype=torch.long)) * {t}", "h = {t}.max(1)[0]", "h = {t}.norm()",
    "h = torch.where({t} > 0, {t}, W)", "h = F.scaled_dot_product_attention({t}[None], {t}[None], {t}[None])[0]", "h = {t}.cumsum(0).cumprod(1)",
    "h = {t}.sort(0)[0]", "h = torch.linalg.norm({t}, dim=1)", "h = {t}.std(0)", "h = F.gelu({t}) + F.silu({t})", "h = {t}.prod(1)",
    "h = {t}.logsumexp(1)", "h = torch.cdist({t}, {t})", "h = {t}[[0, 0, 1]]", "h = {t}.index_select(0, torch.tensor([1, 0, 1]))",
    "h = {t}.gather(1, torch.zeros({t}.shape[0], 1, dtype=torch.long))", "h = F.embedding(torch.tensor([0, 1, 0]), {t})", "h = {t}.abs().sqrt()",
    "h = {t}.unfold(1, 2, 1).sum(-1)", "h = F.pad({t}, (1, 1)).tanh()", "h = torch.stack([{t}, {t} * 2]).amax(0)", "h = {t}.double().sin().float()",
    "h = {t}.bfloat16().float()", "h = {t}.half().float() * W", "h = copy.deepcopy(NET)({t})",
    "h = F.conv1d({t}[None], torch.ones({t}.shape[0], {t}.shape[0], 1))[0]", "h = {t}.repeat(2, 1)[:{t}.shape[0]]", "h = {t}.t().contiguous().t()",
    "h = {t}.flip(0).roll(1, 1)", "h = F.normalize({t}) if True else 0", "h = {t}.clamp(-0.5, 0.5)", "h = {t}.lerp({t} * 2, 0.3)",
    "h = torch.addmm({t}, {t}, torch.eye(3))", "h = {t}.median(0)[0]", "h = F.smooth_l1_loss({t}, torch.zeros_like({t}), reduction='none')",
    "h = {t}.masked_select({t}.detach() > -9)", "h = torch.outer({t}[0], W)[:1] + {t}", "h = h.clone()", "h = h.detach() + h", "h = (h, h)[0]",
    "bothways.graph_break()", "r = h.sum().item()", "r = h.mean().detach()", "if h.sum() > 0: h = h * 2\nelse: h = h - 1", "h = {t} if {i} % 2 else h",
    "h = x", "h = x.view(-1)[:3]", "res.append(x); res.append(x.view(-1))", "res.append(h[0] if h.dim() else h)", "r = h.detach()", "r = [h, h]",
    "x.add_(1) if not x.requires_grad else None", "y.mul_(2)", "y[0] = x[0].detach()", "y.t().add_(1)", "y.requires_grad_() if {i} % 5 == 0 else None",
    "r = y, y.view(-1)", "r = W", "r = NET.w", "r = NET.buf",
]  # fmt: skip
VALUES = {
    "t": ["x", "y", "x", "(x * 1)", "(x + y)", "(W * x)", "y.detach()"],
    "i": ["k", "2", "3", "(k + 1)", "1"],
    "mode": ["0", "1", "2", "3", "4", "5", "6", "7", "(k % 8)", "0"],
}
HOLE = re.compile(r"(?<!\{)((?:\{\{)*)\{(t|i|mode)\}")
RISKY = re.compile(r"backward|add_\(1\)|unbind|chunk")

HEAD = """
GIVEN = {given}

def make(call):
    k, n, needs_grad = GIVEN[call]
    LOG.clear()
    return torch.randn(n, 3).requires_grad_(needs_grad), torch.randn(n, 3), k

def target(x, y, k):
    res = []
    h = x * 2
"""


def statement(source: random.Random) -> str:
    text = HOLE.sub(lambda hole: hole[1] + source.choice(VALUES[hole[2]]), source.choice(STATEMENTS))
    text = text.replace("{{", "{").replace("}}", "}")
    going_on = "\nres.append(h)" * ("h = " in text and source.random() < 0.3)
    if source.random() < 0.35 or RISKY.search(text):
        inside = text.replace("\n", "\n    ")
        caught = "except RuntimeError as err:\n    res.append(str(err)[:25])"
        return f"try:\n    r = None\n    {inside}\n    res.append(r)\n{caught}{going_on}"
    return f"r = None\n{text}\nres.append(r){going_on}"


def program(source: random.Random, statements: int = 8) -> str:
    """The source of one program: ``make`` gives the arguments of ``target``."""
    body = "\n".join(statement(source) for _ in range(statements)).replace("\n", "\n    ")
    sizes = [([1, 2, 3, 4, 7], [2, 3], 0.6), ([1, 2, 3, 4, 5], [2, 3, 4, 5], 0.5), ([1, 2, 6], [2, 4], 0.5)]
    calls = [(source.choice(k), source.choice(n), source.random() < share) for k, n, share in sizes]
    return f"{PRELUDE}{HEAD.format(given=[calls[0], *calls])}    {body}\n    return res, h\n"
