"""Hooks of leaves are called in eager's order by a backward outside of the function: one node stands for all
operations, and comes to the leaves in the order in which theirs do, whenever the hooks were made."""

import copy

import pytest
import torch
from agreeing import agree
from seeding import seeded
from torch import nn

import bothways

BACKENDS = ["eager", "aot_eager", "native"]
pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]


def leaves(count):
    generator = seeded(3)
    return [torch.randn(3, generator=generator).requires_grad_() for _ in range(count)]


def by_hook(leaf, tell):
    leaf.register_hook(lambda grad: tell())


def by_late_hook(leaf, tell):
    leaf.register_post_accumulate_grad_hook(lambda leaf: tell())


PROGRAMS = {
    "one after the other": lambda x, w, b: ((x * w).tanh() * b).sum(),
    "the first last": lambda x, w, b: (b + (w * x).sin()).sum(),
    "side by side": lambda x, w, b: (b.exp() * x.sin() + w).sum(),
    "twice": lambda x, w, b: (x * x * w + b * x).sum(),
    "three of one operation": lambda x, w, b: torch.addcmul(x, w, b).sum(),
    "four": lambda x, w, b: torch.cat([x, w, b, x]).sin().sum() + torch.stack([b, w, x]).prod(),
    "by views": lambda x, w, b: (x.view(3, 1) @ w.view(1, 3)).sum() * b[1:].sum(),
}


def backward(loss, given):
    loss.backward()


def gradients(loss, given):
    torch.autograd.grad(loss, given)


def some(loss, given):
    loss.backward(inputs=given[1:], retain_graph=True)
    loss.backward()


def differentiable(loss, given):
    torch.autograd.grad(loss, given, create_graph=True)


@pytest.mark.parametrize("run", [backward, gradients, some, differentiable])
@pytest.mark.parametrize("hook", [by_hook, by_late_hook])
@pytest.mark.parametrize("name", PROGRAMS)
def test_of_a_function(backend, name, hook, run):
    def observe(function, call):
        given, log = leaves(3), []
        for number, leaf in enumerate(given):
            hook(leaf, lambda number=number: log.append(number))
        run(function(*given), given)
        return {"order": log, "gradients": [leaf.grad for leaf in given]}

    program = PROGRAMS[name]
    agree(lambda x, w, b: program(x, w, b), observe, 1, 2, 3, backend=backend, fullgraph=True, programs=1)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(5, 8), nn.LayerNorm(8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.norm(self.layer(self.table(x.abs().long().clamp(max=4))))


MODELS = {
    "layers": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)),
    "without biases": lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3)),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(18, 2),
    ),
    "attention": Attending,
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_of_a_model(backend, name):
    torch.manual_seed(0)
    original = MODELS[name]().double()

    def observe(model, needs):
        log, x = [], torch.randn(3, 4, dtype=torch.double, generator=seeded(1))
        h = (x.requires_grad_(needs) * 2)
        model(h).square().sum().backward()
        found = {"order": list(model.log), "gradients": [p.grad.clone() for p in model.parameters()], "x": x.grad}
        model.log.clear()
        model.zero_grad()
        return found

    def ready(compiler):
        model = copy.deepcopy(original)
        log = []
        for label, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda p, label=label: log.append(label))
        compiled = compiler(model)
        compiled.log = log
        return compiled

    plain, compiled = ready(lambda model: model), ready(lambda model: bothways.compile(model, backend=backend))
    for needs in (False, True, False, True):
        expected, found = observe(plain, needs), observe(compiled, needs)
        assert expected["order"] == found["order"]
        torch.testing.assert_close(found["gradients"], expected["gradients"])
        torch.testing.assert_close(found["x"], expected["x"])


@pytest.mark.parametrize("hook", [by_hook, by_late_hook])
@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 4, 5)])
def test_made_after_the_first_calls(backend, hook, sizes):
    def ready(compiler):
        torch.manual_seed(0)
        log = []
        models = [nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)) for _ in range(2)]
        compiled = [compiler(model) for model in models]
        for size in sizes:
            for call in compiled:
                call(torch.ones(size, 4)).square().sum().backward()
        for label, parameter in models[1].named_parameters():
            hook(parameter, lambda label=label: log.append(label))
        for size in sizes:
            for call in compiled:
                call(torch.ones(size, 4)).square().sum().backward()
                log.append("end")
        return log

    assert ready(lambda model: model) == ready(lambda model: bothways.compile(model, backend=backend))


def test_of_another_model_of_the_same_code(backend):
    def ready(compiler):
        torch.manual_seed(0)
        log = []
        models = [nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)) for _ in range(3)]
        for label, parameter in models[1].named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, label=label: log.append(label))
        for model in models:
            compiler(model)(torch.ones(3, 4)).square().sum().backward()
        return log

    assert ready(lambda model: model) == ready(lambda model: bothways.compile(model, backend=backend))


@pytest.mark.parametrize("hooked", [0, 1, 2])
def test_where_models_have_leaves_in_common(backend, hooked):
    def ready(compiler):
        function = compiler(lambda x, w, b: PROGRAMS["one after the other"](x, w, b))
        (x, w, b), log = leaves(3), []
        others = [leaf.detach().clone().requires_grad_() for leaf in (x, w, b)]
        function(x, w, b).backward()
        for number, leaf in enumerate((x, w, b, *others)):
            if number in (hooked, *range(3, 6)):
                by_hook(leaf, lambda number=number: log.append(number))
        for place in (0, 1, 2):
            given = [x, w, b]
            function(*given).backward()
            given[place] = others[place]
            function(*given).backward()
            log.append("end")
        return log

    assert ready(lambda function: function) == ready(lambda function: bothways.compile(function, backend=backend))


@pytest.mark.parametrize("hook", [by_hook, by_late_hook])
def test_of_leaves_that_are_views(backend, hook):
    """As the parameters are that lie in one memory; among those that are not, and with values of the caller's."""

    def observe(function, call):
        memory, log = torch.arange(9.0).view(3, 3) / 9, []
        given = [memory[0], memory[1].clone(), memory[2]]
        for number, leaf in enumerate(given):
            hook(leaf.requires_grad_(), lambda number=number: log.append(number))
        values = [given[0], given[1].exp() if call == 3 else given[1], given[2]]
        loss = function(*values)
        if call == 2:
            with torch.no_grad():
                memory.mul_(2)
        try:
            loss.backward()
        except RuntimeError as error:
            return {"raised": "modified by an inplace operation" in str(error)}
        return {"order": log, "gradients": [leaf.grad for leaf in given]}

    program = PROGRAMS["the first last"]
    agree(lambda x, w, b: program(x, w, b), observe, 0, 1, 2, 3, 1, backend=backend)


def test_memory_that_is_replaced_and_changes_in_between(backend):
    """The node knows the leaves themselves, whatever leads it to them."""

    def observe(function, change):
        given, log = leaves(3), []
        for number, leaf in enumerate(given):
            by_hook(leaf, lambda number=number: log.append(number))
        loss = function(*given)
        change(given[1])
        try:
            loss.backward()
        except RuntimeError as error:
            return {"raised": "modified by an inplace operation" in str(error)}
        return {"order": log, "gradients": [leaf.grad for leaf in given]}

    def replaced(leaf):
        leaf.data = leaf.data * 3

    def written(leaf):
        with torch.no_grad():
            leaf.mul_(2)

    program = PROGRAMS["one after the other"]
    calls = [replaced, written, lambda leaf: None, replaced]
    agree(lambda x, w, b: program(x, w, b), observe, *calls, backend=backend, programs=1)


def test_of_other_sizes(backend):
    def observe(function, size):
        given, log = [torch.ones(size).mul_(k).requires_grad_() for k in (1, 2, 3)], []
        for number, leaf in enumerate(given):
            by_hook(leaf, lambda number=number: log.append(number))
        function(*given).backward()
        return {"order": log, "gradients": [leaf.grad for leaf in given]}

    program = PROGRAMS["the first last"]
    agree(lambda x, w, b: program(x, w, b), observe, 3, 5, 7, 9, backend=backend, programs=2)
