"""Guards on globals, functions, classes, objects and modules: what was read of them is checked.

Every test calls once to capture, again to hit, and then with something changed: what was relied on makes a new
program and the right answer; what was not relied on makes none.
"""

import functools

import pytest
import torch
from guarding import Steps, changes, is_one_program
from torch import nn

import bothways

X = torch.arange(4.0)

# Globals


SCALE = 2


def scaled(x):
    return x * SCALE


def test_global_changed(monkeypatch):
    steps = Steps(scaled)
    steps.agree(X, frames=1)
    monkeypatch.setitem(globals(), "SCALE", 3)
    steps.agree(X, frames=2)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    steps.agree(X, frames=3)
    monkeypatch.setitem(globals(), "SCALE", torch.full((4,), 5.0))
    steps.agree(X, frames=4)
    monkeypatch.setitem(globals(), "SCALE", 2)
    steps.agree(X, frames=4)


def test_global_deleted(monkeypatch):
    compiled = bothways.compile(scaled)
    compiled(X)
    monkeypatch.delitem(globals(), "SCALE")
    with pytest.raises(NameError, match="SCALE"):
        compiled(X)
    monkeypatch.undo()
    assert torch.equal(compiled(X), X * 2)


def test_global_that_shadows_a_builtin(monkeypatch):
    steps = Steps(lambda x, values: x + sum(values))
    steps.agree(X, [1, 2], frames=1)
    monkeypatch.setitem(globals(), "sum", lambda values: 100)
    steps.agree(X, [1, 2], frames=2)
    monkeypatch.undo()
    steps.agree(X, [1, 2], frames=2)


# Functions


def helper(x, scale=2, *, shift=3):
    return x * scale + shift


def other_helper(x, scale=2, *, shift=3):
    return x - scale - shift


def calls_helper(x):
    return helper(x)


def test_function_replaced(monkeypatch):
    steps = Steps(calls_helper)
    steps.agree(X, frames=1)
    monkeypatch.setitem(globals(), "helper", other_helper)
    steps.agree(X, frames=2)
    monkeypatch.undo()
    steps.agree(X, frames=2)


def test_function_defaults_changed(monkeypatch):
    steps = Steps(calls_helper)
    steps.agree(X, frames=1)
    monkeypatch.setattr(helper, "__defaults__", (9,))
    steps.agree(X, frames=2)
    monkeypatch.setattr(helper, "__defaults__", (2, 9))
    steps.agree(X, frames=3)
    monkeypatch.undo()
    monkeypatch.setattr(helper, "__kwdefaults__", {"shift": 30})
    steps.agree(X, frames=4)
    monkeypatch.undo()
    steps.agree(X, frames=4)


def test_function_code_changed(monkeypatch):
    steps = Steps(calls_helper)
    steps.agree(X, frames=1)
    monkeypatch.setattr(helper, "__code__", other_helper.__code__)
    steps.agree(X, frames=2)
    monkeypatch.undo()
    steps.agree(X, frames=2)


def multiplier(factor):
    def multiply(x):
        return x * factor

    def change(value):
        nonlocal factor
        factor = value

    return multiply, change


def test_closure_cell_changed():
    multiply, change = multiplier(2)
    steps = Steps(multiply)
    through = Steps(lambda x: multiply(x))
    for frames, factor in enumerate([2, 3, 3.0, torch.full((4,), 5.0)], start=1):
        change(factor)
        steps.agree(X, frames=frames)
        through.agree(X, frames=frames)


def test_function_argument():
    changes(
        lambda x, function: function(x),
        (X, multiplier(2)[0]),
        (X, multiplier(3)[0]),
        (X, lambda x: x + 1),
        (X, torch.sin),
        (X, torch.cos),
        (X, functools.partial(helper, scale=4)),
        (X, functools.partial(helper, scale=5)),
    )


def test_an_equal_function_needs_no_new_program():
    is_one_program(lambda x, function: function(x), (X, multiplier(2)[0]), (X, multiplier(2)[0]))


# Classes and objects


def make_class():
    class Shift:
        by = 3

        def __init__(self):
            self.own = 1

        def method(self, x, scale=2):
            return x * scale + self.by

        @staticmethod
        def static(x):
            return x * 2

        @classmethod
        def of_class(cls, x):
            return x * cls.by

        @property
        def twice(self):
            return self.by * 2

        def __len__(self):
            return 2

        def __add__(self, other):
            return 5

    return Shift


USES = {
    "method": lambda x, o: o.method(x),
    "static": lambda x, o: o.static(x),
    "of_class": lambda x, o: o.of_class(x),
    "twice": lambda x, o: x + o.twice,
    "__len__": lambda x, o: x + len(o),
    "__add__": lambda x, o: x + (o + 1),
    "by": lambda x, o: x + o.by,
}
PATCHES = {
    "method": lambda self, x: x - 1,
    "static": staticmethod(lambda x: x - 1),
    "of_class": classmethod(lambda cls, x: x - 1),
    "twice": property(lambda self: 100),
    "__len__": lambda self: 9,
    "__add__": lambda self, other: 9,
    "by": 9,
}


@pytest.mark.parametrize("name", USES)
def test_patched_on_the_class(name):
    cls = make_class()
    steps = Steps(USES[name])
    original = cls.__dict__[name]
    steps.agree(X, cls(), frames=1)
    setattr(cls, name, PATCHES[name])
    steps.agree(X, cls(), frames=2)
    setattr(cls, name, original)
    steps.agree(X, cls(), frames=2)


@pytest.mark.parametrize("name", USES)
def test_patched_on_a_subclass(name):
    cls = type("Sub", (make_class(),), {})
    steps = Steps(USES[name])
    steps.agree(X, cls(), frames=1)
    setattr(cls, name, PATCHES[name])
    steps.agree(X, cls(), frames=2)


def test_removed_from_the_class():
    cls = make_class()
    program = bothways.compile(USES["__add__"])
    assert torch.equal(program(X, cls()), X + 5)
    del cls.__add__
    with pytest.raises(TypeError, match="unsupported operand"):
        program(X, cls())


def test_patched_on_the_instance():
    owner = make_class()()
    steps = Steps(USES["method"])
    steps.agree(X, owner, frames=1)
    owner.method = lambda x: x - 7
    steps.agree(X, owner, frames=2)
    del owner.method
    steps.agree(X, owner, frames=2)


def test_code_and_defaults_of_a_method_changed():
    owner = make_class()()
    function = type(owner).method
    steps = Steps(USES["method"])
    steps.agree(X, owner, frames=1)
    function.__defaults__ = (5,)
    steps.agree(X, owner, frames=2)
    function.__code__ = (lambda self, x, scale: x - scale).__code__
    steps.agree(X, owner, frames=3)


MISSING = {
    "hasattr": (lambda x, o: x + hasattr(o, "extra"), "extra", 1),
    "getattr": (lambda x, o: x + getattr(o, "extra", 4), "extra", 1),
    "truth": (lambda x, o: x + bool(o), "__bool__", lambda self: False),
    "equality": (lambda x, o: x + (o == 3), "__eq__", lambda self, other: True),
    "__getattr__": (lambda x, o: x + getattr(o, "extra", 4), "__getattr__", lambda self, name: 8),
}


@pytest.mark.parametrize("question", MISSING)
def test_added_to_the_class(question):
    program, name, attribute = MISSING[question]
    cls = make_class()
    steps = Steps(program)
    steps.agree(X, cls(), frames=1)
    setattr(cls, name, attribute)
    steps.agree(X, cls(), frames=2)


def test_attribute_read():
    owner = make_class()()
    steps = Steps(lambda x, o: x + o.own)
    steps.agree(X, owner, frames=1)
    owner.own = 2
    steps.agree(X, owner, frames=2)
    owner.own = 2.0
    steps.agree(X, owner, frames=3)
    owner.own = torch.ones(4)
    steps.agree(X, owner, frames=4)
    owner.own = 1
    steps.agree(X, owner, frames=4)


def test_class_of_an_object():
    base = make_class()
    derived = type("Derived", (base,), {"by": 8})
    changes(lambda x, o: x + o.by, (X, base()), (X, derived()))


def test_another_object_of_the_class_needs_no_new_program():
    cls = make_class()
    is_one_program(lambda x, o: o.method(x) + o.own, (X, cls()), (X, cls()))


# Modules


def test_module_training_flag():
    module = nn.Dropout(0.0)
    steps = Steps(lambda x: module(x) + module.training)
    steps.agree(X, frames=1)
    module.eval()
    steps.agree(X, frames=2)
    module.train()
    steps.agree(X, frames=2)


def test_module_parameters_may_change_their_content_but_not_their_shape():
    module = nn.Linear(4, 4)
    steps = Steps(lambda x: module(x))
    steps.agree(X, frames=1)
    with torch.no_grad():
        module.weight.mul_(2)
    steps.agree(X, frames=1)
    module.weight = nn.Parameter(torch.ones(5, 4))
    module.bias = nn.Parameter(torch.ones(5))
    steps.agree(X, frames=2)


def test_module_submodule_replaced():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    steps = Steps(lambda x: module(x))
    steps.agree(X, frames=1)
    module[1] = nn.Sigmoid()
    steps.agree(X, frames=2)


def test_module_hook_added_and_removed():
    module = nn.Linear(4, 4)
    steps = Steps(lambda x: module(x))
    steps.agree(X, frames=1)
    handle = module.register_forward_hook(lambda module, args, output: output * 2)
    steps.agree(X, frames=2)
    handle.remove()
    steps.agree(X, frames=2)
