"""Functions, methods, classes and code that are replaced after a function was compiled: the next call notices.

Each case is called plain and compiled: before, while the definition is replaced, and after it was put back, where the
first program is found again.
"""

import abc
import builtins
import collections.abc
import copy
import functools
import importlib
import inspect
import math
import pickle
import random
import sys
import textwrap
import types
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from pythons import run_python
from torch import nn

import bothways
from bothways.capture.guards import replaced
from bothways.capture.guards.replaced import is_read_here, reads
from bothways.runtime.stamps import MISSING, BodiesStamp, Body, NamesStamp
from bothways.testing import CompileCounter, same

X = torch.linspace(-1.0, 1.0, 6)
LINEAR = nn.Linear(6, 3)
NORM = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.GELU())
OPTIMIZER = torch.optim.SGD(LINEAR.parameters(), lr=0.0)


def hundredfold(value, *_, **__):
    return value * 100


def drawn(x):
    state = random.getstate()
    result = x + random.random()
    random.setstate(state)
    return result


# What is replaced -> a program that depends on it, and what stands in its place.
CASES = {
    "torch.sin": (lambda x: torch.sin(x), hundredfold),
    "torch.nn.functional.relu": (lambda x: F.relu(x), hundredfold),
    "torch.nn.functional.linear": (lambda x: LINEAR(x), hundredfold),
    "torch.nn.functional.softmax": (lambda x: F.softmax(x, 0), hundredfold),
    "torch.Tensor.sin": (lambda x: x.sin(), hundredfold),
    "torch.Tensor.__add__": (lambda x: x + 1, hundredfold),
    "torch.Tensor.__rmul__": (lambda x: 2 * x, hundredfold),
    "torch.Tensor.__neg__": (lambda x: -x, hundredfold),
    "torch.Tensor.__getitem__": (lambda x: x[1:], hundredfold),
    "torch.Tensor.__matmul__": (lambda x: x @ x, hundredfold),
    "torch.Tensor.shape": (lambda x: x * x.shape[0], property(lambda self: (7,))),
    "torch.Tensor.relu": (lambda x: x.relu(), torch.Tensor.sigmoid),
    "torch.nn.Linear.forward": (lambda x: LINEAR(x), lambda self, x: x * 100),
    "torch.nn.LayerNorm.forward": (lambda x: NORM(x), lambda self, x: x * 100),
    "torch.nn.Module.__call__": (lambda x: NORM(x), lambda self, x: x * 100),
    "torch.nn.Module._call_impl": (lambda x: NORM(x), lambda self, x: x * 100),
    "math.sqrt": (lambda x: x * math.sqrt(4), lambda value: 7.0),
    "math.pi": (lambda x: x * math.pi, 3),
    "random.random": (drawn, lambda: 7.0),
    "builtins.len": (lambda x: x * len((1, 2)), lambda value: 7),
    "builtins.abs": (lambda x: x * abs(-2), lambda value: 7),
    "builtins.isinstance": (lambda x: x * (2 if isinstance(x, torch.Tensor) else 3), lambda *_: False),
}


def check(program, patch, *, backend="eager", same=torch.equal):
    compiled = bothways.compile(program, backend=backend)
    for _ in range(2):
        assert same(compiled(X), program(X))
    programs = len(bothways.explain(compiled).programs)
    with patch:
        for _ in range(2):
            assert same(compiled(X), program(X)), "the replaced definition was not noticed"
    changed = len(bothways.explain(compiled).programs)
    for _ in range(2):
        assert same(compiled(X), program(X)), "the definition that was put back was not noticed"
    assert len(bothways.explain(compiled).programs) == changed, "the first program was not found again"
    return compiled, changed - programs


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", CASES)
def test_a_definition_is_replaced(name, backend):
    program, other = CASES[name]
    check(program, mock.patch(name, other), backend=backend, same=functools.partial(torch.allclose, atol=1e-6))


def test_a_program_is_made_for_what_was_put_there():
    counter = CompileCounter()
    compiled = bothways.compile(lambda x: torch.sin(x) + 1, backend=counter)
    compiled(X)
    with mock.patch("torch.sin", torch.cos):
        assert torch.equal(compiled(X), torch.cos(X) + 1)
        assert counter.frame_count == 2
        compiled(X)
    compiled(X)
    assert counter.frame_count == 2
    (reason,) = bothways.explain(compiled).recompilations
    assert reason == "torch.sin was replaced"


@pytest.mark.parametrize(
    ("module", "name", "program"),
    [
        (torch, "sin", lambda x: torch.sin(x)),  # bothways has a function of that name
        (torch, "copysign", lambda x: torch.copysign(x, x)),  # and calls one of math's
        (torch, "linspace", lambda x: torch.linspace(0, 1, 6) + x),
        (F, "linear", lambda x: F.linear(x, x[None])),  # and one of ATen's
        (F, "softmax", lambda x: F.softmax(x, 0)),
    ],
)
def test_namesakes_of_what_was_replaced_stand_in_no_way(module, name, program):
    """The numbers of the reference dialect have functions called like PyTorch's; they are other functions."""
    importlib.import_module("bothways.lower.dialects.reference.dialect")
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    compiled(X)
    with mock.patch.object(module, name, lambda *args, **kwargs: X * 7):
        for _ in range(2):
            assert torch.equal(compiled(X), program(X))
        assert counter.frame_count == 2


@pytest.mark.parametrize("name", ["compile", "load", "save", "fork", "exp"])
def test_what_libraries_replace_and_bothways_does_not_call_stands_in_no_way(name):
    """Lightning wraps torch.compile when it is imported; scripts wrap torch.load, to say what weights_only is."""
    counter = CompileCounter()
    compiled = bothways.compile(lambda x: x.sin() + 1, backend=counter)
    with mock.patch.object(torch, name, lambda *args, **kwargs: None):
        for _ in range(2):
            assert torch.equal(compiled(X), X.sin() + 1)
        assert counter.frame_count == 1
    assert bothways.explain(compiled).breaks == []


def test_what_bothways_calls_itself_is_asked_of_modules_that_are_loaded_later(monkeypatch):
    assert not is_read_here("linspace", torch)
    late = types.ModuleType("bothways.loaded_later")
    exec("import torch\ndef draw(): return torch.linspace(0, 1, 6)", vars(late))
    monkeypatch.setitem(sys.modules, late.__name__, late)
    late.draw.__module__ = late.__name__
    assert is_read_here("linspace", torch)
    compiled = bothways.compile(lambda x: torch.linspace(0, 1, 6) + x)
    with mock.patch.object(torch, "linspace", lambda *args: X * 7):
        assert torch.equal(compiled(X), X * 8)
    (broken,) = bothways.explain(compiled).breaks
    assert broken.code == "builtin_replaced"


WHERE_FUNCTIONS_STAND = {
    "a name": "def draw(): return torch.linspace(0, 1, 6)",
    "a method": "class Drawer:\n    def draw(self): return torch.linspace(0, 1, 6)",
    "a class method": "class Drawer:\n    @classmethod\n    def draw(cls): return torch.linspace(0, 1, 6)",
    "a property": "class Drawer:\n    @property\n    def draw(self): return torch.linspace(0, 1, 6)",
    "a row of a table": "TABLE = {'draw': [(1, lambda: torch.linspace(0, 1, 6))]}",
    "a decorator": "@functools.cache\ndef draw(): return torch.linspace(0, 1, 6)",
    "a function inside": "def outer():\n    def draw(): return torch.linspace(0, 1, 6)\n    return draw",
}


@pytest.mark.parametrize("text", WHERE_FUNCTIONS_STAND.values(), ids=WHERE_FUNCTIONS_STAND)
def test_what_bothways_calls_itself_is_found_wherever_it_stands(text, monkeypatch):
    """Another module that has it, too, and was looked at before makes no difference."""
    names = {"torch": torch, "functools": functools, "__name__": "bothways.the_second"}
    exec(text, names)
    for name in ("bothways.the_first", "bothways.the_second"):
        module = types.ModuleType(name)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, name, module)
    for remembered in (replaced._readers, replaced._is_read):  # as many modules were loaded in the case before
        remembered.cache_clear()
    assert is_read_here("linspace", torch)
    assert not is_read_here("logspace", torch)


def read_by(text, name, module=None, **names):
    namespace = {"torch": torch, "math": math, **names}
    exec(text, namespace)
    return reads((namespace["function"].__code__, namespace), name, module)


def test_whose_name_a_code_reads():
    assert read_by("def function(x): return torch.sin(x)", "sin", torch)
    assert read_by("def function(x): return torch.nn.functional.relu(x)", "relu", F)
    assert not read_by("def function(x): return x.sin()", "sin", torch)
    assert read_by("def function(x): from torch import sin; return sin(x)", "sin", torch)
    assert read_by("def function(x): return one_of(torch, math).sin(x)", "sin", torch)  # it may be either
    assert read_by("def function(x): return x.sin()", "sin")
    assert read_by("def function(x): return torch.Tensor.sin(x)", "sin")
    assert read_by("def function(x): alias = torch; return alias.sin(x)", "sin", torch)
    assert not read_by("def function(x): return math.sin(x)", "sin", torch)
    assert not read_by("def function(x): return sin(x)", "sin", torch, sin=math.sin)
    assert not read_by("def function(x): return torch.ops.aten.sin(x)", "sin", torch)
    assert not read_by("def function(x): return torch.sin(x)", "sin")
    assert not read_by("def function(x): return torch.relu(x)", "relu", F)


def test_other_names_of_the_same_module_may_change():
    counter = CompileCounter()
    compiled = bothways.compile(lambda x: torch.sin(x), backend=counter)
    compiled(X)
    with mock.patch("torch.cos", torch.sin), mock.patch.object(torch, "a_new_name", 1, create=True):
        compiled(X)
    assert counter.frame_count == 1


def test_a_mock_is_called_each_time():
    compiled = bothways.compile(lambda x: torch.sin(x) * 2)
    compiled(X)
    with mock.patch("torch.sin", return_value=X) as stands_in:
        assert torch.equal(compiled(X), X * 2)
        assert torch.equal(compiled(X), X * 2)
    assert stands_in.call_count == 2
    assert torch.allclose(compiled(X), X.sin() * 2)


def test_a_method_that_is_added_to_tensors_is_python_like_any_other():
    calls = []

    def twice(self):
        calls.append(self.shape)
        return self * 2

    def program(x):
        return x.twice() if hasattr(x, "twice") else x

    compiled = bothways.compile(program)
    assert torch.equal(compiled(X), X)
    with mock.patch.object(torch.Tensor, "twice", twice, create=True):
        for _ in range(3):
            assert torch.equal(compiled(X), X * 2)
        assert calls == [X.shape] * 3
    assert torch.equal(compiled(X), X)


def test_a_name_that_was_looked_for_in_vain():
    def program(x):
        return x * 2 if hasattr(torch, "a_new_name") else x

    check(program, mock.patch.object(torch, "a_new_name", 1, create=True))


def test_a_setting_that_a_module_computes():
    def program(x):
        return x * 2 if torch.backends.cudnn.enabled else x * 3

    check(program, torch.backends.cudnn.flags(enabled=False))


def test_a_module_that_is_imported_inside():
    def program(x):
        import math

        return x * math.floor(2.5)

    other = types.ModuleType("math")
    other.floor = lambda value: 7
    check(program, mock.patch.dict(sys.modules, math=other))


class Replaced:
    """Sets an attribute that ``mock.patch`` would first delete, such as the code of a function."""

    def __init__(self, owner, name, value):
        self.owner, self.name, self.value = owner, name, value

    def __enter__(self):
        self.before = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.value)

    def __exit__(self, *_):
        setattr(self.owner, self.name, self.before)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    ("function", "other", "program"),
    [
        (F.relu, lambda input, inplace=False: input * 100, lambda x: F.relu(x)),
        (F.relu, lambda input, inplace=False: input * 100, lambda x: nn.ReLU()(x)),
        (nn.Linear.forward, lambda self, input: input * 100, lambda x: LINEAR(x)),
        (torch.Tensor.norm, lambda self, *args, **kwargs: self * 100, lambda x: x.norm()),
        (torch.norm, lambda *args, **kwargs: args[0] * 100, lambda x: x.norm()),
    ],
)
def test_the_code_of_a_library_function_is_replaced(function, other, program, backend):
    code = other.__code__.replace(co_freevars=(), co_name=function.__name__)
    given = types.FunctionType(code, function.__globals__)
    with pytest.MonkeyPatch.context() as patched:
        compiled = bothways.compile(program, backend=backend)
        assert torch.allclose(compiled(X), program(X))
        patched.setattr(function, "__code__", given.__code__)
        assert torch.allclose(compiled(X), program(X))
        patched.undo()
        assert torch.allclose(compiled(X), program(X))


def test_the_defaults_of_a_library_function_are_replaced():
    check(lambda x: F.leaky_relu(x), Replaced(F.leaky_relu, "__defaults__", (0.5, False)))


def test_keyword_defaults_are_changed_where_they_are():
    def scaled(x, *, by=2.0):
        return x * by

    class Scaling:
        def __call__(self, x):
            return scaled(x)

    check(lambda x: Scaling()(x), mock.patch.dict(scaled.__kwdefaults__, by=3.0))


# The compiled function's own code and defaults


def test_the_code_of_the_function_itself_is_replaced(monkeypatch):
    def program(x, scale=2.0):
        return x * scale

    def other(x, scale=2.0):
        return x - scale

    compiled = bothways.compile(program)
    for _ in range(2):
        assert torch.equal(compiled(X), program(X))
    monkeypatch.setattr(program, "__code__", other.__code__)
    for _ in range(2):
        assert torch.equal(compiled(X), X - 2)
    monkeypatch.undo()
    assert torch.equal(compiled(X), X * 2)


def test_the_function_itself_takes_other_arguments_from_now_on(monkeypatch):
    def program(x, scale):
        return x * scale

    compiled = bothways.compile(program)
    assert torch.equal(compiled(X, 3.0), X * 3)
    monkeypatch.setattr(program, "__code__", (lambda left, right: left + right).__code__)
    assert torch.equal(compiled(X, 3.0), X + 3)
    assert torch.equal(compiled(left=X, right=4.0), X + 4)
    with pytest.raises(TypeError, match="scale"):
        compiled(X, scale=1.0)


def test_the_defaults_of_the_function_itself_are_replaced(monkeypatch):
    def program(x, scale=2.0, shift=0.0, *, by=1.0):
        return x * scale * by + shift

    compiled = bothways.compile(program)
    assert torch.equal(compiled(X), program(X))
    monkeypatch.setattr(program, "__defaults__", (5.0, 7.0))
    for _ in range(2):
        assert torch.equal(compiled(X), X * 5 + 7)
        assert torch.equal(compiled(X, 3.0), X * 3 + 7)
        assert torch.equal(compiled(X, shift=1.0), X * 5 + 1)
    monkeypatch.setattr(program, "__kwdefaults__", {"by": 2.0})
    assert torch.equal(compiled(X), X * 10 + 7)
    monkeypatch.undo()
    for _ in range(2):
        assert torch.equal(compiled(X), X * 2)


def stop_capturing(compiled):
    compiled.__bothways__.dispatcher.stop_capturing()


@pytest.mark.parametrize("calls_before", [0, 1])
@pytest.mark.parametrize(
    "road",
    [
        stop_capturing,
        lambda compiled: bothways.set_stance("force_eager"),
        lambda compiled: bothways.set_stance(force_backend="eager"),
        lambda compiled: bothways.set_stance("eager_on_recompile"),
    ],
)
def test_defaults_are_replaced_on_every_road(road, calls_before, monkeypatch):
    def program(x, scale=2.0, *, by=1.0):
        return x * scale * by

    compiled = bothways.compile(program)
    try:
        for _ in range(calls_before):
            compiled(X)
        road(compiled)
        assert torch.equal(compiled(X), X * 2)
        monkeypatch.setattr(program, "__defaults__", (5.0,))
        for _ in range(3):
            assert torch.equal(compiled(X), X * 5)
            assert torch.equal(compiled(X, by=2.0), X * 10)
        with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
            compiled(X, other=1)
    finally:
        bothways.set_stance("default")


def test_parameters_and_defaults_go_away(monkeypatch):
    def program(x, flag=True):
        return x * 2 if flag else x

    compiled = bothways.compile(program)
    compiled(X)
    monkeypatch.setattr(program, "__defaults__", None)
    for _ in range(2):
        with pytest.raises(TypeError, match="flag"):
            compiled(X)
    assert torch.equal(compiled(X, False), X)
    monkeypatch.setattr(program, "__code__", (lambda x: x * 3).__code__)
    for _ in range(2):
        assert torch.equal(compiled(X), X * 3)


def test_defaults_go_and_come_back():
    def program(x, by=2.0):
        return x * by

    compiled = bothways.compile(program)
    compiled(X)
    for defaults in (None, (5.0,), None, (6.0,)):
        program.__defaults__ = defaults
        for _ in range(2):
            if defaults is None:
                with pytest.raises(TypeError, match="by"):
                    compiled(X)
            else:
                assert torch.equal(compiled(X), X * defaults[0])
    assert bothways.explain(compiled).programs
    bothways.reset()
    assert torch.equal(compiled(X), X * 6)


# References that were taken before a name was replaced, and mocks.

SINE, METHOD = torch.sin, torch.Tensor.sin


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("calls_before", [0, 2])
def test_what_was_taken_before_is_not_replaced(backend, calls_before):
    for program, name in ((lambda x: SINE(x) + 1, "torch.sin"), (lambda x: METHOD(x) + 1, "torch.Tensor.sin")):
        compiled = bothways.compile(program, backend=backend)
        for _ in range(calls_before):
            assert torch.allclose(compiled(X), X.sin() + 1)
        with mock.patch(name, hundredfold):
            for _ in range(2):
                assert torch.allclose(compiled(X), program(X))
        assert torch.allclose(compiled(X), X.sin() + 1)


def helped(x):
    return x + 1


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("calls_before", [0, 1])
def test_mocks_that_say_what_they_stand_for(backend, calls_before):
    this = sys.modules[__name__]
    patches = {
        lambda x: helped(x) * 2: lambda: mock.patch.object(this, "helped", autospec=True, return_value=X),
        lambda x: F.relu(x) * 2: lambda: mock.patch.object(F, "relu", autospec=True, return_value=X),
        lambda x: LINEAR(x) * 2: lambda: mock.patch.object(nn.Linear, "forward", autospec=True, return_value=X),
        lambda x: torch.sin(x) * 2: lambda: mock.patch("torch.sin", autospec=True, return_value=X),
    }
    for program, patch in patches.items():
        compiled = bothways.compile(program, backend=backend)
        for _ in range(calls_before):
            assert same(compiled(X), program(X))
        with patch() as stand_in:
            for count in (1, 2):
                assert torch.equal(compiled(X), X * 2)
                assert stand_in.call_count == count
        assert torch.allclose(compiled(X), program(X))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_method_of_tensors_that_an_operation_calls(backend):
    program = lambda x: F.softmax(x, 0)
    check(program, mock.patch.object(torch.Tensor, "softmax", hundredfold), backend=backend, same=torch.allclose)


def test_a_module_s_own_way_to_its_members(monkeypatch):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return x * self.weight

    class Hundredfold(Model):
        def __getattr__(self, name):
            return super().__getattr__(name) * 100

    for model in (Hundredfold(), Model()):
        compiled = bothways.compile(model)
        assert same(compiled(X), model(X))
        with mock.patch.object(nn.Module, "__getattr__", lambda self, name: self._parameters[name] * 7):
            assert same(compiled(X), model(X))
        assert same(compiled(X), model(X))


def test_zeros_of_both_signs_are_two_constants():
    with mock.patch.object(torch, "a_zero", 0.0, create=True):
        compiled = bothways.compile(lambda x: x.sign() / (x * 0 + torch.a_zero + 0.0).copysign(x * 0 + torch.a_zero))
        compiled(X)
        with mock.patch.object(torch, "a_zero", -0.0):
            assert len(bothways.explain(compiled).programs) == 1
            compiled(X)
            assert len(bothways.explain(compiled).programs) == 2


def test_a_compiled_method_s_class_is_patched(monkeypatch):
    class Model(nn.Module):
        def forward(self, x):
            return x * 2

    model = Model()
    compiled = bothways.compile(model)
    assert torch.equal(compiled(X), X * 2)
    monkeypatch.setattr(Model, "forward", lambda self, x: x * 3)
    assert torch.equal(compiled(X), model(X))
    monkeypatch.undo()
    assert torch.equal(compiled(X), X * 2)


# Abstract classes


class Shape(abc.ABC):  # noqa: B024
    """Has no method: it is what others say of themselves."""


def test_a_class_is_registered_with_an_abstract_one():
    class Square:
        pass

    class Circle:
        pass

    square = Square()

    def program(x):
        return x * 2 if isinstance(square, Shape) else x * 3

    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter)
    assert torch.equal(compiled(X), X * 3)
    Shape.register(Circle)
    assert torch.equal(compiled(X), X * 3)
    assert counter.frame_count == 1
    Shape.register(Square)
    assert torch.equal(compiled(X), X * 2)
    assert torch.equal(compiled(X), X * 2)
    assert counter.frame_count == 2


def test_issubclass_asks_again():
    class Table:
        pass

    def program(x):
        return x * 2 if issubclass(Table, collections.abc.Mapping) else x * 3

    compiled = bothways.compile(program)
    assert torch.equal(compiled(X), X * 3)
    collections.abc.Mapping.register(Table)
    assert torch.equal(compiled(X), X * 2)


# Training


def test_an_optimizer_s_step_is_replaced(monkeypatch):
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def update(x):
        optimizer.step()
        return x + 1

    compiled = bothways.compile(update)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = model.weight.detach().clone()
    compiled(X)
    assert torch.equal(model.weight.detach(), before - 0.5)
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: None)
    compiled(X)
    assert torch.equal(model.weight.detach(), before - 0.5)
    monkeypatch.undo()
    compiled(X)
    assert torch.equal(model.weight.detach(), before - 0.5 - 0.5)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradients_follow_what_was_put_there(backend):
    def program(x):
        return torch.sin(x).sum()

    compiled = bothways.compile(program, backend=backend)
    gradients = []
    for function in (torch.sin, torch.cos, torch.sin):
        with mock.patch("torch.sin", function):
            x = X.clone().requires_grad_()
            compiled(x).backward()
            gradients.append(x.grad)
    assert torch.allclose(gradients[0], X.cos())
    assert torch.allclose(gradients[1], -X.sin())
    assert torch.allclose(gradients[2], X.cos())


class ScaledBySine(torch.autograd.Function):
    """Its backward reads a name that is replaced between the forward and the backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * torch.sin(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("in_c", [True, False])
def test_a_backward_that_was_traced_notices_when_it_runs(backend, in_c):
    def program(x):
        return ScaledBySine.apply(x).sum()

    with bothways.config.patch(guards_in_c=in_c, kernels_for_small_graphs=True):
        compiled = bothways.compile(program, backend=backend)
        for function in (torch.sin, torch.cos, torch.sin):
            x = X.clone().requires_grad_()
            loss = compiled(x)
            with mock.patch("torch.sin", function):
                loss.backward()
            assert torch.allclose(x.grad, function(X))


# Stamps


@pytest.mark.parametrize("in_c", [True, False])
def test_guards_in_python_notice_the_same(in_c):
    with bothways.config.patch(guards_in_c=in_c):
        check(lambda x: torch.sin(x), mock.patch("torch.sin", hundredfold))
        check(lambda x: LINEAR(x), mock.patch("torch.nn.Linear.forward", lambda self, x: x * 100))
        check(lambda x: F.leaky_relu(x), Replaced(F.leaky_relu, "__defaults__", (0.5, False)))


def test_a_stamp_holds_while_its_names_are_the_same_objects():
    names = {"one": len, "two": 1.5}
    stamp = NamesStamp("names", names, {"one": len, "two": 1.5, "three": MISSING})
    assert stamp.holds()
    names["four"] = 4
    assert stamp.holds()
    names["two"] = 3.0 / 2
    assert stamp.holds()
    names["three"] = 3
    assert not stamp.holds() and stamp.changed() == "names.three"
    del names["three"]
    names["one"] = max
    assert not stamp.holds() and stamp.changed() == "names.one"


def test_a_stamp_of_a_class_notices_what_is_added():
    class Example:
        method = len

    stamp = NamesStamp.of_class(Example, ("ignored",))
    assert stamp.holds()
    Example.ignored = 1
    assert Example.__annotations__ == {}  # Python makes them now
    assert stamp.holds()
    Example.other = 1
    assert not stamp.holds() and stamp.changed().endswith("Example.other")
    del Example.other
    assert stamp.holds()


def test_a_stamp_of_bodies():
    def function(a, b=1, *, c=2):
        return a

    stamp = BodiesStamp((Body.of(function),))
    assert stamp.holds()
    function.__defaults__ = (2,)
    assert not stamp.holds() and "function" in stamp.changed()


def test_builtins_that_people_do_replace_leave_the_rest_alone():
    counter = CompileCounter()
    compiled = bothways.compile(lambda x: x.sin(), backend=counter)
    with mock.patch.object(builtins, "print", lambda *_: None):
        compiled(X)
    compiled(X)
    assert counter.frame_count == 1


def test_what_python_writes_into_classes_replaces_nothing(monkeypatch):
    """Pickling and deep copies leave ``__slotnames__`` in the classes of what they met."""

    class Layer(nn.Module):
        def forward(self, x):
            return x[: len(x) - 1] * 2

    for cls in (torch.Tensor, nn.Parameter, nn.Module, nn.Linear):
        monkeypatch.delattr(cls, "__slotnames__", raising=False)
    model, counter = nn.Sequential(nn.Linear(6, 6), Layer()), CompileCounter()
    compiled = bothways.compile(model, backend=counter)
    compiled(torch.ones(3, 6))
    copied = copy.deepcopy(model)
    pickle.loads(pickle.dumps([*copied.parameters(), torch.ones(2)]))
    inspect.get_annotations(nn.Linear)
    compiled(torch.ones(3, 6))
    assert counter.frame_count == 1
    for size in (4, 5, 7):
        assert same(compiled(torch.ones(size, 6)), model(torch.ones(size, 6)))
    assert counter.frame_count == 2


def test_loading_another_compiler_does_not_compile_a_module_again():
    script = """
        import torch, bothways
        from bothways.testing import CompileCounter, same
        counter = CompileCounter()
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        compiled = bothways.compile(lambda x: model(x), backend=counter)
        compiled(torch.ones(3))
        import torch._dynamo
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
        compiled(torch.ones(3))
        assert counter.frame_count == 1, bothways.explain(compiled).recompilations
    """
    run_python(["-c", textwrap.dedent(script)], check=True)


def test_names_that_only_tools_for_tests_read_may_be_replaced(monkeypatch):
    """``torch._dynamo`` replaces this one when it is imported."""
    original = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda seed: original(seed))
    double = bothways.compile(lambda x: x * 2, fullgraph=True, backend="eager")
    assert torch.equal(double(torch.ones(2)), torch.full((2,), 2.0))
