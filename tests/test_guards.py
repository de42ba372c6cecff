"""Guards: what a program relied on must be checked, and nothing else.

Every test calls once to capture, again to hit, and then with something changed: what was relied on makes a new
program and the right answer; what was not relied on makes none.
"""

import collections
import functools

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import bothways
from bothways.testing import CompileCounter

X = torch.arange(4.0)


def changes(program, first, *others):
    """Each of the other arguments needs a program of its own; the first one, and each again, does not."""
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    seen = []
    for args in (first, *others):
        frames = counter.frame_count
        assert repr(compiled(*args)) == repr(program(*args))
        assert counter.frame_count == frames + 1, f"{args} hit a program made for {seen}"
        assert repr(compiled(*args)) == repr(program(*args))
        assert counter.frame_count == frames + 1, f"{args} did not hit its own program"
        seen.append(args)
    assert repr(compiled(*first)) == repr(program(*first))
    assert counter.frame_count == len(seen)


def is_one_program(program, *calls):
    """All the calls give the right answer from one program."""
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    for args in calls:
        assert repr(compiled(*args)) == repr(program(*args))
    assert counter.frame_count == 1


class Steps:
    """A compiled program and its frame count, for changes that are no arguments."""

    def __init__(self, program):
        self.program, self.counter = program, CompileCounter()
        self.compiled = bothways.compile(program, backend=self.counter)

    def agree(self, *args, frames):
        for _ in range(2):
            assert repr(self.compiled(*args)) == repr(self.program(*args))
        assert self.counter.frame_count == frames


# Tensors


def facts(x):
    y = x * 2
    return y, y.dtype, y.shape, x.stride(), y.requires_grad


TENSORS = {
    "type": (torch.ones(3), nn.Parameter(torch.ones(3), requires_grad=False)),
    "dtype": (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int32)),
    "device": (torch.ones(3), torch.ones(3, device="meta")),
    "rank": (torch.ones(4), torch.ones(2, 2), torch.ones(4, 1), torch.tensor(1.0)),
    "sizes": (torch.ones(3, 4), torch.ones(4, 3), torch.ones(0, 4), torch.ones(4, 0)),
    "strides": (torch.ones(3, 4), torch.ones(4, 3).t(), torch.ones(3, 8)[:, ::2], torch.ones(3, 1).expand(3, 4)),
    "strides of one row": (torch.ones(1, 4), torch.ones(4, 1).t(), torch.ones(1, 1).expand(1, 4)),
    "requires_grad": (torch.ones(3), torch.ones(3, requires_grad=True)),
}


@pytest.mark.parametrize("fact", TENSORS)
def test_tensor(fact):
    changes(facts, *[(tensor,) for tensor in TENSORS[fact]])


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (0, 4)], ids=str)
def test_tensor_layout(shape):
    compiled = bothways.compile(lambda x: x * 2)
    dense = torch.ones(shape)
    assert torch.equal(compiled(dense), dense * 2)
    sparse = dense.to_sparse()
    assert compiled(sparse).is_sparse
    assert torch.equal(compiled(sparse).to_dense(), dense * 2)


def test_tensor_subclass_is_not_taken_for_a_tensor():
    class Tagged(torch.Tensor):
        pass

    compiled = bothways.compile(lambda x: x * 2)
    assert type(compiled(X)) is torch.Tensor
    assert type(compiled(X.as_subclass(Tagged))) is Tagged


@pytest.mark.parametrize("other", [3, 2.5, "ab", None, [1], (1,), {}], ids=repr)
def test_what_is_no_tensor_is_not_taken_for_one(other):
    def program(x):
        return x if x is None or isinstance(x, dict) else x * 2

    compiled = bothways.compile(program)
    assert torch.equal(compiled(X), X * 2)
    assert compiled(other) == program(other)


def test_tensor_content_is_not_guarded():
    is_one_program(lambda x: x * 2, (torch.ones(3),), (torch.zeros(3),), (torch.full((3,), float("nan")),))


def test_whether_a_tensor_is_a_leaf():
    leaf = torch.ones(3, requires_grad=True)
    changes(lambda x: (x.detach() * 2, x.is_leaf), (leaf,), (leaf * 1,))


def test_gradient_of_a_tensor():
    steps = Steps(lambda x: x.detach() + 1 if x.grad is None else x.detach() + x.grad)
    leaf = torch.ones(3, requires_grad=True)
    steps.agree(leaf, frames=1)
    leaf.grad = torch.full((3,), 5.0)
    steps.agree(leaf, frames=2)


def test_attribute_of_a_tensor():
    steps = Steps(lambda x: x + getattr(x, "shift", 0))
    tensor = torch.ones(3)
    steps.agree(tensor, frames=1)
    tensor.shift = 2
    steps.agree(tensor, frames=2)
    tensor.shift = 3
    steps.agree(tensor, frames=3)


# Interpreter state


def test_grad_mode():
    steps = Steps(lambda x: ((x * 2).requires_grad, torch.is_grad_enabled(), x.detach() * 2))
    x = torch.ones(3, requires_grad=True)
    steps.agree(x, frames=1)
    with torch.no_grad():
        steps.agree(x, frames=2)
    steps.agree(x, frames=2)


def test_inference_mode():
    steps = Steps(lambda x: ((x * 2).is_inference(), x * 2))
    steps.agree(X, frames=1)
    with torch.inference_mode():
        steps.agree(X, frames=2)
    steps.agree(X, frames=2)


def test_autocast():
    steps = Steps(lambda x: ((x @ x).dtype, torch.is_autocast_enabled("cpu"), x * 2))
    x = torch.ones(3, 3)
    steps.agree(x, frames=1)
    with torch.autocast("cpu", torch.bfloat16):
        steps.agree(x, frames=2)
    with torch.autocast("cpu", torch.float16):
        steps.agree(x, frames=3)
    steps.agree(x, frames=3)


def test_default_dtype():
    steps = Steps(lambda x: torch.ones(3) + torch.arange(3))
    steps.agree(X, frames=1)
    torch.set_default_dtype(torch.float64)
    try:
        steps.agree(X, frames=2)
    finally:
        torch.set_default_dtype(torch.float32)
    steps.agree(X, frames=2)


def test_deterministic_algorithms():
    steps = Steps(lambda x: x + torch.are_deterministic_algorithms_enabled())
    steps.agree(X, frames=1)
    torch.use_deterministic_algorithms(True)
    try:
        steps.agree(X, frames=2)
    finally:
        torch.use_deterministic_algorithms(False)


def test_torch_function_mode():
    class CountCalls(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            CountCalls.calls += 1
            return function(*args, **(kwargs or {}))

    counter = CompileCounter()
    compiled = bothways.compile(lambda x: x * 2, backend=counter)
    compiled(X)
    with CountCalls():
        for _ in range(5):
            compiled(X)
    assert CountCalls.calls == 5, "the mode sees what it would see of the plain function"
    compiled(X)
    compiled(torch.ones(3))
    assert counter.frame_count == 2, "calls under a mode are no reason to give up"


# Python values


def shown(x, value):
    return x + 1, repr(value), type(value).__name__


VALUES = {
    "int": (1, 2, -1, 10**30),
    "bool": (True, False),
    "float": (1.0, 2.5, float("inf"), float("-inf")),
    "zero": (0.0, -0.0, 0, False),
    "one": (1, True, 1.0, 1 + 0j),
    "complex": (1j, complex(0.0, -1.0), complex(-0.0, 1.0)),
    "str": ("a", "b", ""),
    "bytes": (b"a", b"b", "a"),
    "None": (None, 0, "None", False),
    "dtype": (torch.float32, torch.float64),
    "range": (range(3), range(1, 3), range(0, 6, 2)),
    "tuple": ((1, 2), (2, 1), (1, 2, 3), (1, True), [1, 2]),
    "list": ([1, 2], [2, 1], [1], [1.0, 2]),
    "dict": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": 1, "b": 3}),
    "keys": ({1: "x"}, {True: "x"}, {1.0: "x"}),
    "class": (int, bool, float),
    "slice": (slice(1), slice(1, None), slice(None, 1, 2)),
}


@pytest.mark.parametrize("kind", VALUES)
def test_value(kind):
    changes(shown, *[(X, value) for value in VALUES[kind]])


def test_nan_equals_itself_here():
    nan = float("nan")
    is_one_program(shown, (X, nan), (X, nan), (X, float("nan")))


def test_type_of_a_container():
    changes(
        lambda x, d: (x + 1, type(d).__name__, len(d)),
        (X, {"a": 1}),
        (X, collections.OrderedDict(a=1)),
        (X, collections.defaultdict(int, a=1)),
    )


def test_length():
    changes(lambda x, values: x + len(values), (X, [1, 2]), (X, [1, 2, 3]), (X, []))


def test_presence_of_a_key():
    changes(lambda x, d: x + ("a" in d), (X, {"a": 1}), (X, {}))


def test_a_key_that_is_gone_raises_as_in_python():
    compiled = bothways.compile(lambda x, d: x + d["a"])
    assert torch.equal(compiled(X, {"a": 1}), X + 1)
    with pytest.raises(KeyError, match="a"):
        compiled(X, {})
    assert torch.equal(compiled(X, collections.defaultdict(lambda: 7)), X + 7)


# Aliasing


def test_the_same_tensor_twice():
    def program(x, y):
        x.add_(1)
        return x + y

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3), torch.ones(3)), torch.full((3,), 3.0))
        both = torch.ones(3)
        assert torch.equal(compiled(both, both), torch.full((3,), 4.0))
    assert counter.frame_count == 2


def test_the_same_list_twice():
    def program(x, a, b):
        a.append(1)
        return x + len(b)

    for first_is_shared in (True, False):
        compiled = bothways.compile(program)
        for is_shared in (first_is_shared, not first_is_shared, first_is_shared):
            a = []
            b = a if is_shared else []
            assert torch.equal(compiled(X, a, b), X + (1 if is_shared else 0))


class Plain:
    pass


ONE, OTHER = Plain(), Plain()
IDENTITIES = {
    "list": ([1], [1]),
    "dict": ({}, {}),
    "object": (ONE, OTHER),
    "function": (lambda: 1, lambda: 1),
    "tensor": (torch.ones(2), torch.ones(2)),
}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_identity(kind):
    one, other = IDENTITIES[kind]
    changes(lambda x, a, b: x + (a is b), (X, one, other), (X, one, one))
    changes(lambda x, a, b: x + (a is b), (X, one, one), (X, one, other))


def test_identity_in_equality_and_containment():
    changes(lambda x, a, b: x + (a == b), (X, ONE, OTHER), (X, ONE, ONE))
    changes(lambda x, a, b: x + (a in b), (X, ONE, [OTHER]), (X, ONE, [ONE]))
    changes(lambda x, a, b: x + b.index(a), (X, ONE, [OTHER, ONE]), (X, ONE, [ONE, OTHER]))
    changes(lambda x, a, b: x + (a in b), (X, ONE, {OTHER: 1}), (X, ONE, {ONE: 1}))


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


# What is not relied on


@pytest.mark.parametrize("value", [1, "a", None, X, [1], {}, int], ids=lambda value: type(value).__name__)
def test_an_argument_that_is_only_passed_on(value):
    is_one_program(lambda x, y: x + 1, (X, 0), (X, value))
    is_one_program(lambda x, y: (x + 1, y), (X, 0), (X, value))
    is_one_program(lambda x, y: {"sum": x + 1, "rest": [y]}, (X, 0), (X, value))


def test_whether_it_is_none_says_nothing_else():
    is_one_program(lambda x, y: x + 1 if y is None else x - 1, (X, X), (X, torch.ones(9)), (X, 3), (X, "a"))


def test_elements_nobody_reads():
    is_one_program(lambda x, values: x + values[0], (X, [1, 2]), (X, [1, "b"]), (X, [1]), (X, [1, 2, 3]))


def test_keys_nobody_reads():
    is_one_program(lambda x, d: x + d["a"], (X, {"a": 1}), (X, {"b": 2, "a": 1}), (X, {"a": 1, "c": X}))
    is_one_program(lambda x, d: x + d.get("a", 0), (X, {}), (X, {"b": 2}))


def test_attributes_nobody_reads():
    one, other = make_class()(), make_class()()
    cls = make_class()
    one, other = cls(), cls()
    other.extra = 7
    is_one_program(lambda x, o: x + o.own, (X, one), (X, other))


def test_a_list_that_is_only_appended_to():
    def program(x, values):
        values.append(x + 1)

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    values = []
    for _ in range(3):
        compiled(X, values)
    assert [value.tolist() for value in values] == [(X + 1).tolist()] * 3
    assert counter.frame_count == 1


def test_a_dictionary_that_is_only_stored_into():
    def program(x, d):
        d["sum"] = x + 1

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    for d in ({}, {"a": 1}, {"sum": 0}):
        compiled(X, d)
        assert torch.equal(d["sum"], X + 1)
    assert counter.frame_count == 1


def test_an_attribute_that_is_only_stored():
    def program(x, o):
        o.sum = x + 1

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    owner = Plain()
    for _ in range(3):
        compiled(X, owner)
        assert torch.equal(owner.sum, X + 1)
    assert counter.frame_count == 1


def test_globals_nobody_reads(monkeypatch):
    steps = Steps(lambda x: x + 1)
    steps.agree(X, frames=1)
    monkeypatch.setitem(globals(), "SCALE", 9)
    steps.agree(X, frames=1)
