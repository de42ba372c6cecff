"""Training as people write it, for the soak: trainers with callbacks, dictionaries, closures, several optimizers,
schedules by hand, accumulation, evaluations in between, penalties, retained graphs, errors that are caught.

A script is the body of a step, with holes that are filled from the tables of ``soak_steps.py``, and what stands above
it; everything else is as there.
"""

import re
import textwrap
from typing import NamedTuple

import soak_steps


class Script(NamedTuple):
    """``above`` is written once, behind the model and its optimizer. ``floats``: the input needs to be of numbers."""

    body: str
    above: str = ""
    floats: bool = False


TRAINER = '''
class Average:
    def __init__(self):
        self.total, self.count = 0.0, 0
    def update(self, value, n=1):
        self.total += value * n
        self.count += n
    @property
    def value(self):
        return self.total / max(self.count, 1)

class Callback:
    def on_begin(self, trainer, number): pass
    def on_backward(self, trainer, loss): pass
    def on_end(self, trainer, metrics): pass

class Warmup(Callback):
    def on_begin(self, trainer, number):
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.05 * min(1.0, (number + 1) / 3)

class Watch(Callback):
    def __init__(self):
        self.seen = []
    def on_backward(self, trainer, loss):
        self.seen.append(sum(p.grad is not None for p in trainer.model.parameters()))
    def on_end(self, trainer, metrics):
        LOG.append(("end", trainer.steps, sorted(metrics), self.seen[-1:]))

class Fitting:
    def __init__(self, model, optimizer, callbacks=(), every=1, clip=None):
        self.model, self.optimizer, self.callbacks = model, optimizer, list(callbacks)
        self.every, self.clip, self.steps, self.history = every, clip, 0, []
        self.losses = Average()
    def call(self, name, *args):
        for callback in self.callbacks:
            getattr(callback, name)(self, *args)
    def training_step(self, batch):
        out = self.model(batch["x"])
        loss = F.cross_entropy(out, batch["y"])
        return {"loss": loss, "correct": (out.argmax(-1) == batch["y"]).sum()}
    def step(self, batch, number):
        self.model.train()
        self.call("on_begin", number)
        metrics = self.training_step(batch)
        (metrics["loss"] / self.every).backward()
        self.call("on_backward", metrics["loss"])
        self.steps += 1
        if self.steps % self.every == 0:
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.losses.update(metrics["loss"].detach(), len(batch["y"]))
        self.history.append(metrics["loss"].detach())
        self.call("on_end", metrics)
        return {name: value.detach() for name, value in metrics.items()}
    @torch.no_grad()
    def evaluate(self, batch):
        self.model.eval()
        try:
            return self.training_step(batch)["loss"]
        finally:
            self.model.train()
'''
FUNCTIONS = '''
class Rounded(torch.autograd.Function):
    """Passes gradients straight through; with its context set up apart."""
    @staticmethod
    def forward(x, levels):
        return (x * levels).round() / levels
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.levels = inputs[1]
        ctx.mark_non_differentiable()
    @staticmethod
    def backward(ctx, grad):
        return grad.clone(), None

class Doubling(torch.autograd.Function):
    """Changes what it is given."""
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
    @staticmethod
    def backward(ctx, grad):
        return grad * 2

class Sided(torch.autograd.Function):
    """Two inputs and two results; computes only what is asked for."""
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.set_materialize_grads(False)
        return a * b, a + b
    @staticmethod
    def backward(ctx, of_product, of_sum):
        a, b = ctx.saved_tensors
        of_a = of_b = None
        if ctx.needs_input_grad[0]:
            of_a = (0 if of_product is None else of_product * b) + (0 if of_sum is None else of_sum)
        if ctx.needs_input_grad[1]:
            of_b = (0 if of_product is None else of_product * a) + (0 if of_sum is None else of_sum)
        return of_a, of_b

class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x)
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return -ctx.by * grad, None
'''
STRENGTH = '''
import functools

class Strength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad):
        return grad.neg() * ctx.alpha, None

@functools.lru_cache(maxsize=2)
def remembered(size, dtype):
    return torch.linspace(0.5, 1.5, size, dtype=dtype), torch.arange(size, dtype=dtype) / 10
'''
PARAMETERS = "[p for p in MODEL.parameters() if p.requires_grad]"
RETURN = "return loss.detach(), kept"

SCRIPTS = [
    # Trainers, batches that are dictionaries, callbacks.
    Script("{begin}\nmetrics = FIT.step({'x': x, 'y': y}, number)\nreturn metrics, FIT.steps", TRAINER + "FIT = Fitting(MODEL, OPTIMIZER)"),
    Script("metrics = FIT.step({'x': x, 'y': y}, number)\nreturn metrics, FIT.losses.value", TRAINER + "FIT = Fitting(MODEL, OPTIMIZER, [Warmup(), Watch()], every=2, clip=0.5)"),
    Script("metrics = FIT.step(dict(x=x, y=y), number)\nif number % 2:\n    metrics['val'] = FIT.evaluate(dict(x=x, y=y))\nreturn metrics", TRAINER + "FIT = Fitting(MODEL, OPTIMIZER, [Watch()], clip=1.0)"),
    Script("losses = []\nfor start in range(0, len(x), 3):\n    batch = {'x': x[start:start + 3], 'y': y[start:start + 3]}\n    losses.append(FIT.step(batch, number)['loss'])\nreturn torch.stack(losses).mean(), FIT.steps, len(FIT.history)", TRAINER + "FIT = Fitting(MODEL, OPTIMIZER, [Warmup()])"),
    Script("batch = {'inputs': x, 'labels': y, 'weight': torch.linspace(0.5, 1.5, len(y), dtype=torch.get_default_dtype())}\nOPTIMIZER.zero_grad()\nout = MODEL(batch.pop('inputs'))\nlosses = F.cross_entropy(out, batch['labels'], reduction='none')\nloss = (losses * batch['weight'].to(losses.dtype)).mean()\n{backward}\n{clip}\n{update}\nreturn {'loss': loss.detach(), 'keys': sorted(batch), **{f'kept{k}': v for k, v in enumerate(kept)}}"),
    # Closures, counters, and functions made by the step.
    Script("OPTIMIZER.zero_grad()\nseen = 0\ndef forward(part):\n    nonlocal seen\n    seen += len(part)\n    return MODEL(part)\nout = forward(x)\nloss = {loss}\nloss = loss + 0.1 * forward(x[:2]).square().mean()\n{backward}\n{clip}\n{update}\nreturn loss.detach(), seen, kept"),
    Script("{begin}\ndef compute(fn, *args, scale=1.0, **options):\n    return fn(*args, **options) * scale\nout = MODEL(x)\nloss = sum(compute(fn, out, y, scale=s) for fn, s in ((F.cross_entropy, 1.0), (F.multi_margin_loss, 0.5)))\n{backward}\n{update}\nreturn loss.item(), kept"),
    # Several optimizers, schedules by hand, accumulation.
    Script("for o in OPTIMIZERS.values():\n    o.zero_grad()\n{forward}\nloss.backward()\n{clip}\nfor name, o in OPTIMIZERS.items():\n    if name == 'last' or number % 2 == 0:\n        o.step()\n" + RETURN, "OPTIMIZERS = {'body': torch.optim.SGD([*MODEL.first.parameters(), *MODEL.layers.parameters()], lr=0.05, momentum=0.9), 'last': torch.optim.Adam(MODEL.last.parameters(), lr=0.01)}\nSTATE_MORE = OPTIMIZERS"),
    Script("rate = 0.05 * (0.5 * (1 + math.cos(math.pi * number / 5)) if number > 1 else (number + 1) / 2)\nfor group in OPTIMIZER.param_groups:\n    group['lr'] = rate\n{begin}\n{forward}\n{backward}\n{update}\nreturn loss.detach(), rate"),
    Script("for group in OPTIMIZER.param_groups:\n    group['lr'] = group['lr'] * 0.9 if number else group['lr']\n    if 'weight_decay' in group:\n        group['weight_decay'] = 0.01 * number\nOPTIMIZER.zero_grad()\n{forward}\nloss.backward()\nOPTIMIZER.step()\nreturn loss.detach()"),
    Script("{forward}\n(loss / 2).backward()\nif (number + 1) % 2 == 0:\n    {clip}\n    OPTIMIZER.step()\n    OPTIMIZER.zero_grad()\n" + RETURN),
    Script("total = 0.0\nfor k, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2))):\n    out = MODEL(a)\n    loss = F.cross_entropy(out, b) / 2\n    loss.backward()\n    total += loss.item()\n    if k == 1:\n        OPTIMIZER.step()\n        OPTIMIZER.zero_grad()\nreturn total"),
    Script("total = torch.zeros((), dtype=torch.double)\nOPTIMIZER.zero_grad()\nfor a, b in zip(x.split(3), y.split(3)):\n    loss = F.cross_entropy(MODEL(a), b, reduction='sum') / len(x)\n    loss.backward()\n    total += loss.detach()\n{clip}\nOPTIMIZER.step()\nreturn total, kept"),
    # Hooks that count, put on and taken off.
    Script("counts = {'forward': 0, 'backward': 0}\ndef on_forward(module, args, out):\n    counts['forward'] += 1\ndef on_grad(grad):\n    counts['backward'] += 1\nhandle = MODEL.last.register_forward_hook(on_forward)\n{begin}\n{forward}\nout.register_hook(on_grad)\nloss.backward()\nhandle.remove()\n{update}\nreturn loss.detach(), counts"),
    Script("OPTIMIZER.zero_grad()\nfeatures = {}\nhandles = [layer.register_forward_hook(lambda module, args, out, k=k: features.__setitem__(k, out)) for k, layer in enumerate(MODEL.layers)]\ntry:\n    {forward}\nfinally:\n    for handle in handles:\n        handle.remove()\nloss = loss + sum(f.float().square().mean() for f in features.values()) * 0.01\n{backward}\n{update}\nreturn loss.detach(), sorted(features)"),
    Script("{begin}\n{forward}\ngrads = {}\nfor p in MODEL.last.parameters():\n    p.register_post_accumulate_grad_hook(lambda q: grads.update({q.dim(): q.grad.detach().clone()})) if number == 0 else None\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), grads.get(1), grads.get(2)"),
    # Checkpoints and precision.
    Script("OPTIMIZER.zero_grad()\nout = checkpoint(MODEL, x, use_reentrant=False)\nloss = {loss}\nloss.backward()\n{clip}\n{update}\n" + RETURN),
    Script("OPTIMIZER.zero_grad()\ndef run(v):\n    return MODEL.last(torch.tanh(v)) * 1.5\nh = MODEL.first(x)\nfor layer in MODEL.layers:\n    h = checkpoint(layer, h, use_reentrant=False, preserve_rng_state=True)\nout = checkpoint(run, h, use_reentrant=False)\nloss = {loss}\nloss.backward()\n{update}\n" + RETURN),
    # Functions of one's own.
    Script("{begin}\nout = Rounded.apply(MODEL(x), 8)\nloss = {loss}\n{backward}\n{update}\n" + RETURN, FUNCTIONS),
    Script("{begin}\nout = Doubling.apply(MODEL(x) * 0.5)\nproduct, total = Sided.apply(out, out.detach() + 1)\nout = product + total\nloss = {loss}\nloss.backward()\n{update}\n" + RETURN, FUNCTIONS),
    Script("{begin}\na, b = Sided.apply(MODEL(x), MODEL.last.bias)\nout = a if number % 2 else b\nloss = {loss}\nloss.backward()\n{clip}\n{update}\n" + RETURN, FUNCTIONS),
    Script("OPTIMIZER.zero_grad()\nh = MODEL.first(x)\nfor layer in MODEL.layers:\n    h = layer(h)\nout = MODEL.last(h)\nloss = {loss} + 0.3 * F.cross_entropy(MODEL.last(Reversed.apply(h, 0.5)), (y + 1) % 3)\nloss.backward()\n{update}\n" + RETURN, FUNCTIONS),
    # Evaluations in between.
    Script("{begin}\n{forward}\nloss.backward()\n{update}\nMODEL.eval()\nwith torch.no_grad():\n    after = MODEL(x)\n    correct = (after.argmax(-1) == y).float().mean()\nMODEL.train()\nreturn loss.detach(), correct, after"),
    Script("was = MODEL.training\nMODEL.eval()\nwith torch.inference_mode():\n    before = F.cross_entropy(MODEL(x), y).item()\nMODEL.train(was)\nOPTIMIZER.zero_grad()\n{forward}\nloss.backward()\nOPTIMIZER.step()\nreturn before, loss.detach()"),
    Script("with torch.no_grad():\n    teacher = F.softmax(EMA(x), -1)\n{begin}\nout = MODEL(x)\nloss = {loss} + F.kl_div(F.log_softmax(out, -1), teacher, reduction='batchmean')\nloss.backward()\n{clip}\n{update}\nwith torch.no_grad():\n    for own, other in zip(EMA.state_dict().values(), MODEL.state_dict().values()):\n        if own.is_floating_point():\n            own.mul_(0.9).add_(other, alpha=0.1)\n        else:\n            own.copy_(other)\n" + RETURN),
    # Errors that are caught, early exits.
    Script("{begin}\ntry:\n    {forward}\n    if number == 2:\n        raise ValueError('bad batch')\n    loss.backward()\n    OPTIMIZER.step()\nexcept ValueError as error:\n    LOG.append(str(error))\n    OPTIMIZER.zero_grad()\n    return None\nfinally:\n    LOG.append(('done', number))\n" + RETURN),
    Script("OPTIMIZER.zero_grad()\n{forward}\nif not torch.isfinite(loss):\n    return None\nloss.backward()\nnorm = torch.nn.utils.clip_grad_norm_(MODEL.parameters(), 1.0)\nif norm > 100:\n    LOG.append('too large')\n    return loss.detach()\nOPTIMIZER.step()\nreturn loss.detach(), norm"),
    Script("losses = []\nfor inner in range(3):\n    OPTIMIZER.zero_grad()\n    {forward}\n    losses.append(loss.detach())\n    if inner == 1 and number > 2:\n        break\n    loss.backward()\n    OPTIMIZER.step()\nelse:\n    LOG.append('all')\nreturn torch.stack(losses)"),
    Script("best = None\nfor inner in range(2):\n    OPTIMIZER.zero_grad()\n    {forward}\n    loss.backward()\n    OPTIMIZER.step()\n    value = loss.item()\n    if best is None or value < best:\n        best = value\n    else:\n        break\nreturn best"),
    Script("OPTIMIZER.zero_grad()\nwith contextlib.suppress(RuntimeError):\n    {forward}\n    loss.backward()\n    loss.backward()\n    LOG.append('never')\nOPTIMIZER.step()\nreturn loss.detach()"),
    # Weights that are tied, parameters that are changed by hand, views changed in place.
    Script("{begin}\nh = torch.tanh(MODEL(x))\nout = h @ MODEL.last.weight[:, :3].t() + MODEL.last.bias\nloss = {loss}\n{backward}\n{clip}\n{update}\n" + RETURN),
    Script("OPTIMIZER.zero_grad()\nout = MODEL(x)\nout = out * 1.0\nout[:, 0] *= 2\nout[0].add_(0.1)\nout.view(-1)[1:4].mul_(0.5)\nloss = {loss}\nloss.backward()\n{update}\n" + RETURN),
    Script("{begin}\n{forward}\nloss.backward()\nfor p in MODEL.parameters():\n    if p.grad is not None:\n        p.grad.view(-1)[:2].zero_()\n        p.grad[0] += 0.01\nOPTIMIZER.step()\nwith torch.no_grad():\n    MODEL.last.weight[:, 0].mul_(0.5)\n    MODEL.last.bias.clamp_(-0.5, 0.5)\n" + RETURN),
    Script("OPTIMIZER.zero_grad()\nh = x.clone()\nh[:, :1] *= 2\nh.transpose(0, 1)[0].sub_(0.5)\nout = MODEL(h)\nloss = {loss}\nloss.backward()\nfor p in MODEL.parameters():\n    p.data.view(-1)[:1].add_(0.01)\nOPTIMIZER.step()\n" + RETURN, floats=True),
    Script("{begin}\n{forward}\nloss.backward()\nOPTIMIZER.step()\nwith torch.no_grad():\n    norm = MODEL.last.weight.norm(dim=1, keepdim=True)\n    MODEL.last.weight.div_(norm.clamp(min=1.0))\n    MODEL.last.weight.copy_(MODEL.last.weight.clamp(-1, 1))\nreturn loss.detach(), norm"),
    # Batches of other sizes, augmentation, random choices.
    Script("x, y = x[: 3 + number % 3], y[: 3 + number % 3]\n{begin}\n{forward}\n{backward}\n{clip}\n{update}\nreturn loss.detach(), len(x)"),
    Script("order = torch.randperm(len(x))\nlam = torch.rand(())\n{begin}\nmixed = lam * x + (1 - lam) * x[order]\nout = MODEL(mixed.to(x.dtype))\nloss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[order])\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), lam", floats=True),
    Script("{begin}\nkeep = torch.rand(len(x)) > 0.3\nx = torch.where(keep.reshape(-1, *[1] * (x.dim() - 1)), x, x.flip(-1) * 0.9)\nx = x + 0.01 * torch.randn_like(x)\n{forward}\n{backward}\n{update}\nreturn loss.detach(), keep", floats=True),
    # Graphs that are kept, several losses.
    Script("OPTIMIZER.zero_grad()\nout = MODEL(x)\nlosses = [F.cross_entropy(out, y), out.square().mean()]\nwanted = " + PARAMETERS + "\nsets = []\nfor k, part in enumerate(losses):\n    sets.append(torch.autograd.grad(part, wanted, retain_graph=k == 0, allow_unused=True))\nfor p, a, b in zip(wanted, *sets):\n    if a is not None and b is not None:\n        dot = (a * b).sum()\n        p.grad = a + torch.where(dot < 0, b - dot / a.square().sum().clamp(min=1e-6) * a, b)\nOPTIMIZER.step()\nreturn [part.detach() for part in losses]"),
    Script("OPTIMIZER.zero_grad()\nh = MODEL.first(x)\nout = MODEL.last(h)\nF.cross_entropy(out, y).backward(retain_graph=True)\nfirst = [None if p.grad is None else p.grad.clone() for p in MODEL.parameters()]\nloss = h.square().mean() + out.abs().mean()\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), first"),
    Script("OPTIMIZER.zero_grad()\n{forward}\nloss.backward(retain_graph=True)\nfirst = {n: p.grad.norm() for n, p in MODEL.named_parameters() if p.grad is not None}\n(loss * 0.5).backward()\nOPTIMIZER.step()\nreturn loss.detach(), first"),
    # Penalties by derivatives, second derivatives, adversaries.
    Script("{begin}\nx = x.clone().requires_grad_()\n{forward}\ng, = torch.autograd.grad(loss, x, create_graph=True)\nloss = loss + 0.1 * g.square().sum()\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), g.detach()", floats=True),
    Script("{begin}\nx.requires_grad_(True)\nout = MODEL(x)\ng = torch.autograd.grad(out.sum(), x, create_graph=True, retain_graph=True)[0]\nloss = {loss} + ((g.flatten(1).norm(dim=1) - 1) ** 2).mean()\nloss.backward()\n{update}\nreturn loss.detach(), x.grad", floats=True),
    Script("OPTIMIZER.zero_grad()\nadv = x.detach().clone().requires_grad_(True)\nfor _ in range(2):\n    g = torch.autograd.grad(F.cross_entropy(MODEL(adv), y), adv)[0]\n    adv = (adv + 0.05 * g.sign()).detach().requires_grad_(True)\nout = MODEL(adv)\nloss = {loss}\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), adv.grad is None", floats=True),
    Script("wanted = " + PARAMETERS + "\n{forward}\ngrads = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)\nflat = sum((g * g.detach()).sum() for g in grads if g is not None)\nhvp = torch.autograd.grad(flat, wanted, allow_unused=True)\nwith torch.no_grad():\n    for p, g, h in zip(wanted, grads, hvp):\n        if g is not None:\n            p -= 0.05 * (g - (0 if h is None else 0.1 * h))\nreturn loss.detach(), [h is None for h in hvp]"),
    Script("OPTIMIZER.zero_grad()\n{forward}\nloss.backward()\nwith torch.no_grad():\n    scale = 0.05 / (torch.stack([p.grad.norm() for p in MODEL.parameters() if p.grad is not None]).norm() + 1e-6)\n    moved = []\n    for p in MODEL.parameters():\n        if p.grad is not None:\n            moved.append((p, p.grad * scale))\n            p.add_(moved[-1][1])\nOPTIMIZER.zero_grad()\nF.cross_entropy(MODEL(x), y).backward()\nwith torch.no_grad():\n    for p, e in moved:\n        p.sub_(e)\nOPTIMIZER.step()\nreturn loss.detach(), scale"),
    # State of one's own.
    Script("h, = HIDDEN or [torch.zeros(1, 8, dtype=MODEL.last.weight.dtype)]\nOPTIMIZER.zero_grad()\nlosses = []\nfor part, target in zip(x.split(2), y.split(2)):\n    h = torch.tanh(MODEL.first(part).mean(0, keepdim=True) + 0.5 * h)\n    losses.append(F.cross_entropy(MODEL.last(h).expand(len(target), -1), target))\nloss = torch.stack(losses).mean()\nloss.backward()\n{clip}\n{update}\nHIDDEN[:] = [h.detach()]\nreturn loss.detach(), h.detach()", "HIDDEN = []"),
    Script("{begin}\n{forward}\n{backward}\nwith torch.no_grad():\n    for name, p in MODEL.named_parameters():\n        if p.grad is None:\n            continue\n        buffer = MOMENTUM.setdefault(name, torch.zeros_like(p))\n        buffer.mul_(0.9).add_(p.grad)\n        p.add_(buffer, alpha=-0.05 / (1 + number))\nreturn loss.detach(), sorted(MOMENTUM)", "MOMENTUM = {}"),
    Script("STATS['steps'] += 1\n{begin}\n{forward}\n{backward}\n{update}\nSTATS['loss'] = loss.detach() if STATS['loss'] is None else 0.9 * STATS['loss'] + 0.1 * loss.detach()\nif STATS['steps'] % 2 == 0:\n    LOG.append(('stats', STATS['steps'], sorted(STATS)))\nSTATS['recent'].append(loss.item())\ndel STATS['recent'][:-3]\nreturn dict(STATS)", "STATS = {'steps': 0, 'loss': None, 'recent': []}"),
    Script("OPTIMIZER.zero_grad()\nwith torch.no_grad():\n    before = [p.clone() for p in MODEL.parameters()]\n{forward}\nloss.backward()\nOPTIMIZER.step()\nif number % 2:\n    with torch.no_grad():\n        for p, slow in zip(MODEL.parameters(), before):\n            slow += 0.5 * (p - slow)\n            p.copy_(slow)\n" + RETURN),
    Script("for p in MODEL.first.parameters():\n    p.requires_grad_(number % 2 == 0)\n{begin}\n{forward}\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), [p.grad is None for p in MODEL.parameters()]"),
    Script("state = {k: v.clone() for k, v in MODEL.state_dict().items()}\nOPTIMIZER.zero_grad()\n{forward}\nloss.backward()\nOPTIMIZER.step()\nwith torch.no_grad():\n    worse = F.cross_entropy(MODEL(x), y) > loss\nif worse:\n    MODEL.load_state_dict(state)\n    LOG.append('undone')\nreturn loss.detach()"),
    Script("params = {n: p.detach() for n, p in MODEL.named_parameters()}\ndef compute(params):\n    return F.cross_entropy(torch.func.functional_call(MODEL, params, (x,)), y)\ngrads = torch.func.grad(compute)(params)\nwith torch.no_grad():\n    for n, p in MODEL.named_parameters():\n        p.sub_(grads[n], alpha=0.05)\nreturn sum(g.norm() for g in grads.values())"),
    Script("OPTIMIZER.zero_grad(set_to_none=number % 2 == 0)\n{forward}\nscale = 8.0\n(loss * scale).backward()\ngrads = [p.grad for p in MODEL.parameters() if p.grad is not None]\ntorch._foreach_mul_(grads, 1 / scale)\nfound = torch.stack([g.isfinite().all() for g in grads]).all()\nif found:\n    OPTIMIZER.step()\nreturn loss.detach(), found"),
    Script("OPTIMIZER.zero_grad()\n{forward}\nloss.backward()\nreport = {n: {'norm': p.grad.norm(), 'max': p.grad.abs().max()} for n, p in MODEL.named_parameters() if p.grad is not None}\n{clip}\n{update}\nflat = torch.nn.utils.parameters_to_vector(MODEL.parameters()).detach()\nreturn loss.detach(), report, flat.norm()"),
    # Hooks beside which there is another way; statistics alone; results that are not taken.
    Script("{begin}\nh = MODEL.first(x)\nfor k, layer in enumerate(MODEL.layers):\n    inner = layer(h)\n    if inner.requires_grad:\n        inner.register_hook(noting(f'inner{k}', 0.5 if k else None))\n    h = h + inner\nout = MODEL.last(h)\nloss = {loss}\nloss.backward()\n{clip}\n{update}\n" + RETURN),
    Script("{begin}\nh = MODEL.first(x)\na, b = h.chunk(2, -1)\nif a.requires_grad:\n    a.register_hook(noting('a'))\nout = MODEL.last(torch.cat([a * 1.1, b.tanh()], -1))\nif out.requires_grad:\n    out.retain_grad()\nloss = {loss} + h.square().mean()\nloss.backward()\n{update}\nreturn loss.detach(), out.grad"),
    Script("for p in MODEL.parameters():\n    p.grad = None\n{forward}\nloss.backward()\n{update}\nMODEL.train()\nwith torch.no_grad():\n    for part in x.split(3):\n        MODEL(part)\nreturn loss.detach()"),
    Script("{begin}\nMODEL(x.flip(0))\n{forward}\nunused = F.dropout(out, 0.5) * 2\nloss.backward()\n{update}\n" + RETURN),
    Script("saved = []\ndef pack(t):\n    saved.append(tuple(t.shape))\n    return t\nOPTIMIZER.zero_grad()\nwith torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):\n    h = MODEL.first(x)\nout = MODEL.last(h)\nloss = {loss}\nloss.backward()\n{update}\n" + RETURN),
    Script("OPTIMIZER.zero_grad()\nouts = [MODEL(x), MODEL(x)]\nloss = sum(F.cross_entropy(o, y) for o in outs) + 0.1 * (outs[0] - outs[1]).square().mean()\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), [o.detach() for o in outs]"),
    Script("OPTIMIZER.zero_grad()\nper = []\nfor k in range(len(x)):\n    MODEL.zero_grad()\n    F.cross_entropy(EMA(x[k:k + 1].expand(2, *x.shape[1:])), y[k:k + 1].expand(2)).backward()\n    per.append(sum(p.grad.square().sum() for p in EMA.parameters() if p.grad is not None).sqrt())\n    for p in EMA.parameters():\n        p.grad = None\nreturn torch.stack(per).max()"),
    Script("OPTIMIZER.zero_grad()\nlogits = MODEL(x)\nprobs = logits.softmax(-1)\naction = probs.detach().argmax(-1)\nreward = (action == y).to(probs.dtype)\nadvantage = (reward - reward.mean()) / (reward.std() + 1e-3)\nlogp = probs.clamp(min=1e-6).log().gather(1, action[:, None]).squeeze(1)\nentropy = -(probs * probs.clamp(min=1e-6).log()).sum(-1).mean()\nloss = -(logp * advantage).mean() - 0.01 * entropy\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), reward.sum()"),
    Script("def train_one(model, optimizer, a, b, *, clip=None):\n    optimizer.zero_grad()\n    loss = F.cross_entropy(model(a), b)\n    loss.backward()\n    if clip:\n        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)\n    optimizer.step()\n    return loss.detach()\nlosses = [train_one(MODEL, OPTIMIZER, a, b, clip=1.0 if k else None) for k, (a, b) in enumerate(zip(x.chunk(2), y.chunk(2)))]\nreturn torch.stack(losses)"),
    Script("OPTIMIZER.zero_grad()\n{forward}\nregularized = [p for n, p in MODEL.named_parameters() if n.endswith('weight') and p.dim() > 1]\npenalty = sum(torch.linalg.vector_norm(p, ord=1) for p in regularized) * 1e-3\n(loss + penalty).backward()\nMODEL.last.weight.grad[0] = 0\nMODEL.last.weight.grad[:, 1:3].mul_(0.5)\nOPTIMIZER.step()\nreturn loss.detach(), penalty.detach()"),
    Script("OPTIMIZER.zero_grad()\na = F.normalize(MODEL(x), dim=-1)\nb = F.normalize(MODEL(x + 0.05 * torch.randn_like(x)), dim=-1)\nlogits = a @ b.t() / 0.5\nlabels = torch.arange(len(x))\nloss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2\n{backward1}\n{clip}\n{update}\n" + RETURN, floats=True),
    # What is made sure of, and fails now and then; closures that are called as often as data tells; memory that is replaced.
    Script("{begin}\n{forward}\ntry:\n    if loss.item() > 1.2:\n        raise ValueError('too large', number)\n    loss.backward()\n    {update}\nexcept ValueError as error:\n    LOG.append(error.args)\n    OPTIMIZER.zero_grad()\n" + RETURN),
    Script("OPTIMIZER.zero_grad()\n{forward}\nassert not torch.isnan(loss), 'nan'\nloss.backward()\n{clip}\nnorm = torch.stack([p.grad.norm() for p in MODEL.parameters() if p.grad is not None]).norm()\nif not torch.isfinite(norm) or norm > 3.0:\n    raise ArithmeticError('norm')\nOPTIMIZER.step()\nreturn math.exp(loss.item() / 4), math.sqrt(loss.item()), loss.item() > 1.0"),
    Script("def closure():\n    SEARCH.zero_grad()\n    loss = F.mse_loss(MODEL(x), F.one_hot(y, 3).to(MODEL.last.weight.dtype))\n    loss.backward()\n    LOG.append('closure')\n    return loss\nloss = SEARCH.step(closure)\nreturn loss.detach(), kept", "SEARCH = torch.optim.LBFGS([p for p in MODEL.parameters() if p.requires_grad], lr=0.1, max_iter=2)"),
    Script("OPTIMIZER.zero_grad()\n{forward}\nif number == 2:\n    for p in MODEL.parameters():\n        p.data = p.data.clone() * 0.9\nloss.backward()\n{clip}\n{update}\n" + RETURN),
    # Sharpness, a queue of keys, gradients of two losses that are made to agree.
    Script("OPTIMIZER.zero_grad()\n{forward}\nloss.backward()\nwith torch.no_grad():\n    norm = torch.stack([p.grad.norm() for p in MODEL.parameters() if p.grad is not None]).norm()\n    moves = [(p, p.grad * (0.05 / (norm + 1e-3))) for p in MODEL.parameters() if p.grad is not None]\n    for p, move in moves:\n        p.add_(move)\nOPTIMIZER.zero_grad()\nF.cross_entropy(MODEL(x), y).backward()\nwith torch.no_grad():\n    for p, move in moves:\n        p.sub_(move)\nOPTIMIZER.step()\n" + RETURN),
    Script("OPTIMIZER.zero_grad()\nqueries = F.normalize(MODEL(x), dim=1)\nwith torch.no_grad():\n    for own, other in zip(EMA.parameters(), MODEL.parameters()):\n        own.data.mul_(0.9).add_(other.data, alpha=0.1)\n    keys = F.normalize(EMA(x), dim=1)\nlogits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ QUEUE['keys'].clone().detach()], 1)\nloss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))\nloss.backward()\n{update}\nwith torch.no_grad():\n    at = QUEUE['at']\n    QUEUE['keys'][:, at:at + len(x)] = keys.t()\n    QUEUE['at'] = (at + len(x)) % 24\nreturn loss.detach(), QUEUE['at'], QUEUE['keys'].clone()", "QUEUE = {'keys': F.normalize(torch.randn(3, 30, dtype=MODEL.last.weight.dtype), dim=0), 'at': 0}"),
    Script("out = MODEL(x)\nlosses = [F.cross_entropy(out, y), out.square().mean()]\nwanted = " + PARAMETERS + "\nflat = [torch.cat([g.flatten() for g in torch.autograd.grad(one, wanted, retain_graph=True, materialize_grads=True)]) for one in losses]\nagree = torch.dot(flat[0], flat[1])\njoint = torch.where(agree < 0, flat[0] - agree / (flat[1].square().sum() + 1e-3) * flat[1], flat[0]) + flat[1]\nstart = 0\nfor p in wanted:\n    p.grad = joint[start:start + p.numel()].view_as(p).clone()\n    start += p.numel()\n{update}\nreturn agree"),
    # Strengths by NumPy that follow the step, given to a function that gives a view; masks that are remembered; checks.
    Script("alpha = 2.0 / (1.0 + np.exp(-10 * number / 5)) - 1\nOPTIMIZER.zero_grad()\nh = MODEL.first(x)\nfor layer in MODEL.layers:\n    h = layer(h)\nout = MODEL.last(h)\nloss = {loss} + F.cross_entropy(MODEL.last(Strength.apply(h, alpha)), (y + 1) % 3)\nloss.backward()\n{clip}\n{update}\nreturn loss.detach(), alpha, kept", STRENGTH),
    Script("weight = float(np.exp(-5.0 * (1.0 - np.clip(number, 0.0, 4.0) / 4.0) ** 2))\n{begin}\n{forward}\nloss = loss + weight * out.square().mean()\n{backward}\n{update}\nreturn loss.item(), weight"),
    Script("OPTIMIZER.zero_grad()\nout = MODEL(x) * remembered(3, MODEL.last.weight.dtype)[0] + remembered(3, MODEL.last.weight.dtype)[1]\nloss = {loss}\n{backward}\n{update}\nreturn loss.detach(), remembered.cache_info().misses", STRENGTH),
    Script("OPTIMIZER.zero_grad()\nout = MODEL(x)\nmade = Normal(out, F.softplus(out) + 0.1, validate_args=True)\ndrawn = made.rsample()\nloss = {loss} + 0.1 * kl_divergence(made, Normal(torch.zeros_like(out), torch.ones_like(out))).mean() - 0.01 * Normal(drawn, 1.0).log_prob(out.detach()).mean()\n{backward}\n{clip}\n{update}\nreturn loss.detach(), kept", "from torch.distributions import Normal, kl_divergence"),
    Script("wide = torch.cat([x, x], 0)[: len(x) + number] if number else x\nlabels = torch.cat([y, y], 0)[: len(wide)]\nOPTIMIZER.zero_grad()\nout = MODEL(wide)\nif (torch.arange(4) * 2 > 5).any():\n    out = out * 1.5\nloss = F.cross_entropy(out, labels)\nloss.backward()\n{update}\nreturn loss.detach(), len(wide)"),
    # Breaks inside of contexts, values that leave autocast, a weight that is changed in it, losses that are changed later.
    Script("with torch.no_grad():\n    target = MODEL(x).softmax(-1)\n    bothways.graph_break()\n    target = target / target.sum()\n{begin}\nout = MODEL(x)\nloss = {loss} + (out.log_softmax(-1) * target).sum()\n{backward}\n{update}\n" + RETURN),
    Script("{begin}\nwith torch.autocast('cpu', torch.bfloat16, enabled=number % 2 == 0):\n    out = MODEL(x)\n    out.register_hook(noting('out'))\n    loss = {loss}\n    bothways.graph_break()\n{backward}\n{update}\nreturn loss, out"),
    Script("{begin}\nx = x.clone().requires_grad_()\n{forward}\nother = MODEL(x).square().mean()\nloss.backward()\n{update}\nloss += 1\nreturn loss, x.grad is None, other.detach()", floats=True),
    # A recurrent layer that is also asked without gradients, images of one channel, texts of lists and of dictionaries.
    Script("with torch.no_grad():\n    bothways.graph_break()\n    before = RECURRENT(MODEL.first(x)[:, None])[0].mean()\n{begin}\nh = MODEL.first(x)\nout = MODEL.last(h + RECURRENT(h[:, None])[0][:, 0])\nloss = {loss}\nloss.backward()\n{clip}\n{update}\ngrads = [p.grad for p in RECURRENT.parameters()]\nfor p in RECURRENT.parameters():\n    p.grad = None\nreturn loss.detach(), before, grads", "RECURRENT = nn.LSTM(8, 8).to(MODEL.last.weight.dtype)"),
    Script("{begin}\nout = MODEL(x)\nimage = PATCH(out[:, None, None].expand(-1, 1, 4, 3).contiguous())\nloss = {loss} + F.linear(image.flatten(1), MODEL.last.weight.new_ones(2, 12)).square().mean()\nloss.backward()\n{clip}\n{update}\nwith torch.no_grad():\n    again = PATCH(image.detach())\ngrads = [p.grad for p in PATCH.parameters()]\nfor p in PATCH.parameters():\n    p.grad = None\nLOG.append(f'{[number, len(x)]} {dict(number=number)}')\nreturn loss.detach(), grads, [t.stride() for t in (image, again, *grads)], again", "PATCH = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 1, 3, padding=1)).to(MODEL.last.weight.dtype)"),
    # Sequences of all lengths, as a recurrent layer takes them.
    Script("{begin}\nh = MODEL.first(x)\nlengths = torch.tensor([1 + (number + place) % 3 for place in range(len(x))])\npacked = nn.utils.rnn.pack_padded_sequence(h[:, None].expand(-1, 3, -1), lengths, batch_first=True, enforce_sorted=False)\nstates, last = GATED(packed)\nout = MODEL.last(h + last[-1, :, :8])\nloss = {loss} + states.data.square().mean()\nloss.backward()\n{clip}\n{update}\ngrads = [p.grad for p in GATED.parameters()]\nfor p in GATED.parameters():\n    p.grad = None\nreturn loss.detach(), grads", "GATED = nn.GRU(8, 8, bidirectional=True).to(MODEL.last.weight.dtype)"),
]  # fmt: skip


# Seeds below are kept in tests, with the scripts that there were then.
SINCE, AT_FIRST = 30_000, len(SCRIPTS) - 18
LATER, THEN = 60_000, len(SCRIPTS) - 11
LAST, BEFORE = 10_000_000, len(SCRIPTS) - 6


class Writer(soak_steps.Writer):
    """Fills a script as the others fill their steps."""

    def __init__(self, seed):
        super().__init__(seed)
        self.kind = "usual"
        limits = ((LAST, len(SCRIPTS)), (LATER, BEFORE), (SINCE, THEN), (0, AT_FIRST))
        among = SCRIPTS[: next(count for since, count in limits if seed >= since)]
        self.script = among[seed % len(among)]

    def program(self):
        entrances = [row for row in soak_steps.ENTRANCES if not self.script.floats or row[1] != "tokens"]
        data, entrance = self.pick(entrances)
        parts = [
            soak_steps.PRELUDE, soak_steps.BLOCKS, f"DATA = {data!r}", self.model(entrance), self.training(), self.script.above,
            self.step(), self.between(),
        ]  # fmt: skip
        return "\n".join(parts)

    def step(self):
        holes = {
            "begin": lambda: self.pick(soak_steps.BEGINNINGS),
            "forward": self.forward,
            "backward": lambda: self.pick(soak_steps.BACKWARDS),
            "backward1": lambda: "loss.backward()",
            "clip": lambda: self.pick(soak_steps.CLIPPING),
            "update": lambda: self.pick(soak_steps.UPDATES),
        }

        def filled(match):
            text = holes[match["name"]]()
            return textwrap.indent(text or "pass", match["indent"])

        body = re.sub(r"^(?P<indent> *)\{(?P<name>\w+)\}$", filled, self.script.body, flags=re.MULTILINE)
        body = body.replace("{loss}", self.loss("out", "y"))
        return self.held(f"kept = []\n{body}")


def program(seed):
    """The source of a module that trains, by a script."""
    return Writer(seed).program()
