"""What an autograd node of eager's has saved is checked before its backward, also where no formula reads it."""

import pytest
import torch
from agreeing import BACKENDS, agree
from native_checking import with_tensors_first
from op_samples import first_samples, op_db

from bothways.grad.differentiate import differentiate
from bothways.testing import difference

SMALL = {"kernels_for_small_graphs": True}
ROWS = torch.tensor([[0, 1, 2], [1, 0, 2]])


def by_gather(x, v):
    return x.gather(0, ROWS), x * 2


def by_take_along_dim(x, v):
    return torch.take_along_dim(x, ROWS, 0), x * 2


def by_cummax(x, v):
    return x.cummax(0)[0], x * 2


def by_norm(x, v):
    return x.norm(dim=0), x * 2


def by_scatter_reduce(x, v):
    return x.scatter_reduce(0, ROWS, v, "sum"), x * 2


def by_index_add(x, v):
    return x.index_add(0, torch.tensor([1, 0]), v, alpha=2), v * 2


def by_div(x, v):
    return torch.div(x, v[:1] + 3, rounding_mode="floor") + x, v * 2


def by_sgn(x, v):
    return x.sgn() + v[:1], x * 2


PROGRAMS = [by_gather, by_take_along_dim, by_cummax, by_norm, by_scatter_reduce, by_index_add, by_div]
if tuple(map(int, torch.__version__.split(".")[:2])) > (2, 11):
    PROGRAMS.append(by_sgn)  # on PyTorch 2.11 gradients by another input are refused as well


def gradients_of(results, leaves, **options):
    try:
        return torch.autograd.grad(results, leaves, [*map(torch.ones_like, results)], allow_unused=True, **options)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return "refused"


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("changed", ["x", "v", "first", "second"])
def test_a_change_matters_to_backwards_through_the_nodes_that_saved(program, changed, backend):
    def observe(function, rows):
        leaves = [torch.linspace(0.5, 2, rows * 3).reshape(rows, 3).requires_grad_() for rows in (rows, 2)]
        x, v = (leaf * 1 for leaf in leaves)
        results = function(x, v)
        with torch.no_grad():
            {"x": x, "v": v, "first": results[0], "second": results[1]}[changed].detach().add_(1)
        ways = [(results[:1], leaves), (results[1:], leaves), (results[:1], leaves[:1]), (results, leaves[1:])]
        return {"gradients": [gradients_of(roots, by, retain_graph=True) for roots, by in ways]}

    agree(program, observe, 3, 3, 4, 5, backend=backend, within=SMALL)


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [4, 20_000])
@pytest.mark.parametrize("made_inside", [False, True])
def test_a_write_by_an_index_after_it_was_saved(made_inside, rows, backend):
    """Into a large tensor ATen writes where it lies, in a part of its own."""

    def program(x):
        x = x * 1.5 if made_inside else x
        taken = x.gather(0, ROWS)
        with torch.no_grad():
            x.index_fill_(0, ROWS[0], 1.0)
        return taken, x * 2

    def observe(function, place):
        leaf = torch.linspace(0.5, 2, rows * 3).reshape(rows, 3).requires_grad_()
        results = function(leaf * 2)
        return {"gradient": gradients_of(results[place : place + 1], [leaf])}

    agree(program, observe, 0, 1, 0, backend=backend)


# Not compared: those of which one result alone may not be used after a change of another, and kron, whose views do not
# count the changes of what they are of.
APART = ("chunk", "kron", "split", "unbind", "empty", "new_empty", "fft.", "jiterator", "masked.", "signal.", "sparse.")
DIFFERENTIABLE = [
    operation
    for operation in op_db
    if operation.supports_autograd and not operation.name.startswith(APART)
    and torch.float32 in operation.supported_backward_dtypes("cpu")
]  # fmt: skip


def shown_after_changes(function, tensors):
    """Whether there are gradients after the change of one of the tensors or of the results, one after the other."""
    return [shown_after_change(function, tensors, changed) for changed in (None, *range(len(tensors) + 2))]


def shown_after_change(function, tensors, changed):
    torch.manual_seed(0)
    leaves = [one.detach().clone().requires_grad_() if one.requires_grad else one for one in tensors]
    given = [leaf * 1 if leaf.requires_grad else leaf for leaf in leaves]
    results = function(*given)
    visible = [*given, *results]
    if changed is not None and changed < len(visible):
        torch.autograd.graph.increment_version(visible[changed])
    roots = [result for result in results if result.requires_grad]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return gradients_of(roots, wanted) == "refused"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_samples_of_each_operation(part):
    compared, different = 0, []
    for operation in DIFFERENTIABLE[part::4]:
        for sample in first_samples(operation, torch.float32, 2, requires_grad=True):
            function, tensors = with_tensors_first(operation.op, (sample.input, *sample.args), sample.kwargs)
            try:
                expected = shown_after_changes(function, tensors)
                compiled = differentiate(function, tensors, lambda graph, _: graph, lambda graph, _: graph)
            except Exception:  # noqa: S112  # of what is not differentiated, or not by these samples
                continue
            compared += 1
            if difference(expected, shown_after_changes(compiled, tensors)) is not None:
                different.append(operation.formatted_name)
    assert different == []
    assert compared > 100
