"""Kernels give eager's zeros, infinities and NaNs, whatever they meet: special_values.py says what that is."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from special_values import (
    DIVIDE,
    DTYPES,
    NOT_TRIED,
    calls_of,
    compared,
    differences,
    inputs_of,
    kernels_run,
    name_of,
    numbers,
    tried,
)

import bothways
from bothways.lower.dialects.c.dialect import C
from bothways.lower.dialects.reference.dialect import Reference
from bothways.lower.ir.lowerings import LOWERINGS

QUICK = [target for target in LOWERINGS if not name_of(target).startswith("_foreach")]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def name(dtype):
    return str(dtype).removeprefix("torch.")


def test_every_operation_that_kernels_compute_is_tried():
    left = {word for words in NOT_TRIED.values() for word in words.split()}
    reached = set()
    for dtype in (torch.float32, torch.int64):
        for _, calls in tried(dtype).values():
            reached.update(call.target for call, _ in calls)
    assert sorted(str(target) for target in LOWERINGS if target not in reached and name_of(target) not in left) == []
    assert left <= {name_of(target) for target in LOWERINGS}


def test_special_values_of_single_precision():
    found, count = differences(torch.float32, QUICK)
    assert found == []
    assert count > 700


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_special_values(dtype):
    assert differences(dtype)[0] == []


# The oracle --------------------------------------------------------------------------------------------------------

ORACLE = [torch.float32, *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in DTYPES[1:])]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", ORACLE, ids=name)
def test_special_values_of_the_reference_dialect(dtype):
    """What other dialects are compared with gives eager's special values itself."""
    found, count = differences(dtype, QUICK if dtype == torch.float32 else LOWERINGS, Reference(), most=1)
    assert found == []
    assert count > 300


def disagreements(dtype, targets=LOWERINGS):
    """What the dialects make otherwise of the same loops, on few numbers, where eager is not with the one in C."""
    found = []
    for tensors, calls in tried(dtype, targets, most=1).values():
        called = [call for call, _ in calls]
        plain, compiled = (iter(kernels_run(called, tensors, dialect)) for dialect in (Reference(), C()))
        for call, expected in calls:
            for index in range(len(expected)):
                found += compared(call, tensors, index, next(compiled), next(plain))
    return found


OF_DIVISION = [target for target in QUICK if name_of(target) in (*DIVIDE, "sinc", "addcmul", "lerp")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8], ids=name)
def test_dialects_make_the_same_of_special_values(dtype):
    assert disagreements(dtype, OF_DIVISION) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_dialects_make_the_same_of_all_special_values(dtype):
    assert disagreements(dtype) == []


def refused(dtype, targets):
    """Operations that kernels compute for a dtype, though eager raises an error."""
    found = []
    for target in targets:
        for call in calls_of(target, dtype)[:1]:
            tensors = inputs_of(call, dtype)
            try:
                call(*tensors)
            except Exception:
                try:
                    kernels_run([call], tensors)
                except Exception:
                    continue
                found.append(str(call))
    return found


NOT_FOR_INTEGERS = [
    torch.ops.aten.gelu.default, torch.ops.aten.silu.default, torch.ops.aten.leaky_relu.default,
    torch.ops.aten.mse_loss.default, torch.ops.aten._softmax.default, torch.ops.aten.argmax.default,
    torch.ops.aten.fill.Tensor,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=name)
def test_what_eager_refuses_is_refused(dtype):
    assert refused(dtype, NOT_FOR_INTEGERS) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_whatever_eager_refuses_is_refused(dtype):
    assert refused(dtype, LOWERINGS) == []


# Through the front door, with gradients -----------------------------------------------------------------------------

FUNCTIONS = {
    "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp,
    "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "abs": torch.abs, "relu": torch.relu,
    "relu6": F.relu6, "softshrink": F.softshrink, "hardshrink": F.hardshrink, "hardtanh": F.hardtanh,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "leaky_relu": F.leaky_relu, "elu": F.elu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "softplus": F.softplus,
    "clamp": lambda x: x.clamp(0, 6), "square": torch.square, "cube": lambda x: x**3, "root": lambda x: x**0.5,
    "nan_to_num": torch.nan_to_num, "sign": torch.sign, "reciprocal": torch.reciprocal, "frac": torch.frac,
    "erf": torch.erf, "atan": torch.atan, "logsigmoid": F.logsigmoid, "sinc": torch.sinc, "expm1": torch.expm1,
}  # fmt: skip
OF_TWO = {
    "fmod": torch.fmod, "remainder": torch.remainder, "div": torch.div, "mul": torch.mul, "maximum": torch.maximum,
    "fmin": torch.fmin, "hypot": torch.hypot, "atan2": torch.atan2, "pow": torch.pow, "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp, "copysign": torch.copysign, "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "add": lambda x, y: torch.add(x, y, alpha=2), "where": lambda x, y: torch.where(x > y, x, y),
    "huber": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "smooth l1": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
}  # fmt: skip


def run(function, tensors):
    """A result and the gradients of a sum of it."""
    inputs = [tensor.clone().requires_grad_() for tensor in tensors]
    result = function(*inputs)
    result.backward(torch.ones_like(result))
    return [result.detach(), *(tensor.grad for tensor in inputs)]


def assert_same(own, eager, what):
    """Zeros with their signs, infinities and NaNs in the same places, and other numbers close."""
    marks = [(t == 0) + 2 * t.isinf() + 4 * t.isnan() + 8 * (t.signbit() & ~t.isnan()) for t in (own, eager)]
    small = torch.maximum(own.abs(), eager.abs()) <= 2 * torch.finfo(own.dtype).smallest_normal
    wrong = (marks[0] != marks[1]) & ~small | ((own == 0) & (eager == 0) & (marks[0] != marks[1]))
    assert not wrong.any(), (what, wrong.nonzero().flatten()[:5], own[wrong][:5], eager[wrong][:5])
    torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-6, equal_nan=True)


def both_ways(function, tensors, backend, monkeypatch, what):
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)
    compiled = bothways.compile(function, backend=backend)
    for _ in range(2):
        for own, eager in zip(run(compiled, tensors), run(function, tensors), strict=True):
            assert_same(own, eager, what)


def padded(*tensors):
    """As many as fill vectors, without an end that eager computes in another way."""
    return [tensor.repeat_interleave(64) for tensor in tensors]


@pytest.mark.parametrize("what", ["sinh", "cosh", "relu6", "softshrink", "clamp", "hardswish", "gelu tanh", "root"])
def test_functions_of_special_values_and_their_gradients(what, monkeypatch):
    both_ways(FUNCTIONS[what], padded(numbers(torch.float32)), "native", monkeypatch, what)


@pytest.mark.parametrize("what", ["fmod", "remainder", "add", "lerp", "huber"])
def test_functions_of_two_special_values_and_their_gradients(what, monkeypatch):
    both_ways(OF_TWO[what], padded(*pairs(torch.float32)), "native", monkeypatch, what)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=name)
def test_remainders_where_the_quotient_begins_to_overflow(dtype, monkeypatch):
    """Powers of two around the largest quotient there is, with divisors that have lost digits."""
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)
    least = int(math.log2(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps))
    largest = int(math.log2(torch.finfo(dtype).max))
    exponents = [(bottom + largest + step, bottom) for bottom in range(least, least + 30) for step in range(-2, 4)]
    tops, bottoms = torch.tensor(exponents, dtype=torch.float64).unbind(1)
    x, y = (torch.ldexp(torch.tensor(1.0).double(), part).to(dtype) for part in (tops, bottoms))
    x, y = padded(torch.cat([x, -x, x * 1.5]), torch.cat([y, y, -y]))

    def both(x, y):
        return torch.fmod(x, y), torch.remainder(x, y)

    compiled = bothways.compile(both, backend="native")
    assert any(result.isnan().any() and (result == 0).any() for result in both(x, y))
    for own, eager in zip(compiled(x, y), both(x, y), strict=True):
        assert_same(own, eager, dtype)


def pairs(dtype):
    some = numbers(dtype)[::2] if dtype.is_floating_point else numbers(dtype)
    return [part.flatten() for part in torch.meshgrid(some, numbers(dtype)[1::2], indexing="ij")]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
@pytest.mark.parametrize("what", [*FUNCTIONS, *OF_TWO])
def test_all_of_them(what, dtype, backend, monkeypatch):
    tensors = [numbers(dtype)] if what in FUNCTIONS else pairs(dtype)
    both_ways((FUNCTIONS | OF_TWO)[what], padded(*tensors), backend, monkeypatch, what)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_what_overflows_has_no_infinite_operand(dtype, monkeypatch):
    """A compiler that sees an infinite product may not conclude that one of its factors is infinite."""
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)
    tensors = padded(numbers(dtype))

    def chosen(x):
        results = []
        for large in (x * 2, x + x, x / 0.25, x * x, x * 2 - 1):
            results += [
                torch.where(large == math.inf, 1.5, torch.fmod(x, 2.0)),
                torch.where(x == math.inf, 2.5, torch.fmod(x, 3.0)),
                torch.where(large.isinf(), torch.where(x.isinf(), 1.5, torch.atan2(x, x + 1)), torch.sin(x)),
                torch.where(large.isfinite(), 1.0, x),
                torch.where(x.isfinite(), 1.0, large),
                torch.where(large > torch.finfo(dtype).max, 1.5, torch.fmod(x, 2.0)),
                torch.where(x > torch.finfo(dtype).max, 2.5, torch.fmod(x, 3.0)),
            ]
        return results

    compiled = bothways.compile(chosen, backend="native")
    for _ in range(2):
        for own, eager in zip(compiled(*tensors), chosen(*tensors), strict=True):
            assert_same(own, eager, dtype)


def test_remainders_beside_others_that_overflow(monkeypatch):
    """Each in a kernel of its own, and several in one: what is known of one quotient says nothing about the next."""
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)
    (x,) = padded(numbers(torch.float32))
    divisors = (0.5, 1.5, 0.1, 2.5, -3.7, 1e-40)

    def remainders(x, *divisors):
        return [function(x, number) for number in divisors for function in (torch.fmod, torch.remainder)]

    for some in (divisors, divisors[::-1], *((number,) for number in divisors)):
        compiled = bothways.compile(remainders, backend="native")
        for own, eager in zip(compiled(x, *some), remainders(x, *some), strict=True):
            assert_same(own, eager, some)


def test_zeros_of_both_signs_are_two_numbers(monkeypatch):
    """One graph with both, and a program that is called with the one and then the other."""
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)
    x = torch.tensor([1.0, -1.0, 0.0, -0.0])

    def both(x):
        return x / 0.0, x / -0.0, x + 0.0, x + -0.0

    def one(x, number):
        return (x / number,)

    compiled, called = bothways.compile(both), bothways.compile(one)
    for own, eager in zip(compiled(x), both(x), strict=True):
        assert_same(own, eager, "both")
    for number in (0.0, -0.0, 0.0):
        assert_same(called(x, number)[0], one(x, number)[0], number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=name)
def test_numbers_that_were_integers_for_a_moment(dtype, monkeypatch):
    """-0.0 and -0.5 are 0 as integers, and NaN and infinity some integer: no compiler may leave those out."""
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)
    (x,) = padded(torch.tensor([0.0, -0.0, 0.5, -0.5, 2.5, -2.5, -1e-40, 100, -100, math.nan, math.inf, -math.inf]))
    x = x.to(dtype)

    def through_integers(x):
        chosen = torch.where(x > 1, x.int(), x.neg().int())
        of_all = [1 / x.int().to(dtype), x.long().to(dtype), x.int().double(), x.long().float(), chosen.to(dtype)]
        few = x.nan_to_num(3.0, 7.0, 9.0)  # eager's own loops do not agree about others in few bits
        return [*of_all, few.to(torch.int8).to(dtype), few.to(torch.int16).to(dtype) * few, few.abs().byte().to(dtype)]

    compiled = bothways.compile(through_integers, backend="native")
    for given in (x, x.flip(0)):
        for own, eager in zip(compiled(given), through_integers(given), strict=True):
            assert_same(own, eager, dtype)
    assert len(bothways.history(compiled)) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=name)
def test_a_number_that_is_divided_is_rounded_as_a_tensor_is(dtype, monkeypatch):
    monkeypatch.setattr(bothways.config, "kernels_for_small_graphs", True)
    (x,) = padded(torch.tensor([0.0, 1.0, -1.0, 0.3, -2.5, 7.0, math.inf, math.nan]).to(dtype))

    def divided(x):
        numbers = (1e-40, 1e10, 70000.0, 1.001, -257)
        return [number // x for number in numbers] + [number % x for number in numbers] + [x // 1.001, x % 1.001]

    compiled = bothways.compile(divided, backend="native")
    for own, eager in zip(compiled(x), divided(x), strict=True):
        assert_same(own, eager, dtype)


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
def test_truths_scale_truths_alone(name, dtype):
    """ATen refuses ``alpha=True`` for numbers, and so does what is compiled."""

    def program(x):
        return getattr(torch, name)(x, x, alpha=True) * 1

    outcomes = []
    for run in (program, bothways.compile(program, backend="native")):
        try:
            result = run(torch.ones(5, dtype=dtype))
            outcomes.append((result.dtype, result.tolist()))
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
