"""Tensors of classes of the user's: what operations on them give, and who is asked."""

import pytest
import torch

import bothways

BACKENDS = ("eager", "aot_eager", "native")
SEEN = []


class Tagged(torch.Tensor):
    """Says what it is asked to do."""

    scale = 3

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append((func, types))
        return super().__torch_function__(func, types, args, kwargs)

    def twice(self):
        return self * 2

    @property
    def half(self):
        return self / 2

    def __mod__(self, other):
        return "mod"


class Inheriting(torch.Tensor):
    """Has the default handler."""


class Silent(torch.Tensor):
    """Has no say: what is computed from it is a plain tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def twice(self):
        return self * 2


def many_kinds(x, y):
    a = x + y
    b = a.twice() * x.half + x.scale
    c = torch.nn.functional.relu(b)
    c.note = 5
    return c, c.sum(), x.shape, torch.stack([c, y]), type(a), x.size(0), c.split(2), c % 2, len(c), c[1:], 1 - c


def plain_kinds(x, y):
    a = x + y
    b = torch.relu(a)[1:]
    u, v = b.max(dim=0)
    return a, b, u, v, y.as_subclass(type(x)), x.detach(), isinstance(a, type(x))


def shown(result):
    if isinstance(result, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return type(result), result.tolist(), result.requires_grad, dict(result.__dict__)
    return [shown(item) for item in result] if isinstance(result, (tuple, list)) else result


def run(function, *args):
    SEEN.clear()
    result = function(*args)
    return shown(result), list(SEEN), result


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("function", "cls"), [(many_kinds, Tagged), (plain_kinds, Tagged), (plain_kinds, Inheriting), (plain_kinds, Silent)]
)
def test_classes_have_their_say_as_in_eager(function, cls, requires_grad, backend):
    leaf, y = torch.randn(4, requires_grad=requires_grad), torch.randn(4)
    x = leaf.as_subclass(cls)
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, asked, eager = run(function, x, y)
        actual, asked_compiled, result = run(compiled, x, y)
        assert actual == expected and asked_compiled == asked
        if requires_grad:
            SEEN.clear()
            with torch._C.DisableTorchFunction():
                grads = [torch.autograd.grad(values[0].sum(), leaf, retain_graph=True)[0] for values in (eager, result)]
            torch.testing.assert_close(*grads)
            assert SEEN == []
    if function is plain_kinds:
        assert shown(compiled(y, y)) == shown(plain_kinds(y, y))
    assert len(bothways.explain(compiled).programs) == 1 + (function is plain_kinds)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_of_a_class_of_its_own(backend):
    class Weight(torch.nn.Parameter):
        def norm_of(self):
            return self.abs().sum()

    model = torch.nn.Linear(3, 3)
    model.weight = Weight(model.weight.data)
    x = torch.randn(2, 3)

    def function(model, x):
        return model(x) / model.weight.norm_of(), type(model.weight * 1)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        grads = []
        for each in (function, compiled):
            model.zero_grad()
            result, kind = each(model, x)
            result.sum().backward()
            grads.append(model.weight.grad)
            assert kind is torch.Tensor
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_of_the_class_is_changed_in_place(backend):
    def function(x):
        x.add_(1)
        x[0] = 7
        return x * 2

    x, y = torch.zeros(3).as_subclass(Tagged), torch.zeros(3).as_subclass(Tagged)
    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        expected, asked, _ = run(function, x)
        actual, asked_compiled, _ = run(compiled, y)
        assert actual == expected and asked_compiled == asked and shown(x) == shown(y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_a_class_are_made_inside(backend):
    class Made(torch.Tensor):
        @staticmethod
        def __new__(cls, data, note):
            return torch.Tensor._make_subclass(cls, data)

        def __init__(self, data, note):
            self.note = note

    def function(x):
        first = Made(x, "first")
        second = Inheriting(x * 2)
        return first, second, first + 1, (second + 1).as_subclass(torch.Tensor), first.note

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    x = torch.randn(3)
    for _ in range(2):
        assert shown(compiled(x)) == shown(function(x))


def test_the_class_may_change():
    class Open(torch.Tensor):
        pass

    def function(x):
        return x.sigmoid()

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x = torch.zeros(2).as_subclass(Open)
    assert compiled(x).tolist() == [0.5, 0.5]
    Open.sigmoid = lambda self: "mine"
    assert compiled(x) == "mine"


def test_operators_of_a_class_come_first():
    class Odd(torch.Tensor):
        def __add__(self, other):
            return "left"

        def __radd__(self, other):
            return "right"

        def __getitem__(self, key):
            return key

        def __len__(self):
            return 17

        def __neg__(self):
            return "minus"

    def function(x, y):
        return x + y, y + x, x[3], len(x), -x, 1 + x

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    x, y = torch.ones(2).as_subclass(Odd), torch.ones(2)
    assert compiled(x, y) == function(x, y) == ("left", "right", 3, 17, "minus", "right")


def test_objects_that_are_no_tensors_have_a_say():
    class Wrapper:
        def __init__(self, tensor):
            self.tensor = tensor

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            plain = [arg.tensor if isinstance(arg, Wrapper) else arg for arg in args]
            return Wrapper(func(*plain, **(kwargs or {})))

    def function(x, y):
        return torch.add(x, 1).tensor, torch.mul(y, x).tensor, (y * x).tensor

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for value in (1.0, 2.0):
        x, y = Wrapper(torch.full((2,), value)), torch.ones(2)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert len(bothways.explain(compiled).programs) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_that_dispatch_run_as_plain_python(backend):
    class Doubled(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            plain = [arg.inner if isinstance(arg, Doubled) else arg for arg in args]
            return Doubled(func(*plain, **(kwargs or {})) * 2)

    def function(x, y):
        return (x + y).inner, y * 2, Doubled(y).inner

    compiled = bothways.compile(function, backend=backend)
    x, y = Doubled(torch.ones(2)), torch.ones(2)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), function(x, y))
    torch.testing.assert_close(
        bothways.compile(lambda x: x + 1, backend=backend)(torch.ones(2)), torch.full((2,), 2.0)
    )


def test_hooks_and_gradients_of_a_tensor_of_the_class():
    def function(x):
        x.grad = torch.ones(2)
        x.register_hook(lambda grad: grad * 3)
        return (x * 2).sum()

    grads = []
    for each in (function, bothways.compile(function, backend="eager")):
        x = torch.ones(2).as_subclass(Tagged).detach().requires_grad_()
        each(x).backward()
        with torch._C.DisableTorchFunction():
            grads.append(x.grad.tolist())
    assert grads[0] == grads[1]


def test_custom_functions_see_the_class():
    class Kind(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * (2 if isinstance(x, Tagged) else 3)

        @staticmethod
        def backward(ctx, grad):
            return grad

    def function(x):
        return Kind.apply(x) + 1

    compiled = bothways.compile(function, backend="eager")
    for x in (torch.ones(2), torch.ones(2).as_subclass(Tagged)):
        assert shown(compiled(x)) == shown(function(x))


def test_a_handler_that_is_a_plain_method_runs_as_plain_python():
    class Old:
        def __init__(self, value):
            self.value = value

        def __torch_function__(self, func, types, args=(), kwargs=None):
            return self.value, func

    def function(x):
        return torch.add(x, 1)

    compiled = bothways.compile(function, backend="eager")
    with pytest.warns(UserWarning, match="plain method"):
        assert compiled(Old(3)) == (3, torch.add)
    assert compiled(torch.ones(1)).item() == 2
