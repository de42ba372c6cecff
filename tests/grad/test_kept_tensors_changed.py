"""What is kept for a backward and changed before it runs: what was saved is checked, what a context holds is read."""

import weakref

import pytest
import torch
from torch.autograd import Function

import bothways
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]


class Saves(Function):
    """Asks for all that was saved, and computes with one of them."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        x, _ = ctx.saved_tensors
        return grad * 2, grad * x


class SavesInVain(Function):
    """Never asks for what was saved."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class SavesResult(Function):
    @staticmethod
    def forward(ctx, x, y):
        result = x * y
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        (_,) = ctx.saved_tensors
        return grad * 2, None


class Holds(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.y = y
        return x * y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y, None


class HoldsSome(Function):
    """A window on an argument, in a list, beside what is saved."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.kept = [y[:2]]
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.kept[0].sum() * ctx.saved_tensors[0], None


class HoldsResult(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.result = x * y
        return ctx.result

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.result, None


FUNCTIONS = [Saves, SavesInVain, SavesResult, Holds, HoldsSome, HoldsResult]


def alone(function):
    return lambda x, y: (function.apply(x, y), y)


def in_the_middle(function):
    def program(x, y):
        inner = y * 2
        return function.apply(x * 3, inner) * x.sin(), inner

    return program


def changing_inside(function):
    def program(x, y):
        inner = y * 2
        result = function.apply(x, inner)
        with torch.no_grad():
            inner.add_(1)
        return result, inner

    return program


def changing_an_input(function):
    def program(x, y):
        result = function.apply(x, y)
        with torch.no_grad():
            y.add_(1)
        return result * 3, y

    return program


def saved_by_others_too(function):
    return lambda x, y: (function.apply(x, y) * (x * y.sin()).sin(), y)


PROGRAMS = [alone, in_the_middle, changing_inside, changing_an_input, saved_by_others_too]


def outcome(run, changed):
    """What comes of a backward before which something was changed."""
    torch.manual_seed(0)
    x, leaf = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    y = leaf * 1
    result, kept = run(x, y)
    loss = result.sum()
    with torch.no_grad():
        if changed is not None:
            {"argument": kept, "result": result}[changed].add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return result.detach(), y.detach(), x.grad, leaf.grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_a_custom_function_keeps_is_changed_before_the_backward(function, program, backend):
    plain = program(function)
    compiled = bothways.compile(plain, backend=backend, fullgraph=True)
    for changed in (None, "argument", "result", None):
        assert same(outcome(compiled, changed), outcome(plain, changed)), changed


def read_after(x, r):
    r.add_(1)
    return (x * r).sin()


def read_through_a_view(x, r):
    r[1:].mul_(2)
    return x[1:] * r[1:] * r[1:]


def copied(x, r):
    r.copy_((x * 2).detach())
    return (x * r).sin()


def equal_to_another(x, r):
    mean = (x * 2).detach()
    r.copy_(mean)
    return (x * mean).sin()


def held_after(x, r):
    r.add_(1)
    return Holds.apply(x, r)


def held_before(x, r):
    result = Holds.apply(x, r)
    r.add_(1)
    return result * 3


def saved_after(x, r):
    r.add_(1)
    return Saves.apply(x, r)


def behind_its_back(x, r):
    r.data.add_(1)
    return (x * r).sin()


CHANGES = [
    read_after, read_through_a_view, copied, equal_to_another, held_after, held_before, saved_after, behind_its_back
]  # fmt: skip
THEN = {
    "nothing": lambda run, x, r: None,
    "a change": lambda run, x, r: r.add_(1),
    "a change behind its back": lambda run, x, r: r.data.add_(1),
    "another call": lambda run, x, r: run(x, r),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True], ids=["", "dynamic"])
@pytest.mark.parametrize("function", CHANGES, ids=lambda function: function.__name__)
def test_an_input_that_the_function_changes_is_changed_again(function, dynamic, backend):
    compiled = bothways.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)

    def found(run, then, size):
        torch.manual_seed(size)
        x, r = torch.randn(size, requires_grad=True), torch.randn(size)
        result = run(x, r)
        THEN[then](run, x, r)
        try:
            result.sum().backward()
        except RuntimeError as error:
            return "modified by an inplace operation" in str(error), r
        return x.grad, r, result.detach()

    for then in [*THEN, "nothing"]:
        for size in (3, 4):
            torch.testing.assert_close(found(compiled, then, size), found(function, then, size))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_held_is_read_by_each_backward_and_not_freed(backend):
    plain = lambda x, y: Holds.apply(x, y) + x
    compiled = bothways.compile(plain, backend=backend, fullgraph=True)
    for _ in range(2):
        found = []
        for run in (plain, compiled):
            x, y = torch.ones(3, requires_grad=True), torch.arange(3.0)
            result = run(x, y)
            result.sum().backward()
            y.add_(1)
            result.sum().backward()
            found.append(x.grad)
        assert same(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_is_kept_is_differentiated_again(function, backend):
    plain = lambda x, y: function.apply(x, y) * x
    compiled = bothways.compile(plain, backend=backend, fullgraph=True)
    for _ in range(2):
        found = []
        for run in (plain, compiled):
            torch.manual_seed(0)
            x, y = torch.randn(3, requires_grad=True), torch.randn(3)
            (first,) = torch.autograd.grad(run(x, y).sum(), x, create_graph=True)
            found.append((first.detach(), *torch.autograd.grad(first.sum(), x)))
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_that_holds_its_result_is_freed_with_it(backend):
    compiled = bothways.compile(lambda x, y: HoldsResult.apply(x * 2, y) * 3, backend=backend, fullgraph=True)
    for _ in range(2):
        result = compiled(torch.ones(3, requires_grad=True), torch.ones(3))
        node = weakref.ref(result)
        del result
        assert node() is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 1).prod(),
        lambda x: (x * 1).prod(0),
        lambda x: (x * 1).prod(0, keepdim=True),
        lambda x: (x * 1).cumprod(0),
    ],
)
@pytest.mark.parametrize("changed", [False, True])
def test_the_result_of_a_product_is_checked_although_the_traced_formula_does_not_read_it(changed, function, backend):
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            x = torch.linspace(0.5, 1.5, 4, requires_grad=True)
            with bothways.config.patch(kernels_for_small_graphs=True):
                result = run(x)
            if changed:
                result.detach().mul_(2)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    result.sum().backward()
            else:
                result.sum().backward()
                found.append(x.grad)
        assert changed or same(found[1], found[0])


class HoldsWhatItComputed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.slope, ctx.is_small = x.exp(), x < 1
        return ctx.slope * 1

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.is_small, grad * ctx.slope, grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: HoldsWhatItComputed.apply(x),
        lambda x: HoldsWhatItComputed.apply(HoldsWhatItComputed.apply(x) + 1),
        lambda x: HoldsWhatItComputed.apply(x) + HoldsWhatItComputed.apply(x + 1),
    ],
)
def test_what_was_computed_for_a_context_is_there_for_a_second_backward(function, backend):
    """Eager frees what was saved, and of these nothing was."""
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        found = []
        for run in (function, compiled):
            x = torch.linspace(0.5, 1.5, 4, requires_grad=True)
            with bothways.config.patch(kernels_for_small_graphs=True):
                result = run(x)
            result.sum().backward()
            result.sum().backward()
            found.append((x.grad, torch.autograd.grad(result.sum(), x)))
        torch.testing.assert_close(found[1], found[0])
