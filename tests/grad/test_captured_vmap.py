"""``torch.vmap`` is captured: the function as one example's, in one graph, gradients of each example included."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from agreeing import BACKENDS, agree, assert_raises_alike
from observing import with_history
from torch.func import functional_call, grad, grad_and_value, hessian, jvp, vmap

import bothways
from bothways.errors import KernelWarning
from bothways.runtime.mapped import TRANSFORMS, Differentiated, Mapped
from bothways.testing import same

torch.manual_seed(0)
NET = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
VALUES = {name: parameter.detach().clone() for name, parameter in NET.named_parameters()}
WEIGHT = torch.randn(3, 3, requires_grad=True)


def loss_of(values, x, y):
    return F.cross_entropy(functional_call(NET, values, (x.unsqueeze(0),)), y.unsqueeze(0))


made_outside = vmap(grad(loss_of), in_dims=(None, 0, 0))


def labels(x):
    return (x[:, 0] > 0).long()


def of_rows(x):
    return vmap(lambda row: row.softmax(-1) * row.sum())(x * 2) + 1


def of_columns(x):
    return vmap(lambda column: column.cumsum(0), in_dims=1, out_dims=1)(x)


def of_the_last_dimension(x):
    return vmap(lambda column: column.sin().sum(), in_dims=-1)(x)


def of_several(x):
    return vmap(lambda row, column: (row * column, {"less": (row - column).sum()}), in_dims=(0, 1))(x, x.t() * 2)


def of_a_dictionary(x):
    return vmap(lambda values, one: values["a"] * values["b"] + one, in_dims=(0, None))({"a": x, "b": x.exp()}, x[0])


def with_keywords(x):
    return vmap(lambda row, *, factor: row * factor)(x, factor=x[0])


def by_shapes(x):
    return vmap(lambda row: row.view(-1, 1) * torch.arange(row.shape[0]) if row.dim() == 1 else row)(x)


def with_what_needs_gradients(x):
    return vmap(lambda row: (row @ WEIGHT).tanh())(x)


def without_gradients_inside(x):
    def function(row):
        with torch.no_grad():
            scale = (row @ WEIGHT).norm()
        return (row @ WEIGHT) * scale

    return vmap(function)(x)


def of_a_module(x):
    return vmap(NET)(x)


def written_inside(x):
    def function(row):
        doubled = row * 2
        doubled[0] = 3.0
        return doubled.add_(1)

    return vmap(function)(x)


def one_in_the_other(x):
    return vmap(vmap(lambda number: number.sin() * number))(x)


def of_gradients(x):
    return vmap(grad(lambda row: (row**3).sum()))(x)


def of_parameters(x):
    return vmap(grad(loss_of), in_dims=(None, 0, 0))(VALUES, x, labels(x))


def of_parameters_made_outside(x):
    return made_outside(VALUES, x, labels(x))


def with_values(x):
    slopes, losses = vmap(grad_and_value(loss_of), in_dims=(None, 0, 0))(VALUES, x, labels(x))
    return slopes["0.weight"], losses


def with_more(x):
    return vmap(grad(lambda row: ((row**3).sum(), {"double": row * 2}), has_aux=True))(x)


def of_two_arguments(x):
    return vmap(grad(lambda one, other: (one * other.sin()).sum(), argnums=(0, 1)))(x, x + 1)


def of_second_derivatives(x):
    return vmap(grad(lambda row: grad(lambda other: (other**3).sum())(row).sum()))(x)


def with_gradients_of_what_needs_gradients(x):
    return vmap(grad(lambda row: (row @ WEIGHT).square().sum()))(x)


def inside_of_grad(x):
    return grad(lambda weight: vmap(lambda row: (row @ weight).sin().sum())(x).sum())(WEIGHT.detach())


def clipped_one_by_one(x):
    slopes = made_outside(VALUES, x, labels(x))
    norms = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes.values()]).norm(dim=0)
    factors = (1.0 / norms).clamp(max=1.0)
    return {name: torch.einsum("n,n...->...", factors, slope) for name, slope in slopes.items()}


def of_one_number_and_another(x):
    """Of a number beside a tensor without dimensions ``vmap`` makes a tensor."""
    return vmap(lambda row: (row * WEIGHT[0]).sum() - 1)(x), vmap(grad(lambda row: (1.5 - row.sum()) ** 2))(x)


def of_hessians_beside_a_number(x):
    return vmap(hessian(lambda row, one: ((row * one).sum() - 1) ** 2), in_dims=(0, None))(x, x[0])


def with_several_places(x):
    pair = vmap(lambda row: (row.sin(), row @ WEIGHT), out_dims=(1, 0))(x)
    tree = vmap(lambda row: {"sum": row.sum(), "rows": (row * 2, row + 1)}, out_dims={"sum": 0, "rows": -1})(x)
    return pair, tree, vmap(vmap(lambda number: (number.exp(), number), out_dims=(0, 0)), out_dims=(1, 0))(x)


def with_what_it_was_given(x):
    columns, doubled = vmap(lambda column, row: (column, row * 2), in_dims=(1, 0), out_dims=(0, 1))(x, x)
    return columns, doubled, torch.tensor([*columns.stride(), vmap(lambda row: row)(x) is x])


def with_an_argument_beside_gradients(x):
    slopes, given = vmap(grad(lambda row: ((row**3).sum(), (row, row * 2)), has_aux=True))(x)
    return slopes, given, torch.tensor(given[0] is x)


CASES = [
    with_several_places, with_what_it_was_given, with_an_argument_beside_gradients,
    of_rows, of_columns, of_the_last_dimension, of_several, of_a_dictionary, with_keywords, by_shapes,
    with_what_needs_gradients, without_gradients_inside, of_a_module, written_inside, one_in_the_other, of_gradients,
    of_parameters, of_parameters_made_outside, with_values, with_more, of_two_arguments, of_second_derivatives,
    with_gradients_of_what_needs_gradients, inside_of_grad, clipped_one_by_one, of_one_number_and_another,
    of_hessians_beside_a_number,
]  # fmt: skip


def observe(function, call):
    torch.manual_seed(call)
    return with_history(function(torch.randn(3, 3)), [WEIGHT, *NET.parameters()])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.in_turn("backend")
def test_a_map_is_captured(case, backend):
    agree(
        case, observe, 3, 3, 4, backend=backend, fullgraph=True, programs=1,
        within={"kernels_for_small_graphs": True}, tol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [of_rows, of_parameters, clipped_one_by_one], ids=lambda case: case.__name__)
def test_batches_of_other_sizes(case, backend):
    compiled = bothways.compile(case, backend=backend)
    for size in (4, 6, 5, 1, 7, 3):
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), case(x))


def test_what_a_function_does_besides_is_done_once():
    seen = []

    def function(x):
        def one(row):
            seen.append(row.shape)
            return row * 2

        return vmap(one)(x)

    x = torch.randn(2, 3)
    compiled = bothways.compile(function, backend="eager", fullgraph=True)
    for _ in range(3):
        before = list(seen)
        expected = function(x)
        seen[:] = before
        assert same(compiled(x), expected)
    assert seen == [torch.Size([3])] * 3


# What PyTorch does in another way, or not at all, is PyTorch's.

kept = torch.zeros(3)


def leaks(x):
    seen = []

    def one(row):
        seen.append(row * 2)
        return seen[0].sum()

    total = vmap(one)(x)
    return total, len(seen)


def leaks_and_uses(x):
    seen = [x[0]]

    def one(row):
        seen.append(row)
        return row.sum()

    return vmap(one)(x), seen[0] + 1, len(seen)


def gives_its_argument(x):
    return vmap(lambda row: row)(x)


def of_other_results(x):
    return vmap(lambda row: (row * 2, row.sum()), out_dims=(1, 0))(x)


def in_chunks(x):
    return vmap(lambda row: row * 2, chunk_size=2)(x)


def with_a_break(x):
    def one(row):
        bothways.graph_break()
        return row * 2

    return vmap(one)(x)


def gives_what_was_there(x):
    return vmap(lambda row: (row * 2, WEIGHT.detach()))(x)


def gives_one_result_in_two_places(x):
    def one(row):
        result = row.sin()
        return result, result

    return vmap(one, out_dims=(0, 1))(x)


def looks_at_its_history(x):
    return vmap(lambda row: row * (2 if row.requires_grad else 3))(x)


def of_an_average(x):
    return torch.func.jacrev(torch.sin)(x[0]), vmap(torch.func.jacrev(torch.sin))(x)


@pytest.mark.parametrize(
    "function",
    [leaks, leaks_and_uses, gives_its_argument, of_other_results, in_chunks, with_a_break, looks_at_its_history,
     of_an_average, gives_what_was_there, gives_one_result_in_two_places],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_the_rest_runs_as_plain_python(function, backend):
    compiled = bothways.compile(function, backend=backend)
    for _ in range(3):
        x = torch.randn(4, 3)
        assert same(compiled(x), function(x))


def draws(x):
    return vmap(lambda row: F.dropout(row))(x)


def decides(x):
    return vmap(lambda row: row if row.sum() > 0 else -row)(x)


def reads(x):
    return vmap(lambda row: row * row[0].item())(x)


def writes_to_what_was_there(x):
    return vmap(lambda row: kept.add_(row))(x)


def writes_into_one(x):
    return vmap(lambda row: torch.zeros(3).add_(row))(x)


def gives_a_number(x):
    return vmap(lambda row: 2.0)(x)


def of_other_sizes(x):
    return vmap(torch.add)(x, x[1:])


def no_such_dimension(x):
    return vmap(torch.sin, in_dims=3)(x)


def of_nothing(x):
    return vmap(torch.sin, in_dims=(None,))(x)


def in_no_such_place(x):
    return vmap(lambda row: row, out_dims=2)(x)


def in_places_of_something_else(x):
    return vmap(lambda row: (row, row + 1), out_dims=(0, 1, 0))(x)


def with_a_wrong_word(x):
    return vmap(torch.sin, randomness="some")(x)


def of_no_number(x):
    return vmap(grad(lambda row: row * 2))(x)


@pytest.mark.parametrize(
    "function",
    [draws, decides, reads, writes_to_what_was_there, writes_into_one, gives_a_number, of_other_sizes,
     no_such_dimension, of_nothing, with_a_wrong_word, of_no_number, in_no_such_place, in_places_of_something_else],
)  # fmt: skip
def test_errors_are_pytorchs(function):
    compiled = bothways.compile(function, backend="eager")
    assert_raises_alike(function, compiled, torch.randn(3, 3), characters=60)
    assert same(kept, torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("one", [
    lambda a: a + 1, lambda a: 2.5 * a - 0.1, lambda a: 1 / (a * a + 1.1), lambda a: a.add(True),
    lambda a: torch.stack([a, a * 3]), lambda a: a.clone().mul_(3), lambda a: a * a.new_ones(()) * 2,
])  # fmt: skip
def test_numbers_that_meet_single_elements_are_part_of_the_kernels(one, dtype):
    def program(x):
        results = [vmap(one)(x)]
        if x.is_floating_point():
            results.append(vmap(grad(lambda a: one(a).sum()))(x))
        return results

    def observe(function, size):
        return {"result": function(torch.linspace(-3, 4, size).to(dtype))}

    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        compiled = agree(program, observe, 3, 3, 5, 6, backend="native", fullgraph=True, programs=2)
    assert "ATen" not in str(bothways.explain(compiled))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numbers", [(2, 3, 4), (0.5, 1.5, 2.5)], ids=str)
def test_numbers_that_change_meet_single_elements(numbers, backend):
    program = lambda x, n: vmap(grad(lambda a: (a * n - x.shape[0]).sin()))(x) + vmap(lambda a: a - n)(x)
    observe = lambda function, n: {"result": function(torch.linspace(-1, 1, 3), n)}
    agree(program, observe, *numbers, backend=backend, fullgraph=True, dynamic=True, programs=1)


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [
    lambda x: vmap(lambda row: row.view(-1, 1).expand(row.shape[0], 2).reshape(2 * row.shape[0]) / x.shape[0])(x),
    lambda x: vmap(grad(lambda row: (row * x.shape[1]).sin().sum() / row.shape[0]))(x),
    lambda x: vmap(lambda row: vmap(lambda one: one / x.shape[1])(row) / x.shape[0] + torch.zeros(row.shape[0]))(x),
    lambda x: torch.func.jacrev(lambda row: (row * x.shape[0]).sin())(x[0]),
    lambda x: torch.func.hessian(lambda row: (row / x.shape[1]).pow(3).sum())(x[0]),
])  # fmt: skip
def test_sizes_that_change_are_read_where_one_example_is(program, backend):
    observe = lambda function, size: {"result": function(torch.linspace(-1, 1, math.prod(size)).view(size))}
    sizes = [(3, 5), (3, 5), (4, 6), (7, 5), (5, 9)]
    agree(program, observe, *sizes, backend=backend, fullgraph=True, programs=2)


def test_an_error_leaves_the_dispatcher_as_it_was():
    """Also where a frame of it, as of the function that spells tensors, holds a guard that switches transforms off."""

    def fails(row):
        guard = torch._C._DisableFuncTorch()
        raise ValueError(f"there is {guard}")

    graph = torch.fx.Graph()
    graph.output((graph.call_function(fails, (graph.placeholder("row"),)),))
    module = torch.fx.GraphModule({}, graph)
    x = torch.randn(4, 3)
    derivatives = [(Differentiated(module, name, 1, 1), takes) for name, (_, takes) in TRANSFORMS.items()]
    for mapped, takes_directions in ((Mapped(module, (0,), (0,)), False), *derivatives):
        with pytest.raises(ValueError, match="there is") as error:
            mapped(*[x] * (1 + takes_directions))
        assert same(vmap(torch.sin)(x), x.sin())
        del error
        assert same(jvp(torch.sin, (x,), (x,)), (x.sin(), x.cos() * x))
