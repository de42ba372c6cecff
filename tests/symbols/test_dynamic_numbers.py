"""Python numbers that change from call to call: arguments, attributes, globals; whole ones and others."""

from collections import deque

import pytest
import torch
import torch.nn.functional as F
from sizing import BACKENDS, agree, agree_once, guards

import bothways

everywhere = pytest.mark.parametrize("backend", BACKENDS)
FRACTIONS = (0.5, 0.25, 0.1, 3.0, 1e-3)


def x(*shape):
    return torch.randn(*(shape or (3, 4)), requires_grad=True)


@everywhere
def test_whole_numbers(backend):
    def program(x, n):
        return x * n + n // 3, x.repeat(n, 1), torch.zeros(n), n + 1, n % 4, x[0] + n

    compiled = agree(program, [(x(), n) for n in (2, 3, 5, 7, 64)], backend)
    assert "type(L['n']) is int" in guards(compiled)


@everywhere
def test_negative_numbers(backend):
    agree(lambda x, n: (x * n, n // 2, n % 3, abs(n), -n, x[n:]), [(x(9, 4), n) for n in (-2, -3, -5, -7)], backend)


@everywhere
def test_numbers_that_cut(backend):
    def program(x, n):
        return x[:n], x[n:], x[n], x.narrow(0, 0, n), x[-n:]

    agree(program, [(x(10, 4), n) for n in (2, 3, 5, 7)], backend)


@everywhere
def test_what_is_repeated_by_a_remainder_is_compiled_for_each_remainder(backend):
    """How often a loop turns and what an index takes are plain numbers; the number they come from is not one."""
    weights = [0.5, 1.5, -2.0]

    def program(x, n):
        for _ in range(1 + n % 3):
            x = x.sin() + n
        return x * weights[n % 3], [n] * (n // 40)

    compiled = agree(program, [(x(), n) for n in range(2, 30)], backend, programs=4)
    assert "(L['n'] % 3) == 2" in guards(compiled)


@everywhere
def test_numbers_inside_arguments(backend):
    def program(tensors, settings):
        return tensors[0] * settings["n"] + settings["shift"][0]

    agree(program, [([x()], {"n": n, "shift": (n * 0.5, 1)}) for n in (2, 3, 5, 7)], backend)


@everywhere
def test_zero_one_and_truth_values_stay_constants(backend):
    def program(x, n):
        return x * n, n is True, bool(n)

    agree(program, [(x(), n) for n in (5, 7, 0, 1, True, False, 9)], backend, programs=6)


@pytest.mark.every_backend
@everywhere
def test_numbers_too_large_for_a_kernel_stay_constants(backend):
    agree(lambda x, n: (x, n + 1), [(x(), n) for n in (3, 5, 2**70, 2**71)], backend, programs=4)


@everywhere
def test_fractions_of_whole_numbers(backend):
    """A schedule that is computed from the number of the step: what follows from it is compiled like anything else."""

    def program(x, step):
        share = 0.3 + 0.05 * step
        mixed = share * x + (1 - share) * x.flip(0)
        decayed = x * 0.9**step + x * (0.5 * step) ** 2
        return mixed, decayed, x * (step + 0.5), x - float(step), x / (step - 0.25), x * (2.5 - step)

    compiled = agree(program, [(x(), step) for step in (2, 3, 5, 7)], backend)
    if backend == "native":
        (outcome,) = {str(compilation.outcome) for compilation in bothways.history(compiled)[1:]}
        assert "constant" not in outcome and "kernels" in outcome


@everywhere
def test_fractions_in_arithmetic(backend):
    def program(x, f):
        return x * f + f, f - x, x / f, f / x, x * (1 - f) * f**2.0, f * 2, f / 3, -f

    agree(program, [(x(), f) for f in FRACTIONS], backend)


@everywhere
def test_fractions_as_parameters_of_operations(backend):
    def program(x, f):
        clamped = x.clamp(max=f), F.leaky_relu(x, f), F.softplus(x, f), F.threshold(x, f, 0.1)
        return *clamped, x.masked_fill(x > 0, f), torch.where(x > 0, x, f), torch.full((2,), f), x.new_full((3,), f)

    agree(program, [(x(), f) for f in FRACTIONS], backend)


@everywhere
def test_a_learning_rate(backend):
    def step(parameter, gradient, rate):
        parameter.add_(gradient, alpha=-rate)
        parameter.mul_(1 - rate * 0.01)
        parameter.addcdiv_(gradient, gradient * gradient + 1, value=-rate)
        return parameter.sum()

    agree(step, [(torch.randn(3, 4), torch.randn(3, 4), rate) for rate in FRACTIONS], backend)


@everywhere
@pytest.mark.parametrize(
    "tensor", [torch.tensor(2.0), torch.arange(6).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16)], ids=str
)
def test_fractions_promote_as_in_eager(tensor, backend):
    agree(lambda x, f: (x * f, x + f, f - x), [(tensor, f) for f in FRACTIONS], backend)


@everywhere
def test_a_decision_by_a_fraction(backend):
    def program(x, f):
        return x * f if f > 0.2 else x + f

    compiled = agree(program, [(x(), f) for f in FRACTIONS], backend, programs=3)
    assert "not L['f'] > 0.2" in guards(compiled, 1) or "L['f'] > 0.2" in guards(compiled, 1)


@everywhere
def test_signs_of_zero_and_what_is_no_number(backend):
    def program(x, f):
        return torch.copysign(torch.ones(3), torch.full((3,), f)), x * f

    values = (2.0, 0.0, -0.0, 1.0, float("nan"), 0.5, float("inf"), -float("inf"), 0.25)
    agree(program, [(x(), f) for f in values], backend, programs=8)


@everywhere
def test_an_int_is_no_float(backend):
    calls = [(x(), f) for f in (2.0, 3.0, 4, 5, 6, 7.0)]
    agree(lambda x, f: (x * f, f / 2, type(f) is int), calls, backend, programs=4)


@everywhere
def test_sizes_and_fractions_together(backend):
    calls = [(x(n, 4), f) for n, f in zip((2, 3, 4, 5, 6), FRACTIONS, strict=True)]
    agree(lambda x, f: (x * f / x.shape[0], x.shape[0] * f, x + x.shape[0] / 2), calls, backend)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 3
        self.temperature = 0.5

    def forward(self, x):
        self.calls += 1
        return x * self.calls / self.temperature + SHIFT


SHIFT = 3


@everywhere
def test_attributes_and_globals(backend, monkeypatch):
    plain, module = Counting(), Counting()
    compiled = bothways.compile(module, backend=backend, fullgraph=True)
    for step in range(6):
        plain.temperature = module.temperature = 0.5 + step * 0.1
        monkeypatch.setitem(globals(), "SHIFT", 3 + step * 2)
        agree_once(plain, compiled, (x(),))
        assert plain.calls == module.calls == 4 + step


RATE = 2.0


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x * RATE * n

    @staticmethod
    def backward(ctx, gradient):
        return gradient * RATE * ctx.n, None


@everywhere
def test_numbers_that_a_custom_function_reads_and_takes(backend, monkeypatch):
    def program(x, n):
        return Scaled.apply(x, n).sum()

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for rate, n in ((2.0, 3), (5.0, 3), (2.0, 4), (7.0, 5), (5.0, 6)):
        monkeypatch.setitem(globals(), "RATE", rate)
        agree_once(program, compiled, (x(), n))


REPEATED = [
    *(lambda n: n * [1, 2], lambda n: [1, 2] * n, lambda n: n * (1, 2), lambda n: (1, 2) * n),
    *(lambda n: n * "ab", lambda n: "ab" * n, lambda n: n * b"ab", lambda n: b"ab" * n),
    *(lambda n: n * deque([1]), lambda n: deque([1]) * n),
    *(lambda n: n / 2 * [1], lambda n: [1] * (n / 2), lambda n: n + [1], lambda n: [1] + n, lambda n: "a" + n),
]


@pytest.mark.parametrize("program", REPEATED)
def test_sequences_are_repeated_so_many_times_inside_a_try(program):
    def tried(n):
        try:
            return program(n)
        except TypeError as error:
            return str(error)

    compiled = bothways.compile(tried, backend="eager", dynamic=True)
    for n in (5, 6, 2):
        assert compiled(n) == tried(n)


def test_a_list_that_is_repeated_in_place_stays_that_list():
    def program(items, n):
        same = items
        try:
            items *= n
        except TypeError:
            return None
        return same is items

    compiled = bothways.compile(program, backend="eager", dynamic=True)
    for n in (2, 3, 0):
        items = [1, 2]
        assert compiled(items, n) and items == [1, 2] * n


def test_a_number_becomes_the_kind_that_is_asked_for():
    class Third:
        def __index__(self):
            return 3

    def program(n):
        return [kind(value) for kind in (int, float, complex) for value in (n, n / 2, Third())]

    compiled = bothways.compile(program, backend="eager", dynamic=True)
    for n in (5, 6):
        assert [(type(x), x) for x in compiled(n)] == [(type(x), x) for x in program(n)]
