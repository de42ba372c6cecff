"""Inputs that are changed in place where autograd looks: the graph is differentiated, and the input has its history."""

import re

import pytest
import torch
from torch import nn

import bothways
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]
COMPILED = BACKENDS[1:]


@pytest.fixture(autouse=True)
def small_graphs():
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def is_compiled(function):
    """Whether no graph runs as captured as a whole."""
    return not re.search(r"\d as captured \(", bothways.explain(function).details.split("== Program")[0])


PLACES = torch.tensor([0, 2, 1])
CHANGES = {
    "index_add_": lambda r, y: r.index_add_(0, PLACES, y),
    "add_": lambda r, y: r[:3].add_(y) and None,
    "iadd": lambda r, y: r.__iadd__(y.sum()),
    "mul_": lambda r, y: r.mul_(y.sum()),
    "sigmoid_": lambda r, y: r.add_(y.mean()).sigmoid_(),
    "copy_": lambda r, y: r.copy_(y.sum(0)),
    "setitem": lambda r, y: r.__setitem__(slice(0, 3), y),
    "index_put_": lambda r, y: r.index_put_((PLACES,), y, accumulate=True),
    "masked_fill_ and addcmul_": lambda r, y: r.masked_fill_(r > 0.5, 0.0).addcmul_(y.mean(0), y.sum(0)),
    "clamp_ twice": lambda r, y: r.add_(y.sum()).clamp_(-1, 1).mul_(2).clamp_min_(-1.5),
}
STARTS = {
    "fresh": lambda w: torch.full((5, 4), 0.25),
    "with a history": lambda w: torch.linspace(-1, 1, 5)[:, None] * w,
}


def begin(seed=0):
    torch.manual_seed(seed)
    return torch.randn(3, 4), torch.randn(4, requires_grad=True)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", CHANGES)
def test_a_tensor_that_is_changed_has_the_history_of_eager(name, start, backend):
    change = CHANGES[name]

    def function(r, x, w):
        y = (x * w).sin() * 2
        if name == "add_":
            r[:3] += y
        elif name == "iadd":
            r += y.sum()
        elif name == "setitem":
            r[:3] = y
        else:
            change(r, y)
        return y.detach() + 1

    compiled = bothways.compile(function, backend=backend)
    for seed in (0, 1, 2):
        found = []
        for run in (function, compiled):
            x, w = begin(seed)
            r = STARTS[start](w)
            outputs = [run(r, x, w)]
            if name != "sigmoid_":  # which reads its result in the backward
                outputs.append(run(r, x + 1, w))
            gradient, at_r = torch.autograd.grad((r * r).sum(), (w, r), retain_graph=True)
            again = torch.autograd.grad((r * x.sum()).sum(), w)
            found.append((outputs, r.detach(), r.requires_grad, r.is_leaf, r._version > 0, gradient, at_r, again))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    if backend in COMPILED:
        assert is_compiled(compiled)


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", ["index_add_", "mul_", "sigmoid_", "index_put_"])
def test_its_second_derivative_is_that_of_eager(name, start, backend):
    def function(r, x, w):
        CHANGES[name](r, (x * w).sin() * 2)

    compiled = bothways.compile(function, backend=backend)
    for _ in range(3):
        found = []
        for run in (function, compiled):
            x, w = begin()
            r = STARTS[start](w)
            run(r, x, w)
            if name != "sigmoid_":
                run(r, x + 1, w)
            (gradient,) = torch.autograd.grad((r**3).sum(), w, create_graph=True)
            (second,) = torch.autograd.grad((gradient**2).sum(), w)
            found.append((r.detach(), gradient.detach(), second))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_read_after_the_change_leads_through_it(backend):
    def function(r, x, w):
        r.index_add_(0, PLACES, (x * w).sin())
        return (r * r).sum() * 2

    compiled = bothways.compile(function, backend=backend)
    for _ in range(3):
        found = []
        for run in (function, compiled):
            x, w = begin()
            r = torch.ones(5, 4) * w
            result = run(r, x, w)
            found.append((result.detach(), *torch.autograd.grad(result + r.sum(), (r, w))))
        torch.testing.assert_close(found[1], found[0])
    if backend in COMPILED:
        assert is_compiled(compiled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change_keep_it_compiled(backend):
    def function(r, x, places, w):
        r.index_add_(0, places, (x[places] * w).sin())

    compiled = bothways.compile(function, backend=backend)
    for count in (3, 4, 5, 6, 3):
        found = []
        for run in (function, compiled):
            _, w = begin()
            x, r = torch.randn(8, 4), torch.zeros(8, 4)
            for _ in range(2):
                run(r, x, torch.arange(count), w)
            found.append((r.detach(), *torch.autograd.grad((r * r).sum(), w)))
        torch.testing.assert_close(found[1], found[0])
    if backend in COMPILED:
        assert is_compiled(compiled) and len(bothways.explain(compiled).programs) <= 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leaf_that_asks_for_its_gradient_is_refused_as_by_eager(backend):
    def function(r, w):
        r.mul_(w.sin() * 2)

    compiled = bothways.compile(function, backend=backend)
    for start in (lambda w: w * 1, lambda w: torch.ones(4, requires_grad=True), lambda w: w * 1):
        found = []
        for run in (function, compiled):
            _, w = begin()
            r = start(w)
            try:
                run(r, w)
                found.append((r.detach(), *torch.autograd.grad(r.sum(), w)))
            except RuntimeError as error:
                found.append((r.detach(), str(error)))
        assert same(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_that_is_changed_changes_the_history_of_its_base(backend):
    def function(r, x, w):
        r.index_add_(0, PLACES, (x * w).sin())

    compiled = bothways.compile(function, backend=backend)
    for take in (lambda base: base * 1, lambda base: base[:5], lambda base: base * 1, lambda base: base.view(-1, 4)):
        found = []
        for run in (function, compiled):
            x, w = begin()
            base = torch.ones(6, 4) * w
            r = take(base)
            run(r, x, w)
            found.append((base.detach(), *torch.autograd.grad((base * base).sum() + r.sum(), w)))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_that_the_caller_has_sees_the_change_and_its_history(backend):
    def function(r, x, w):
        r.index_add_(0, PLACES, (x * w).sin())

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            x, w = begin()
            r = torch.ones(5, 4) * w
            row, data = r[1], r.detach()
            run(r, x, w)
            found.append((row.detach(), data, *torch.autograd.grad((row * row).sum(), w)))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_share_memory_see_the_change(backend):
    def function(r, other, w):
        r.mul_(w.sin() * 2)
        return other * 2

    compiled = bothways.compile(function, backend=backend)
    for share in (False, True, False):
        found = []
        for run in (function, compiled):
            _, w = begin()
            r = torch.ones(4) * w
            other = r.detach() if share else torch.ones(4)
            found.append((run(r, other, w).detach(), r.detach(), *torch.autograd.grad(r.sum(), w)))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("watch", ["a hook before", "a hook after", "retain_grad before", "retain_grad after"])
def test_who_watches_the_gradient_sees_what_eager_shows(watch, backend):
    def function(r, w):
        r.mul_(w.sin() * 2)

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            _, w = begin()
            seen = []
            r = torch.ones(4) * w
            for moment in ("before", "after"):
                if moment in watch:
                    r.retain_grad() if "retain" in watch else r.register_hook(lambda grad, to=seen: to.append(grad * 1))
                if moment == "before":
                    run(r, w)
            (r * r).sum().backward()
            found.append((r.detach(), seen, w.grad, r.grad if "retain" in watch else None))
        assert same(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_saved_before_the_change_is_an_error(backend):
    def function(r, w):
        r.add_(w.sin() * 2)

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        for run in (function, compiled):
            _, w = begin()
            r = torch.ones(4) * w
            early = r.sin()
            run(r, w)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                early.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_new_value_that_the_backward_reads_may_not_be_changed(backend):
    def function(r, w):
        r.add_(w.sin()).sigmoid_()

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        for run in (function, compiled):
            _, w = begin()
            r = torch.ones(4) * w
            run(r, w)
            with torch.no_grad():
                r.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                r.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_out_of_range_leaves_it_as_eager_does(backend):
    def function(r, x, places, w):
        r.index_add_(0, places, (x * w).sin())

    compiled = bothways.compile(function, backend=backend)
    for places in ([0, 2, 1], [0, 1, 9], [2, 1, 0]):
        found = []
        for run in (function, compiled):
            x, w = begin()
            r = torch.zeros(5, 4)
            try:
                run(r, x, torch.tensor(places), w)
            except (IndexError, RuntimeError) as error:
                found.append((r.detach(), type(error), str(error)))
            else:
                found.append((r.detach(), *torch.autograd.grad(r.sum(), w)))
        assert same(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_change_without_gradients_beside_one_with_them(backend):
    def function(r, w):
        with torch.no_grad():
            r.add_(1)
        r.mul_(w.sin() * 2)

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            _, w = begin()
            r = torch.ones(4) * w
            run(r, w)
            found.append((r.detach(), *torch.autograd.grad(r.sum(), w)))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_inputs_are_changed_from_each_other(backend):
    def function(a, b, w):
        a.add_(b + w)
        b.mul_(a)

    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            _, w = begin()
            a, b = torch.ones(4) * w, torch.full((4,), 0.5)
            run(a, b, w)
            found.append((a.detach(), b.detach(), *torch.autograd.grad((a * b).sum(), (w, a, b))))
        torch.testing.assert_close(found[1], found[0])


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3, bias=False)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(3)])

    def forward(self, x):
        shares = self.gate(x).softmax(dim=-1)
        best, chosen = shares.topk(2, dim=-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == number)
            if len(tokens) == 0:
                continue
            result.index_add_(0, tokens, expert(x[tokens]) * best[tokens, place, None])
        load = nn.functional.one_hot(chosen[:, 0], shares.shape[1]).float().mean(0)
        return result, (load * shares.mean(0)).sum()


@pytest.mark.parametrize("backend", COMPILED)
def test_experts_that_add_to_one_result_are_compiled(backend):
    torch.manual_seed(0)
    model = Experts()
    compiled = bothways.compile(model, backend=backend)
    for count in (32, 40, 32, 48):
        x = torch.randn(count, 8)
        found = []
        for run in (model, compiled):
            model.zero_grad()
            result, balance = run(x)
            (result.square().sum() + balance).backward()
            found.append((result.detach(), balance.detach(), [parameter.grad for parameter in model.parameters()]))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert is_compiled(compiled)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("change", ["**=", "%=", "-=", "/="])
def test_what_any_operator_has_changed_is_read_afterwards(change, backend):
    names = {}
    exec(f"def function(r, x, w):\n    r {change} (x * w).sum() + 40\n    return r.sin() * w", names)
    function = names["function"]
    compiled = bothways.compile(function, backend=backend)
    for seed in (0, 1):
        found = []
        for run in (function, compiled):
            x, w = begin(seed)
            r = w.exp() * 2
            result = run(r, x, w)
            (result.sum() + r.sum()).backward()
            found.append([result.detach(), r.detach(), w.grad])
        assert same(*found)
