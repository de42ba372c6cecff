"""Tensors inside a compiled function: operators, methods, functions, indexing, metadata, factories, state.

Each program runs plainly and compiled on the same inputs, with and without gradients; results, mutated inputs,
autograd's view of the results and the random generator's state must be the same.
"""

import copy

import pytest
import torch
import torch.nn.functional as F

import bothways
from bothways.testing import CompileCounter, difference


def operators(x, y):
    return x + y, x - 1, 2 * x, x / y, x // 2, x % 2, x**2, 2**x, 3 - x, 3 / x, -x, +x, abs(x), x @ y.t()


def comparisons(x, y):
    return x == y, x != 1, x < y, 1 < x, x <= y, x >= y, x is y, x is not y, x is None, x == "text"


def logic(x, y):
    return (x > 0) & (y > 0), (x > 0) | (y > 0), (x > 0) ^ (y > 0), ~(x > 0), x.long() << 1


def augmented_assignment(x, y):
    z = x.clone()
    z += y
    z *= 2
    z -= 1
    z /= 3
    return z


def indexing(x, y):
    return x[0], x[:, 1], x[..., None], x[1:3, ::2], x[[0, 2]], x[torch.tensor([1, 2])], x[x.shape[0] - 1], x[-1, -1]


def item_assignment(x, y):
    z = x.clone()
    z[0] = 1.0
    z[:, 1] = y[:, 2]
    z[1:3] += 2
    z[..., 0] = 0
    return z


def metadata(x, y):
    return (
        x.shape, x.dtype, x.device, x.ndim, x.requires_grad, x.is_leaf, x.size(), x.size(1), x.stride(), x.numel(),
        x.element_size(), x.is_contiguous(), x.t().is_contiguous(), x.is_floating_point(), x.shape[0] * 2 + 1, len(x),
        x.shape + (1,), x.size()[1:], x.layout, x.itemsize, x.nbytes, x.dim(), x.is_cuda, x.dtype.is_floating_point,
        x + 0,
    )  # fmt: skip


def autograd_metadata(x, y):
    z = (x * y).sum()
    return z, z.requires_grad, z.grad_fn is None, x.grad is None, z.is_leaf, x.detach().requires_grad


def shape_arithmetic(x, y):
    rows, columns = x.shape
    return x.reshape(columns, rows), x.view(rows * columns), x.expand(2, rows, columns), torch.Size([rows, columns])


def transposed_properties(x, y):
    return x.T, x.mT, x.T.T, x.t().stride()


def factories(x, y):
    return (
        torch.zeros(3), torch.ones(2, 2, dtype=torch.int32), torch.arange(5), torch.full((2,), 3.0), x.new_zeros(3),
        torch.eye(3), torch.linspace(0, 1, 5), torch.tensor([1, 2, 3]), torch.tensor(3.5), torch.zeros_like(y),
        torch.empty(2, 0), torch.as_tensor([[1.0]]),
    )  # fmt: skip


def random_numbers(x, y):
    return (
        F.dropout(x, 0.5, training=True), torch.rand(3), torch.randn_like(x), torch.randint(0, 10, (4,)),
        torch.randperm(5), x.detach().bernoulli(0.5),
    )  # fmt: skip


def iteration(x, y):
    for row in x:
        y = y + row
    for index, row in enumerate(x.unbind(0)):
        y = y * row + index
    first, *rest = x
    return y, first, rest


def several_results(x, y):
    left, right = x.split(2)
    values, indices = x.max(dim=1)
    ordered = torch.sort(x, dim=0)
    return left, right, values, indices, ordered.values, ordered[1], torch.chunk(y, 2), x.topk(2).indices


def functional(x, y):
    return (
        F.relu(x), F.softmax(x, -1), F.gelu(y), F.layer_norm(x, (5,)), F.linear(x, y), F.mse_loss(x, y),
        F.cross_entropy(x, torch.tensor([0, 1, 2, 3])), F.pad(x, (1, 1)), F.one_hot(torch.tensor([0, 2]), 3),
        F.embedding(torch.tensor([0, 1]), x), F.max_pool1d(x[None], 2), F.conv1d(x[None], y[None, :, :3]),
        F.scaled_dot_product_attention(x[None], y[None], y[None]),
    )  # fmt: skip


def methods(x, y):
    return (
        x.sum(0), x.sum(dim=(0, 1)), x.mean(-1, keepdim=True), x.std(), x.var(0), x.norm(), x.argmax(), x.cumsum(0),
        x.masked_fill(x > 0, 0.0), x.gather(1, torch.zeros(4, 1, dtype=torch.long)), x.flatten(), x.tril(), x.roll(1),
        x.flip(0), x.repeat(2, 1), x.narrow(0, 0, 2), x.diagonal(), x.clamp(min=0), x.lerp(y, 0.5), x.unfold(0, 2, 1),
        x.scatter(1, torch.zeros(4, 1, dtype=torch.long), 1.0), x.index_select(0, torch.tensor([0, 1])),
    )  # fmt: skip


def unbound_methods(x, y):
    add, bound = torch.Tensor.add, x.mul
    return add(x, y), bound(2), torch.Tensor.sum(x, dim=0, keepdim=True), x.__add__(y)


def namespaces(x, y):
    return (
        torch.ops.aten.sin(x), torch.ops.aten.add.Tensor(x, y), torch.linalg.norm(x), torch.fft.fft(x).real,
        torch.special.expit(x), torch.linalg.svdvals(x), torch.einsum("ij,kj->ik", x, y), torch.stack([x, y]),
        torch.cat((x, y), dim=0), torch.where(x > 0, x, y), torch.broadcast_tensors(x, y[:1]),
    )  # fmt: skip


def conversions(x, y):
    return (
        x.to(torch.float64) + 1, x.int(), x.long() // 2, x.half(), x.to(torch.bfloat16) * 2, x.type_as(y.double()),
        x.bool(), x.long() / 2, x.double() + y, x.to("cpu"), x.to(y), x.cpu(),
    )  # fmt: skip


def operations_that_return_their_argument(x, y):
    return x.contiguous() is x, x.to(x.dtype) is x, x.float() is x, x.contiguous() + y


def inplace_methods(x, y):
    z = x.clone()
    same = z.add_(y)
    z.unsqueeze_(0).squeeze_(0)
    z.clamp_(0)
    z.copy_(y)
    z[...] = x
    return z, same is z, z.shape


def out_argument(x, y):
    z = torch.empty(4, 5)
    result = torch.add(x.detach(), y.detach(), out=z)
    return z, result is z


def complex_numbers(x, y):
    z = torch.complex(x, y)
    return z.abs(), z.real + 1, z.imag, (z * z.conj()).real, torch.view_as_real(z)


def type_questions(x, y):
    return (
        isinstance(x, torch.Tensor), torch.is_tensor(x), type(x) is torch.Tensor, isinstance(x, torch.nn.Parameter),
        hasattr(x, "note"), getattr(x, "note", 3), x.dtype == torch.float32, x.device.type, f"{x.shape} {x.dtype}",
        torch.is_floating_point(x), torch.promote_types(x.dtype, torch.float64), torch.finfo(x.dtype).eps, x * 1,
    )  # fmt: skip


def grad_modes(x, y):
    with torch.no_grad():
        first = x * 2
    with torch.set_grad_enabled(False):
        off = torch.is_grad_enabled()
    second = first * y
    with torch.no_grad(), torch.enable_grad():
        third = second.sin()
    return first, second, third, off, torch.is_grad_enabled()


def grad_mode_decorators(x, y):
    @torch.no_grad()
    def frozen(value):
        return value * 2, torch.is_grad_enabled()

    return frozen(x), torch.is_grad_enabled(), frozen(y)[0].requires_grad


def autocast(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = x @ y.t()
        kind = low.dtype
        with torch.autocast("cpu", enabled=False):
            inner = x @ y.t()
    return low, kind, inner, (x @ y.t()).dtype


def autocast_as_decorator(x, y):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def product(a, b):
        return a @ b

    return product(x, y.t())


def attributes_on_results(x, y):
    z = x + y
    z.note = "hi"
    z.other = y
    return z.note, z.other is y, z


PROGRAMS = [
    operators, comparisons, logic, augmented_assignment, indexing, item_assignment, metadata, autograd_metadata,
    shape_arithmetic, transposed_properties, factories, random_numbers, iteration, several_results, functional,
    methods, unbound_methods, namespaces, conversions, operations_that_return_their_argument, inplace_methods,
    out_argument, complex_numbers, type_questions, grad_modes, grad_mode_decorators, autocast, autocast_as_decorator,
    attributes_on_results,
]  # fmt: skip


def tensors_in(result):
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from tensors_in(item)


def autograd_view(result):
    return [(t.requires_grad, t.is_leaf, t.stride(), type(t), t.grad_fn is None) for t in tensors_in(result)]


@pytest.mark.parametrize("requires_grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program, requires_grad):
    torch.manual_seed(0)
    plain_args = tuple(torch.rand(4, 5).add(0.1).requires_grad_(requires_grad) for _ in range(2))
    compiled_args = copy.deepcopy(plain_args)
    counter = CompileCounter()
    compiled = bothways.compile(program, backend=counter, fullgraph=True)
    for _ in range(2):
        torch.manual_seed(1)
        expected = program(*plain_args)
        expected_state = torch.get_rng_state()
        torch.manual_seed(1)
        got = compiled(*compiled_args)
        assert difference(expected, got) is None
        assert difference(plain_args, compiled_args) is None
        assert autograd_view(expected) == autograd_view(got)
        assert torch.equal(expected_state, torch.get_rng_state())
    assert counter.frame_count == 1


def test_inputs_are_changed_in_place():
    def program(x, y):
        x.add_(1)
        view = x.view(-1)
        view.mul_(2)
        y[0] = view[:3]
        return x

    plain, other = (torch.ones(2, 3), torch.ones(2, 3)), (torch.ones(2, 3), torch.ones(2, 3))
    compiled = bothways.compile(program, fullgraph=True)
    for _ in range(2):
        program(*plain)
        assert compiled(*other) is other[0]
        assert difference(plain, other) is None


def test_gradients_flow_through_the_graph():
    def program(x, weight):
        return (torch.tanh(x @ weight) ** 2).sum()

    grads = []
    for function in (program, bothways.compile(program, fullgraph=True)):
        x, weight = torch.ones(2, 3, requires_grad=True), torch.full((3, 4), 0.5, requires_grad=True)
        function(x, weight).backward()
        grads.append((x.grad, weight.grad))
    assert difference(*grads) is None


def test_a_tensor_attribute_set_inside_is_there_afterwards():
    def program(x):
        x.note = x.shape[0]
        x.twice = x * 2
        return x + 1

    x = torch.ones(3)
    bothways.compile(program, fullgraph=True)(x)
    assert x.note == 3 and torch.equal(x.twice, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("code", "program"),
    [
        ("tensor_branch", lambda x: x + 1 if x.sum() > 0 else x),
        ("tensor_value", lambda x: x * x.sum().item()),
        ("tensor_value", lambda x: [x] * int(x[0])),
        ("tensor_value", lambda x: int(x[0]) + x),
        ("tensor_value", lambda x: f"{x}"),
        ("dynamic_shape", lambda x: x.nonzero()),
        ("dynamic_shape", lambda x: x[x > 0]),
        ("mutation_unknown", lambda x: (x * 2).detach_()),
    ],
)
def test_what_needs_data_breaks_with_its_reason(code, program):
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(bothways.errors.Unsupported) as caught:
        bothways.compile(program, fullgraph=True)(x)
    assert caught.value.break_.code == code
    assert caught.value.break_.where.filename == __file__


def test_what_needs_data_runs_as_plain_python_without_fullgraph():
    def program(x):
        return x + 1 if x.sum() > 0 else x - 1

    compiled = bothways.compile(program)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert torch.equal(compiled(x), program(x))


def test_an_error_of_an_operation_is_the_users_own():
    def program(x, y):
        return x @ y

    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        bothways.compile(program, fullgraph=True)(torch.ones(2, 3), torch.ones(2, 3))
    assert not isinstance(caught.value, bothways.errors.BothwaysError)


def test_tensor_subclasses_that_dispatch_are_not_taken_for_tensors():
    class Tagged(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with pytest.raises(bothways.errors.Unsupported, match="tensor_subclass"):
        bothways.compile(lambda x: x + 1, fullgraph=True)(torch.ones(3).as_subclass(Tagged))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_data_is_changed_behind_autograds_back(backend):
    def program(x):
        y = x.exp()
        z = y * 2
        y.data.mul_(3)
        return z.sum() + y.sum()

    results = []
    for function in (program, bothways.compile(program, backend=backend, fullgraph=True)):
        x = torch.ones(3, requires_grad=True)
        loss = function(x)
        loss.backward()
        results.append((loss, x.grad))
    assert difference(*results) is None


def test_attributes_of_tensors_and_functions_may_have_any_name():
    def program(x, hook):
        setattr(x, "class", 1)
        setattr(hook, "not a name", x.shape)
        y = x + 1
        setattr(y, "for", 2)
        return y

    def hook():
        pass

    x = torch.ones(2)
    y = bothways.compile(program, fullgraph=True)(x, hook)
    assert getattr(x, "class") == 1 and getattr(y, "for") == 2 and getattr(hook, "not a name") == (2,)


def test_a_view_that_autograd_refuses_is_refused_as_in_eager():
    def views():
        first, second = torch.ones(2, 2, requires_grad=True).mul(2).unbind(0)
        with torch.no_grad():
            first.mul_(3)
        return second

    def program(view, x):
        x = x + 1
        return x * view

    assert str(outcome(program, views())) == str(outcome(bothways.compile(program, backend="eager"), views()))


def outcome(function, view):
    try:
        return function(view, torch.ones(2))
    except RuntimeError as error:
        return type(error), str(error).splitlines()[0]
