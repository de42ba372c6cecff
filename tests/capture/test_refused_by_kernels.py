"""What ATen's kernels refuse although shapes and dtypes allow it raises at the user's line, with the effects before it.

Numbers that an operation does not take are known when it is captured (``capture/shapes/refused_arguments.py``). What is
not known fails when the graph first runs; plain Python then runs the call.
"""

import traceback

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree

import bothways

backends = pytest.mark.parametrize("backend", BACKENDS)
NAN, INF = float("nan"), float("inf")
IMAGE = torch.ones(1, 1, 3, 3)

NUMBERS = {
    "gelu": lambda x: F.gelu(x, approximate="other"),
    "a layer": torch.nn.GELU("other"),
    "softshrink": lambda x: F.softshrink(x, -0.5),
    "softshrink of nothing": lambda x: F.softshrink(x, INF),
    "softshrink by a complex number": lambda x: F.softshrink(x, 1j),
    "huber_loss": lambda x: F.huber_loss(x, x * 2, delta=0.0),
    "huber_loss of NaN": lambda x: F.huber_loss(x, x * 2, delta=NAN),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2, beta=-1.0, reduction="none"),
    "smooth_l1_loss by places": lambda x: F.smooth_l1_loss(x, x * 2, None, None, "none", -1.0),
    "celu": lambda x: F.celu(x, 0.0),
    "celu in place": lambda x: F.celu(x, 0.0, inplace=True),
    "gather": lambda x: torch.gather(x, 0, torch.zeros(1, 1, dtype=torch.long), out=torch.empty(1, 1).double()),
    "max of nothing": lambda x: torch.max(x[:0]),
    "max along nothing": lambda x: torch.max(x[:0], 0)[0],
    "min of nothing": lambda x: x[:0].min(),
    "min along nothing": lambda x: x[:, :0].min(dim=-1, keepdim=True).values,
    "median along nothing": lambda x: x[:, :0].median(1)[0],
    "a list of nothing": lambda x: torch._foreach_mul([], 2.0),
    "a list of nothing in place": lambda x: torch._foreach_add_([], 2.0),
    "complex": lambda x: torch.complex(x, x, out=torch.empty(3, 4, dtype=torch.complex128)),
}
KERNELS = {
    "softmax": lambda x: torch.softmax(x, 7),
    "sort": lambda x: torch.sort(x, 9)[0],
    "dilation": lambda x: F.conv2d(x[None, None], IMAGE, dilation=0),
    "padding": lambda x: F.conv2d(x[None, None], IMAGE, padding=-1),
    "output padding": lambda x: F.conv_transpose2d(x[None, None], IMAGE, output_padding=3),
    "divisor": lambda x: F.avg_pool2d(x[None], 2, divisor_override=0),
    "round": lambda x: torch.round(x.long(), decimals=2),
    "a truth is taken away": lambda x: x - True,
    "a truth is taken away in place": lambda x: x.sub_(True),
    "from a truth": lambda x: True - x,
    "arange": lambda x: x + torch.arange(4, dtype=torch.complex64),
    "masked_fill_": lambda x: x.long().masked_fill_(x > 0, INF),
    "masked_fill_ of bytes": lambda x: x.byte().masked_fill_(x > 0, 300),
}


BIASES = {
    "addmm": lambda x: torch.addmm(torch.ones(3), x, torch.ones(4, 1)),
    "a method": lambda x: torch.ones(3).addmm(x, torch.ones(4, 1)),
    "by name": lambda x: torch.addmm(input=torch.ones(3), mat1=x, mat2=torch.ones(4, 1)),
    "linear": lambda x: F.linear(x, torch.ones(1, 4), torch.ones(3)),
    "linear of a batch": lambda x: F.linear(x[None], torch.ones(1, 4), bias=torch.ones(3)),
    "conv1d": lambda x: F.conv1d(x[:, None], torch.ones(1, 1, 3), torch.ones(3)),
    "conv2d": lambda x: F.conv2d(x[None, None], IMAGE, torch.ones(3)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], IMAGE, torch.ones(2)),
    "of groups": lambda x: F.conv_transpose1d(x.T[None], torch.ones(4, 1, 3), torch.ones(1), groups=2),
}
REFUSED = NUMBERS | KERNELS | BIASES


def raising(refused, log):
    def program(x):
        log.append("before")
        y = refused(x * 2)
        log.append("after")
        return y

    return program


def catching(refused, log):
    def program(x):
        try:
            log.append("before")
            return refused(x * 2)
        except (RuntimeError, IndexError) as error:
            log.append(type(error).__name__)
            return x * 3

    return program


@backends
@pytest.mark.parametrize("way", [raising, catching])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore:a graph could not be lowered")
def test_what_is_refused_raises_where_it_stands(refused, way, backend):
    log = []
    program = way(refused, log)

    def observe(function, call):
        log.clear()
        try:
            result = function(torch.linspace(-1, 1, 12).view(3, 4))
        except (RuntimeError, IndexError) as error:
            lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if step.name == "program"]
            return {"raised": str(error), "kind": type(error).__name__, "lines": lines[-1:], "log": list(log)}
        return {"result": result, "log": list(log)}

    agree(program, observe, 1, 2, 3, backend=backend)


@backends
@pytest.mark.parametrize("refused", NUMBERS.values(), ids=NUMBERS)
def test_what_is_refused_for_its_numbers_raises_though_nothing_reads_it(refused, backend):
    counts = torch.zeros(())

    def program(x):
        counts.add_(1)
        try:
            refused(x * 2)
        except (RuntimeError, IndexError) as error:
            return type(error).__name__, x * 3
        return x

    x = torch.linspace(-1, 1, 12).view(3, 4)
    agree(program, lambda function, x: {"result": function(x)}, x, x, backend=backend)


@backends
@pytest.mark.parametrize("refused", BIASES.values(), ids=BIASES)
def test_a_bias_that_does_not_fit_raises_where_it_stands_after_a_change(refused, backend):
    """As after a dropout, or a batch norm: plain Python cannot run the call once more from its beginning."""

    def program(x):
        x.mul_(torch.rand(()) + 1)
        return refused(x)

    def observe(function, call):
        torch.manual_seed(call)
        x = torch.ones(3, 4)
        with pytest.raises(RuntimeError) as raised:
            function(x)
        lines = [step.lineno for step in raised.traceback if step.name == "program"]
        return {"x": x, "raised": str(raised.value), "line": lines[-1]}

    agree(program, observe, 1, 2, 3, backend=backend)


@backends
@pytest.mark.parametrize("function", [torch.max, torch.min, torch.median, torch.addmm, F.linear, F.conv2d])
def test_a_call_without_its_tensors_raises_where_it_stands(function, backend):
    def program(x):
        try:
            return function()
        except TypeError as error:
            return str(error), x * 2

    agree(program, lambda function, x: {"result": function(x)}, torch.ones(2), torch.zeros(2), backend=backend)


@backends
@pytest.mark.parametrize("number", [("gelu", "tanh"), ("softshrink", 0.5), ("huber_loss", 0.5), ("celu", -1.0)])
def test_what_is_taken_stays_in_the_graph(number, backend):
    functions = {
        "gelu": lambda x, value: F.gelu(x, approximate=value),
        "softshrink": F.softshrink,
        "huber_loss": lambda x, value: F.huber_loss(x, x * 2, delta=value),
        "celu": F.celu,
    }
    name, value = number
    compiled = bothways.compile(lambda x: functions[name](x * 2, value), backend=backend, fullgraph=True)
    x = torch.linspace(-2, 2, 8)
    torch.testing.assert_close(compiled(x), functions[name](x * 2, value))


def test_what_fails_beside_a_tensor_that_is_given_other_data_raises_at_the_users_line():
    """The tensor is made by each run, so that plain Python can run the call once more."""

    def program(x):
        value = x.clone()
        is_positive = bool(value[0] > 0)
        value.data = x * 2
        return is_positive, value

    compiled = bothways.compile(program, backend="eager")
    for x in (torch.ones(2), torch.ones(2, dtype=torch.cfloat), torch.ones(2, dtype=torch.cfloat)):
        seen = []
        for function in (program, compiled):
            try:
                seen.append(repr(function(x)))
            except NotImplementedError as error:
                seen.append((str(error), traceback.extract_tb(error.__traceback__)[-1].lineno))
        assert seen[0] == seen[1]


def test_a_graph_for_which_there_is_no_memory_gives_way_to_plain_python():
    """What was computed on the way is free by then, and plain Python may need less."""
    log = []

    def program(x):
        log.append("called")
        return x * 2

    def backend(graph, inputs):
        def run(*values):
            raise torch.OutOfMemoryError("no room")

        return run

    compiled = bothways.compile(program, backend=backend)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0)) and log == ["called"]


def test_a_backend_that_fails_is_not_believed():
    def backend(graph, inputs):
        def run(*values):
            raise RuntimeError("kernel failed")

        return run

    compiled = bothways.compile(lambda x: x * 2, backend=backend)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="kernel failed"):
            compiled(torch.ones(3))
