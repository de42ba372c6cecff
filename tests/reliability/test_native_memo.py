"""What a graph was compiled to is remembered on disk: the next process neither traces nor lowers it again.

A next process is played by forgetting what is loaded; one test starts real ones.
"""

import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cache_work import counted_work
from pythons import run_python
from torch import nn

import bothways
from bothways.building import build as building
from bothways.cache.disk import is_key
from bothways.cache.spelling import SCOPE, NotSpelled, spelled
from bothways.config import config
from bothways.lower.host.text import FACTS

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("BOTHWAYS_CACHE_DIR", str(tmp_path / "cache"))
    building._loaded.clear()
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def work(monkeypatch):
    return counted_work(monkeypatch)


def entries(root):
    return [path for path in root.iterdir() if is_key(path.name)]


def facts(root, wanted):
    """The entries whose facts have a name."""
    files = [path / FACTS for path in entries(root) if (path / FACTS).exists()]
    return [path.parent for path in files if wanted in json.loads(path.read_text())]


def train(function, inputs, given=None):
    """Outputs and gradients of a new compiled function, as another process would make it."""
    building._loaded.clear()
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    torch.manual_seed(0)
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    moving = [output for output in outputs if output.requires_grad]
    if moving:
        gradients = given or [torch.ones_like(output) for output in moving]
        torch.autograd.backward(moving, gradients, retain_graph=True)
    return [*outputs, *(x.grad for x in inputs), *inputs]


def check_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.stride() == other.stride() and one.dtype == other.dtype
            torch.testing.assert_close(one, other, equal_nan=True)


def check_remembered(work, function, inputs, given=None, traces=0):
    """Plain and compiled agree, a second process does the same work less ``traces``, and agrees as well."""
    expected = train(function, inputs, given)
    check_equal(train(bothways.compile(function, fullgraph=True), inputs, given), expected)
    assert work
    work.clear()
    compiled = bothways.compile(function, fullgraph=True)
    check_equal(train(compiled, inputs, given), expected)
    assert work == ["trace_joint"] * traces
    check_equal(train(compiled, inputs, given), expected)
    assert work == ["trace_joint"] * traces


def linear_block(x, w, b):
    return F.layer_norm(F.gelu(F.linear(x, w, b)), (8,)).softmax(-1)


def with_dropout(x):
    return F.dropout(x.sin() * 2, 0.5, training=True) + x


def independent(x, y):
    return x.sin() * 2, (y.cos() * 3).exp()


def updates(x, y):
    x.mul_(2).add_(y)
    return x + 1, y * 2


def with_constant(x):
    return x * torch.tensor([1.0, float("inf"), -0.0, 0.1]) + torch.tensor(2)


def returns_input(x):
    return x, (x * 2).exp()


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


PROGRAMS = {
    "matrix product, normalisation, softmax": (linear_block, lambda: [leaf(4, 6), leaf(8, 6), leaf(8)]),
    "random numbers": (with_dropout, lambda: [leaf(50, 50)]),
    "random numbers of another layout": (with_dropout, lambda: [torch.randn(50, 40).t().requires_grad_()]),
    "results that share nothing": (independent, lambda: [leaf(5), leaf(5)]),
    "changed inputs": (updates, lambda: [torch.randn(5), torch.randn(5)]),
    "a constant": (with_constant, lambda: [leaf(4)]),
    "an input returned": (returns_input, lambda: [leaf(4)]),
    "no gradients": (linear_block, lambda: [torch.randn(4, 6), torch.randn(8, 6), torch.randn(8)]),
    "integers": (lambda x: (x // 3 + 1).sum(), lambda: [torch.arange(12)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_next_process_does_not_compile_again(name, work):
    function, make = PROGRAMS[name]
    torch.manual_seed(1)
    check_remembered(work, function, make())


def test_a_module_and_its_loss(work):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x, target):
            return F.cross_entropy(self.second(self.norm(self.first(x)).relu().mean((2, 3))), target)

    torch.manual_seed(0)
    model, x, target = Model(), torch.randn(2, 3, 8, 8), torch.tensor([1, 3])
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def step(module):
        building._loaded.clear()
        model.load_state_dict(state)
        model.zero_grad()
        loss = module(x, target)
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters()), *(b.clone() for b in model.buffers())]

    expected = step(model)
    check_equal(step(bothways.compile(model, fullgraph=True)), expected)
    work.clear()
    check_equal(step(bothways.compile(model, fullgraph=True)), expected)
    assert work == []


def test_a_gradient_of_another_layout_is_traced_when_it_first_comes(work):
    x = leaf(4, 6)
    function = lambda x: x.sin() * x  # noqa: E731
    check_remembered(work, function, [x])
    work.clear()
    transposed = [torch.randn(6, 4).t()]
    check_remembered(work, function, [x], transposed)


def test_a_backward_of_a_backward_is_traced_when_it_is_wanted(work):
    def twice(function, x):
        building._loaded.clear()
        x = x.detach().clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        first.square().sum().backward()
        return [first, x.grad]

    function, x = (lambda x: x.sin() * x.exp()), leaf(5)
    expected = twice(function, x)
    check_equal(twice(bothways.compile(function), x), expected)
    work.clear()
    check_equal(twice(bothways.compile(function), x), expected)
    assert "trace_joint" in work


def test_batched_gradients_go_through_a_graph_that_is_traced_then(work):
    function, x = (lambda x: x.sin() * 2), leaf(3)

    def jacobian(function):
        building._loaded.clear()
        return [torch.autograd.grad(function(x), x, torch.eye(3), is_grads_batched=True)[0]]

    expected = jacobian(function)
    check_equal(jacobian(bothways.compile(function)), expected)
    work.clear()
    check_equal(jacobian(bothways.compile(function)), expected)


def test_views_that_only_their_trace_knows_are_traced_again(work):
    def function(x):
        y = x * 2
        return y, y[1:]

    x = leaf(4)
    check_remembered(work, function, [x], traces=1)


def test_custom_functions_are_traced_again_and_not_lowered(work):
    class Scaled(torch.autograd.Function):
        factor = 2.0

        @staticmethod
        def forward(ctx, x):
            return x * Scaled.factor

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    def function(x):
        return Scaled.apply(x).sin()

    check_remembered(work, function, [leaf(4)], traces=1)
    Scaled.factor = 5.0
    check_equal(train(bothways.compile(function), [torch.ones(4)]), train(function, [torch.ones(4)]))


CHANGES = {
    "shape": lambda: train(bothways.compile(linear), [leaf(5, 4)]),
    "strides": lambda: train(bothways.compile(linear), [torch.randn(4, 4).t().requires_grad_()]),
    "dtype": lambda: train(bothways.compile(linear), [leaf(4, 4).double().detach().requires_grad_()]),
    "needs no gradient": lambda: train(bothways.compile(linear), [torch.randn(4, 4)]),
    "literal": lambda: train(bothways.compile(lambda x: x.sin() * 3), [leaf(4, 4)]),
    "operation": lambda: train(bothways.compile(lambda x: x.cos() * 2), [leaf(4, 4)]),
}


def linear(x):
    return x.sin() * 2


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_compiled_anew(change, work):
    train(bothways.compile(linear), [leaf(4, 4)])
    work.clear()
    CHANGES[change]()
    assert "trace_joint" in work


def test_state_of_the_process_is_part_of_the_key(work):
    x = torch.randn(4, 4)

    def run():
        building._loaded.clear()
        return bothways.compile(lambda x: x @ x * 2)(x)

    assert run().dtype == torch.float32
    work.clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert run().dtype == torch.bfloat16
    assert "lower" in work
    work.clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert run().dtype == torch.bfloat16
    assert work == []
    with config.patch(recompute=False):
        run()
    assert "trace_joint" in work


def test_inputs_that_share_memory_are_told_apart_from_those_that_do_not(work):
    def function(x, y):
        x.add_(1)
        return y * 2

    def run(x, y):
        building._loaded.clear()
        return [bothways.compile(function)(x, y), x]

    check_equal(run(torch.zeros(4), torch.ones(4)), [torch.full((4,), 2.0), torch.ones(4)])
    shared = torch.zeros(4)
    check_equal(run(shared, shared.view(4)), [torch.full((4,), 2.0), torch.ones(4)])


# Damage ----------------------------------------------------------------------------------------------------


DAMAGES = {
    "facts changed": lambda root: [(path / FACTS).write_text("{}") for path in facts(root, "facts")],
    "programs changed": lambda root: [(path / "program.py").write_text("boom") for path in facts(root, "names")],
    "programs gone": lambda root: [path.rename(root / "gone") for path in facts(root, "names")[:1]],
    "libraries gone": lambda root: [
        (path / "kernels.so").unlink() for path in entries(root) if (path / "kernels.so").exists()
    ],
    "checksums gone": lambda root: [(path / "checksums").unlink() for path in entries(root)],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_compiled_again_and_then_remembered(damage, root, work):
    x = leaf(4, 4)
    expected = train(linear, [x])
    train(bothways.compile(linear), [x])
    assert facts(root, "facts") and facts(root, "names")
    DAMAGES[damage](root)
    work.clear()
    check_equal(train(bothways.compile(linear), [x]), expected)
    assert "lower" in work or damage == "facts changed"
    work.clear()
    check_equal(train(bothways.compile(linear), [x]), expected)
    assert work == []


def test_nothing_of_others_is_run(root, work):
    x = leaf(4, 4)
    train(bothways.compile(linear), [x])
    for path in facts(root, "names"):
        (path / "program.py").chmod(0o666)
    work.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_equal(train(bothways.compile(linear), [x]), train(linear, [x]))
    assert "lower" in work


def test_without_the_cache_nothing_is_remembered(root, work):
    with config.patch(kernel_cache=False):
        train(bothways.compile(linear), [leaf(4, 4)])
    assert not root.exists()


# People ----------------------------------------------------------------------------------------------------


def test_people_read_the_same_as_the_first_time(root, tmp_path, monkeypatch, work):
    def shown(folder):
        monkeypatch.setenv("BOTHWAYS_DUMP", str(tmp_path / folder))
        building._loaded.clear()
        model = lambda x, w: (x @ w).relu().sum()  # noqa: E731
        compiled = bothways.compile(model)
        compiled(leaf(4, 4), leaf(4, 4)).backward()
        generated = bothways.explain(compiled).generated
        texts = {path.name: path.read_text() for path in (tmp_path / folder).iterdir()}
        return [(made.name, made.texts) for made in generated], texts

    first = shown("first")
    work.clear()
    assert shown("second") == first
    assert work == [] and first[0] and first[1]


def test_the_command_counts_and_removes_what_is_remembered(root, capsys):
    from bothways.__main__ import main

    train(bothways.compile(linear), [leaf(4, 4)])
    count = len(entries(root))
    assert main(["cache", "info"]) == 0
    assert f"entries    {count}\n" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert entries(root) == []


PROGRAM = """
import sys
import torch
import bothways
from bothways.lower.host import program
bothways.config.kernels_for_small_graphs = True

differentiate = sys.modules["bothways.grad.differentiate"]
count = 0
def counted(original):
    def count_and_run(*args, **kwargs):
        global count
        count += 1
        return original(*args, **kwargs)
    return count_and_run

from bothways.grad import differentiated
for module in (differentiate, differentiated):
    module.trace_joint = counted(module.trace_joint)
program.lower = counted(program.lower)
x = torch.linspace(0, 1, 12).requires_grad_()
y = bothways.compile(lambda x: (x.sin() + 1).exp().sum())(x)
y.backward()
print(count, y.item(), x.grad.sum().item())
"""


def test_another_process_finds_what_this_one_left(root):
    def run():
        done = run_python(["-c", PROGRAM], cwd=ROOT, check=True)
        count, *values = done.stdout.split()
        return int(count), values

    first, second = run(), run()
    assert first[0] > 0 and second[0] == 0 and second[1] == first[1]


# Spelling --------------------------------------------------------------------------------------------------


SPELLED = [
    None, True, 3, -2.5, float("inf"), "text", (1, 2.0), [1, [2]], {"a": 1}, slice(1, None), range(3), ...,
    torch.float32, torch.strided, torch.channels_last, torch.device("cpu"), torch.device("cuda", 1), torch.Size([2, 3]),
    torch.ops.aten.add.Tensor, torch.ops.aten.mm.default, torch.sin, F.gelu, F.cross_entropy, torch.linalg.norm,
    getattr,
]  # fmt: skip


@pytest.mark.parametrize("value", SPELLED, ids=lambda value: spelled(value))
def test_an_expression_gives_the_value_back(value):
    assert eval(spelled(value), dict(SCOPE)) == value


def test_numbers_that_are_equal_are_spelled_apart():
    assert len({spelled(value) for value in (1, 1.0, True, -0.0, 0.0, "1")}) == 6
    nan = eval(spelled([float("nan")]), dict(SCOPE))[0]
    assert nan != nan


def test_small_tensors_are_spelled_with_their_data():
    tensor = torch.tensor([[0.1, float("nan")], [float("-inf"), -0.0]], dtype=torch.bfloat16)
    for place in ("cpu", "meta"):  # where tensors are made by default is no matter
        with torch.device(place):
            again = eval(spelled(tensor), dict(SCOPE))
        assert torch.equal(again.view(torch.int16), tensor.view(torch.int16)) and again.dtype == tensor.dtype


def own_function(x):
    return x


@pytest.mark.parametrize(
    "value",
    [own_function, lambda x: x, object(), torch.ones(100), torch.ones(2).t, nn.Linear(1, 1), own_function.__code__],
    ids=lambda value: type(value).__name__,
)
def test_what_only_this_process_knows_is_not_spelled(value):
    with pytest.raises(NotSpelled):
        spelled(value)


def test_a_function_under_the_name_of_one_of_pytorch_is_not_taken_for_it(monkeypatch):
    def gelu(x):
        return x

    monkeypatch.setattr(F, "gelu", gelu)
    with pytest.raises(NotSpelled):
        spelled(gelu)
