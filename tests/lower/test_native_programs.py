"""Whole programs on the native backend: kernels, ATen calls and the Python around them, next to eager."""

import gc
import re

import pytest
import torch
import torch.nn.functional as F
from seeding import seeded

import bothways
from bothways import trace
from bothways.backends.native import native
from bothways.errors import KernelWarning
from bothways.lower.dialects.c.dialect import C
from bothways.lower.host.program import KernelProgram
from bothways.lower.schedule.steps import lower


def lowered(function, *args, **settings):
    """The program of a function of tensors that returns a tuple, for these arguments."""
    graph = trace(function)(*args)
    return KernelProgram(lower(graph, list(args)), dialect=C(), **settings)


def compare(function, *args):
    program = lowered(function, *args)
    for got, expected in zip(program.run(*args), function(*args), strict=True):
        assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
        torch.testing.assert_close(got, expected, equal_nan=True)
    return program


def kernels(program):
    return re.findall(r"^(?:static )?void kernel_\w+\(", program.kernels.text, re.MULTILINE)


class Block(torch.nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.proj(mixed.reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Convolutional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.head(F.max_pool2d(self.norm(self.conv(x)).relu(), 2).mean((2, 3)))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.LSTMCell(6, 10)

    def forward(self, x):
        state = None
        for now in x:
            state = self.cell(now, state)
        return state[0]


MODELS = {
    "transformer block": (Block, (2, 12, 32)),
    "convolution": (Convolutional, (4, 3, 12, 12)),
    "recurrence": (Recurrent, (5, 3, 6)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_in_eager(name, dtype):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().to(dtype)
    twin = make().to(dtype)
    twin.load_state_dict(model.state_dict())
    compiled = bothways.compile(twin, backend=native, fullgraph=True)
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 6e-2}[dtype]
    for step in range(3):
        x = torch.randn(shape, dtype=dtype, generator=seeded(step))
        for module, run in ((model, model), (twin, compiled)):
            loss = run(x).float().square().mean()
            module.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.sub_(parameter.grad, alpha=0.01)
        for one, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)


def test_pointwise_work_is_one_kernel():
    program = compare(lambda x, y: ((x * y + 1).sin().exp(), (x * y).tanh()), torch.randn(8, 16), torch.randn(16))
    assert len(kernels(program)) == 1


def test_a_layer_norm_with_what_is_around_it_is_one_kernel():
    def function(x, weight, bias):
        return (F.gelu(F.layer_norm(x * 2, (32,), weight, bias)) + x,)

    program = compare(function, torch.randn(8, 32), torch.randn(32), torch.randn(32))
    assert len(kernels(program)) == 1


def test_softmax_is_one_kernel():
    assert len(kernels(compare(lambda x: (F.softmax(x * 0.5, -1),), torch.randn(8, 33)))) == 1


@pytest.mark.parametrize("shape", [(4, 4), (4, 5)])
def test_sums_of_rows_and_of_columns_meet_in_the_whole(shape):
    def function(x, y):
        return (x / x.sum(1, keepdim=True) + (y.t() / y.t().sum(1, keepdim=True)).t(),)

    compare(function, torch.rand(shape), torch.rand(shape))


def test_a_loss_over_the_rows_and_the_columns_of_a_square():
    def loss(x):
        labels = torch.arange(x.shape[0])
        return F.cross_entropy(x, labels) + F.cross_entropy(x.t(), labels)

    x = torch.randn(6, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(loss(x), x)
    (got,) = torch.autograd.grad(bothways.compile(loss, backend="native")(x), x)
    torch.testing.assert_close(got, expected)


def test_kernels_of_like_layers_are_written_once():
    def function(x, *weights):
        for weight in weights:
            x = F.gelu(x @ weight * 0.3) + 1
        return (x,)

    program = compare(function, torch.randn(8, 8), *(torch.randn(8, 8) for _ in range(5)))
    assert len(kernels(program)) <= 2  # that of the product, where it is one, and that of the rest


def test_what_is_computed_twice_is_computed_once_and_returned_as_two_tensors():
    program = compare(lambda x: (x.exp() + 1, x.exp() + 1), torch.randn(4))
    assert program.kernels.text.count("expf(") == 1
    one, other = program.run(torch.randn(4))
    assert one.data_ptr() != other.data_ptr()


def test_numbers_that_are_equal_but_of_other_types_are_kept_apart():
    compare(lambda n: (n + 1, n + 1.0, n + True, n * 2, n * 2.0), torch.arange(4))


def test_intermediates_between_kernels_share_a_work_area():
    def function(x):
        a = x.exp()
        b = a / a.sum(0)
        return ((b - b.sum(1, keepdim=True)).sin(),)

    program = compare(function, torch.randn(128, 96))
    assert "area" in program.source


def test_a_small_work_area_is_in_the_frame_of_the_routine():
    def function(x):
        a = x.exp()
        b = a / a.sum(0)
        return ((b - b.sum(1, keepdim=True)).sin(),)

    program = compare(function, torch.randn(16, 12))
    assert "area" not in program.source and "char area[" in program.kernels.text


def test_a_view_that_many_calls_take_is_taken_once():
    def function(x, weight, bias):
        state = torch.zeros(4, 8, dtype=torch.float64)
        for now in x:
            state = torch.tanh(F.linear(now, weight, bias) + state @ weight.t())
        return (state, weight.t())

    given = torch.randn(5, 4, 8), torch.randn(8, 8), torch.randn(8)
    program = compare(function, *(tensor.double() for tensor in given))
    assert program.source.count(".mT") == 2  # one for the products, and one that is returned
    assert program.source.count("weight.as_strided") == 0


@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_view_of_a_tensor_goes_with_it(size):
    def function(x, weight):
        hidden = torch.tanh(x @ weight)
        both = (hidden.t() @ x, hidden.t() @ hidden)
        return (*both, torch.sin(hidden.sum(0) * 2))

    program = compare(function, torch.randn(size, 6), torch.randn(6, 6))
    named = set(re.findall(r"(\w+_view\w*) =", program.source))
    assert all(re.search(rf"del [^\n]*\b{name}\b", program.source) for name in named)


def test_the_tensors_of_a_routine_are_made_by_one_call():
    program = compare(lambda x, w: (torch.tanh(x @ w), (x @ w).sum(0)), torch.randn(5, 6), torch.randn(6, 7))
    making = [line for line in program.source.splitlines() if " = new_" in line]
    assert any("float32 (5, 7); float32 (7)" in line for line in making)
    assert len(making) == len(re.findall(r"^    run_\d", program.source, re.MULTILINE))


def test_an_input_in_a_list_is_freed_after_its_last_use():
    freed = []

    class Watched(torch.Tensor):
        def __del__(self):
            freed.append(True)

    def function(x, weight):
        return (((x * 2) @ weight).exp(),)

    x, weight = torch.randn(4, 4), torch.randn(4, 4)
    program = lowered(function, x, weight, takes_list=True)
    values = [x.clone().as_subclass(Watched), weight]
    expected = function(x, weight)
    (got,) = program.run(values)
    gc.collect()
    assert not values and freed
    torch.testing.assert_close(got, expected[0])


def test_results_of_aten_with_other_strides_than_foretold_are_laid_out_again():
    graph = trace(lambda x, w: (F.conv2d(x, w) + 1,))(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
    for node in graph.graph.nodes:
        if "convolution" in str(node.target):
            value = node.meta["val"]
            node.meta["val"] = value.contiguous(memory_format=torch.channels_last)
    x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    program = KernelProgram(lower(graph, [x, w]), dialect=C())
    for _ in range(3):
        torch.testing.assert_close(program.run(x, w)[0], F.conv2d(x, w) + 1)


def adam(parameters, gradients, means):
    for parameter, gradient, mean in zip(parameters, gradients, means, strict=True):
        mean.lerp_(gradient, 0.1)
        parameter.mul_(0.99).sub_(mean * 0.1)


def test_an_update_is_written_straight_into_the_tensors():
    shapes = [(4, 5), (7,), (), (2, 3, 4)]
    lists = [[torch.randn(shape) for shape in shapes] for _ in range(3)]
    twins = [[value.clone() for value in values] for values in lists]
    places = [value.data_ptr() for value in lists[0]]
    compiled = bothways.compile(adam, backend=native, fullgraph=True)
    for _ in range(3):
        versions = [value._version for value in lists[0]]
        with torch.no_grad():
            compiled(*lists)
            adam(*twins)
        assert all(value._version > version for value, version in zip(lists[0], versions, strict=True))
    torch.testing.assert_close(lists, twins)
    assert [value.data_ptr() for value in lists[0]] == places


def test_an_old_value_that_is_still_read_is_read_before_the_update():
    def program(x, y):
        total = x.sum()
        shifted = x.flip(0) + y
        x.add_(1)
        y.copy_(shifted * total)
        return shifted, x.sum()

    compiled = bothways.compile(program, backend=native, fullgraph=True)
    sides = []
    for function in (program, compiled):
        x, y = torch.arange(6.0), torch.ones(6)
        results = [function(x, y) for _ in range(3)]
        sides.append((results, x, y))
    torch.testing.assert_close(*sides)


def test_updates_of_overlapping_inputs():
    def program(x, y):
        x.mul_(2)
        y.add_(1)
        return x + y

    compiled = bothways.compile(program, backend=native, fullgraph=True)
    compiled(torch.ones(4), torch.ones(4))
    sides = []
    for function in (program, compiled):
        base = torch.arange(6.0)
        sides.append((function(base[:4], base[2:]), base))
    torch.testing.assert_close(*sides)


def test_an_updated_tensor_that_is_also_returned():
    def program(x):
        x.mul_(2)
        return x, x + 1, x * 1

    compiled = bothways.compile(program, backend=native, fullgraph=True)
    for _ in range(2):
        x, plain = torch.ones(3), torch.ones(3)
        got, expected = compiled(x), program(plain)
        torch.testing.assert_close(got, expected)
        assert got[0] is x and got[2] is not x
        torch.testing.assert_close(x, plain)


def test_other_layouts_get_kernels_of_their_own():
    counter = bothways.testing.CompileCounterWithBackend("aot_eager")
    compiled = bothways.compile(lambda x: x.exp() + 1, backend=counter)
    fast = bothways.compile(lambda x: x.exp() + 1, backend=native)
    for x in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(4, 12)[:, ::2], torch.randn(1, 6).expand(4, 6)):
        torch.testing.assert_close(fast(x), compiled(x))
        assert fast(x).stride() == (x.exp() + 1).stride()


def test_results_are_the_same_in_every_run():
    program = lowered(lambda x: (x.sum(), (x * x).mean(0), F.softmax(x, 1)), torch.randn(300, 400))
    x = torch.randn(300, 400)
    first = program.run(x)
    for _ in range(5):
        assert all(torch.equal(one, other) for one, other in zip(first, program.run(x), strict=True))


def test_long_sums_are_as_accurate_as_eager():
    x = torch.rand(3_000_000) * 1e-3 + 1
    program = lowered(lambda x: (x.sum(), x.view(1000, 3000).sum(0)), x)
    exact = x.double()
    whole, columns = program.run(x)
    assert abs(whole.item() - exact.sum().item()) <= abs(x.sum().item() - exact.sum().item()) + 1
    worst = (columns - exact.view(1000, 3000).sum(0)).abs().max()
    assert worst <= (x.view(1000, 3000).sum(0) - exact.view(1000, 3000).sum(0)).abs().max() + 1e-4


def test_the_python_around_the_kernels_shows_in_tracebacks():
    program = lowered(lambda x, y: ((x + 1) @ y,), torch.randn(2, 3).double(), torch.randn(3, 2).double())
    with pytest.raises(RuntimeError) as caught:
        program.run(torch.randn(2, 3).double(), torch.randn(5, 5).double())
    assert any("bothways native" in str(entry.path) for entry in caught.traceback)


def test_a_chain_of_thousands_of_operations():
    def chain(x):
        for _ in range(3000):
            x = x + 1
        return x

    x = torch.zeros(4, requires_grad=True)
    result = bothways.compile(chain)(x)
    result.sum().backward()
    assert torch.equal(result, torch.full((4,), 3000.0)) and torch.equal(x.grad, torch.ones(4))


def test_hundreds_of_tensors_in_one_chain_and_in_one_tree():
    def chain(x, *rest):
        for other in rest:
            x = (x + other).sin() * 0.5
        return (x,)

    def tree(*values):
        while len(values) > 1:
            values = [one * other for one, other in zip(values[::2], values[1::2], strict=True)]
        return (values[0],)

    values = [torch.randn(8, 4) for _ in range(256)]
    assert len(kernels(compare(chain, *values))) < 20
    assert len(kernels(compare(tree, *values))) < 20


def test_a_graph_that_cannot_be_lowered_runs_as_it_is_and_says_so(monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("loop")

    monkeypatch.setattr("bothways.backends.native.compile_graph", broken)
    with pytest.warns(KernelWarning, match=r"could not be lowered .* KeyError: 'loop' \(test_native_programs.py:\d+\)"):
        result = bothways.compile(lambda x: (x + 1).sin())(torch.ones(3))
    assert torch.equal(result, torch.full((3,), 2.0).sin())


@pytest.mark.parametrize("elements, kernels", [(100, False), (100_000, True)])
def test_a_few_operations_on_a_few_elements_are_left_to_autograd(elements, kernels):
    def program(x, w):
        return (x * w).sin()

    compiled = bothways.compile(program)
    x, w = torch.randn(elements), torch.randn(elements, requires_grad=True)
    with bothways.config.patch(kernels_for_small_graphs=False):
        result = compiled(x, w)
    assert (type(result.grad_fn).__name__ == "CompiledNodeBackward") is kernels
    torch.testing.assert_close(result, program(x, w))
    result.sum().backward()
    torch.testing.assert_close(w.grad, x * (x * w).cos())


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "mean", "logsumexp"])
def test_the_reduction_of_one_element_has_memory_of_its_own(name):
    def program(x):
        reduce = getattr(x, name)
        return reduce(0), reduce(0, keepdim=True), reduce(0)[None].squeeze()

    x = torch.ones(1)
    expected, results = program(x), bothways.compile(program)(x)
    x.zero_()
    for result, value in zip(results, expected, strict=True):
        assert result is not x and torch.equal(result, value)
