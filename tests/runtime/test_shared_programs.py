"""Compiled functions and modules of the same code share their programs: ten layers cost what one costs.

What differs between them is guarded, so that a layer that is not like the others has a program of its own.
"""

import copy
import functools
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import bothways
from bothways.config import config
from bothways.errors import RecompileError, RecompileLimitWarning
from bothways.testing import CompileCounter, same

BACKENDS = ["eager", "aot_eager", "native"]
everywhere = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def everything_is_compiled():
    with config.patch(kernels_for_small_graphs=True):
        yield
    bothways.reset()


@pytest.fixture(autouse=True)
def double_precision():
    """Gradients grow a thousandfold on their way through a row of blocks, and rounding with them."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Block(nn.Module):
    def __init__(self, width=8, eps=1e-5, scale=2.0):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.scale = scale

    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x))) * self.scale


def captures(target):
    """How often something was looked at."""
    return len([one for one in bothways.history(target) if one.was_captured])


def trained(blocks, run, x):
    """What comes out of a row of blocks, and the gradients of all their parameters and of the input."""
    x = x.clone().requires_grad_()
    out = x
    for block in run:
        out = block(out)
    for block in blocks:
        block.zero_grad()
    out.square().sum().backward()
    return out.detach(), x.grad, [p.grad for block in blocks for p in block.parameters()]


def compared(blocks, compiled, x):
    expected = trained(blocks, blocks, x)
    assert same(expected, trained(blocks, compiled, x), tol=1e-3)


# Modules.


@everywhere
def test_ten_layers_of_one_class_are_captured_once(backend):
    blocks = [Block() for _ in range(10)]
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[0]) == captures(compiled[9]) == 1
    assert len(bothways.explain(compiled[5]).programs) == 1


def test_the_kernels_of_ten_layers_are_built_once():
    blocks = [Block() for _ in range(10)]
    compiled = [bothways.compile(block) for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    (record,) = bothways.history(compiled[3])
    assert [piece.name for piece in record.pieces] == ["forward", "backward"]
    alone = Block()
    only = bothways.compile(alone, fullgraph=True)
    compared([alone], [only], torch.randn(4, 8))
    assert record.kernels == bothways.history(only)[0].kernels > 0


@pytest.mark.parametrize("way", ["forward", "__call__", "_call_impl"])
def test_methods_of_several_modules_share(way):
    blocks = [Block() for _ in range(4)]
    compiled = [bothways.compile(getattr(block, way), backend="eager") for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[2]) == 1


def test_layers_that_are_compiled_in_place_share():
    blocks = [Block() for _ in range(4)]
    plain = copy.deepcopy(blocks)
    x = torch.randn(4, 8)
    bothways.install()
    try:
        for block in blocks:
            block.compile(backend="eager")
        expected, found = trained(plain, plain, x), trained(blocks, blocks, x)
        assert same(expected, found)
        assert captures(blocks[0]._compiled_call_impl) == 1
    finally:
        bothways.uninstall()


@everywhere
def test_copies_of_a_compiled_module_share(backend):
    block = Block()
    first = bothways.compile(block, backend=backend)
    second = copy.deepcopy(first)
    with torch.no_grad():
        second._orig_mod.linear.weight.mul_(3)
    compared([block, second._orig_mod], [first, second], torch.randn(4, 8))
    assert captures(second) == 1


@everywhere
def test_layers_with_a_break_share_what_comes_after_it(backend):
    class Breaking(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            x = torch.sin(self.one(x))
            if x.sum().item() > 1e9:
                return x
            return torch.cos(self.other(x))

    blocks = [Breaking() for _ in range(5)]
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    before = captures(compiled[0])
    compared(blocks, compiled, torch.randn(4, 8))
    alone = Breaking()
    only = bothways.compile(alone, backend=backend, fullgraph=False, dynamic=False)
    compared([alone], [only], torch.randn(4, 8))
    compared([alone], [only], torch.randn(4, 8))
    assert captures(compiled[0]) == before == captures(only)


def test_layers_that_call_a_function_at_a_break_share_it():
    def helper(x):
        y = torch.sin(x)
        torch.autograd.grad(y.sum(), x, retain_graph=True)
        return torch.cos(y)

    class Calling(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return helper(self.linear(x)) * 2

    def count(number):
        blocks = [Calling() for _ in range(number)]
        compiled = [bothways.compile(block, backend="eager") for block in blocks]
        compared(blocks, compiled, torch.randn(4, 8))
        return captures(compiled[0])

    one = count(1)
    bothways.reset()
    assert count(5) == one


# What makes a layer another one.


def put_hook(block, number):
    block.register_forward_hook(lambda module, args, out: out * number)


class Narrower(Block):
    def forward(self, x):
        return super().forward(x) - 1


def patched(block):
    block.forward = lambda x: torch.sin(x)
    return block


def frozen(block):
    for parameter in block.parameters():
        parameter.requires_grad_(False)
    return block


def without_bias(block):
    block.linear.bias = None
    return block


def with_scale(block, scale):
    block.scale = scale
    return block


def one_frozen(block):
    block.linear.weight.requires_grad_(False)
    return block


def hooked(block):
    put_hook(block, 3)
    return block


def hooked_before(block):
    block.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return block


def hooked_inside(block):
    put_hook(block.norm, 2)
    return block


def hooked_backward(block):
    block.register_full_backward_hook(lambda module, gi, go: (gi[0] * 2,))
    return block


def tensor_hooked(block):
    block.linear.weight.register_hook(lambda grad: grad * 5)
    return block


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


def parametrized(block):
    parametrize.register_parametrization(block.linear, "weight", Doubled())
    return block


def tied(block):
    block.norm.weight = block.norm.bias
    return block


def replaced(block):
    block.norm = nn.Identity()
    return block


def transposed(block):
    block.linear.weight = nn.Parameter(torch.randn(8, 8).t())
    return block


ODD = {
    "another eps": lambda: Block(eps=1e-1),
    "another scale": lambda: Block(scale=5.0),
    "an integer scale": lambda: Block(scale=2),
    "a tensor as scale": lambda: with_scale(Block(), torch.tensor(2.0)),
    "frozen": lambda: frozen(Block()),
    "one parameter frozen": lambda: one_frozen(Block()),
    "without a bias": lambda: without_bias(Block()),
    "a hook": lambda: hooked(Block()),
    "a hook before": lambda: hooked_before(Block()),
    "a hook inside": lambda: hooked_inside(Block()),
    "a backward hook": lambda: hooked_backward(Block()),
    "a hook on a parameter": lambda: tensor_hooked(Block()),
    "a subclass": Narrower,
    "a patched forward": lambda: patched(Block()),
    "parametrized": lambda: parametrized(Block()),
    "tied parameters": lambda: tied(Block()),
    "another submodule": lambda: replaced(Block()),
    "a transposed weight": lambda: transposed(Block()),
    "evaluated": lambda: Block().eval(),
}


@pytest.mark.in_turn("backend")
@everywhere
@pytest.mark.parametrize("name", ODD)
def test_a_layer_that_is_not_like_the_others(name, backend):
    odd = ODD[name]()
    blocks = [Block(), odd, Block(), odd]
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    for _ in range(2):
        compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[0]) <= 2


@everywhere
def test_a_layer_of_another_dtype(backend):
    blocks = [Block(), Block().float(), Block()]
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    for block, run in zip(blocks, compiled, strict=True):
        x = torch.randn(4, 8, dtype=block.linear.weight.dtype)
        assert same(trained([block], [block], x), trained([block], [run], x))
    assert captures(compiled[0]) == 2


@everywhere
def test_two_layers_share_a_parameter(backend):
    blocks = [Block() for _ in range(3)]
    blocks[1].linear.weight = blocks[0].linear.weight
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    with torch.no_grad():
        blocks[0].linear.weight.mul_(2)
    compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[0]) == 1


@everywhere
def test_a_layer_that_is_given_its_own_parameter(backend):
    class Adding(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 8))

        def forward(self, x):
            return (x * self.weight).sin()

    blocks = [Adding(), Adding()]
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    assert same(compiled[0](nn.Parameter(torch.ones(4, 8))), blocks[0](torch.ones(4, 8)))
    for run, weight in ((blocks[1], blocks[1].weight), (compiled[1], blocks[1].weight)):
        blocks[1].weight.grad = None
        result = run(weight)
        result.sum().backward()
        if run is blocks[1]:
            expected = result, blocks[1].weight.grad
    assert same(expected, (result, blocks[1].weight.grad))


@everywhere
def test_one_layer_changes_later(backend):
    blocks = [Block() for _ in range(3)]
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    blocks[1].scale = 7.0
    blocks[2].train(False)
    put_hook(blocks[0], 4)
    compared(blocks, compiled, torch.randn(4, 8))


@everywhere
def test_buffers_of_each_layer_are_its_own(backend):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.calls = 0

        def forward(self, x):
            self.seen.add_(x.sum())
            self.calls += 1
            return x * self.calls

    plain = [Counting() for _ in range(3)]
    blocks = copy.deepcopy(plain)
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    for index in (0, 1, 2, 1, 1, 0):
        x = torch.randn(3)
        assert same(plain[index](x), compiled[index](x))
    assert [block.calls for block in blocks] == [block.calls for block in plain]
    assert same([block.seen for block in blocks], [block.seen for block in plain])


def test_dropout_of_each_layer_draws_its_own_numbers():
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(p)) for p in (0.5, 0.5, 0.1)]
    compiled = [bothways.compile(block) for block in blocks]
    x = torch.randn(64, 8)
    torch.manual_seed(0)
    expected = [block(x) for block in blocks]
    torch.manual_seed(0)
    assert same(expected, [block(x) for block in compiled])
    assert captures(compiled[0]) == 2


# Hooks.


@everywhere
def test_hooks_of_the_same_code(backend):
    blocks = [Block() for _ in range(5)]
    for number, block in enumerate(blocks):
        weight = torch.full((8,), float(number))
        block.register_forward_pre_hook(lambda module, args, weight=weight: (args[0] + weight,))
        block.register_forward_pre_hook(lambda module, args, kwargs: (args, kwargs), with_kwargs=True)
        block.norm.register_forward_hook(lambda module, args, out: out.sin(), prepend=True)
        block.linear.register_full_backward_hook(lambda module, gi, go: (gi[0] * 2,))
        block.linear.weight.register_hook(lambda grad: grad * 3)
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[0]) == 1


@everywhere
def test_the_order_of_hooks_counts(backend):
    def twice(module, args, out):
        return out * 2

    def more(module, args, out):
        return out + 1

    def both(module, args, kwargs, out):
        return out + len(kwargs)

    blocks = [Block() for _ in range(6)]
    for block, hooks in zip(blocks, ((twice, more), (more, twice), (twice,), (more,), (twice, more), ()), strict=True):
        for hook in hooks:
            block.register_forward_hook(hook)
    blocks[4]._forward_hooks.move_to_end(next(iter(blocks[4]._forward_hooks)))
    blocks[5].register_forward_hook(both, with_kwargs=True)
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    for _ in range(2):
        compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[0]) == 5, "the fifth has the hooks of the second"


def test_hooks_that_take_keywords_or_not():
    def hook(module, args, *rest):
        return rest[-1] * len(rest)

    blocks = [Block() for _ in range(3)]
    for block, takes in zip(blocks, (True, False, True), strict=True):
        block.register_forward_hook(hook, with_kwargs=takes)
        block.register_forward_hook(hook, with_kwargs=not takes)
    compiled = [bothways.compile(block, backend="eager") for block in blocks]
    for _ in range(2):
        compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[0]) == 2


def test_a_hook_that_is_registered_or_removed_inside():
    class Registering(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            handle = self.inner.register_forward_hook(lambda module, args, out: out * 3)
            x = self.inner(x)
            handle.remove()
            return self.inner(x)

    blocks = [Registering() for _ in range(3)]
    blocks[1].inner.register_forward_hook(lambda module, args, out: out + 1)
    compiled = [bothways.compile(block, backend="eager") for block in blocks]
    for _ in range(2):
        compared(blocks, compiled, torch.randn(4, 8))


@everywhere
def test_hooks_with_a_number_of_their_own(backend):
    blocks = [Block() for _ in range(5)]
    seen = []

    def note(number):
        def hook(module, args, out):
            seen.append(number)
            return out * 2

        return hook

    def scale(number):
        return lambda module, grad_in, grad_out: seen.append(-number)

    for number, block in enumerate(blocks):
        block.register_forward_hook(note(number))
        block.register_full_backward_hook(scale(number))
    compiled = [bothways.compile(block, backend=backend) for block in blocks]
    x = torch.randn(4, 8)
    expected = trained(blocks, blocks, x)
    order = list(seen)
    seen.clear()
    assert same(expected, trained(blocks, compiled, x))
    assert seen == order
    assert captures(compiled[0]) <= 2, "the number of the hook is a constant once, and then an input"


# Functions: closures, partials, defaults.


@everywhere
def test_closures_share(backend):
    def make(weight):
        @bothways.compile(backend=backend)
        def f(x):
            return torch.sin(x @ weight)

        return f, lambda x: torch.sin(x @ weight)

    pairs = [make(torch.randn(4, 4, requires_grad=True)) for _ in range(5)]
    for compiled, plain in pairs * 2:
        x = torch.randn(3, 4)
        assert same(plain(x), compiled(x))
    assert captures(pairs[4][0]) == 1


class Caller:
    def __init__(self, block):
        self.block = block

    def __call__(self, x):
        return self.block(x) * 2

    def method(self, x):
        return self.block(x) * 2


def calling(block):
    def call(x):
        return block(x) * 2

    return call


WAYS = {
    "a closure": calling,
    "a default": lambda block: lambda x, block=block: block(x) * 2,
    "a partial": lambda block: functools.partial(lambda inner, x: inner(x) * 2, block),
    "a partial of a method": lambda block: functools.partial(Caller(block).method),
    "an object": Caller,
    "a method": lambda block: Caller(block).method,
    "a partial of a partial": lambda block: functools.partial(functools.partial(lambda a, b, x: a(b(x)), block), block),
    "a function in a closure": lambda block: calling(calling(block)),
}


@everywhere
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_a_layer(way, backend):
    blocks = [Block() for _ in range(4)]
    functions = [WAYS[way](block) for block in blocks]
    compiled = [bothways.compile(function, backend=backend) for function in functions]
    for _ in range(2):
        x = torch.randn(4, 8)
        assert same(trained(blocks, functions, x), trained(blocks, compiled, x), tol=1e-3)
    assert captures(compiled[0]) == 1
    with torch.no_grad():
        blocks[2].scale = 9.0
        blocks[3].linear.weight.mul_(-1)
    assert same(trained(blocks, functions, x), trained(blocks, compiled, x), tol=1e-3)


def test_a_reset_while_a_call_runs():
    started, go_on = threading.Event(), threading.Event()

    def wait():
        started.set()
        go_on.wait(60)

    class Waiting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.waits = False

        def forward(self, x):
            y = torch.sin(self.linear(x))
            if self.waits:
                wait()
            return torch.cos(self.linear(y))

    blocks = [Waiting() for _ in range(2)]
    compiled = [bothways.compile(block, backend="eager") for block in blocks]
    x = torch.randn(4, 8)
    expected = [block(x) for block in blocks]
    assert same([block(x) for block in compiled], expected)
    blocks[0].waits = True
    found = []
    thread = threading.Thread(target=lambda: found.append(compiled[0](x)))
    thread.start()
    started.wait(60)
    bothways.reset()
    blocks[0].waits = False
    assert same([block(x) for block in compiled], expected)
    go_on.set()
    thread.join(60)
    assert same([block(x) for block in compiled], expected) and same(found[0], expected[0])


def test_closures_with_different_numbers():
    def make(number):
        @bothways.compile(backend="eager")
        def f(x):
            return x * number

        return f

    functions = [make(number) for number in range(2, 12)]
    for _ in range(2):
        for number, f in enumerate(functions, 2):
            assert same(f(torch.ones(3)), torch.full((3,), float(number)))
    assert captures(functions[0]) == 2, "a constant once, and an input from then on"


def test_a_number_in_a_closure_changes():
    def make(number):
        @bothways.compile(backend="eager")
        def f(x):
            return x * number

        def change(value):
            nonlocal number
            number = value

        return f, change

    (f, change), (g, _) = make(3), make(3)
    assert f(torch.ones(1)).item() == g(torch.ones(1)).item() == 3
    change(5)
    assert f(torch.ones(1)).item() == 5 and g(torch.ones(1)).item() == 3


def test_closures_that_write_to_their_variables():
    def make():
        total = torch.zeros(2)
        calls = 0

        @bothways.compile(backend="eager")
        def f(x):
            nonlocal total, calls
            total = total + x
            calls += 1
            return total * 2

        return f, lambda: (total, calls)

    (f, of_f), (g, of_g) = make(), make()
    for _ in range(3):
        f(torch.ones(2))
    g(torch.ones(2))
    assert same(of_f(), (torch.full((2,), 3.0), 3)) and same(of_g(), (torch.ones(2), 1))


def test_closures_that_lead_to_each_other_or_not():
    def make(is_shared):
        total = 0

        def add():
            nonlocal total
            total += 1

        def other():
            return total

        if not is_shared:
            total_of_another = 0

            def other():
                return total_of_another

        @bothways.compile(backend="eager")
        def f(x):
            add()
            return x + other()

        return f

    apart, together = make(False), make(True)
    assert apart(torch.zeros(1)).item() == 0
    assert together(torch.zeros(1)).item() == 1
    assert apart(torch.zeros(1)).item() == 0
    assert together(torch.zeros(1)).item() == 2


@everywhere
def test_closures_with_a_break_go_on_in_their_own_closure(backend):
    def make(weight, number):
        @bothways.compile(backend=backend)
        def f(x):
            nonlocal number
            y = x * weight
            if y.sum().item() > 1e9:
                return y
            number += 1
            return (y + weight) * number

        return f, lambda: number

    functions = [make(torch.full((3,), float(weight)), 1) for weight in range(1, 5)]
    for turn in range(1, 4):
        for weight, (f, number) in enumerate(functions, 1):
            assert same(f(torch.ones(3)), torch.full((3,), 2.0 * weight * (turn + 1)))
            assert number() == turn + 1


def test_partials_share():
    def scaled(x, weight, *, power):
        return (x * weight) ** power

    partials = [functools.partial(scaled, weight=torch.full((2,), float(n)), power=2) for n in range(1, 6)]
    compiled = [bothways.compile(partial, backend="eager") for partial in partials]
    for _ in range(2):
        for plain, run in zip(partials, compiled, strict=True):
            assert same(plain(torch.ones(2)), run(torch.ones(2)))
    assert captures(compiled[0]) == 1
    other = bothways.compile(functools.partial(scaled, weight=torch.ones(2), power=3), backend="eager")
    assert same(other(torch.full((2,), 2.0)), torch.full((2,), 8.0))


def test_partials_of_different_functions():
    compiled = [bothways.compile(functools.partial(f, torch.ones(2)), backend="eager") for f in (torch.add, torch.sub)]
    assert same([f(torch.ones(2)) for f in compiled], [torch.full((2,), 2.0), torch.zeros(2)])


def test_functions_with_different_defaults():
    def make(default, *, keyword):
        def f(x, scale=default, *, offset=keyword):
            return x * scale + offset

        return f

    functions = [make(torch.tensor(2.0), keyword=1), make(torch.tensor(3.0), keyword=1), make(2, keyword=5)]
    compiled = [bothways.compile(f, backend="eager") for f in functions]
    for _ in range(2):
        for plain, run in zip(functions, compiled, strict=True):
            assert same(plain(torch.ones(2)), run(torch.ones(2)))


def test_one_of_the_functions_is_given_another_body():
    def make():
        def f(x, scale=2.0):
            return x * scale

        return f

    def other(x, scale=2.0):
        return x - scale

    functions = [make() for _ in range(3)]
    compiled = [bothways.compile(f, backend="eager") for f in functions]
    x = torch.ones(2)
    assert all(same(f(x), torch.full((2,), 2.0)) for f in compiled)
    functions[1].__code__ = other.__code__
    assert same([f(x) for f in compiled], [f(x) for f in functions])
    functions[2].__defaults__ = (5.0,)
    assert same([f(x) for f in compiled], [f(x) for f in functions])
    functions[0].__defaults__ = (7.0,)
    assert same([f(x) for f in compiled], [f(x) for f in functions])
    assert same([f(x) for f in compiled], [f(x) for f in functions])


def test_keyword_defaults_that_are_changed():
    def make():
        def f(x, *, scale=2.0):
            return x * scale

        return f

    functions = [make() for _ in range(3)]
    compiled = [bothways.compile(f, backend="eager") for f in functions]
    x = torch.ones(2)
    assert all(same(f(x), torch.full((2,), 2.0)) for f in compiled)
    functions[1].__kwdefaults__["scale"] = 4.0
    assert same([f(x) for f in compiled], [f(x) for f in functions])
    functions[2].__kwdefaults__ = {"scale": 6.0}
    assert same([f(x) for f in compiled], [f(x) for f in functions])


def test_a_function_that_reads_its_own_attributes():
    def make(number):
        def f(x):
            return x * f.number

        f.number = number
        return f

    functions = [make(number) for number in (2, 3, 2)]
    compiled = [bothways.compile(f, backend="eager") for f in functions]
    for _ in range(2):
        assert same([f(torch.ones(1)).item() for f in compiled], [2.0, 3.0, 2.0])


def test_functions_of_the_same_text_with_other_globals():
    code = compile("def f(x):\n    return x * scale\n", "<text>", "exec")
    spaces = [{"scale": 2}, {"scale": 3}]
    for space in spaces:
        exec(code, space)
    compiled = [bothways.compile(space["f"], backend="eager") for space in spaces]
    assert [f(torch.ones(1)).item() for f in compiled] == [2, 3]


@everywhere
def test_custom_functions_that_read_a_closure(backend):
    def make(number):
        scale = number

        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * scale

        def f(x):
            return Scaled.apply(x).sin()

        def change(value):
            nonlocal scale
            scale = value

        return f, change

    pairs = [make(3.0), make(3.0), make(4.0)]
    compiled = [bothways.compile(f, backend=backend) for f, _ in pairs]
    for _ in range(2):
        for (plain, _), run in zip(pairs, compiled, strict=True):
            gradients = []
            for function in (plain, run):
                x = torch.ones(3, requires_grad=True)
                function(x).sum().backward()
                gradients.append(x.grad)
            assert same(*gradients)
    x = torch.ones(3, requires_grad=True)
    result = compiled[1](x).sum()
    pairs[1][1](10.0)
    result.backward()
    assert same(x.grad, torch.cos(torch.full((3,), 2.0)) * 10)


# Options, configuration, limits.


def test_other_options_are_other_programs():
    def f(x):
        return x.sin() + 1

    counters = [CompileCounter(), CompileCounter()]
    for counter in counters:
        bothways.compile(f, backend=counter)(torch.ones(2))
        assert counter.frame_count == 1
    compiled = [bothways.compile(f, backend="eager", dynamic=dynamic) for dynamic in (None, True, False)]
    for each in compiled:
        each(torch.ones(2))
        assert captures(each) == 1


def test_a_program_of_another_configuration_is_not_shared():
    def f(x):
        return nn.functional.dropout(x, 0.5) * 2

    compiled = [bothways.compile(f), bothways.compile(f)]
    x = torch.ones(1000)
    with config.patch(exact_random=False):
        compiled[0](x)
    torch.manual_seed(0)
    expected = f(x)
    torch.manual_seed(0)
    assert same(compiled[1](x), expected)


def test_the_limit_counts_the_programs_of_a_code():
    def make(text):
        @bothways.compile(backend="eager", dynamic=False)
        def f(x):
            return x + len(text)

        return f

    with config.patch(recompile_limit=3):
        functions = [make("a" * length) for length in range(5)]
        for f in functions[:3]:
            f(torch.zeros(1))
        with pytest.warns(RecompileLimitWarning):
            assert functions[3](torch.zeros(1)).item() == 3
        assert functions[4](torch.zeros(1)).item() == 4
        assert len(bothways.explain(functions[4]).programs) == 3
        assert bothways.explain(functions[4]).plain_from_now_on
        assert [f(torch.zeros(1)).item() for f in functions] == [0, 1, 2, 3, 4]


def test_why_a_layer_is_compiled_for_itself():
    compiled = [bothways.compile(Block(eps=eps), backend="eager") for eps in (1e-5, 1e-3)]
    for block in compiled:
        block(torch.randn(2, 8))
    first, second = bothways.history(compiled[0])
    assert not first.is_recompilation and second.is_recompilation
    assert "eps" in second.failed_guard
    compiled.append(bothways.compile(Block(eps=0.5), backend="eager"))
    with config.patch(error_on_recompile=True), pytest.raises(RecompileError, match="eps"):
        compiled[2](torch.randn(2, 8))


def test_a_shared_program_is_no_compilation():
    compiled = [bothways.compile(Block(), backend="eager") for _ in range(3)]
    compiled[0](torch.randn(2, 8))
    with bothways.set_stance("fail_on_recompile"):
        compiled[1](torch.randn(2, 8))
    with config.patch(error_on_recompile=True):
        compiled[2](torch.randn(2, 8))
    assert captures(compiled[0]) == 1


# Lifetime.


def test_programs_live_as_long_as_a_function_uses_them():
    blocks = [Block() for _ in range(3)]
    compiled = [bothways.compile(block, backend="eager") for block in blocks]
    x = torch.randn(2, 8)
    for block in compiled:
        block(x)
    (record,) = bothways.history(compiled[0])
    program = weakref.ref(record.made)
    del block, compiled[0]
    gc.collect()
    assert record.program is not None
    late = bothways.compile(Block(), backend="eager")
    late(x)
    assert captures(late) == 1
    compiled.clear()
    gc.collect()
    assert record.program is not None
    del late
    gc.collect()
    assert program() is None and record.made is None


def test_a_function_that_is_dropped_takes_its_closure_along():
    def make():
        weight = torch.randn(2)

        @bothways.compile(backend="native")
        def f(x):
            y = torch.sin(x * weight)
            y.sum().item()
            return torch.cos(y) * weight

        return f, weakref.ref(weight)

    functions = [make() for _ in range(3)]
    for f, _ in functions:
        f(torch.ones(2))
    (_, first), (f, _), _ = functions
    del functions[0]
    gc.collect()
    assert first() is None
    f(torch.ones(2))


def test_a_layer_that_is_dropped_is_freed():
    blocks = [Block() for _ in range(3)]
    compiled = [bothways.compile(block) for block in blocks]
    compared(blocks, compiled, torch.randn(4, 8))
    gone = weakref.ref(blocks[0])
    del blocks[0], compiled[0]
    gc.collect()
    assert gone() is None
    compared(blocks, compiled, torch.randn(4, 8))
    assert captures(compiled[0]) == 1


def test_reset_forgets_what_is_shared():
    compiled = [bothways.compile(Block(), backend="eager") for _ in range(3)]
    x = torch.randn(2, 8)
    for block in compiled:
        block(x)
    bothways.reset()
    assert captures(compiled[1]) == 0
    for block in compiled:
        block(x)
    assert captures(compiled[1]) == 1


def test_one_is_reset():
    compiled = [bothways.compile(Block(), backend="eager") for _ in range(3)]
    x = torch.randn(2, 8)
    for block in compiled:
        block(x)
    compiled[1]._bothways_call.__bothways__.reset()
    for block in compiled:
        block(x)
    assert captures(compiled[0]) == captures(compiled[1]) == 1
    assert bothways.history(compiled[0])[0] is not bothways.history(compiled[1])[0]


def test_layers_in_threads_are_captured_once():
    blocks = [Block() for _ in range(8)]
    counter = CompileCounter()
    compiled = [bothways.compile(block, backend=counter) for block in blocks]
    x = torch.randn(4, 8)
    found = [None] * 8
    begin = threading.Barrier(8)

    def run(index):
        begin.wait()
        found[index] = [compiled[index](x) for _ in range(5)][-1]

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert same(found, [block(x) for block in blocks])
    assert counter.frame_count == 1
