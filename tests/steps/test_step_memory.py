"""What a compiled step needs of memory: old gradients go first, updates are written where they belong, and nothing is
kept that is computed again as fast as it is read."""

import re
import weakref

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch.autograd.profiler import profile, record_function

import bothways
from bothways.lower.dialects.c.dialect import C


def layers():
    torch.manual_seed(0)
    inner = [layer for _ in range(3) for layer in (torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())]
    return torch.nn.Sequential(*inner, torch.nn.Linear(64, 3))


def training(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def native_program(step, *args):
    """The Python of the graph that a step has become."""
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(step, backend="native")
        for _ in range(3):
            compiled(*args)
    generated = bothways.explain(compiled).generated
    return generated[-1].texts["Python"]


def test_the_gradients_of_the_last_step_are_gone_when_the_graph_runs():
    model, gone = layers(), []

    def backend(graph, inputs):
        def run(*values):
            gone.append([reference() is None for reference in old])
            return graph(*values)

        return run

    compiled = bothways.compile(training(model), backend=backend, fullgraph=True)
    old = []
    for x, y in batches(3, features=64):
        old[:] = [weakref.ref(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
        compiled(x, y)
    assert gone == [[], [True] * 14, [True] * 14]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_fails_before_it_forgets_gradients_has_them_still(backend):
    def make():
        model = layers()

        def step(x, y):
            out = model(x)
            rows = out[y]  # may be out of range
            model.zero_grad()
            rows.sum().backward()

        def careful(x, y):
            try:
                step(x, y)
            except IndexError:
                return "failed"

        return careful, {"model": model}

    given = batches(4, features=64)
    given[2][1][0] = 99
    agree(make, given, backend, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_that_are_read_before_they_are_forgotten(backend):
    def make():
        model, seen = layers(), []

        def step(x, y):
            total = sum(parameter.grad.sum() for parameter in model.parameters() if parameter.grad is not None)
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            return total

        return step, {"model": model, "seen": seen}

    agree(make, batches(4, features=64), backend)


def test_parameters_and_what_the_optimizer_remembers_are_written_in_place():
    """Those of a bias, whose gradient is a sum, are written by the kernel that sums."""
    program = native_program(training(layers(), momentum=0.9), *batches(1, features=64)[0])
    returned = re.findall(r"\w+", program.rpartition("return (")[2])
    assert sum(name.startswith("primals_") for name in returned) == 2 * 14


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_weight_that_is_read_after_its_gradient_is_known(backend):
    """A batch norm's backward reads the weight once more after the sum that the update needs."""

    def make():
        torch.manual_seed(0)
        inner = torch.nn.Linear(6, 40), torch.nn.BatchNorm1d(40), torch.nn.ReLU()
        model = torch.nn.Sequential(*inner, torch.nn.Linear(40, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, {"model": model, "optimizer": optimizer}

    with bothways.config.patch(kernels_for_small_graphs=True):
        agree(make, batches(), backend)


def test_what_is_one_for_each_row_does_not_make_a_value_expensive():
    """It is computed beside each of its readers instead of waiting in memory."""

    def centred(x, weight, other):
        h = x @ weight
        d = h - h.mean(-1, keepdim=True)
        return (d.relu() @ other).tanh() + d

    torch.manual_seed(0)
    given = torch.randn(40, 64), torch.randn(64, 64), torch.randn(64, 64)
    program = native_program(centred, *given)
    assert not re.search(r"\bsub\w* = empty", program)
    with bothways.config.patch(kernels_for_small_graphs=True):
        torch.testing.assert_close(bothways.compile(centred)(*given), centred(*given))


def peak(step, *args):
    """Bytes at the peak of a step, beyond those that were there before it."""
    for _ in range(3):
        step(*args)
    with profile(use_cpu=True, profile_memory=True) as profiler:
        step(*args)
        with record_function("begin"):
            pass
        step(*args)
    held = highest = 0
    for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "begin":
            held = highest = 0
        elif event.name() == "[memory]":
            held += event.nbytes()
            highest = max(highest, held)
    return highest


def images():
    """Convolutions, each with a norm, a relu and a pooling: what eager keeps twice."""
    torch.manual_seed(0)
    sizes = [(3, 16), (16, 32)]
    inner = [
        layer
        for before, after in sizes
        for layer in (
            torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
        )
    ]  # fmt: skip
    return torch.nn.Sequential(*inner, torch.nn.Flatten(), torch.nn.Linear(32 * 4 * 4, 3))


class Block(torch.nn.Module):
    """Attention and two layers around a GELU, as in a GPT."""

    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.together, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.wide = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        heads = [part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.together(self.first(x)).chunk(3, -1)]
        x = x + self.out(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.wide(self.second(x))


def tokens():
    torch.manual_seed(0)
    blocks = Block(), Block(), torch.nn.LayerNorm(32)
    return torch.nn.Sequential(torch.nn.Embedding(50, 32), *blocks, torch.nn.Flatten(), torch.nn.Linear(640, 3))


MODELS = {
    "layers": (layers, lambda: torch.randn(200, 64)),
    "images": (images, lambda: torch.randn(8, 3, 16, 16)),
    "tokens": (tokens, lambda: torch.randint(0, 50, (8, 20))),
}


@pytest.mark.parametrize("clips", [False, True], ids=["SGD", "AdamW and clipping"])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_step_is_not_above_eagers(name, clips):
    make, batch = MODELS[name]
    x = batch()
    y = torch.randint(0, 3, (len(x),))

    def training():
        model = make()
        kind, options = (torch.optim.AdamW, {"eps": 1e-3}) if clips else (torch.optim.SGD, {"momentum": 0.9})
        updates = kind(model.parameters(), lr=0.01, **options)

        def step(x, y):
            updates.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            updates.step()
            return loss.detach()

        return step, {"model": model, "updates": updates}

    plain = peak(training()[0], x, y)
    assert peak(bothways.compile(training()[0], backend="native", fullgraph=True), x, y) <= plain
    agree(training, [(x + number if x.is_floating_point() else (x + number) % 50, y) for number in range(4)], "native",
          tol=1e-3)  # fmt: skip


def test_the_peak_of_a_step_with_two_models_and_optimizers():
    def training():
        torch.manual_seed(0)
        maker, critic = (
            torch.nn.Sequential(
                torch.nn.Linear(before, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(),
                torch.nn.Linear(128, after),
            ) for before, after in [(8, 2), (2, 1)]
        )  # fmt: skip
        make, judge = [torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-3) for model in (maker, critic)]

        def step(real, noise):
            fake = maker(noise)
            judge.zero_grad()
            loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
            loss.backward()
            judge.step()
            make.zero_grad()
            fooled = F.softplus(-critic(fake)).mean()
            fooled.backward()
            make.step()
            return loss.detach() + fooled.detach()

        return step, {"maker": maker, "critic": critic}

    given = torch.randn(128, 2), torch.randn(128, 8)
    plain = peak(training()[0], *given)
    assert peak(bothways.compile(training()[0], backend="native", fullgraph=True), *given) <= 1.01 * plain
    agree(training, [given] * 3, "native", tol=1e-3)


def test_the_peak_of_a_model_whose_backward_is_called_outside():
    """Gradients take the memory of activations: routines must not hold those until all gradients are there. That a
    backward reads weights, which stay where they are, makes no room."""

    def training(compiled):
        torch.manual_seed(0)
        kinds = 8 * [lambda: torch.nn.Linear(128, 128), lambda: torch.nn.LayerNorm(128), torch.nn.GELU]
        model = torch.nn.Sequential(*(kind() for kind in kinds), torch.nn.Linear(128, 3))
        run, updates = compiled(model), torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            updates.zero_grad()
            F.cross_entropy(run(x), y).backward()
            updates.step()

        return step

    given = torch.randn(64, 128), torch.randint(0, 3, (64,))
    plain = peak(training(lambda model: model), *given)
    assert peak(training(lambda model: bothways.compile(model, backend="native")), *given) <= 1.2 * plain


def test_a_relu_below_a_pooling_is_computed_again():
    """Nothing of its size but the convolution's result waits for the backward."""
    x, y = torch.randn(8, 3, 16, 16), torch.randint(0, 3, (8,))
    program = native_program(training(images()), x, y)
    assert "max_pool2d_with_indices_backward" not in program
    assert not re.search(r"\brelu\w* = empty", program)


def test_a_gradient_takes_the_place_of_the_activation(monkeypatch):
    """The weight's gradient comes first, so that the activation is gone when the other one needs memory."""
    monkeypatch.setattr(C, "multiplies", False)  # products are no kernels, so that Python shows what lives how long
    program = native_program(training(tokens()), torch.randint(0, 50, (8, 20)), torch.randint(0, 3, (8,)))
    [into] = set(re.findall(r"gelu_backward = (\w+)", program))
    assert into.startswith(("addmm", "mm"))
    gone, used = program.index("    del gelu_1\n"), program.index("run_", program.index("gelu_backward = "))
    assert gone < used


@pytest.mark.parametrize("forgets", ["the optimizer", "the model"])
def test_gradients_that_a_step_forgets_itself_are_not_written(forgets):
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    last = {"the optimizer": optimizer.zero_grad, "the model": model.zero_grad}[forgets]

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        last()
        return loss.detach()

    program = native_program(step, *batches(1, features=64)[0])
    returned = re.findall(r"\w+", program.rpartition("return (")[2])
    assert len(returned) == 1 + 2 * 14 and all(parameter.grad is None for parameter in model.parameters())
