"""Inputs that ask for a gradient and are changed where autograd does not look: lowered, and as eager leaves them."""

import pytest
import torch
from agreeing import agree

import bothways
from bothways import backends
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]


def inputs(seed):
    torch.manual_seed(seed)
    return torch.randn(2000).requires_grad_(), torch.randn(2000)


def outcome(function, seed):
    """Everything people can see of one call: results, errors, values, versions, gradients."""
    given = inputs(seed)
    versions = [tensor._version for tensor in given]
    try:
        result = function(*given)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    counted = [tensor._version > version for tensor, version in zip(given, versions, strict=True)]
    gradient = None
    if isinstance(result, torch.Tensor) and result.requires_grad and result.grad_fn is not None:
        try:
            result.backward()
            gradient = given[0].grad
        except RuntimeError as error:
            gradient = str(error)[:50]
    kinds = [(tensor.requires_grad, tensor.is_leaf) for tensor in given]
    values = [tensor.detach() for tensor in given]
    return result.detach() if isinstance(result, torch.Tensor) else result, values, counted, gradient, kinds


def updates_agree(function):
    """Compare a function plain and compiled by each backend."""

    def observe(function, seed):
        return {"results, values, versions, gradients or the error": outcome(function, seed)}

    for backend in BACKENDS:
        agree(
            function, observe, 0, 1, 2, backend=backend, programs=1, tol=1e-5,
            within={"kernels_for_small_graphs": True},
        )  # fmt: skip


def lowered(function):
    """How many operations each graph has that a compiler of ATen graphs gets, forwards and backwards."""
    graphs = []

    def compile_graph(graph, _):
        graphs.append(graph)
        return lambda *values: graph.forward(*values)

    compiled = bothways.compile(function, backend=backends.aot(fw_compiler=compile_graph), fullgraph=True)
    for seed in range(2):
        outcome(compiled, seed)
    return [sum(node.op == "call_function" for node in graph.graph.nodes) for graph in graphs]


def update(weight, x):
    with torch.no_grad():
        weight.sub_(x * 0.1)


def update_of_data(weight, x):
    with torch.no_grad():
        weight.data.sub_(x * 0.1)


def update_of_detached(weight, x):
    weight.detach().mul_(2).add_(x)


def update_by_operator(weight, x):
    with torch.no_grad():
        weight -= 0.1 * x
        weight.data.add_(x)


def copied(weight, x):
    weight.data.copy_(x.sin())


def clipped(weight, x):
    weight.data.clamp_(-0.5, 0.5)
    return weight.data.max() + x.max()


def averaged(weight, x):
    with torch.no_grad():
        x.mul_(0.9).add_(weight, alpha=0.1)
        x.lerp_(weight, 0.3)


def averaged_as_data(weight, x):
    x.data.mul_(0.9).add_(weight.data, alpha=0.1)
    x.copy_(x * 0.5 + weight.detach())


def parts_of_it(weight, x):
    with torch.no_grad():
        weight[0].zero_()
        weight.view(2, -1)[1].add_(1)
        weight.detach().mul_(2)
    return weight


def data_and_itself(weight, x):
    with torch.no_grad():
        weight.data.add_(1)
        weight.mul_(x)
        weight.data.add_(1)


def mask(weight, x):
    with torch.no_grad():
        weight[weight > 0.5] = 0.5
        weight.data[x < 0] = -1.0


UPDATES = [
    update, update_of_data, update_of_detached, update_by_operator, copied, clipped, averaged, averaged_as_data,
    parts_of_it, data_and_itself, mask,
]  # fmt: skip


@pytest.mark.parametrize("function", UPDATES, ids=lambda function: function.__name__)
def test_updates(function):
    updates_agree(function)
    assert lowered(function)


@pytest.mark.parametrize("function", [update, update_of_data, averaged, parts_of_it, data_and_itself])
def test_an_update_without_gradients_is_one_graph(function):
    assert len(lowered(function)) == 1


def test_what_is_written_through_data_leaves_the_version():
    weight, x = inputs(0)
    compiled = bothways.compile(update_of_data, fullgraph=True)
    for _ in range(2):
        compiled(weight, x)
    assert weight._version == 0 and not torch.equal(weight, inputs(0)[0])


def loss_and_update_of_data(weight, x):
    loss = (weight * x).sin().sum()
    with torch.no_grad():
        weight.data.sub_(x * 0.1)
    return loss


def loss_and_update(weight, x):
    loss = (weight * x).sin().sum()
    with torch.no_grad():
        weight.sub_(x * 0.1)
    return loss


def update_and_loss(weight, x):
    with torch.no_grad():
        weight.sub_(x * 0.1)
    return (weight * x).sin().sum()


def data_with_gradients_on(weight, x):
    weight.data.mul_(0.5)
    loss = (weight * x).sin().sum()
    weight.data.clamp_(-1, 1)
    weight.data.mul_(2)
    return loss


def intermediate(weight, x):
    hidden = (weight * x).sin()
    loss = (hidden * hidden).sum()
    with torch.no_grad():
        hidden.data.zero_()
    return loss


def detached(weight, x):
    loss = (weight * x * weight).sum()
    weight.detach().add_(1)
    return loss


def hooked(weight, x):
    hidden = weight * 2
    hidden.register_hook(lambda gradient: gradient * 2)
    with torch.no_grad():
        weight.data.add_(1)
    return (hidden * x).sum()


MIXED = [
    loss_and_update_of_data, loss_and_update, update_and_loss, data_with_gradients_on, intermediate, detached, hooked,
]  # fmt: skip


@pytest.mark.parametrize("function", MIXED, ids=lambda function: function.__name__)
def test_an_update_beside_a_loss_is_cut_off_and_the_rest_is_differentiated(function):
    updates_agree(function)
    backwards = function not in (loss_and_update, detached)  # which autograd refuses: what it saved was changed
    assert len(lowered(function)) >= 2 + backwards  # the loss, its backward, the update


def test_what_came_before_a_context_that_runs_as_captured_is_compiled():
    def program(weight, x):
        loss = (weight * x).sin().sum()
        with torch.autocast("cpu", torch.bfloat16):
            weight.data.mul_(0.5)
        return loss

    updates_agree(program)
    assert lowered(program)[0] == 3  # mul, sin, sum


def test_a_leaf_is_not_changed_where_autograd_looks():
    def program(weight, x):
        weight.add_(x)

    def into(weight, x):
        x.mul_(weight)
        return x.sum()

    updates_agree(program)
    updates_agree(into)
    assert not lowered(program)


def test_data_that_is_returned():
    def program(weight, x):
        with torch.no_grad():
            data = weight.data
            data.mul_(2)
            return data, (x * data).sin()

    for backend in BACKENDS:
        weight, x = inputs(0)
        compiled = bothways.compile(program, backend=backend)
        for _ in range(2):
            data, result = compiled(weight, x)
            assert data.data_ptr() == weight.data_ptr() and not data.requires_grad
            assert torch.allclose(result, (x * data).sin())


@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_that_overlap_are_refused_as_eager_refuses_them(backend):
    def through_data(weight, x):
        with torch.no_grad():
            weight.data[1:].add_(weight.data[:-1])

    def through_detached(weight, x):
        with torch.no_grad():
            weight.detach()[1:].mul_(weight[:-1])

    for function in (through_data, through_detached):
        compiled = bothways.compile(function, backend=backend)
        for _ in range(2):
            weight, x = inputs(0)
            with pytest.raises(RuntimeError, match="single memory location"):
                compiled(weight, x)
            assert torch.equal(weight, inputs(0)[0])


def test_sizes_that_change():
    def program(weight, x):
        with torch.no_grad():
            weight.data.mul_(0.5)
            weight.sub_(x * 0.1)

    compiled = bothways.compile(program, fullgraph=True)
    for size in (3000, 2000, 2500, 4000):
        sides = []
        for function in (program, compiled):
            weight = torch.linspace(0, 1, size).requires_grad_()
            function(weight, torch.ones(size))
            sides.append((weight.detach(), weight._version > 0))
        assert difference(*sides) is None
    assert len(bothways.history(compiled)) == 2


def test_an_input_that_shares_memory_sees_the_update():
    def program(weight, other):
        with torch.no_grad():
            weight.mul_(2)
            return other + weight

    compiled = bothways.compile(program, fullgraph=True)
    for _ in range(2):
        for shared in (False, True):
            sides = []
            for function in (program, compiled):
                weight = torch.linspace(0, 1, 2000).requires_grad_()
                other = weight.detach() if shared else torch.ones(2000)
                sides.append((function(weight, other), weight.detach()))
            assert difference(*sides) is None


def test_a_mask_is_filled_by_a_kernel():
    def program(x, rows):
        x = x * 2
        x[x > 1] = 1.5
        x[rows] = -1.0
        return x + 1

    compiled = bothways.compile(program, fullgraph=True)
    x, rows = torch.randn(64, 50), torch.arange(64) % 3 == 0
    x[3, 4] = float("nan")
    for _ in range(2):
        assert torch.equal(compiled(x, rows), program(x, rows).nan_to_num(7)) or torch.allclose(
            compiled(x, rows), program(x, rows), equal_nan=True
        )
    (generated,) = bothways.explain(compiled).generated
    assert "index_put" not in generated.texts["Python"]


def old_and_new(x, w):
    z = (x.sin() @ w) @ w.t()
    y = x * 2 + 1
    x.copy_(z)
    return z.cos() + y, y * z


def old_again_behind_a_product(x, w):
    h = x * 2 + 1
    z = h @ w
    x.copy_(z @ w.t())
    return (z.sin() @ w.t()) * h + x


def old_beside_what_it_became(x, w):
    z = (x.sin() @ w) @ w.t()
    y = x * 2 + 1
    x.copy_(z.tanh())
    return (z.cos() + y) * x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("function", [old_and_new, old_again_behind_a_product, old_beside_what_it_became])
def test_what_was_computed_from_the_old_value_is_read_before_it_is_overwritten(function, backend):
    """A kernel that writes to an input, and computes something else from what that was."""

    def observe(call, seed):
        torch.manual_seed(seed)
        x, w = torch.randn(300, 64), torch.randn(64, 64) / 8
        return {"results": call(x, w), "changed": x}

    agree(function, observe, 1, 1, 2, backend=backend, programs=1, within={"kernels_for_small_graphs": True}, tol=1e-3)
