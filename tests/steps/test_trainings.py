"""Whole trainings, plain and compiled: the same parameters, state and random numbers after every step, one graph each.

Ten steps of each; fifty are slow.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from seeding import seeded
from stepping import BACKENDS, agree
from torch import nn, optim
from torch.optim import lr_scheduler, swa_utils

LENGTHS = [10, pytest.param(50, marks=pytest.mark.slow)]


def generated(count, make):
    generator = seeded(3)
    return [make(generator) for _ in range(count)]


def labelled(*shape, classes=4):
    return lambda generator: (
        torch.randn(*shape, generator=generator), torch.randint(0, classes, shape[:1], generator=generator),
    )  # fmt: skip


def perceptron():
    def make():
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer}

    return make, labelled(8, 12)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.mix(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, tokens=11, width=16, length=6):
        super().__init__()
        self.table, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_model():
    def make():
        model = Transformer()
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        optimizer = optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, eps=1e-4
        )
        schedule = lr_scheduler.CosineAnnealingLR(optimizer, 60)

        def step(tokens):
            optimizer.zero_grad(set_to_none=True)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            return loss.detach(), norm

        return step, {"model": model, "optimizer": optimizer}

    return make, lambda generator: (torch.randint(0, 11, (4, 7), generator=generator),)


def images():
    """Each is shifted by as much as random numbers say."""

    def make():
        model = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 4),
        )  # fmt: skip
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        schedule = lr_scheduler.MultiStepLR(optimizer, [3, 7])

        def step(x, y):
            x = torch.where(torch.rand(x.shape[0], 1, 1, 1) < 0.5, x.flip(-1), x)
            x = x + 0.1 * torch.randn_like(x)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer}

    return make, labelled(6, 3, 8, 8)


def adversaries():
    def make():
        maker = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6))
        judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        makers = optim.Adam(maker.parameters(), lr=1e-2, betas=(0.5, 0.999), eps=1e-4)
        judges = optim.Adam(judge.parameters(), lr=1e-2, betas=(0.5, 0.999), eps=1e-4)

        def step(real):
            noise = torch.randn(real.shape[0], 4)
            judges.zero_grad()
            made = maker(noise)
            loss = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(real)).mean()
            loss.backward()
            judges.step()
            makers.zero_grad()
            other = F.softplus(-judge(made)).mean()
            other.backward()
            makers.step()
            return loss.detach(), other.detach()

        return step, {"maker": maker, "judge": judge, "makers": makers, "judges": judges}

    return make, lambda generator: (torch.randn(8, 6, generator=generator),)


class Kept(dict):
    """The state of a scaler, as often as it is copied."""

    def __init__(self, owner):
        super().__init__()
        self.owner = owner

    def __deepcopy__(self, memo):
        return self.owner.state_dict()


def mixed_precision():
    def make():
        model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
        optimizer = optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer, "scaler": Kept(scaler)}

    def some_infinite(generator):
        x, y = labelled(8, 12)(generator)
        return x * (float("inf") if torch.rand((), generator=generator) < 0.2 else 1.0), y

    return make, some_infinite


def accumulation():
    def make():
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)

        def step(x, y):
            total = 0.0
            for part, labels in zip(x.split(2), y.split(2), strict=True):
                loss = F.cross_entropy(model(part), labels) / 4
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            return total

        return step, {"model": model, "optimizer": optimizer}

    return make, labelled(8, 12)


def averaged():
    def make():
        model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = optim.SGD(model.parameters(), lr=0.05)
        average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
        by_hand = copy.deepcopy(model)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            with torch.no_grad():
                for mine, theirs in zip(by_hand.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer, "average": average, "by hand": by_hand}

    return make, labelled(8, 12)


def penalized_adversaries():
    """The judge's slope between real and made is to be one."""

    def make():
        maker = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6))
        judge = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))
        makers = optim.Adam(maker.parameters(), lr=1e-2, betas=(0.5, 0.9), eps=1e-3)
        judges = optim.Adam(judge.parameters(), lr=1e-2, betas=(0.5, 0.9), eps=1e-3)

        def step(real):
            made = maker(torch.randn(real.shape[0], 4))
            share = torch.rand(real.shape[0], 1)
            mixed = (share * real + (1 - share) * made.detach()).requires_grad_()
            judged = judge(mixed)
            (slope,) = torch.autograd.grad(judged, mixed, torch.ones_like(judged), create_graph=True)
            penalty = 10 * (slope.norm(2, dim=1) - 1).square().mean()
            judges.zero_grad()
            loss = judge(made.detach()).mean() - judge(real).mean() + penalty
            loss.backward()
            judges.step()
            makers.zero_grad()
            other = -judge(made).mean()
            other.backward()
            makers.step()
            return loss.detach(), other.detach(), penalty.detach()

        return step, {"maker": maker, "judge": judge, "makers": makers, "judges": judges}

    return make, lambda generator: (torch.randn(8, 6, generator=generator),)


def learning_to_learn():
    def make():
        model = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 4))
        optimizer = optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)

        def step(x, y):
            optimizer.zero_grad()
            total = 0.0
            for task in range(2):
                fast = dict(model.named_parameters())
                for _ in range(2):
                    inner = F.cross_entropy(torch.func.functional_call(model, fast, (x + task,)), y)
                    gradients = torch.autograd.grad(inner, tuple(fast.values()), create_graph=True)
                    pairs = zip(fast.items(), gradients, strict=True)
                    fast = {name: weight - 0.1 * gradient for (name, weight), gradient in pairs}
                total = total + F.cross_entropy(torch.func.functional_call(model, fast, (x - task,)), y)
            total.backward()
            optimizer.step()
            return total.item()

        return step, {"model": model, "optimizer": optimizer}

    return make, labelled(8, 12)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient.clamp(-1, 1)


def hooked():
    """Hooks of parameters, of a module and of what is computed inside count how often they are called."""

    def make():
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        calls = []
        model[0].weight.register_hook(lambda gradient: calls.append("weight"))
        model[0].bias.register_post_accumulate_grad_hook(lambda parameter: calls.append("bias"))
        model[2].register_full_backward_hook(lambda module, given, gradients: calls.append("module"))

        def halved(gradient):
            calls.append("hidden")
            return gradient / 2

        def step(x, y):
            optimizer.zero_grad()
            hidden = Square.apply(model[1](model[0](x)))
            hidden.register_hook(halved)
            loss = F.cross_entropy(model[2](hidden), y)
            loss.backward()
            optimizer.step()
            return loss

        return step, {"model": model, "optimizer": optimizer, "calls": calls}

    return make, labelled(8, 12)


TRAININGS = [
    perceptron, language_model, images, adversaries, penalized_adversaries, learning_to_learn, hooked, mixed_precision,
    accumulation, averaged,
]  # fmt: skip


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("training", TRAININGS)
def test_a_training_is_one_graph(training, backend, length):
    make, batch = training()
    agree(make, generated(length, batch), backend, programs=1, tol=1e-3)
