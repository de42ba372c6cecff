"""Products of small matrices run inside of routines: with the bits that ATen gives, in no more memory than before."""

import os
import threading

import pytest
import torch
import torch.nn.functional as F
from pythons import run_python

import bothways
from bothways import torch_compat, trace
from bothways.lower.dialects.c.dialect import C
from bothways.lower.dialects.c.products import FEW
from bothways.lower.dialects.reference.dialect import Reference
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.products import MOST
from bothways.lower.schedule.steps import lower

pytestmark = pytest.mark.skipif(torch_compat.product_functions() is None, reason="this PyTorch shows no BLAS")


def lowered(function, *args, dialect=None, **settings):
    return KernelProgram(lower(trace(function)(*args), list(args)), dialect=dialect or C(), **settings)


def calls_of_aten(program):
    return program.source.count("at_mm(") + program.source.count("at_addmm(")


def ways_to_lie(rows, columns):
    """Matrices whose elements lie in different ways: some BLAS takes as they are, some ATen copies first."""
    return (
        torch.randn(rows, columns),
        torch.randn(columns, rows).t(),
        torch.randn(rows, columns + 3)[:, 1 : columns + 1],
        torch.randn(columns, rows + 3).t()[2 : rows + 2],
        torch.randn(rows, 2 * columns)[:, ::2],
        torch.randn(1, columns).expand(rows, columns),
        torch.randn(rows, 1).expand(rows, columns),
    )


SIZES = [
    (1, 1, 1), (1, 5, 1), (5, 1, 1), (1, 1, 5), (4, 1, 4), (1, 7, 6), (6, 7, 1), (3, 4, 5), (16, 16, 16), (33, 17, 65),
    (128, 64, 96), (7, 300, 2), (64, 2, 2), (2, 64, 64), (128, 256, 2), (65, 130, 3), (1, 40, 4), (96, 3, 4),
    (40, 1000, 8), (31, 64, 8),
]  # fmt: skip


def all_products(biases, matrices):
    results = []
    for number, (left, right) in enumerate(matrices):
        results += [left @ right, torch.addmm(biases[number % len(biases)], left, right)]
    return results


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_have_the_bits_that_aten_gives(size):
    rows, inner, columns = size
    torch.manual_seed(0)
    pairs = [(left, right) for left in ways_to_lie(rows, inner) for right in ways_to_lie(inner, columns)]
    biases = [
        torch.randn(columns), torch.randn(1, columns), torch.randn(rows, 1), torch.randn(rows, columns),
        torch.randn(()), torch.randn(2 * columns)[::2], torch.randn(columns, rows).t(),
    ]  # fmt: skip
    given = [*biases, *(matrix for pair in pairs for matrix in pair)]

    def function(*tensors):
        rest = tensors[len(biases) :]
        return tuple(all_products(tensors[: len(biases)], list(zip(rest[::2], rest[1::2], strict=True))))

    program = lowered(function, *given)
    assert calls_of_aten(program) == 0
    for found, expected in zip(program.run(*given), function(*given), strict=True):
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


def test_numbers_that_are_none_are_the_same():
    torch.manual_seed(0)
    left, right, bias = torch.randn(6, 5), torch.randn(5, 7), torch.randn(7)
    left[0, 0], left[1, 1], right[2, 2], bias[3] = float("nan"), float("inf"), -float("inf"), float("nan")

    def function(left, right, bias):
        return left @ right, torch.addmm(bias, left, right)

    for found, expected in zip(lowered(function, left, right, bias).run(left, right, bias), function(left, right, bias),
                               strict=True):  # fmt: skip
        assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
        assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("columns", FEW)
def test_few_columns_have_the_very_bits_of_zeros_and_of_what_is_no_number(columns):
    torch.manual_seed(0)
    left, right = torch.randn(70, 75), torch.randn(75, columns)
    left[:20].clamp_(min=0), left[20:30].mul_(1e-30), left[30:33].zero_(), left[33:36].fill_(-0.0), left[36].fill_(1)
    left[40, 2], left[41, 3], right[0, 1], right[5].data[:] = float("nan"), float("inf"), -float("inf"), -0.0
    given = [left, left.t().contiguous().t(), right]

    def function(left, turned, right):
        return left @ right, turned @ right, left[30:40] @ right.abs().mul(1e-12)

    program = lowered(function, *given)
    assert calls_of_aten(program) == 0
    assert "    multiply_few(" in program.kernels.text
    for found, expected in zip(program.run(*given), function(*given), strict=True):
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def mlp(width=24):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
        torch.nn.Linear(width, 3),
    )  # fmt: skip


def gradients_of(model, call, *inputs):
    model.zero_grad()
    call(*inputs).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def programs_of(compiled):
    return [one.texts["Python"] for one in bothways.explain(compiled).generated if "Python" in one.texts]


@pytest.mark.parametrize(("width", "count"), [(24, 16), (64, 64)])
def test_a_small_model_is_entered_once_in_each_direction(width, count):
    model = mlp(width)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(model, backend="native", fullgraph=True)
        for _ in range(3):
            x = torch.randn(count, 8)
            assert torch.equal(compiled(x), model(x))
            for found, expected in zip(gradients_of(model, compiled, x), gradients_of(model, model, x), strict=True):
                torch.testing.assert_close(found, expected)
    forward, backward = programs_of(compiled)
    for program in (forward, backward):
        assert program.count("    run_") == 1
        assert "mm(" not in program


def test_sizes_that_change():
    model = mlp()
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(model, backend="native", fullgraph=True)
        for rows in (16, 9, 33, 1, 200, 2, 33):
            x = torch.randn(rows, 8)
            assert torch.equal(compiled(x), model(x))
            for found, expected in zip(gradients_of(model, compiled, x), gradients_of(model, model, x), strict=True):
                torch.testing.assert_close(found, expected)
    assert not any("mm(" in program for program in programs_of(compiled))


def test_large_products_and_other_dtypes_stay_with_aten():
    side = round(MOST ** (1 / 3)) + 1
    large = torch.randn(side, side), torch.randn(side, side)
    assert calls_of_aten(lowered(lambda x, y: (x @ y + 1,), *large)) == 1
    for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int64):
        x = torch.ones(4, 4, dtype=dtype)
        assert calls_of_aten(lowered(lambda x: (x @ x + 1,), x)) == 1


@pytest.mark.parametrize("scales", [{"beta": 2}, {"alpha": 0.5}, {"beta": 0}])
def test_products_with_factors_stay_with_aten(scales):
    x = torch.randn(4, 4)
    program = lowered(lambda x: (torch.addmm(x, x, x, **scales).sin(),), x)
    assert calls_of_aten(program) == 1
    torch.testing.assert_close(program.run(x)[0], torch.addmm(x, x, x, **scales).sin())


def test_a_dialect_that_does_not_multiply_is_given_no_products():
    x = torch.randn(4, 4)
    program = lowered(lambda x: ((x @ x).sin(),), x, dialect=Reference())
    assert calls_of_aten(program) == 1
    torch.testing.assert_close(program.run(x)[0], (x @ x).sin())


@pytest.fixture
def settings_kept():
    precision, mkldnn = torch.get_float32_matmul_precision(), torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.set_float32_matmul_precision(precision)
    torch.backends.mkldnn.matmul.fp32_precision = mkldnn


@pytest.mark.parametrize("with_bias", [False, True])
def test_less_precision_is_asked_for_between_two_calls(settings_kept, with_bias):
    """ATen looks at each call: a backward may run under other settings than its forward."""
    torch.manual_seed(0)
    x, y, bias = torch.randn(48, 64), torch.randn(64, 80).add(0.1), torch.randn(80)

    def function(x, y, bias):
        return (torch.addmm(bias, x, y) if with_bias else x @ y,)

    program = lowered(function, x, y, bias)
    assert calls_of_aten(program) == 0
    for precision in ("none", "bf16", "tf32", "ieee", "bf16"):
        torch.backends.mkldnn.matmul.fp32_precision = precision
        with torch.autocast("cpu", dtype=torch.bfloat16):  # the program is below it
            found = program.run(x, y, bias)[0]
        assert torch.equal(found, function(x, y, bias)[0]), precision


def test_what_is_read_later_is_not_written_over():
    """A kernel's result may take the place of what was read last, of which products read all."""
    torch.manual_seed(0)
    x, w = torch.randn(16, 16) / 8, torch.randn(16, 16)

    def function(x, w):
        h = (x @ w).tanh()
        g = h * 2
        both = h @ g
        back = g @ h
        return (both.sin() + back.cos(), both @ back)

    for settings in ({}, {"takes_list": True}):
        program = lowered(function, x, w, **settings)
        found = program.run([x, w]) if settings else program.run(x, w)
        for one, expected in zip(found, function(x, w), strict=True):
            torch.testing.assert_close(one, expected)


def deep(depth, width):
    torch.manual_seed(0)
    inner = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
    return torch.nn.Sequential(*inner, torch.nn.Linear(width, 1))


def test_a_backward_whose_gradients_would_wait_is_several_routines():
    """Each gradient takes the memory of an activation that is gone: in one routine all would be there at once."""
    model, x = deep(12, 128), torch.randn(128, 128)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(model, backend="native", fullgraph=True)
        for _ in range(2):
            compiled(x).sum().backward()
    forward, backward = programs_of(compiled)
    assert forward.count("    run_") < 6
    assert 2 <= backward.count("    run_") < 25  # products


def test_threads_multiply_at_the_same_time():
    model = mlp()
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(model, backend="native", fullgraph=True)
        given = [torch.randn(16, 8) for _ in range(8)]
        compiled(given[0])
        results = [[] for _ in given]

        def work(number):
            results[number] += [compiled(given[number]) for _ in range(50)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(given))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for x, found in zip(given, results, strict=True):
        assert all(torch.equal(one, model(x)) for one in found) and len(found) == 50


CHILD = """
import os, torch, bothways
torch.set_num_threads(1)  # with more, no child of GNU's OpenMP multiplies
x, w = torch.randn(64, 64), torch.randn(64, 64)
compiled = bothways.compile(lambda x, w: (x @ w).tanh() @ w + 1, backend="native")
bothways.config.kernels_for_small_graphs = True
compiled(x, w)
child = os.fork()
if not child:
    right = torch.equal(compiled(x, w), compiled(x, w)) and compiled(x, w).isfinite().all()
    os._exit(0 if right else 3)
print(os.waitpid(child, 0)[1])
"""


def test_a_child_multiplies_after_a_fork():
    assert run_python(["-c", CHILD], check=True).stdout.split() == ["0"]


STORED = """
import torch, bothways
from bothways.record.counters import counters
bothways.config.kernels_for_small_graphs = True
torch.manual_seed(0)
x, w = torch.randn(6, 6), torch.randn(6, 6)
compiled = bothways.compile(lambda x, w: (x @ w).tanh() @ w + 1, backend="native")
found = compiled(x, w)
text = bothways.explain(compiled).generated[0]
print(text.from_cache, "mm(" in text.texts["Python"], float((found - ((x @ w).tanh() @ w + 1)).abs().max()) < 1e-5)
"""


def test_programs_of_another_process_multiply(tmp_path):
    environment = {**os.environ, "BOTHWAYS_CACHE_DIR": str(tmp_path)}
    answers = [run_python(["-c", STORED], env=environment, check=True).stdout.split() for _ in range(2)]
    assert answers == [["False", "False", "True"], ["True", "False", "True"]]


def test_a_profile_tells_how_long_products_take():
    model, x = mlp(), torch.randn(16, 8)
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(lambda x: F.relu(model(x)), backend="native")
        with torch.no_grad():
            compiled(x)
            with bothways.profile() as profile:
                compiled(x)
    assert "addmm" in str(profile)
