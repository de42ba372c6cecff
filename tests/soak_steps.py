"""A seeded generator of training steps: models, losses, optimizers, schedules, clipping, accumulation, hooks, breaks.

A program is the text of a module with a function ``step(x, y, number)``, which trains what the module's ``STATE``
names, and perhaps ``between(number)``, which is called before each step and never compiled. Most programs compute in
double precision, where what a sum's order changes stays far below what is compared.
"""

import random
import re
import textwrap

PRELUDE = '''
import contextlib, copy, math
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
import bothways

LOG = []

def note(*values):
    LOG.append([value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values])

def noting(name, factor=None):
    def hook(*grads):
        LOG.append((name, [grad.detach().clone() for grad in grads]))
        return None if factor is None else grads[0] * factor
    return hook

class Clipped(torch.autograd.Function):
    """Rounded down; the gradient passes where the input was small."""
    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x)
        ctx.by = by
        return x.clamp(-by, by)
    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        return grad * (x.abs() <= ctx.by) + 0.1 * grad, None

class Loud(torch.autograd.Function):
    """A function whose backward has an effect."""
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        LOG.append(("loud", tuple(grad.shape)))
        return grad * 2
'''

# Layers between the first and the last; each keeps the width of 8.
LAYERS = [
    (4, "nn.Sequential(nn.Linear(8, 8), nn.GELU())"), (4, "nn.Sequential(nn.Linear(8, 8), nn.ReLU())"), (3, "nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh())"),
    (2, "nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.SiLU())"), (2, "nn.Dropout(0.2)"), (1, "nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Dropout(0.1))"),
    (2, "Residual()"), (1, "Gated()"), (1, "Attending()"), (1, "nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 8), nn.Sigmoid())"), (1, "nn.Sequential(nn.Linear(8, 8), nn.PReLU())"),
    (1, "torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))"), (1, "nn.Sequential(nn.GroupNorm(2, 8), nn.Linear(8, 8), nn.ELU())"), (1, "Counting()"), (1, "nn.Identity()"),
]  # fmt: skip
BLOCKS = '''
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        return x + torch.tanh(self.inner(x)) * self.scale

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Linear(8, 16)
    def forward(self, x):
        value, gate = self.both(x).chunk(2, -1)
        return value * torch.sigmoid(gate)

class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 24, bias=False)
    def forward(self, x):
        q, k, v = (part.reshape(len(x), 2, 4).transpose(0, 1) for part in self.wide(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(x.shape)

class Counting(nn.Module):
    """A buffer that every call changes."""
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.mean
'''
# A bias before a batch norm, or of keys before a softmax, has a gradient of rounding errors alone, which some optimizers
# make steps of full length of.
ENTRANCES = [
    (5, "flat", "nn.Linear(6, 8)"), (2, "image", "nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 8))"),
    (2, "tokens", "nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Flatten(), nn.Linear(32, 8))"), (1, "tokens", "nn.EmbeddingBag(11, 8)"),
    (1, "image", "nn.Sequential(nn.Conv2d(2, 8, 2, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())"), (1, "flat", "nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8))"),
]  # fmt: skip
# What a model does with a layer's result on the way.
WAYS = [
    (8, "h = layer(h)"), (2, "h = h + layer(h)"), (1, "h = checkpoint(layer, h, use_reentrant=False)"), (1, "h = Clipped.apply(layer(h), 1.5)"), (1, "h = Loud.apply(layer(h))"),
    (1, "h = layer(h)\nif h.requires_grad:\n    h.register_hook(noting('inner'))"), (1, "h = layer(h)\nif h.requires_grad:\n    h.register_hook(lambda grad: grad * 0.5)"),
    (1, "h = layer(h)\nif self.calls % 2:\n    h = h * 1.5"), (1, "h = layer(h)\nif h.sum() > 0:\n    h = h * 0.5"), (1, "h = layer(h)\nh = h.clone()\nh.mul_(1.1)"), (1, "h = layer(h.detach()) + h"),
    (1, "h = torch.where(h > 0, layer(h), h)"), (1, "with torch.no_grad():\n    shift = layer(h).mean()\nh = layer(h) - shift"), (1, "h = F.dropout(layer(h), 0.1, self.training)"),
    (1, "h = layer(h)\nbothways.graph_break()"), (1, "h = layer(h) + torch.randn_like(h) * 0.01"), (1, "self.seen = layer(h)\nh = self.seen * 1.0"),
]  # fmt: skip
LOSSES = [
    (5, "F.cross_entropy({out}, {y})"), (2, "F.mse_loss({out}, F.one_hot({y}, 3).to({out}.dtype))"), (1, "F.nll_loss(F.log_softmax({out}, -1), {y})"), (1, "F.smooth_l1_loss({out}, F.one_hot({y}, 3).to({out}.dtype), beta=0.5)"),
    (1, "F.cross_entropy({out}, {y}, label_smoothing=0.1)"), (1, "F.binary_cross_entropy_with_logits({out}, F.one_hot({y}, 3).to({out}.dtype))"), (1, "F.cross_entropy({out}, {y}, reduction='none').mean()"),
    (1, "(F.cross_entropy({out}, {y}) + 0.01 * sum(p.square().sum() for p in MODEL.parameters()))"), (1, "(F.cross_entropy({out}, {y}) + 0.1 * {out}.abs().mean())"), (1, "F.kl_div(F.log_softmax({out}, -1), torch.full_like({out}, 1 / 3), reduction='batchmean')"),
    (1, "nn.CrossEntropyLoss(reduction='sum')({out}, {y})"), (1, "F.multi_margin_loss({out}, {y})"), (1, "CRITERION({out}, {y})"), (1, "torch.logsumexp({out}, -1).sum() - {out}.gather(1, {y}[:, None]).sum()"),
]  # fmt: skip
# Optimizers that do not make much of a gradient's last digits come first; the others train in double precision.
STEADY = [
    (4, "torch.optim.SGD({p}, lr=0.05)"), (4, "torch.optim.SGD({p}, lr=0.05, momentum=0.9)"), (2, "torch.optim.SGD({p}, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)"),
    (1, "torch.optim.SGD({p}, lr=0.05, foreach=True)"), (1, "torch.optim.SGD({p}, lr=0.05, momentum=0.5, foreach=False, maximize=True)"), (1, "torch.optim.SGD({p}, lr=torch.tensor(0.05))"), (1, "torch.optim.SGD({p}, lr=0.05, dampening=0.1, momentum=0.9)"),
]  # fmt: skip
KEEN = [
    (4, "torch.optim.Adam({p}, lr=0.01)"), (4, "torch.optim.AdamW({p}, lr=0.01)"), (2, "torch.optim.AdamW({p}, lr=0.01, foreach=True)"), (2, "torch.optim.AdamW({p}, lr=0.01, foreach=False, amsgrad=True)"),
    (1, "torch.optim.Adam({p}, lr=0.01, weight_decay=0.1, maximize=True)"), (1, "torch.optim.AdamW({p}, lr=0.01, fused=True)"), (1, "torch.optim.SGD({p}, lr=0.01, momentum=0.9, fused=True)"), (1, "torch.optim.Adam({p}, lr=torch.tensor(0.01), capturable=False, foreach=False)"),
    (1, "torch.optim.RMSprop({p}, lr=0.01)"), (1, "torch.optim.RMSprop({p}, lr=0.01, momentum=0.5, centered=True)"), (1, "torch.optim.Adagrad({p}, lr=0.05)"), (1, "torch.optim.Adadelta({p}, lr=0.5)"), (1, "torch.optim.Adamax({p}, lr=0.01)"),
    (1, "torch.optim.NAdam({p}, lr=0.01)"), (1, "torch.optim.RAdam({p}, lr=0.01)"), (1, "torch.optim.ASGD({p}, lr=0.05)"), (1, "torch.optim.Adafactor({p}, lr=0.01)"), (1, "torch.optim.Adam({p}, lr=0.01, betas=(0.5, 0.9), eps=1e-6)"),
]  # fmt: skip
PARAMETERS = [
    (6, "MODEL.parameters()"), (2, "[{'params': MODEL.last.parameters(), 'lr': 0.02}, {'params': [*MODEL.first.parameters(), *MODEL.layers.parameters()]}]"),
    (1, "[{'params': [p for p in MODEL.parameters() if p.dim() > 1], 'weight_decay': 0.02}, {'params': [p for p in MODEL.parameters() if p.dim() < 2], 'weight_decay': 0.0}]"), (1, "list(MODEL.layers.parameters()) + list(MODEL.last.parameters())"),
    (1, "[p for p in MODEL.parameters() if p.requires_grad]"),
]  # fmt: skip
SCHEDULES = [
    (6, None), (1, "torch.optim.lr_scheduler.StepLR(OPTIMIZER, 2, 0.5)"), (2, "torch.optim.lr_scheduler.CosineAnnealingLR(OPTIMIZER, 5)"), (1, "torch.optim.lr_scheduler.LambdaLR(OPTIMIZER, lambda n: 1 / (n + 1))"),
    (1, "torch.optim.lr_scheduler.ExponentialLR(OPTIMIZER, 0.8)"), (1, "torch.optim.lr_scheduler.OneCycleLR(OPTIMIZER, 0.05, total_steps=20, cycle_momentum=False)"), (1, "torch.optim.lr_scheduler.LinearLR(OPTIMIZER, total_iters=3)"),
]  # fmt: skip
CLIPPING = [
    (5, ""), (3, "torch.nn.utils.clip_grad_norm_(MODEL.parameters(), 0.5)"), (1, "norm = torch.nn.utils.clip_grad_norm_(MODEL.parameters(), 0.5)\nkept.append(norm)"), (1, "torch.nn.utils.clip_grad_value_(MODEL.parameters(), 0.05)"),
    (1, "torch.nn.utils.clip_grad_norm_(MODEL.parameters(), 1.0, norm_type=1, foreach=False)"), (1, "norm = torch.nn.utils.get_total_norm([p.grad for p in MODEL.parameters() if p.grad is not None])\ntorch.nn.utils.clip_grads_with_norm_(MODEL.parameters(), 0.5, norm)"),
    (1, "for p in MODEL.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.9)"), (1, "for p in MODEL.parameters():\n    if p.grad is not None:\n        p.grad = p.grad.clamp(-0.1, 0.1)"), (1, "torch.nn.utils.clip_grad_norm_(MODEL.parameters(), 0.5, norm_type=math.inf)"),
    (1, "with torch.no_grad():\n    for p in MODEL.parameters():\n        if p.grad is not None:\n            p.grad.add_(torch.randn_like(p), alpha=1e-3)"),
]  # fmt: skip
BEGINNINGS = [
    (6, "OPTIMIZER.zero_grad()"), (2, "OPTIMIZER.zero_grad(set_to_none=False)"), (2, "MODEL.zero_grad()"), (1, "for p in MODEL.parameters():\n    p.grad = None"), (1, "if number % 2 == 0:\n    OPTIMIZER.zero_grad()"), (1, ""),
    (1, "MODEL.zero_grad(set_to_none=False)"),
]  # fmt: skip
BACKWARDS = [
    (9, "loss.backward()"), (1, "torch.autograd.backward(loss)"), (1, "torch.autograd.backward([loss], [torch.tensor(2.0, dtype=loss.dtype)])"), (1, "loss.backward(torch.full_like(loss, 0.5))"), (1, "loss.backward(retain_graph=True)\nloss.backward()"),
    (1, "loss.backward(inputs=list(MODEL.last.parameters()))"), (1, "out.retain_grad()\nloss.backward()\nkept.append(out.grad)"), (1, "loss.backward(retain_graph=True)\n(loss * 0.5).backward()"), (1, "(loss / 2).backward()"),
    (1, "wanted = [p for p in MODEL.parameters() if p.requires_grad]\nfor p, g in zip(wanted, torch.autograd.grad(loss, wanted, allow_unused=True)):\n    p.grad = g"), (1, "out.register_hook(noting('out'))\nloss.backward()"),
    (1, "wanted = [p for p in MODEL.parameters() if p.requires_grad]\nfor p, g in zip(wanted, torch.autograd.grad(loss, wanted, materialize_grads=True)):\n    if p.grad is None:\n        p.grad = g.clone()\n    else:\n        p.grad += g"),
    (1, "wanted = list(MODEL.last.parameters())\ngrads = torch.autograd.grad(loss, wanted, create_graph=True)\n(loss + 0.1 * sum(g.square().sum() for g in grads)).backward()"),
    (1, "torch.autograd.backward([loss, out.square().mean()])"), (1, "loss.backward()\nkept.append(sum(p.grad.abs().sum() for p in MODEL.parameters() if p.grad is not None))"),
]  # fmt: skip
UPDATES = [
    (9, "OPTIMIZER.step()"), (1, "OPTIMIZER.step()\nOPTIMIZER.zero_grad()"), (1, "OPTIMIZER.step()\nfor p in MODEL.parameters():\n    p.grad = None"), (1, "with torch.no_grad():\n    for p in MODEL.parameters():\n        if p.grad is not None:\n            p.sub_(p.grad, alpha=0.05)"),
    (1, "for p in MODEL.parameters():\n    if p.grad is not None:\n        p.data.add_(p.grad, alpha=-0.05)"), (1, "if number % 2:\n    OPTIMIZER.step()"), (1, "with torch.no_grad():\n    for p in MODEL.parameters():\n        if p.grad is not None:\n            p -= 0.05 * p.grad"),
    (1, "with torch.no_grad():\n    for name, p in MODEL.named_parameters():\n        if p.grad is not None:\n            p.copy_(p - 0.05 * p.grad)"),
]  # fmt: skip
AFTERWARDS = [
    (8, ""), (1, "with torch.no_grad():\n    for own, other in zip(EMA.parameters(), MODEL.parameters()):\n        own.lerp_(other, 0.1)"), (1, "with torch.no_grad():\n    for own, other in zip(EMA.parameters(), MODEL.parameters()):\n        own.mul_(0.9).add_(other, alpha=0.1)"),
    (1, "note(loss.item())"), (1, "LOG.append(number)"), (1, "note('after')"), (1, "for p in MODEL.parameters():\n    kept.append(p.grad is None)"), (1, "with torch.no_grad():\n    kept.append(MODEL(x))"), (1, "bothways.graph_break()\nkept.append(loss.detach() * 2)"),
    (1, "kept.append(OPTIMIZER.param_groups[0]['lr'])"), (1, "if loss < 0.5:\n    LOG.append('small')"), (1, "AVERAGED.update_parameters(MODEL)"), (1, "torch._foreach_lerp_(list(EMA.parameters()), [p.detach() for p in MODEL.parameters()], 0.2)"),
    (1, "note(sum(p.grad.norm() ** 2 for p in MODEL.parameters() if p.grad is not None) ** 0.5)"), (1, "kept.append({name: p.grad.norm().item() for name, p in MODEL.named_parameters() if p.grad is not None})"),
    (1, "kept.append((out.argmax(-1) == y).double().mean().item())"), (1, "with torch.no_grad():\n    for name, other in EMA.state_dict().items():\n        other.copy_(MODEL.state_dict()[name])"), (1, "for group in OPTIMIZER.param_groups:\n    group['lr'] = 0.05 / (1 + number)"),
    (1, "held = copy.deepcopy(OPTIMIZER.state_dict()['param_groups'])\nkept.append(held[0]['lr'])"), (1, "with torch.no_grad():\n    MODEL.eval()\n    kept.append(MODEL(x).softmax(-1))\n    MODEL.train()"),
]  # fmt: skip
RESULTS = [
    (4, "return loss"), (4, "return loss.detach()"), (2, "return loss.item()"), (2, "return loss.detach(), out.detach(), kept"), (1, "return loss, out"), (1, "return None"), (1, "return {'loss': loss.detach(), 'kept': kept, 'grads': [p.grad for p in MODEL.parameters()]}"),
    (1, "return [p.detach().norm() for p in MODEL.parameters()], kept"), (1, "return loss.detach().clone(), OPTIMIZER.param_groups[0]['lr']"),
]  # fmt: skip
# Set up once, before the first step.
SETUPS = [
    (10, ""), (1, "for p in MODEL.first.parameters():\n    p.requires_grad_(False)"), (1, "for name, p in MODEL.named_parameters():\n    p.register_hook(noting(name)) if p.requires_grad else None"), (1, "for p in MODEL.last.parameters():\n    p.register_hook(lambda grad: grad.clamp(-0.1, 0.1)) if p.requires_grad else None"),
    (1, "for name, p in MODEL.last.named_parameters():\n    p.register_post_accumulate_grad_hook(noting('accumulated ' + name))"), (1, "MODEL.last.register_full_backward_hook(lambda module, given, got: LOG.append(('module', len(given))))"),
    (1, "MODEL.last.register_forward_hook(lambda module, args, out: out * 0.9)"), (1, "OPTIMIZER.register_step_post_hook(lambda *args: LOG.append('stepped'))"), (1, "OPTIMIZER.register_step_pre_hook(lambda *args: LOG.append('steps'))"),
    (1, "MODEL.layers[-1:].requires_grad_(False)"), (1, "for p in MODEL.parameters():\n    p.grad = torch.ones_like(p)"), (1, "MODEL.first.register_forward_pre_hook(lambda module, args: LOG.append(len(args)))"),
    (1, "@torch.no_grad()\ndef update(p):\n    p.sub_(p.grad, alpha=0.02)\n    p.grad = None\nfor p in MODEL.last.parameters():\n    p.register_post_accumulate_grad_hook(update)"),
    (1, "MODEL.unused = nn.Linear(2, 2)"), (1, "MODEL.spare = nn.Parameter(MODEL.last.weight.detach().clone())"),
]  # fmt: skip
BETWEEN = [
    (10, ""), (2, "SCHEDULE.step() if SCHEDULE is not None and number else None"), (1, "OPTIMIZER.param_groups[0]['lr'] = 0.05 / (number + 1)"), (1, "MODEL.train(number % 2 == 0)"), (1, "if number == 3:\n    OPTIMIZER.load_state_dict(copy.deepcopy(OPTIMIZER.state_dict()))"),
    (1, "if number == 2:\n    MODEL.load_state_dict(copy.deepcopy(MODEL.state_dict()))"), (1, "for p in MODEL.first.parameters():\n    p.requires_grad_(number < 2)"), (1, "if number == 3:\n    MODEL.zero_grad()"), (1, "if number == 2:\n    for p in MODEL.parameters():\n        p.grad = torch.ones_like(p)"),
    (1, "OPTIMIZER.zero_grad()"), (1, "if number == 2:\n    with torch.no_grad():\n        MODEL.last.weight.mul_(0.5)"),
]  # fmt: skip
# Around the forward: a precision, and what is scaled.
AUTOCASTS = [(8, None), (1, "torch.autocast('cpu', torch.bfloat16)"), (1, "torch.autocast('cpu', torch.bfloat16, enabled=number > 1)")]
KINDS = [(14, "usual"), (2, "accumulating"), (1, "closure"), (1, "scaled"), (1, "two"), (1, "functional"), (1, "branching"), (1, "failing")]
HOLDERS = [(4, "globals"), (2, "closure"), (2, "arguments"), (2, "method")]
FAILURES = [
    "loss.backward()\nif number == 2:\n    loss.backward()", "if number == 2:\n    MODEL.last.weight.data = MODEL.last.weight.data[:1]\nloss.backward()", "loss.backward()\nif number == 3:\n    raise ValueError('three')",
    "try:\n    loss.backward()\n    loss.backward()\nexcept RuntimeError as error:\n    LOG.append(type(error).__name__)", "if number == 2:\n    out.detach().backward()\nloss.backward()", "if number == 1:\n    out.backward()\nloss.backward()",
    "with torch.no_grad():\n    MODEL.last.weight.mul_(0.9) if number == 2 else None\nloss.backward()", "torch.autograd.grad(loss, [MODEL.last.weight, torch.ones(1, requires_grad=True)])", "try:\n    if number > 1:\n        raise KeyError(number)\nexcept KeyError:\n    loss = loss * 2\nloss.backward()",
]  # fmt: skip


class Writer:
    """One program: draws from the tables, and puts the text together."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.kind, self.holder = self.pick(KINDS), self.pick(HOLDERS)
        self.autocast = "torch.autocast('cpu', torch.bfloat16)" if self.kind == "scaled" else self.pick(AUTOCASTS)
        self.single = self.autocast is not None or self.random.random() < 0.15

    def pick(self, rows):
        return self.random.choices([row[1] if len(row) == 2 else row[1:] for row in rows], [row[0] for row in rows])[0]

    def program(self):
        data, entrance = self.pick(ENTRANCES)
        parts = [PRELUDE, BLOCKS, f"DATA = {data!r}", self.model(entrance), self.training(), self.step(), self.between()]
        return "\n".join(parts)

    def model(self, entrance):
        layers = [self.pick(LAYERS) for _ in range(self.random.randint(1, 3))]
        tied = len(layers) > 1 and self.random.random() < 0.1
        ways = [self.pick(WAYS) for _ in layers]
        if self.kind == "functional":  # a checkpoint would compute again with the module's own parameters
            ways = [way.replace("checkpoint(layer, h, use_reentrant=False)", "layer(h)") for way in ways]
        body = [f"layer = self.layers[{index}]\n{way}" for index, way in enumerate(ways)]
        lines = [
            "class Model(nn.Module):", "    def __init__(self):", "        super().__init__()", "        self.calls = 0", f"        self.first = {entrance}",
            f"        self.layers = nn.ModuleList([{', '.join(layers)}])", "        self.last = nn.Linear(8, 3)", *(["        self.layers[1] = self.layers[0]"] if tied else []),
            "    def forward(self, x):", "        self.calls += 1", "        h = self.first(x)", textwrap.indent("\n".join(body), "        "), "        return self.last(h)",
        ]  # fmt: skip
        return "\n".join(lines)

    def training(self):
        optimizers = STEADY if self.single else STEADY + KEEN
        optimizer = self.pick(optimizers).replace("{p}", self.pick(PARAMETERS))
        if self.kind == "closure" and self.random.random() < 0.5:
            optimizer = "torch.optim.LBFGS(MODEL.parameters(), lr=0.1, max_iter=3)"
        self.schedule = self.pick(SCHEDULES)
        dtype = "" if self.single else ".double()"
        lines = [
            f"MODEL = Model(){dtype}", "EMA = copy.deepcopy(MODEL)", "AVERAGED = torch.optim.swa_utils.AveragedModel(MODEL)", "CRITERION = nn.CrossEntropyLoss()", f"OPTIMIZER = {optimizer}",
            f"SCHEDULE = {self.schedule}", *self.setups(),
        ]  # fmt: skip
        names = ["MODEL", "EMA", "AVERAGED", "OPTIMIZER", "SCHEDULE"]
        if self.kind == "two":
            lines += [f"OTHER = nn.Linear(3, 3){dtype}", f"SECOND = {self.pick(optimizers).replace('{p}', 'OTHER.parameters()')}"]
            names += ["OTHER", "SECOND"]
        if self.kind == "scaled":
            lines += ["SCALER = torch.amp.GradScaler('cpu', init_scale=64.0, growth_interval=2)"]
            names += ["SCALER"]
        self.names = names
        return "\n".join([*lines, f"STATE = dict({', '.join(f'{name.lower()}={name}' for name in names)})"])

    def setups(self):
        """Two, but not twice a hook that takes the gradient away: the second would fail in the middle of a backward,
        and which parameters have their gradients by then is PyTorch's to choose."""
        first, second = self.pick(SETUPS), self.pick(SETUPS)
        return [first] if first == second and "p.grad = None" in first else [first, second]

    def loss(self, out, y):
        return self.pick(LOSSES).replace("{out}", out).replace("{y}", y)

    def forward(self, x="x", y="y"):
        text = f"out = MODEL({x})\nloss = {self.loss('out', y)}"
        return text if self.autocast is None else f"with {self.autocast}:\n" + textwrap.indent(text, "    ")

    def end(self):
        schedule = "SCHEDULE.step()" if self.schedule is not None and self.random.random() < 0.6 else ""
        return [schedule, self.pick(AFTERWARDS), self.pick(RESULTS)]

    def step(self):
        body = [part for part in getattr(self, self.kind)() if part]
        return self.held("kept = []\n" + "\n".join(body))

    def usual(self):
        return [self.pick(BEGINNINGS), self.forward(), self.pick(BACKWARDS), self.pick(CLIPPING), self.pick(UPDATES), *self.end()]

    def accumulating(self):
        loop = self.forward("x[part::2]", "y[part::2]") + "\n(loss / 2).backward()"
        return ["OPTIMIZER.zero_grad()", "for part in range(2):\n" + textwrap.indent(loop, "    "), self.pick(CLIPPING), self.pick(UPDATES), *self.end()]

    def closure(self):
        body = f"OPTIMIZER.zero_grad()\nout = MODEL(x)\nloss = {self.loss('out', 'y')}\nloss.backward()\nreturn loss"
        return ["def closure():\n" + textwrap.indent(body, "    "), "loss = OPTIMIZER.step(closure)", self.pick([(1, "return loss"), (1, "return loss.detach()"), (1, "return float(loss)")])]

    def scaled(self):
        clipping = self.pick([(1, ""), (1, "SCALER.unscale_(OPTIMIZER)\ntorch.nn.utils.clip_grad_norm_(MODEL.parameters(), 1.0)")])
        return ["OPTIMIZER.zero_grad()", self.forward(), "SCALER.scale(loss).backward()", clipping, "SCALER.step(OPTIMIZER)", "SCALER.update()", *self.end()]

    def two(self):
        other = "loss = F.softplus(OTHER(out.detach())).mean() + F.softplus(-OTHER(out.detach() * 0.5)).mean()\nloss.backward()\nSECOND.step()"
        return [
            "SECOND.zero_grad()", self.forward(), other, "OPTIMIZER.zero_grad()", "loss = F.softplus(-OTHER(out)).mean()", self.pick([(2, "loss.backward()"), (1, "loss.backward(inputs=list(MODEL.parameters()))")]), self.pick(CLIPPING),
            self.pick(UPDATES), *self.end(),
        ]  # fmt: skip

    def functional(self):
        inner = "fast = dict(MODEL.named_parameters())\nfor _ in range(2):\n    wanted = {name: p for name, p in fast.items() if p.requires_grad}\n    loss = F.cross_entropy(torch.func.functional_call(MODEL, fast, (x,)), y)\n    grads = torch.autograd.grad(loss, list(wanted.values()), create_graph=True, allow_unused=True)\n    fast = {**fast, **{name: p - 0.1 * g for (name, p), g in zip(wanted.items(), grads) if g is not None}}"
        return [self.pick(BEGINNINGS), inner, "out = torch.func.functional_call(MODEL, fast, (x,))\nloss = F.cross_entropy(out, y)", "loss.backward()", self.pick(CLIPPING), self.pick(UPDATES), *self.end()]

    def branching(self):
        branch = f"if number % 2:\n    loss = {self.loss('out', 'y')}\nelse:\n    loss = loss * 0.5"
        condition = self.pick([(1, "number != 2"), (1, "loss.item() < 1.5"), (1, "torch.isfinite(loss)"), (1, "number < 4 and x.shape[0] > 4"), (1, "MODEL.training")])
        update = textwrap.indent("\n".join(filter(None, ["loss.backward()", self.pick(CLIPPING), self.pick(UPDATES)])), "    ")
        return [self.pick(BEGINNINGS), self.forward(), branch, f"if {condition}:\n{update}\nelse:\n    LOG.append('skipped')", *self.end()]

    def failing(self):
        return [self.pick(BEGINNINGS), self.forward(), self.random.choice(FAILURES), self.pick(UPDATES), *self.end()]

    def held(self, body):
        """The step as a function of globals, as a closure, with arguments, or as a method."""
        inner = textwrap.indent(body, "    ")
        if self.holder == "closure":
            text = f"def step(x, y, number):\n{inner}\nreturn step"
            return f"def make({', '.join(self.names)}):\n{textwrap.indent(text, '    ')}\nstep = make({', '.join(self.names)})\nTARGET, GIVEN = step, ()"
        if self.holder == "arguments":
            return f"def step({', '.join(self.names)}, x, y, number):\n{inner}\nTARGET, GIVEN = step, ({', '.join(self.names)},)"
        if self.holder == "method":
            for name in self.names:
                inner = re.sub(rf"\b{name}\b", f"self.{name.lower()}", inner)
            init = "\n".join(f"        self.{name.lower()} = {name}" for name in self.names)
            return f"class Trainer:\n    def __init__(self):\n{init}\n    def step(self, x, y, number):\n{textwrap.indent(inner, '    ')}\nTARGET, GIVEN = Trainer().step, ()"
        return f"def step(x, y, number):\n{inner}\nTARGET, GIVEN = step, ()"

    def between(self):
        return "def between(number):\n" + textwrap.indent(self.pick(BETWEEN) or "pass", "    ")


def program(seed):
    """The source of a module that trains."""
    return Writer(seed).program()
