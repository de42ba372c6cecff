"""Places that are computed: several indices that are read as one, and sums that are added up at places, to the bit as
ATen adds them; what is out of range raises as plain Python does, before anything is changed."""

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree
from cuda_on_host import CudaOnHost
from native_checking import cases_of
from observing import raised

import bothways
from bothways.backends.native import native
from bothways.lower.host.program import KernelProgram
from bothways.lower.ir import builder
from bothways.lower.ir.prims import COMPUTABLE, Extern
from bothways.lower.schedule.steps import lower

KERNELS = {"kernels_for_small_graphs": True}
ROWS, COLUMNS, DEPTH = 7, 5, 6
OTHERS = sorted(COMPUTABLE - {torch.float32}, key=str)  # without gradients


def tensor(*shape, dtype=torch.float32, grad=False):
    values = torch.randn(shape, dtype=torch.float64) * 3
    values = values > 0 if dtype == torch.bool else values.abs() if dtype == torch.uint8 else values
    return values.to(dtype).requires_grad_(grad and dtype.is_floating_point)


def indices(count, size, negative=True):
    return torch.randint(-size if negative else 0, size, (count,))


def steps_of(function, *inputs):
    """What ATen is called for, and how often kernels are asked to add."""
    [case] = cases_of("case", lambda *values: [function(*values)], list(inputs))
    calls = [step for step in lower(case.graph, [value.detach() for value in case.given]).steps if type(step) is Extern]
    return [call.name for call in calls if not call.only_computes], sum(call.only_computes for call in calls)


def gradients_of(results, *inputs):
    if inputs[0].requires_grad:
        results.sum().backward()
    return [value.grad for value in inputs]


READS = {
    "two": lambda x, i, j: x[i, j] * 2,
    "all": lambda x, i, j: x[i, j, i] * 2,
    "the last two": lambda x, i, j: x[:, i, j] * 2,
    "a slice between them": lambda x, i, j: x[i, :, j] * 2,
    "a new dimension": lambda x, i, j: x[i, j, None] * 2,
    "a matrix of them": lambda x, i, j: x[i[:, None], j] * 2,
    "one repeated": lambda x, i, j: x[i[:1], j] * 2,
    "turned": lambda x, i, j: x.transpose(0, 2)[i, j] * 2,
    "every other one": lambda x, i, j: x[::2][i // 2, j] * 2,
    "of what is computed": lambda x, i, j: (x * 3)[i, j] + 1,
    "computed": lambda x, i, j: x[(i + 1) // 2, j] * 2,
    "the same twice": lambda x, i, j: x[i, j] + x[i, j, None].sum(1),
}


def together(functions, *args):
    """What all of them give, one compiled function; those that plain Python refuses for a dtype left out."""
    kept = {name: function for name, function in functions.items() if not raised(function, *args)}
    assert len(kept) > len(functions) // 2
    return lambda *values: {name: function(*values) for name, function in kept.items()}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_several_indices(read):
    compare_reads(read, torch.float32)


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_several_indices_in_each_dtype(dtype):
    given = tensor(ROWS, COLUMNS, ROWS, dtype=dtype), indices(4, COLUMNS), indices(4, COLUMNS)
    compare_reads(together(READS, *given), dtype)


def compare_reads(read, dtype):
    def observe(function, count):
        torch.manual_seed(count)
        x = tensor(ROWS, COLUMNS, ROWS, dtype=dtype, grad=dtype == torch.float32)
        result = function(x, indices(count, COLUMNS), indices(count, COLUMNS))
        return {"result": result, "gradients": gradients_of(result, x)}

    agree(read, observe, 4, 4, 9, 20, backend="native", within=KERNELS, programs=2)


def test_several_indices_are_left_to_no_call():
    x, i, j = tensor(ROWS, COLUMNS, ROWS, grad=True), indices(9, COLUMNS), indices(9, COLUMNS)
    for name, read in READS.items():
        calls, sums = steps_of(read, x.detach(), i, j)
        assert (calls, sums) == (["check"], 0), name


MASKS = {
    "of rows": lambda x, mask, j: x[mask.any(1)],
    "of elements": lambda x, mask, j: x[mask],
    "beside numbers": lambda x, mask, j: x[mask[:, 0], 1],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("read", MASKS.values(), ids=MASKS)
def test_masks_as_indices(read, backend):
    def observe(function, call):
        torch.manual_seed(call)
        return {"result": function(tensor(ROWS, COLUMNS), tensor(ROWS, COLUMNS) > 0, None)}

    agree(read, observe, 1, 1, 2, backend=backend, within=KERNELS)


ADDS = {
    "index_add": lambda x, i, j, v: x.index_add(0, i, v[:, 0]),
    "index_add to columns": lambda x, i, j, v: x.index_add(1, i % DEPTH, v[:, 0, :1].mT.expand(ROWS, -1)),
    "index_add to zeros": lambda x, i, j, v: torch.zeros_like(x).index_add(0, i, v[:, 1]) + x,
    "index_add to a number": lambda x, i, j, v: torch.full_like(x, 3).index_add(0, i, v[:, 1]) + x,
    "index_add of what is computed": lambda x, i, j, v: (x + x).index_add(0, i, v[:, 1] + v[:, 0]),
    "index_add of one vector": lambda x, i, j, v: x[:, 0].index_add(0, i, v[:, 0, 0]),
    "index_add with 32 bits": lambda x, i, j, v: x.index_add(0, i.int(), v[:, 0]),
    "index_add to itself": lambda x, i, j, v: x.index_add(0, i[: len(x)], x),
    "index_add, changed": lambda x, i, j, v: (x + x).index_add_(0, i, v[:, 0]).index_add_(0, i, v[:, 1]),
    "scatter_add": lambda x, i, j, v: x.scatter_add(0, i[:, None].expand(-1, DEPTH), v[:, 0]),
    "scatter_add of parts": lambda x, i, j, v: x.scatter_add(0, i[:, None].expand(-1, 3), v[:, 0, :3]),
    "scatter_add to the second dimension": lambda x, i, j, v: x.scatter_add(
        1, (v[:ROWS, 0].abs() * 7).long() % DEPTH, v[:ROWS, 1]
    ),
    "scatter_add to each its own": lambda x, i, j, v: x.scatter_add(0, (v[:, 0].abs() * 7).long() % ROWS, v[:, 1]),
    "put": lambda x, i, j, v: x.index_put((i,), v[:, 0], accumulate=True),
    "put from the end": lambda x, i, j, v: x.index_put((i - ROWS,), v[:, 0], accumulate=True),
    "put at two": lambda x, i, j, v: x.index_put((i, j), v[:, 0, 0], accumulate=True),
    "put at two of three": lambda x, i, j, v: (x[None] * 2).index_put((i * 0, i), v[:, 1], accumulate=True),
    "put one number": lambda x, i, j, v: x.index_put((i, j), v[0, 0, 0], accumulate=True),
    "put one row": lambda x, i, j, v: x.index_put((i,), v[0, 0], accumulate=True),
    "put at a matrix of places": lambda x, i, j, v: x.index_put((i[:, None], j), v[0, 0, 0], accumulate=True),
    "put at a column": lambda x, i, j, v: torch.ops.aten.index_put(x, [None, j], v[0, 0, 0], True),
    "put where a mask is": lambda x, i, j, v: x.index_put((x > 0,), v[0, 0, 0], accumulate=True),
}  # fmt: skip


@pytest.mark.parametrize("add", ADDS.values(), ids=ADDS)
def test_sums_at_places(add):
    compare_sums(add, torch.float32)


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_sums_at_places_in_each_dtype(dtype):
    x, v = tensor(ROWS, DEPTH, dtype=dtype), tensor(9, 2, DEPTH, dtype=dtype)
    compare_sums(together(ADDS, x, indices(9, ROWS, False), indices(9, DEPTH), v), dtype)


def compare_sums(add, dtype):
    """The same bits, with each place hit many times."""

    def observe(function, count):
        torch.manual_seed(count)
        grad = dtype == torch.float32
        x, v = tensor(ROWS, DEPTH, dtype=dtype, grad=grad), tensor(count, 2, DEPTH, dtype=dtype, grad=grad)
        i, j = indices(count, ROWS, negative=False), indices(count, DEPTH)
        result = function(x, i, j, v)
        return {"result": result, "gradients": gradients_of(result, x, v)}

    agree(add, observe, 9, 9, 40, 500, backend="native", within=KERNELS, tol=0)


def test_sums_at_places_are_kernels():
    x, v = tensor(ROWS, DEPTH), tensor(40, 2, DEPTH)
    i, j = indices(40, ROWS, negative=False), indices(40, DEPTH)
    left = {name: steps_of(add, x, i, j, v)[0] for name, add in ADDS.items()}
    left = {name: set(calls) - {"check"} for name, calls in left.items()}
    assert [name for name, calls in left.items() if calls] == ["put at a matrix of places", "put where a mask is"]


def test_many_columns_and_rows():
    """Where ATen sorts the indices of a scatter first, and has vectors; few enough that no two threads add at once."""

    def program(x, i, v):
        added = x.index_add(0, i, v)
        scattered = x.scatter_add(0, i[:, None].expand_as(v), v)
        return added, scattered, x.index_put((i,), v, accumulate=True)

    def observe(function, call):
        count, dtype = call
        torch.manual_seed(count)
        x, v = tensor(50, 48, dtype=dtype), tensor(count, 48, dtype=dtype)
        return {"results": function(x, indices(count, 50, False), v)}

    calls = [(count, dtype) for dtype in (torch.float32, torch.float64) for count in (400, 400, 600)]
    agree(program, observe, *calls, backend="native", within=KERNELS, tol=0)


BEYOND = {
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_add behind another": lambda x, i, v: x.index_add(0, i.clamp(0, 6), v).index_add(0, i, v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i[:, None].expand_as(v), v),
    "put": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "put at two": lambda x, i, v: x.index_put((i, i), v[:, 0], accumulate=True),
    "two": lambda x, i, v: x[i, i] * 2,
    "two of which one is": lambda x, i, v: x[i % 5, i] * 2,
    "one after the other": lambda x, i, v: x[i % 5] + x[i % 5, i].sum() + x[i].sum(),
    "what is checked and fails": lambda x, i, v: torch.linalg.cholesky(x[:4, :4]).sum() + x[i % 7],
    "what fails behind it": lambda x, i, v: x[i].sum() + torch.linalg.cholesky(x[:4, :4]),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", BEYOND.values(), ids=BEYOND)
def test_places_out_of_range(program, grad, backend):
    """Each call changes ``x`` first and counts itself: what raises has done so once, and nothing else."""

    def counted(x, i, v, counts):
        x.mul_(2)
        counts.append(len(counts))
        result = program(x, i, v)
        x.add_(1)
        return result

    def observe(function, places):
        torch.manual_seed(0)
        x, counts = tensor(7, 6), []
        v = tensor(3, 6, grad=grad)
        error = raised(function, x, torch.tensor(places), v, counts)
        return {"raised": error, "x": x, "counts": counts}

    calls = [[0, 1, 1], [0, 1, 7], [-8, 1, 1], [0, -1, 1], [0, 1, 1], [5, 99, -99]]
    agree(counted, observe, *calls, backend=backend, within=KERNELS)


SAYING = {
    "index_add": lambda x, i, dim: x.index_add(dim, i, x.index_select(dim, i * 0)),
    "index_add with 32 bits": lambda x, i, dim: x.index_add(dim, i.int(), x.index_select(dim, i * 0)),
    "index_select": lambda x, i, dim: x.index_select(dim, i) * 2,
    "gather": lambda x, i, dim: x.gather(dim, x.index_select(dim, i * 0).long() * 0 + i.max()) * 2,
    "scatter_add": lambda x, i, dim: x.scatter_add(dim, x.index_select(dim, i * 0).long() * 0 + i.max(), x),
    "put": lambda x, i, dim: x.movedim(dim, 0).index_put((i,), x[:1, 0].sum(), accumulate=True),
    "read": lambda x, i, dim: x.movedim(dim, 0)[i] * 2,
}


@pytest.mark.parametrize("say", SAYING.values(), ids=SAYING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_what_is_said_of_places_where_the_call_cannot_start_again(say, dtype):
    """ATen has several ways to read and to add, each with words of its own."""

    def program(y, x, i, dim):
        before = y.exp()
        y.add_(1)  # which autograd knows by then
        return before, y.cos(), say(x, i, dim)

    def observe(function, call):
        place, shape, dim = call
        x = torch.ones(*shape).to(dtype)
        return {"raised": raised(function, torch.ones(3, requires_grad=True) * 1, x, torch.tensor([0, place]), dim)}

    calls = [
        (place, shape, dim)
        for shape, dim in (((6, 2), 0), ((2, 6), 1), ((2, 6), -1), ((6, 2, 2), 0), ((2, 6, 2), 1), ((2, 2, 6), 2))
        for place in (0, 9, -9)
    ]
    agree(program, observe, *calls, backend="native", within=KERNELS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_places_and_one(backend):
    def program(x, i, v):
        return x.index_add(0, i, v) + x.index_put((i, i), v[:, 0], accumulate=True), x[i, i] * 2

    def observe(function, count):
        torch.manual_seed(count)
        x, v = tensor(7, 7, grad=True), tensor(count, 7, grad=True)
        one, other = function(x, indices(count, 7, False), v)
        (one.sum() + other.square().sum()).backward()
        return {"results": (one, other), "x": x.grad, "v": v.grad}

    agree(program, observe, 0, 0, 1, 5, 6, 7, 8, 30, backend=backend, within=KERNELS, programs=3)


def test_places_are_looked_at_once():
    """Who reads and adds at the same places needs one check, and several checks are one call, behind the kernels."""

    def program(x, i, j, v):
        read = x[i] * v
        return x.index_add(0, i, read) + x[i].sum() + x.index_put((i, j), v[:, 0], accumulate=True)

    x, i, j, v = tensor(7, 6), indices(4, 7, False), indices(4, 6), tensor(4, 6)
    [case] = cases_of("case", lambda *values: [program(*values)], [x, i, j, v])
    steps = lower(case.graph, case.given).steps
    [check] = [step for step in steps if isinstance(step, Extern) and step.is_check]
    assert steps[-1] is check and len(check.args) == 4  # whether something is wrong; x[i], index_add, x[i, j]


def mixture(x, result, tokens, place, best, w):
    result.index_add_(0, tokens, F.silu(x[tokens] @ w) * best[tokens, place, None])
    return result * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [20, 5000], ids=["few", "many"])
def test_an_input_that_is_added_to(rows, backend):
    """A small one gets a value of its own; a large one is changed where it lies."""

    def observe(function, count):
        torch.manual_seed(count)
        x, w, best = tensor(rows, 8, grad=True), tensor(8, 8, grad=True), tensor(rows, 2, grad=True)
        start = tensor(rows, 8, grad=True)
        result = start * 1
        version, whole = result._version, result
        loss = function(x, result, indices(count, rows, False), indices(count, 2), best, w)
        loss.square().sum().backward()
        gradients = [value.grad for value in (x, w, best, start)]
        return {"loss": loss, "result": whole, "versions": whole._version - version, "gradients": gradients}

    agree(mixture, observe, 9, 9, 12, 31, 7, backend=backend, within=KERNELS, programs=2, tol=1e-4)


@pytest.fixture
def as_on_gpu(monkeypatch):
    made = builder.Builder.__init__

    def init(self, device):
        made(self, device)
        self.on_gpu = True

    monkeypatch.setattr(builder.Builder, "__init__", init)


def test_on_gpus_reads_are_kernels_and_sums_are_atens(as_on_gpu):
    x, i, j = tensor(7, 5, 6), indices(9, 5), indices(9, 5)
    for name, read in READS.items():
        given = [tensor(7, 5, 7), i, j]
        [case] = cases_of(name, lambda *values, read=read: [read(*values)], given)
        program = KernelProgram(lower(case.graph, given), dialect=CudaOnHost())
        torch.testing.assert_close(program.run(*given)[0], read(*given), msg=name)
        with pytest.raises(RuntimeError, match="device-side assert"):
            program.run(given[0], i + 50, j)
    assert steps_of(lambda x, i: x.index_put((i, i), x[0, 0, 0], accumulate=True), x, i) == (["index_put"], 0)
    assert steps_of(lambda x, i: x.index_add(0, i, x[i]), x, i.abs()) == (["index_add"], 0)


def test_sizes_change_without_new_programs():
    def program(x, i, j):
        return torch.zeros_like(x).index_put((i, j), x[i, j] * 2, True)

    compiled = bothways.compile(program, backend=native)
    with bothways.config.patch(**KERNELS):
        for count in (3, 5, 8, 8, 13, 40):
            x, i, j = tensor(count + 2, count + 7), indices(count, count), indices(count, count)
            assert torch.equal(compiled(x, i, j), program(x, i, j))
    assert len(bothways.history(compiled)) == 2
