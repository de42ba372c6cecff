"""What ``apply`` may be given: constants, containers, named tuples and objects that hold tensors.

Only tensors that are arguments themselves get gradients. Bodies see the user's own objects, and another object in
the place of one must not find its program.
"""

import collections
import dataclasses
import enum
import types
from typing import NamedTuple

import pytest
import torch
from custom_functions import BACKENDS, agree, inputs, node_of, observed
from seeding import seeded
from torch.autograd import Function

import bothways
from bothways.testing import difference

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Constants(Function):
    @staticmethod
    def forward(ctx, x, color, shape, dtype, nothing, text, cls):
        assert nothing is None and text == "text" and issubclass(cls, Exception)
        ctx.color = color
        return (x.sin() if color is Color.RED else x.cos()).reshape(shape).to(dtype)

    @staticmethod
    def backward(ctx, grad):
        factor = 3 if ctx.color is Color.RED else 5
        return grad.float().reshape(2, 3) * factor, None, None, None, None, None, None


def test_constants_enums_sizes_dtypes_and_classes(backend):
    def program(x, color):
        return Constants.apply(x, color, (3, 2), torch.float64, None, "text", ValueError)

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for color in (Color.RED, Color.BLUE, Color.RED):
        make_args = lambda color=color: [*inputs(), color]  # noqa: E731
        assert difference(observed(program, make_args, []), observed(compiled, make_args, [])) is None


class Weighted(Function):
    """Tensors in a list, a tuple and a dictionary; none of them gets a gradient."""

    @staticmethod
    def forward(ctx, x, listed, paired, named):
        ctx.save_for_backward(listed[0], paired[1], named["bias"])
        return x * listed[0] * paired[1] + named["bias"] * named["scale"]

    @staticmethod
    def backward(ctx, grad):
        first, second, _ = ctx.saved_tensors
        return grad * first * second, None, None, None


def test_tensors_inside_containers_get_no_gradient(backend):
    def make_args():
        x, a, b, c = inputs((3,), (3,), (3,), (3,))
        return [x, [a, 2], (1, b), {"bias": c, "scale": 4}]

    compiled = agree(lambda *args: Weighted.apply(*args), backend, make_args)
    assert not node_of(compiled).opaque
    agree(lambda x, *args: Weighted.apply(x, [x.sin()], (0, x.cos()), {"bias": x, "scale": 2}), backend, make_args)


class Point(NamedTuple):
    weight: torch.Tensor
    power: int


def test_a_named_tuple_arrives_as_one(backend):
    class Powered(Function):
        @staticmethod
        def forward(ctx, x, point):
            assert type(point) is Point
            ctx.save_for_backward(point.weight)
            ctx.power = point.power
            return x * point.weight**point.power

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] ** ctx.power, None

    agree(lambda x, y: Powered.apply(x, Point(y * 2, 3)), backend, lambda: inputs((3,), (3,)))
    agree(lambda x, point: Powered.apply(x, point), backend, lambda: [inputs((3,))[0], Point(*inputs((3,)), 2)])


@dataclasses.dataclass
class Settings:
    factor: float
    weight: torch.Tensor


class Slots:
    __slots__ = ("factor", "weight")

    def __init__(self, factor, weight):
        self.factor, self.weight = factor, weight


class WithObject(Function):
    @staticmethod
    def forward(ctx, x, settings, z):
        ctx.save_for_backward(settings.weight)
        ctx.settings = settings
        return x * settings.weight * settings.factor

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return grad * weight * ctx.settings.factor, None, grad * 2


@pytest.mark.parametrize("kind", [Settings, Slots, lambda f, w: types.SimpleNamespace(factor=f, weight=w)])
def test_an_object_that_holds_tensors(backend, kind):
    def make_args(factor=2.0):
        x, weight, z = inputs((3,), (3,), (3,))
        return [x, kind(factor, weight), z]

    def program(x, settings, z):
        return WithObject.apply(x * 2, settings, z).sin()

    compiled = agree(program, backend, make_args)
    other = lambda: make_args(5.0)  # noqa: E731
    assert difference(observed(program, other, []), observed(compiled, other, [])) is None


def test_an_object_that_changes_before_the_backward_runs(backend):
    results = []
    for function in (WithObject.apply, bothways.compile(lambda *args: WithObject.apply(*args), backend=backend)):
        x, weight, z = inputs((3,), (3,), (3,))
        settings = Settings(2.0, weight)
        output = function(x, settings, z)
        settings.factor = 7.0
        output.sum().backward()
        results.append((output, x.grad, z.grad, weight.grad))
    assert difference(*results) is None


def test_an_object_made_inside(backend):
    def program(x, weight, z):
        return WithObject.apply(x, Settings(3.0, weight), z)

    agree(program, backend, lambda: inputs((3,), (3,), (3,)))


def test_an_object_that_holds_a_result_of_the_graph_runs_as_python(backend):
    def program(x, weight, z):
        return WithObject.apply(x, Settings(3.0, weight * 2), z)

    agree(program, backend, lambda: inputs((3,), (3,), (3,)), fullgraph=False, captures=2)


def test_several_different_objects_beside_lists(backend):
    class Mixed(Function):
        @staticmethod
        def forward(ctx, x, settings, z, listed):
            ctx.save_for_backward(settings.weight, *listed)
            return x.clone() * settings.weight * listed[0]

        @staticmethod
        def backward(ctx, grad):
            weight, first, _ = ctx.saved_tensors
            return grad * weight * first, None, grad * 2, None

    def make_args():
        x, weight, z, a, b = inputs((3,), (3,), (3,), (3,), (3,))
        return [x, Settings(1.0, weight), z, [a, b]]

    agree(lambda *args: Mixed.apply(*args), backend, make_args)


def test_a_module_and_a_function_as_arguments(backend):
    class Through(Function):
        @staticmethod
        def forward(ctx, x, module, function):
            ctx.module = module
            return function(module(x))

        @staticmethod
        def backward(ctx, grad):
            return grad @ ctx.module.weight, None, None

    linear = torch.nn.Linear(3, 3)

    def double(value):
        return value * 2

    agree(lambda x: Through.apply(x, linear, double), backend)


def test_an_object_capture_cannot_look_into_is_passed_on(backend):
    class Carries(Function):
        @staticmethod
        def forward(ctx, x, generator):
            ctx.generator = generator
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.rand(3, generator=ctx.generator), None

    def make_args():
        return [*inputs((3,)), seeded(3)]

    agree(lambda x, generator: Carries.apply(x, generator), backend, make_args, fullgraph=False, captures=2)


class KeepsList(Function):
    @staticmethod
    def forward(ctx, x, factors):
        ctx.factors = factors
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        for factor in ctx.factors:
            grad = grad * factor
        return grad, None


def test_a_list_that_ctx_keeps_is_the_users_own(backend):
    results = []
    for function in (KeepsList.apply, bothways.compile(lambda *args: KeepsList.apply(*args), backend=backend)):
        for _ in range(2):
            (x,) = inputs((3,))
            factors = [2, 3]
            output = function(x, factors)
            factors.append(5)
            output.sum().backward()
            results.append((output, x.grad))
    assert all(difference(results[0], result) is None for result in results)
    agree(lambda x: KeepsList.apply(x, [2, 3]), backend)


def test_a_list_that_the_function_changes_afterwards(backend):
    def program(x, factors):
        y = KeepsList.apply(x, factors)
        factors.append(7)
        return y

    agree(program, backend, lambda: [*inputs((3,)), [2, 3]], fullgraph=False, captures=2)


@pytest.mark.parametrize("change", [lambda c: c.append(4), lambda c: c.pop(), lambda c: c.reverse()])
def test_a_forward_that_changes_a_list_it_is_given(backend, change):
    class Changes(Function):
        @staticmethod
        def forward(ctx, x, listed):
            change(listed)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 3, None

    def run(function):
        listed = [1, 2, 3]
        (x,) = inputs((3,))
        function(x, listed).sum().backward()
        return listed, x.grad

    compiled = bothways.compile(lambda x, listed: Changes.apply(x, listed), backend=backend)
    for _ in range(2):
        assert difference(run(Changes.apply), run(compiled)) is None


def test_one_tensor_given_twice_is_one_tensor(backend):
    class SameOrNot(Function):
        @staticmethod
        def forward(ctx, x, y, listed):
            return x * 2 if x is y and listed[0] is x else x * 3

        @staticmethod
        def backward(ctx, grad):
            return grad * 5, grad * 7, None

    agree(lambda x, y: SameOrNot.apply(x, x, [x]), backend, lambda: inputs((3,), (3,)))
    agree(lambda x, y: SameOrNot.apply(x, y, [x]), backend, lambda: inputs((3,), (3,)))
    compiled = bothways.compile(lambda x, y: SameOrNot.apply(x, y, [x]), backend=backend)
    x, y = inputs((3,), (3,))
    assert torch.equal(compiled(x, x), x * 2)
    assert torch.equal(compiled(x, y), x * 3)


def test_ordered_dictionaries_and_deep_nesting(backend):
    class Deep(Function):
        @staticmethod
        def forward(ctx, x, tree):
            (key, (first, rest)), *_ = tree.items()
            return x * first * rest[0]["deep"] if key == "b" else x

        @staticmethod
        def backward(ctx, grad):
            return grad * 3, None

    def make_args():
        x, a, b = inputs((3,), (3,), (3,))
        return [x, collections.OrderedDict(b=(a, [{"deep": b}]), a=(1, 2))]

    agree(lambda x, tree: Deep.apply(x, tree), backend, make_args)


def test_another_kind_of_argument_is_no_hit(backend):
    class Kind(Function):
        @staticmethod
        def forward(ctx, x, other):
            return x * (2 if other is None else 3 if isinstance(other, int) else len(other))

        @staticmethod
        def backward(ctx, grad):
            return grad * 2, None

    compiled = bothways.compile(lambda x, other: Kind.apply(x, other), backend=backend, fullgraph=True)
    x = torch.ones(2)
    for other in (None, 1, [1, 2, 3, 4], (1,), {"a": 1, "b": 2}, "text!", None, [1]):
        assert difference(compiled(x, other), Kind.apply(x, other)) is None


class Tripled(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


class Halved(Tripled):
    @staticmethod
    def forward(ctx, x):
        return x / 2


def test_apply_itself_is_an_argument(backend):
    compiled = bothways.compile(lambda apply, x: apply(x.sin()) + 1, backend=backend, fullgraph=True)
    for _ in range(3):  # each time another object, which does the same
        for cls in (Tripled, Halved):
            runs = []
            for function in (lambda apply, x: apply(x.sin()) + 1, compiled):
                (x,) = inputs((3,))
                result = function(cls.apply, x)
                result.sum().backward()
                runs.append((result.detach(), x.grad))
            assert difference(*runs) is None
    assert len(bothways.history(compiled)) == 2


def test_apply_is_returned_compared_and_stored(backend):
    kept = []

    def program(x):
        kept.append(Tripled.apply)
        same = (Tripled.apply == kept[0], Halved.apply == Tripled.apply, Tripled.apply is Tripled.apply)
        return Tripled.apply(x), Halved.apply, Halved.apply.__qualname__, type(Halved.apply), same

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    (x,) = inputs((3,))
    for _ in range(2):
        result, apply, *others = compiled(x)
        expected = program(x)
        assert torch.equal(result, expected[0])
        assert (apply, *others) == expected[1:]
        assert torch.equal(apply(x), x / 2)
    assert kept == [Tripled.apply] * 4
