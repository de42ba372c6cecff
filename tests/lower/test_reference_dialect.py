"""The loop tree that scheduling ends in, and the dialect that spells it as plain Python: the oracle of the others.

What the loops of the reference dialect compute is compared with eager, over PyTorch's own samples of its operations,
and with what the C dialect makes of the same tree.
"""

import ast
import re
import sys
from pathlib import Path

import op_samples as opinfo
import pytest
import torch
import torch.nn.functional as F
from native_checking import as_accurate, cases_of, differences, is_random, reference, run_merged
from native_checking import same as close
from seeding import seeded

import bothways
from bothways.lower.dialects.c.dialect import C
from bothways.lower.dialects.c_family import operators as in_c
from bothways.lower.dialects.reference import numbers
from bothways.lower.dialects.reference import operators as in_python
from bothways.lower.dialects.reference.dialect import Reference
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir.prims import COMPUTABLE
from bothways.lower.schedule.steps import lower
from bothways.lower.schedule.tree import Kernel, short
from bothways.ops import PRIMITIVES, REDUCTIONS
from bothways.testing import same

PACKAGE = Path(bothways.__file__).parent


def case_of(function, *inputs, grad=False):
    [case] = cases_of("case", lambda *values: [function(*values)], list(inputs), grad=grad)
    return case


def program_of(function, *inputs, dialect=None):
    case = case_of(function, *inputs)
    return KernelProgram(lower(case.graph, case.given), dialect=dialect or Reference())


def steps_of(case):
    return lower(case.graph, [tensor.detach() for tensor in case.given]).steps


def kernels_of(function, *inputs):
    return [step for step in steps_of(case_of(function, *inputs)) if isinstance(step, Kernel)]


# The tree --------------------------------------------------------------------------------------------------


def test_a_kernel_prints_as_loops():
    [kernel] = kernels_of(lambda x: torch.softmax(x * 2, -1), torch.randn(8, 16))
    assert str(kernel) == """\
kernel _softmax(primals_0: float32[8, 16]) -> _softmax: float32[8, 16]
    rows i0 < 8:
        scratch _softmax_row: float32[16]
        sweep r0 < 16:
            primals_0: float32 = load primals_0[i0 * 16 + r0]
            mul_0: float32 = mul(primals_0, 2)
            accumulate _softmax by max of mul_0
        _softmax_0: float32 = total _softmax by max
        sweep r0 < 16:
            primals_1: float32 = load primals_0[i0 * 16 + r0]
            mul_1: float32 = mul(primals_1, 2)
            _softmax_1: float32 = sub(mul_1, _softmax_0)
            _softmax_2: float32 = exp(_softmax_1)
            keep _softmax_row[r0] = _softmax_2
            accumulate _softmax by sum of _softmax_2
        _softmax_3: float32 = total _softmax by sum
        sweep r0 < 16:
            _softmax_4: float32 = _softmax_row[r0]
            _softmax_5: float32 = share(_softmax_4, _softmax_3)
            store _softmax[i0 * 16 + r0] = _softmax_5"""


def test_the_reference_dialect_is_a_loop_for_each_loop():
    program = program_of(lambda x: (x * 2).sum(0) + 1, torch.randn(3, 8))
    assert re.sub(r"# .*\n", "", program.kernels.text) == """\
def kernel_0_sum_add(primals_0_cells, add_cells):
    for i0 in range(8):
        sum_total_0 = 0
        for r0 in range(3):
            primals_0 = primals_0_cells[r0 * 8 + i0]
            mul_0 = float32(mul(primals_0, float32(2.0)))
            sum_total_0 = take_sum(sum_total_0, mul_0)
        sum_0 = float32(sum_total_0)
        add_1 = float32(add(sum_0, float32(1.0)))
        add_0 = add_1
        add_cells[i0] = add_1


def run_0(primals_0, add):
    primals_0_cells = at_cells(primals_0, 'float32')
    add_cells = at_cells(add, 'float32')
    kernel_0_sum_add(primals_0_cells, add_cells)
"""


@pytest.mark.parametrize("size, parallel", [(100, False), (100_000, True)])
def test_the_tree_says_whether_threads_are_worth_it(size, parallel):
    x = torch.randn(size)
    [kernel] = kernels_of(lambda x: x + 1, x)
    assert kernel.is_parallel == parallel and (", parallel:" in str(kernel)) == parallel
    program = program_of(lambda x: x + 1, x, dialect=C())
    assert ("get_num_threads()" in program.source) == ("omp parallel" in program.kernels.text) == parallel


def test_kernels_of_the_reference_dialect_run_from_a_file():
    x = torch.randn(3, 8)
    text = program_of(lambda x: (x * 2).sum(0) + 1, x).kernels.text
    namespace, result = {}, torch.empty(8)
    exec(Reference().whole(text), namespace)
    namespace["run_0"](x, result)
    torch.testing.assert_close(result, (x * 2).sum(0) + 1)


# Dialects --------------------------------------------------------------------------------------------------


def test_both_dialects_know_every_operation_and_dtype():
    of_c = {*in_c.TEMPLATES, *in_c.OF_FLOATING, *in_c.OF_INTEGERS}
    assert of_c == set(in_python.OPERATIONS)
    # Both have a function for conversions, and what the mathematical library has besides.
    assert set(PRIMITIVES) - {"cast"} == of_c - {"fabs"}
    assert set(REDUCTIONS) == set(in_c.REDUCTIONS) == set(in_python.REDUCTIONS)
    assert COMPUTABLE == set(in_c.COMPUTED) == set(in_c.IN_MEMORY)
    assert set(map(short, COMPUTABLE)) == set(numbers.STORED) == set(numbers.CELLS)


# Words of C and of dialects that code outside of them has no use for.
WORDS = re.compile(r"omp |pragma|u?int\d+_t|\bdouble\b|malloc|static inline|kernels\.c|\.dialects\b|#include|\bgcc\b")


def test_nothing_above_the_dialects_imports_or_names_one():
    named = []
    for path in sorted(PACKAGE.glob("lower/**/*.py")):
        if "dialects" in path.parts:
            continue
        tree = ast.parse(path.read_text())
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        elsewhere = re.compile(r"dialects|building|call_library")
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                named += [f"{path.name}:{node.lineno} {node.value!r}"] * bool(WORDS.search(node.value))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                text = ast.unparse(node)
                named += [f"{path.name}:{node.lineno} {text}"] * bool(elsewhere.search(text))
    assert named == []


# What kernels compute --------------------------------------------------------------------------------------

KINDS = {
    "elements": lambda x: torch.sigmoid(x) * 3 - x.abs(),
    "rows": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rows with scratch": lambda x: F.log_softmax(x.exp(), -1),
    "scratch of several loops": lambda x: F.softmax(x.view(4, -1, x.shape[1]).transpose(1, 2).exp(), -1).amax((0, 2)),
    "one long row": lambda x: (x * x).sum(),
    "columns": lambda x: (x - x.mean(0)) / (x.var(0) + 1),
    "several reduced loops": lambda x: x.view(4, -1, x.shape[1]).transpose(1, 2).amax((0, 2)),
    "positions": lambda x: x.tril() + torch.arange(x.shape[1]),
    "computed places": lambda x: x[(x[:, 0] > 0).long()],
    "transposed": lambda x: (x.t() + 1).contiguous() * x.t().sum(-1, keepdim=True),
    "whole numbers": lambda x: (x * 100).to(torch.int8) // 7 + (x * 10).to(torch.int64) % 3,
    "half precision": lambda x: (x.bfloat16() * 3 + x.half().bfloat16()).float().cumsum(0).half() * 2,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(8, 5), (96, 400)], ids=str)
def test_kernels_of_every_kind(kind, shape):
    x = torch.randn(shape, generator=seeded(0))
    case = case_of(KINDS[kind], x)
    [plain], [compiled] = run_merged([case], Reference()), run_merged([case], C())
    assert differences(case, plain) == [] and all(map(close, plain, compiled))


def test_what_costs_much_is_computed_once_for_a_row_of_several_loops():
    def function(x, g, weight):
        slope = torch.ops.aten.silu_backward(g, x) * weight[:, None]
        return slope - slope.mean((1, 2), keepdim=True)

    x, g, weight = torch.randn(4, 6, 5), torch.randn(4, 6, 5), torch.randn(6)
    case = case_of(function, x, g, weight)
    [kernel] = steps_of(case)
    lines = str(kernel).splitlines()
    assert sum("sigmoid(" in line for line in lines) == 1
    assert sum(line.strip().startswith("sweep r0 < 6, r1 < 5") for line in lines) == 2
    [plain], [compiled] = run_merged([case], Reference()), run_merged([case], C())
    assert differences(case, plain) == [] and all(map(close, plain, compiled))


def test_exact_arithmetic_agrees_to_the_last_bit():
    def function(x, y):
        return torch.where(x > y, x * y - 1, x / y).clamp(-3, 3).sqrt() + torch.maximum(x, -y).floor()

    generator = seeded(0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x, y = (torch.randn(50, generator=generator).to(dtype) for _ in range(2))
        results = [program_of(function, x, y, dialect=dialect).run(x, y)[0] for dialect in (Reference(), C())]
        assert same(results[0], results[1]) and same(results[0], function(x, y))


def test_a_training_step_in_plain_python_loops(monkeypatch):
    texts = []

    class Noted(Reference):
        def spell(self, routines, names):
            spelled = super().spell(routines, names)
            texts.append(spelled.text)
            return spelled

    monkeypatch.setattr(sys.modules["bothways.backends.native"], "DIALECT", Noted())
    monkeypatch.setattr(bothways.config, "kernel_cache", False)

    def loss(x, w):
        return F.cross_entropy(torch.tanh(x @ w), torch.arange(x.shape[0]) % 3)

    for sizes in ([4, 4, 6], [5, 3, 7]):
        compiled = bothways.compile(loss, fullgraph=True)
        for size in sizes:  # from the second on, sizes may be any
            x, w = torch.randn(size, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
            expected = loss(x, w)
            gradients = torch.autograd.grad(expected, (x, w))
            result = compiled(x, w)
            torch.testing.assert_close(result, expected)
            torch.testing.assert_close(torch.autograd.grad(result, (x, w)), gradients)
    assert any("for i0 in range(4):" in text for text in texts) and any("range(s0):" in text for text in texts)


# PyTorch's own samples --------------------------------------------------------------------------------------


def samples_of(operations, dtype, count=1):
    findings = opinfo.Findings()
    findings.run = lambda: None
    for operation in operations:
        if dtype in operation.dtypes:
            findings.add(operation, dtype, count)
    return [case for case in findings._waiting if sum(tensor.numel() for tensor in case.given) < 20_000]


def wrong_in_python(cases, share=1 / 2):
    """What differs from eager; more than this share of the samples have kernels at all."""
    found = {}
    assert sum(any(isinstance(step, Kernel) for step in steps_of(case)) for case in cases) > len(cases) * share
    for case in cases:
        [results] = run_merged([case], Reference())
        for difference in differences(case, results):
            found.setdefault(case.name, []).append(difference)
    return found


COMMON = [operation for operation in opinfo.OPERATIONS if not operation.name.startswith(opinfo.MADE_OF_OTHERS)]
FREQUENT = [operation for operation in opinfo.OPERATIONS if operation.formatted_name in opinfo.FREQUENT]


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_each_operation():
    assert wrong_in_python(samples_of(COMMON, torch.float32)) == {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool], ids=short)
def test_samples_in_other_dtypes(dtype):
    assert wrong_in_python(samples_of(FREQUENT, dtype)) == {}


def disagreements(cases):
    """Where the dialects differ: whole numbers at all, others by more than eager differs from the truth."""
    together = [case for case in cases if not is_random(case)]
    found = {}
    for case, in_c_ in zip(together, run_merged(together, C()), strict=True):
        [in_python_] = run_merged([case], Reference())
        for own, other in zip(in_python_, in_c_, strict=True):
            if own is None or close(own, other):
                continue
            exact = reference(case)
            if exact is None or not own.dtype.is_floating_point:
                found[case.name] = (own, other)
            elif not all(as_accurate(one, eager, true) for one, eager, true in zip(in_c_, case.expected, exact)):
                found[case.name] = (own, other)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=short)
def test_both_dialects_make_the_same_of_samples(dtype):
    assert disagreements(samples_of(FREQUENT, dtype)) == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", opinfo.SWEEP, ids=short)
def test_many_samples(dtype):
    # Of whole numbers fewer have kernels: views, sorts, products, divisions that may fail and special functions, which
    # are left to ATen, are more of what there is for them.
    share = 1 / 2 if dtype.is_floating_point else 2 / 5
    assert wrong_in_python(samples_of(opinfo.OPERATIONS, dtype, opinfo.SWEEP[dtype]), share) == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=short)
def test_both_dialects_make_the_same_of_many_samples(dtype, part):
    assert disagreements(samples_of(opinfo.OPERATIONS[part::6], dtype, 2)) == {}
