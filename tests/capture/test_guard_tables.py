"""Programs whose guards are a table: whatever changes, the table says what the Python guards say, one by one.

Every case is a program, arguments, and changes of what it reads. After each change plain and compiled are compared,
twice, and every program's table is compared with its guards; a change back must find the first program again.
"""

import copy
import enum
import functools
import gc
import math
import threading
import types
import weakref

import pytest
import torch
from torch import nn

import bothways
from bothways.calls.call_library import call_library
from bothways.driver.compiled import failing_check
from bothways.testing import CompileCounter, same

pytestmark = pytest.mark.skipif(call_library() is None, reason="no C compiler")


class Checked:
    """A program and its compiled twin; whether table and Python guards agree is looked at after every call."""

    def __init__(self, program):
        self.program, self.counter = program, CompileCounter()
        self.compiled = bothways.compile(program, backend=self.counter, dynamic=False)

    def __call__(self, *args):
        self.agree(args)
        for _ in range(2):
            assert same(self.compiled(*args), self.program(*args))
        self.agree(args)

    def agree(self, args):
        dispatcher = self.compiled.__bothways__.dispatcher
        for program in dispatcher.programs:
            assert program.table is not None, "the table was let go of"
            by_table = dispatcher.namespace[program.table.key](*args)
            failing = failing_check(program, dispatcher, args)
            if not all(check.in_table for check in program.checks):
                assert by_table or failing is not None
            else:
                assert bool(by_table) == (failing is None), failing

    @property
    def frames(self):
        return self.counter.frame_count


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("offset", torch.arange(4.0))
        self.scale, self.name, self.options = 2.0, "block", {"gain": 3, "on": True}

    def forward(self, x):
        x = self.drop(self.norm(self.linear(x))) * self.scale + self.offset
        return x * self.options["gain"] if self.options["on"] else x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4))])
        self.act = torch.tanh

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.act(x * self.weights[0])
        return [head(x) for head in self.heads.values()]


def double(module, args, output):
    return output * 2


def pre(module, args):
    return (args[0] + 1,)


def freeze(net):
    net.blocks[1].linear.weight.requires_grad_(False)


def other_layout(net):
    net.blocks[0].linear.weight.data = torch.randn(4, 4).t()


def other_dtype(net):
    net.blocks[0].offset = net.blocks[0].offset.long()


def other_shape(net):
    net.heads["a"] = nn.Linear(4, 5)


def subclassed(net):
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    net.heads["a"] = Own(4, 2)


def other_forward(net):
    net.heads["a"].forward = lambda x: x


def tied(net):
    net.heads["b"].weight = net.heads["a"].weight


def plain_instead_of_parameter(net):
    weight = net.heads["a"].weight.detach()
    del net.heads["a"].weight
    net.heads["a"].weight = weight


def swapped(net):
    net.blocks[0], net.blocks[1] = net.blocks[1], net.blocks[0]
    net.blocks[0].scale = 5.0


def reordered(net):
    net.heads = nn.ModuleDict({"b": net.heads["b"], "a": net.heads["a"]})


# Change -> whether it needs a program of its own.
CHANGES = {
    freeze: True,
    other_layout: True,
    other_dtype: True,
    other_shape: True,
    subclassed: True,
    other_forward: True,
    tied: True,
    plain_instead_of_parameter: True,
    swapped: True,
    reordered: True,
    lambda net: net.eval(): True,
    lambda net: net.blocks[0].norm.eval(): True,
    lambda net: net.blocks[1].register_forward_hook(double): True,
    lambda net: net.blocks[1].linear.register_forward_pre_hook(pre): True,
    lambda net: setattr(net.blocks[0], "scale", 3.0): True,
    lambda net: setattr(net.blocks[0], "scale", 2): True,
    lambda net: setattr(net.blocks[0], "scale", -0.0): True,
    lambda net: net.blocks[0].options.update(gain=4): True,
    lambda net: net.blocks[0].options.update(on=1): True,
    lambda net: net.blocks[0].options.update(on=False): True,
    lambda net: net.blocks.append(Block()): True,
    lambda net: net.blocks.pop(1): True,
    lambda net: net.heads.pop("a"): True,
    lambda net: setattr(net, "act", torch.sigmoid): True,
    lambda net: setattr(net.heads["a"], "bias", None): True,
    lambda net: net.blocks[0].norm.reset_running_stats(): False,
    lambda net: setattr(net.blocks[0], "name", "other"): False,
    lambda net: net.blocks[0].options.update(unread=1): False,
    lambda net: setattr(net.heads["a"], "weight", nn.Parameter(torch.randn(2, 4))): False,
    lambda net: net.blocks[1].load_state_dict(Block().state_dict()): False,
    lambda net: setattr(net.blocks[0], "linear", nn.Linear(4, 4)): False,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_module(change):
    torch.manual_seed(0)
    net, other = Net(), Net()
    x = torch.randn(3, 4)
    checked = Checked(lambda net, x: net(x))
    checked(net, x)
    assert checked.frames == 1
    change(net)
    checked(net, x)
    assert checked.frames == 1 + CHANGES[change]
    checked(other, x)
    checked(copy.deepcopy(net), x)
    assert checked.frames == 1 + CHANGES[change]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_module_is_trained(backend):
    torch.manual_seed(0)
    net = Net().eval()  # a norm over few rows would make much of the last bits
    twin = copy.deepcopy(net)
    compiled = bothways.compile(net, backend=backend)
    for size in (3, 3, 5, 3):
        x = torch.randn(size, 4)
        for model in (twin, compiled):
            model.zero_grad()
            sum(part.pow(2).sum() for part in model(x)).backward()
        for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            for parameter in [*net.parameters(), *twin.parameters()]:
                parameter.sub_(0.1 * parameter.grad)


# Inputs


def inputs():
    x = torch.arange(12.0).reshape(3, 4)
    yield x
    yield x.double()
    yield x.t()
    yield x.t().contiguous().t()
    yield x[:2]
    yield x[None]
    yield x[:, :1]
    yield torch.empty(0, 4)
    yield x.clone().requires_grad_()
    yield nn.Parameter(x.clone())
    yield nn.Parameter(x.clone(), requires_grad=False)
    yield torch.zeros(())
    yield x.to(torch.complex64)
    yield x.to_sparse()
    yield x.to("meta").new_empty(3, 4, device="cpu").zero_()
    yield 3
    yield 3.0
    yield True


def test_every_input_finds_its_own_program():
    checked = Checked(lambda x: x * 2)
    with bothways.config.patch(recompile_limit=50):
        seen = list(inputs())
        for value in [*seen, *reversed(seen)]:
            checked.agree((value,))
            expected = value * 2
            assert same(checked.compiled(value), expected)
            checked.agree((value,))
    assert checked.frames <= len(seen)


def test_two_inputs_that_are_one():
    def program(x, y):
        x.add_(1)
        return x + y

    checked = bothways.compile(program, backend="eager")
    for make in (lambda: (torch.ones(3), torch.ones(3)), lambda: (torch.ones(3),) * 2):
        for _ in range(2):
            assert same(checked(*make()), program(*make()))


# Other things


class Color(enum.Enum):
    RED, GREEN = 1, 2


class Bag:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class OfDict(dict):
    pass


def closed_over(value):
    return lambda x: x * value


def other_code(value):
    return lambda x: x + value


def of_default(n=2):
    def scaled(x, n=n):
        return x * n

    return scaled


ONES = torch.ones(2)

# Program of (x, thing), and things that need programs of their own.
THINGS = [
    (lambda x, n: x * n, [2, 3, 2.0, True, 2.5, math.inf, 0.0, -0.0]),
    (lambda x, n: x + len(n), ["a", "bb", b"a", (1,), [1], {1: 2}, ()]),
    (lambda x, key: x + 1 if key == "up" else x, ["up", "down", 3, None]),
    (lambda x, d: x * d["n"], [{"n": 2}, {"n": 3}, {"n": 2.0}, OfDict(n=2), OfDict(n=5)]),
    (lambda x, d: x * sum(d.values()), [{"a": 1, "b": 2}, {"b": 2, "a": 2}, {"a": 1}, {}]),
    (lambda x, d: [x * d[key] for key in d], [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {0: 1}, {Color.RED: 2}]),
    (lambda x, d: x + 1 if "n" in d else x, [{"n": 1}, {"m": 1}, OfDict()]),
    (lambda x, items: x * items[1], [[1, 2], [1, 3], (1, 2), [1, 2, 3]]),
    (lambda x, ys: [y * x for y in ys], [[ONES], [ONES] * 2, [ONES.clone(), ONES], [ONES.double()], [ONES[:1]]]),
    (lambda x, bag: x * bag.n, [Bag(n=2), Bag(n=3)]),
    (lambda x, bag: x * bag.x, [Slotted(2), Slotted(3), Bag(x=2), types.SimpleNamespace(x=2)]),
    (lambda x, bag: x * getattr(bag, "n", 7), [Bag(n=2), Bag(), Bag(n=7)]),
    (lambda x, bag: x * bag.inner.w, [Bag(inner=Bag(w=weight)) for weight in (ONES, ONES[:1], ONES.bool(), 3)]),
    (lambda x, color: x + 1 if color is Color.RED else x, [Color.RED, Color.GREEN, None]),
    (lambda x, f: f(x), [closed_over(2), closed_over(3), other_code(2), of_default(), of_default(3), torch.relu]),
    (lambda x, f: f(x), [functools.partial(torch.add, other=1), functools.partial(torch.add, other=2)]),
    (lambda x, module: module(x), [nn.ReLU(), nn.Tanh(), nn.Identity(), nn.Linear(2, 2), nn.Linear(2, 3)]),
    (lambda x, size: x.new_zeros(size), [torch.Size([2]), (2,), torch.Size([2, 3])]),
    (lambda x, dtype: x.to(dtype), [torch.float64, torch.int32, torch.float32]),
    (lambda x, s: x + len(s), [{1, 2}, {1}, frozenset({1, 2}), set()]),
]  # fmt: skip


@pytest.mark.parametrize("program, things", THINGS, ids=[str(index) for index in range(len(THINGS))])
def test_things_are_told_apart(program, things):
    checked, x = Checked(program), torch.ones(2)
    with bothways.config.patch(recompile_limit=50):
        for thing in things:
            checked(x, thing)
        frames = checked.frames
        for thing in reversed(things):
            checked(x, thing)
    assert checked.frames == frames


SETTING = {"scale": 2}


def test_globals_and_state_of_the_interpreter():
    checked, x = Checked(lambda x: x * SETTING["scale"]), torch.ones(2, requires_grad=True)
    checked(x)
    SETTING["scale"] = 3
    checked(x)
    with torch.no_grad():
        checked(x)
    with torch.autocast("cpu"):
        checked(x)
    with torch.inference_mode():
        checked(x)
    torch.set_default_dtype(torch.float64)
    try:
        checked(x)
    finally:
        torch.set_default_dtype(torch.float32)
    frames = checked.frames
    SETTING["scale"] = 2
    checked(x)
    assert checked.frames == frames


def test_a_class_that_gets_an_attribute_later():
    class Owner:
        def __init__(self):
            self.n = 2

    checked, owner, x = Checked(lambda x, owner: x * owner.n), Owner(), torch.ones(2)
    checked(x, owner)
    Owner.n = property(lambda self: 3)
    assert same(checked.compiled(x, owner), x * 3)
    del Owner.n
    checked(x, owner)
    Owner.n = 5
    checked(x, owner)


def test_deleted_things_are_misses_and_leave_no_exception():
    def program(x, bag):
        try:
            return x * bag.deep["key"][0].n
        except (AttributeError, KeyError, IndexError) as error:
            return type(error).__name__

    checked, x = Checked(program), torch.ones(2)
    checked(x, Bag(deep={"key": [Bag(n=2)]}))
    for bag in (Bag(), Bag(deep={}), Bag(deep={"key": []}), Bag(deep={"key": [Bag()]}), Bag(deep=None)):
        assert not checked.compiled.__bothways__.dispatcher.namespace["_table_1"](x, bag)
        try:
            expected = program(x, bag)
        except TypeError as error:
            with pytest.raises(TypeError, match="subscriptable"):
                checked.compiled(x, bag)
            assert error.__context__ is None
        else:
            assert checked.compiled(x, bag) == expected


def test_neither_tensors_nor_modules_are_kept():
    compiled = bothways.compile(lambda net, x: net(x), backend="eager")
    net, x = Net(), torch.randn(3, 4)
    compiled(net, x)
    compiled(net, x)
    compiled(net, x.double()[:, :3].float() @ torch.randn(3, 4))
    kept = [weakref.ref(thing) for thing in (net, x, *net.modules(), *net.parameters(), *net.buffers())]
    del net, x
    gc.collect()
    assert [reference() for reference in kept] == [None] * len(kept)
    net = Net()
    assert same(compiled(net, torch.ones(3, 4)), net(torch.ones(3, 4)))


def test_a_table_that_is_wrong_about_a_call_is_let_go_of():
    counter = CompileCounter()
    compiled, x = bothways.compile(lambda x: x + 1, backend=counter), torch.ones(2)
    compiled(x)
    (program,) = bothways.explain(compiled).programs
    namespace = compiled.__bothways__.dispatcher.namespace
    namespace[program.table.key] = program.namespace[program.table.key] = lambda x: False
    for _ in range(3):
        assert same(compiled(x), x + 1)
    assert program.table is None and counter.frame_count == 1


def test_people_read_python():
    compiled = bothways.compile(lambda x, n: x * n, backend="eager")
    compiled(torch.ones(2), 3)
    (program,) = bothways.explain(compiled).programs
    assert program.table is not None and all(check.in_table for check in program.checks)
    assert "_table" not in program.source and "and n == 3" in program.source
    assert "and n == 3" in compiled.__bothways__.dispatcher.text


def test_threads_share_a_program():
    counter = CompileCounter()
    net = Net().eval()
    compiled = bothways.compile(lambda net, x: net(x), backend=counter, dynamic=False)
    wrong = []

    def work():
        for size in (3, 4, 3):
            x = torch.ones(size, 4)
            for _ in range(30):
                if not same(compiled(net, x), net(x)):
                    wrong.append(size)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and counter.frame_count == 2
    assert all(program.table is not None for program in bothways.explain(compiled).programs)


def test_a_hash_of_tensors_that_is_replaced_is_asked(monkeypatch):
    state, asked = {}, []
    weight = nn.Parameter(torch.ones(3))
    state[weight] = {"scale": torch.full((3,), 2.0)}

    def scaled(x):
        return x * state[weight]["scale"]

    checked, usual = Checked(scaled), torch.Tensor.__hash__
    checked(torch.ones(3))
    monkeypatch.setattr(torch.Tensor, "__hash__", lambda self: asked.append(self) or usual(self))
    checked(torch.ones(3))
    assert asked
    monkeypatch.undo()
    state[weight] = {"scale": torch.full((3,), 3.0)}
    checked(torch.ones(3))
