"""Kernels for GPUs that do the same to different tensors are one launch: what optimizers do to hundreds of parameters.

They run under the shim of ``cuda_on_host.py``, and are compiled by NVRTC where it is found.
"""

import pytest
import torch
from cuda_on_host import CudaOnHost
from native_checking import cases_of
from test_cuda_kernels import as_on_gpu, found_nvrtc, needs_nvrtc  # noqa: F401  (a fixture)

import bothways
from bothways.building.cuda_build import needed_helpers
from bothways.building.nvrtc import NVRTC
from bothways.lower.dialects.cuda import dialect
from bothways.lower.dialects.cuda.arranging import arranged
from bothways.lower.dialects.cuda.batching import LEAST, Batch, gathered
from bothways.lower.dialects.cuda.prelude import FEW_WORDS, HEAD, HELPERS, MANY_WORDS
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower
from bothways.lower.schedule.tree import Kernel
from bothways.testing import difference

SIZES = [(5,), (3, 7), (1000,), (2, 3, 4), (1,), (20000,), (64, 64), (8,)]
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3}

pytestmark = pytest.mark.usefixtures("as_on_gpu")


def momentum(*tensors):
    count = len(tensors) // 2
    values = torch._foreach_mul(tensors[:count], 0.9)
    return torch._foreach_add(values, tensors[count:], alpha=0.1)


def tensors(dtype=torch.float32, sizes=SIZES):
    torch.manual_seed(0)
    return [torch.randn(size).to(dtype) for _ in range(2) for size in sizes]


def program_of(function, *given, most_words=MANY_WORDS):
    [case] = cases_of_lists(function, given)
    return KernelProgram(lower(case.graph, list(given)), dialect=CudaOnHost(most_words)), case


def cases_of_lists(function, given):
    return cases_of("case", lambda *values: function(*values), list(given), grad=False)


def launches_of(program):
    return [launch for launches in program.kernels.source.routines.values() for launch in launches]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_many_tensors_of_all_sizes_are_one_launch(dtype):
    given = tensors(dtype)
    program, case = program_of(momentum, *given)
    assert len(launches_of(program)) == 2  # one tensor has a single element, and no loop
    for found, expected in zip(program.run(*given), case.graph(*given), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        torch.testing.assert_close(found, expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_memory_of_a_member_may_begin_anywhere():
    program, _ = program_of(momentum, *tensors())
    given = [torch.randn(tensor.numel() + 3)[3:].view(tensor.shape) for tensor in tensors()]
    for found, expected in zip(program.run(*given), momentum(*given), strict=True):
        torch.testing.assert_close(found, expected)


def test_single_numbers_are_one_launch():
    given = [torch.tensor(float(number)) for number in range(70)]
    program, _ = program_of(lambda *values: [0.9**value for value in torch._foreach_add(values, 1)], *given)
    [launch] = launches_of(program)
    assert (launch.blocks, launch.threads) == (3, 32)
    for number, found in enumerate(program.run(*given)):
        torch.testing.assert_close(found, torch.tensor(0.9 ** (number + 1)))


def test_counters_that_nothing_waits_for_are_one_launch_in_the_end():
    """Each norm of a model counts its batches, between products that are ATen's."""
    norms = [torch.nn.BatchNorm1d(8) for _ in range(4)]
    weights = [torch.randn(8, 8) for _ in norms]

    def function(x, *weights):
        for weight, norm in zip(weights, norms, strict=True):
            x = norm(x @ weight)
        return x

    kernels = []

    def compile(graph, inputs):
        lowered = lower(graph, inputs)
        program = KernelProgram(lowered, dialect=CudaOnHost())
        kernels.extend(lowered.steps)
        return program.run

    compiled = bothways.compile(function, backend=bothways.backends.aot(fw_compiler=compile))
    for _ in range(2):
        compiled(torch.randn(16, 8), *weights)
    assert [int(norm.num_batches_tracked) for norm in norms] == [2] * 4
    assert [len(step.members) for step in kernels if isinstance(step, Batch)] == [4]
    assert isinstance(kernels[-1], Batch)


@pytest.mark.parametrize("most_words, count", [(FEW_WORDS, 3), (MANY_WORDS, 1)])
def test_a_table_is_no_larger_than_what_a_kernel_takes(most_words, count):
    sizes = [(number + 2,) for number in range(300)]
    given = tensors(sizes=sizes)
    program, _ = program_of(momentum, *given, most_words=most_words)
    launches = launches_of(program)
    assert len(launches) == count and all(len(launch.arguments) <= most_words for launch in launches)
    for found, expected in zip(program.run(*given), momentum(*given), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "driver, compiler, arch, words",
    [
        (13000, "13.0", "sm_90", MANY_WORDS),
        (13000, "12.9", "sm_100", MANY_WORDS),
        (12080, "12.8", "sm_90", FEW_WORDS),
        (13000, "12.0", "sm_90", FEW_WORDS),
        (13000, "12.9", "sm_61", FEW_WORDS),
    ],
)
def test_how_large_a_table_may_be_is_for_driver_compiler_and_gpu_to_say(driver, compiler, arch, words, monkeypatch):
    monkeypatch.setattr(dialect, "driver_version", lambda: driver)
    monkeypatch.setattr(dialect, "architecture", lambda index: arch)
    monkeypatch.setattr(dialect, "nvrtc", lambda: NVRTC(None, compiler))
    assert dialect.words_of_tables.__wrapped__(0) == words


# Those of a GPT-2 of width 8: 148 parameters.
LAYER = [(8,), (8,), (8, 24), (24,), (8, 8), (8,), (8,), (8,), (8, 32), (32,), (32, 8), (8,)]
SHAPES = [(64, 8), (16, 8), *LAYER * 12, (8,), (8,)]
UPDATES = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, foreach=True),
    "Adam": lambda weights: torch.optim.Adam(weights, amsgrad=True, weight_decay=0.1, foreach=True),
    "SGD": lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize(
    "name, most_words, count",
    [("AdamW", MANY_WORDS, 2), ("AdamW", FEW_WORDS, 5), ("Adam", MANY_WORDS, 2), ("SGD", MANY_WORDS, 1)],
)
def test_an_update_of_all_parameters_of_a_model_is_one_launch_and_one_for_the_counters(name, most_words, count):
    programs = []

    def compile(graph, inputs):
        programs.append(KernelProgram(lower(graph, inputs), dialect=CudaOnHost(most_words)))
        return programs[-1].run

    def weights():
        torch.manual_seed(0)
        made = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        for weight in made:
            weight.grad = torch.randn_like(weight)
        return made

    eager, ours = UPDATES[name](weights()), UPDATES[name](weights())
    step = bothways.compile(lambda: ours.step(), backend=bothways.backends.aot(fw_compiler=compile))
    for _ in range(3):
        eager.step()
        step()
    assert len(launches_of(programs[-1])) == count
    for found, expected in zip(*(one.param_groups[0]["params"] for one in (ours, eager)), strict=True):
        torch.testing.assert_close(found, expected)
    assert difference(ours.state_dict()["state"], eager.state_dict()["state"], tol=1e-6) is None


def kernels_of(function, given):
    [case] = cases_of_lists(function, given)
    steps = lower(case.graph, list(given)).steps
    return [one for step in steps if isinstance(step, Kernel) for one in arranged(step)]


def test_few_kernels_and_those_that_differ_stay_apart():
    few = kernels_of(lambda *values: [value.sin() for value in values], tensors(sizes=[(5,), (6,)])[: LEAST - 1])
    assert not any(isinstance(kernel, Batch) for kernel in gathered(few))
    x, y, z = (torch.randn(size) for size in (10, 11, 12))
    others = kernels_of(lambda x, y, z: [x.sin(), y.cos(), z.sin()], (x, y, z))
    assert not any(isinstance(kernel, Batch) for kernel in gathered(others))
    given = [torch.randn(*size) for size in ((4, 5), (4, 6), (4, 7), (5, 4), (6, 4), (7, 4))]
    across = kernels_of(lambda *v: [value.t() + other for value, other in zip(v[:3], v[3:], strict=True)], given)
    assert not any(isinstance(kernel, Batch) for kernel in gathered(across))


def test_what_reads_a_result_of_another_comes_after_it():
    """The sines are one launch; what is computed of them after a sum of all is another."""
    sizes = [(5,), (600,), (70,), (8,)]
    given = tensors(sizes=sizes)[:4]

    def function(*values):
        sines = [value.sin() for value in values]
        total = torch.stack([sine.sum() for sine in sines]).sum()
        return [*sines, *(sine * total for sine in sines)]

    program, case = program_of(function, *given)
    for found, expected in zip(program.run(*given), case.graph(*given), strict=True):
        torch.testing.assert_close(found, expected)
    assert sum("table" in kernel.parameters for kernel in program.kernels.source.kernels) >= 1


@needs_nvrtc
@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tables_compile(dtype, count):
    given = tensors(dtype, SIZES * count)
    program, _ = program_of(momentum, *given)
    text = str(program.kernels.source)
    assert "BY_VALUE Words_" in text
    assert len(found_nvrtc().compile(f"{HEAD}{needed_helpers(text, HELPERS)}\n{text}", "sm_90")) > 1000
