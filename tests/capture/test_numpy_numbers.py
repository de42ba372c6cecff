"""Numbers of NumPy: kept in attributes, computed by ``np.sqrt`` and the like, given by callers, returned."""

import math
import warnings

import numpy as np
import pytest
import torch

import bothways
from bothways.testing import RecordGraphs, same

BACKENDS = ["eager", "aot_eager", "native"]
X = torch.arange(12.0).reshape(3, 4) / 10
LOG2 = np.log(2.0)
sqrt = np.sqrt


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(X.clone())
        self.scale, self.rows, self.gain = np.sqrt(8.0), np.int64(4), np.float32(0.3)

    def forward(self, x):
        return (x * self.weight / self.scale).reshape(self.rows, -1) * self.gain


@pytest.mark.parametrize("backend", BACKENDS)
def test_attributes_of_a_module(backend):
    module = Scaled()
    compiled = bothways.compile(module, backend=backend, fullgraph=True)
    for gain in (0.3, 0.3, 0.7):
        module.gain = np.float32(gain)
        expected, result = module(X), compiled(X)
        assert same(result, expected)
        gradients = [torch.autograd.grad(y.sum(), module.weight)[0] for y in (expected, result)]
        assert torch.allclose(*gradients)


def attention_scale(x):
    return x / np.sqrt(x.shape[-1])


def parts(x):
    return x.reshape(int(np.ceil(x.shape[0] / 2)), -1)


def flat(x):
    return x.view(np.prod(x.shape))


def from_the_left(x):
    return LOG2 * x - np.float64(2) / (1 + x) + (np.float32(0.5) < x) + np.int64(3) // (1 + x)


def of_whole_numbers(x):
    y = x.long() + 1
    return y * np.float32(0.5), y * np.int64(2), np.int64(2) ** y, y == np.int64(1), y + np.float64(0.5)


def decided(x):
    return x + 1 if np.isnan(0.5) or np.float64(2) > 3 else x - 1


def a_name_of_the_module(x):
    return x * sqrt(3) + np.clip(7, 0, 5) + np.maximum(1, 2.5)


def returned(x):
    root = np.sqrt(x.shape[-1])
    return x + 1, root, root * 2, 2 - np.int64(1), type(root), isinstance(root, float), str(root), root.item()


PROGRAMS = [
    attention_scale, parts, flat, from_the_left, of_whole_numbers, decided, a_name_of_the_module, returned,
]  # fmt: skip


def with_types(result):
    items = result if isinstance(result, tuple) else (result,)
    return [(type(item), getattr(item, "dtype", None)) for item in items]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_numpy_makes_of_constants_is_a_constant(program, backend):
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for x in (X, X, X.reshape(4, 3)):
        expected, result = program(x), compiled(x)
        assert same(result, expected) and with_types(result) == with_types(expected)


def test_there_is_one_graph():
    recorded = RecordGraphs()
    compiled = bothways.compile(attention_scale, backend=recorded, fullgraph=True)
    assert same(compiled(X), attention_scale(X)) and same(compiled(X), attention_scale(X))
    assert recorded.only.ops == ["truediv"]


def test_sizes_that_change_are_no_program_each():
    compiled = bothways.compile(lambda x: x / np.sqrt(x.shape[0]) + np.prod(x.shape), backend="eager")
    for rows in range(2, 20):
        x = torch.ones(rows, 3)
        assert same(compiled(x), x / np.sqrt(rows) + np.prod(x.shape))
    assert not bothways.explain(compiled).plain_from_now_on


def test_numbers_that_callers_change_are_no_program_each():
    def function(x, factor):
        return x.exp() * factor + 1

    compiled = bothways.compile(function, backend="eager")
    for kind in (np.float64, np.float32, np.int64):
        for number in (1, 1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11, 12):
            assert same(compiled(X, kind(number)), function(X, kind(number)))
    assert not bothways.explain(compiled).plain_from_now_on


def test_a_number_of_another_type_or_sign_is_another_one():
    def function(x, number):
        return x.float() * number, torch.copysign(x, torch.full_like(x, number)), str(type(number)), str(number)

    compiled = bothways.compile(function, backend="eager")
    numbers = [np.float32(0.0), np.float32(-0.0), np.float32("nan"), np.float64(0.0), 0.0, np.float64(1.0), np.int64(1)]
    for number in [*numbers, *numbers]:
        expected, result = function(X, number), compiled(X, number)
        assert same(result, expected) and result[2:] == expected[2:]


def test_a_truth_of_numpys_promotes_as_it_does():
    def function(x):
        return x.long() * np.isnan(0.5) + x

    compiled = bothways.compile(function, backend="eager")
    for _ in range(2):
        assert same(compiled(X), function(X)) and compiled(X).dtype is function(X).dtype


def test_what_warns_warns_at_each_call():
    def function(x):
        return x + np.log(0.0)

    compiled = bothways.compile(function, backend="eager")
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            assert same(compiled(X), function(X))


def test_what_makes_arrays_is_left_to_python():
    def function(x):
        return x * float(np.sqrt([4.0, 9.0]).sum())

    compiled = bothways.compile(function, backend="eager")
    for _ in range(2):
        assert same(compiled(X), function(X))


def test_after_a_break_a_function_that_waits_is_called():
    def function(x):
        return x * np.sqrt(x.sum().item()) + 1

    compiled = bothways.compile(function, backend="eager")
    for x in (X, X, X + 1, X + 2):
        assert same(compiled(x), function(x))


def schedule(x, step, total):
    """The strength of a reversed gradient, as papers write it, and what else is made of it."""
    progress = float(step) / total
    alpha = 2.0 / (1.0 + np.exp(-10 * progress)) - 1
    beta = alpha * alpha + np.float64(1) - alpha / 3
    others = max(alpha, 0.0), -alpha, abs(alpha), alpha.item(), round(alpha, 3), int(alpha * 5 + 9)
    return x * alpha + beta, alpha, beta, float(alpha), type(beta), alpha > 2, *others


def ramp(x, step, total):
    step = np.clip(step, 0.0, total)
    weight = 10.0 * float(np.exp(-5.0 * (1.0 - step / total) ** 2))
    return x * weight, weight


def mixed(x, share, total):
    rest = 1 - share
    return x * share + x.flip(0) * rest, share, rest, share * share, total * share, share / total, share > 90


def of_sizes(x, step, total):
    return x / np.sqrt(len(x)) + np.float32(step), np.log(len(x))


def agrees(program, compiled, calls):
    for args in calls:
        expected, result = program(*args), compiled(*args)
        assert same(result, expected) and with_types(result) == with_types(expected), args


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [schedule, ramp, mixed])
def test_numbers_that_change_with_a_step_are_one_program(program, backend):
    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    agrees(program, compiled, [(X, step, 50) for step in (1, 2, 3, 4, 7, 11, 16, 22, 29, 37, 46)])
    assert len(bothways.history(compiled)) == 2


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, np.int32])
def test_numbers_that_callers_change_are_one_program(kind):
    compiled = bothways.compile(mixed, backend="eager", fullgraph=True)
    agrees(mixed, compiled, [(X, kind(1.7 * number), 3) for number in range(2, 14)])
    assert len(bothways.history(compiled)) == 2


def of_several(x, w, v, others):
    share, rest = w / v, (w - others["rest"]) / (v + 1)
    longest = math.hypot(share + others["rest"], rest)
    return x * share + rest, share, rest, np.sqrt(w * w + v * v), longest, share * share - rest, max(w, v)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_numbers_made_of_several_that_callers_change_are_one_program(kind, backend):
    compiled = bothways.compile(of_several, backend=backend, fullgraph=True)
    numbers = [(kind(1.7 * one), kind(1.9 * one + 4), {"rest": kind(30 - one)}) for one in range(2, 14)]
    agrees(of_several, compiled, [(X, *each) for each in numbers])
    assert len(bothways.history(compiled)) == 2
    different = [(kind(2), 3.5, {"rest": kind(1)}), (np.float32(2), kind(3), {"rest": 4}), (3.5, 2, {"rest": kind(0)})]
    agrees(of_several, compiled, [(X, *each) for each in different])
    with pytest.raises(KeyError, match="rest"):
        compiled(X, kind(2), kind(3), {})


def test_numbers_that_are_doubled_again_and_again_are_constants_in_the_end():
    def function(x, w, v):
        for _ in range(20):
            w, v = w + v, w - v / 2
        return x * w + v, w

    compiled = bothways.compile(function, backend="eager")
    agrees(function, compiled, [(X, np.float64(one), np.float64(one + 0.5)) for one in range(5)])


def test_functions_of_two_sizes_that_change_are_one_program():
    def function(x, y):
        return x[: math.ceil(x.shape[0] / y.shape[0])].sum() / math.sqrt(x.shape[0] * y.shape[0])

    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    sizes = [(9, 4), (20, 3), (33, 5), (40, 7), (50, 8), (61, 9), (70, 11), (90, 20)]
    agrees(function, compiled, [(torch.ones(rows, 2), torch.ones(parts, 2)) for rows, parts in sizes])
    assert len(bothways.history(compiled)) == 2


def test_sizes_that_change_go_through_numpy():
    compiled = bothways.compile(of_sizes, backend="eager", fullgraph=True)
    agrees(of_sizes, compiled, [(torch.ones(rows, 3), rows / 7, 1) for rows in range(2, 14)])
    assert len(bothways.history(compiled)) == 2


def test_gradients_reversed_as_strongly_as_a_step_says():
    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad.neg() * ctx.alpha, None

    def step(x, number):
        weight.grad = None
        alpha = 2.0 / (1.0 + np.exp(-number / 4)) - 1
        loss = (Reversed.apply(x * weight, alpha) * 2).sum()
        loss.backward()
        return loss.detach(), weight.grad.clone(), alpha

    weight = torch.ones(3, 4, requires_grad=True)
    compiled = bothways.compile(step, backend="eager")
    agrees(step, compiled, [(X, number) for number in range(1, 12)])
    assert len(bothways.history(compiled)) <= 4


def test_where_numpy_warns_it_warns_at_each_call():
    def function(x, number):
        return x + np.log(number - 5)

    compiled = bothways.compile(function, backend="eager")
    for number in (6, 7, 8, 5, 9, 5, 10):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            expected = function(X, number)
            before = len(caught)
            assert same(compiled(X, number), expected)
        assert len(caught) == 2 * before == 2 * (number == 5)


def test_a_number_of_numpys_is_compared_by_value_where_it_has_to_be_known():
    def function(x, rows):
        return x[:rows].sum(), [1, 2, 3][rows], {1: "one"}.get(rows), f"{rows}", list(range(rows))

    compiled = bothways.compile(function, backend="eager")
    agrees(function, compiled, [(X, np.int64(rows)) for rows in (1, 2, 1, 0, 2, 1, 0)])
