"""An index that is out of range, or a part that does not fit, is an error in a kernel's place: nothing is written."""

import operator

import pytest
import torch
from agreeing import BACKENDS, agree
from observing import raised

import bothways

KERNELS = {"kernels_for_small_graphs": True}
REFUSED = {
    "a row behind the last": lambda x: x.select_scatter(x[0] + 1, 0, 4),
    "a row before the first": lambda x: x.select_scatter(x[0] + 1, 0, -5),
    "a column behind the last": lambda x: x.select_scatter(x[:, 0] + 1, 1, 3),
    "fewer rows than are replaced": lambda x: x.slice_scatter(x[:1] + 1, 0, 1, 3),
    "rows that end outside": lambda x: x.slice_scatter(x[:1] + 1, 0, -9, -8),
    "shorter rows": lambda x: x.slice_scatter(x[:, :2] + 1, 0, 0, 4),
    "a dimension twice": lambda x: (x + 1).squeeze((0, 0)),
    "a dimension that is not there": lambda x: (x + 1).sort(2)[0],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("replace", REFUSED.values(), ids=REFUSED)
def test_eagers_error(replace, grad, backend):
    def observe(function, call):
        return {"raised": raised(function, torch.ones(4, 3).requires_grad_(grad))}

    agree(lambda x: replace(x * 2), observe, 1, 1, backend=backend, within=KERNELS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_size_for_which_the_index_is_out_of_range(backend):
    def observe(function, rows):
        x = torch.arange(2.0 * rows).view(rows, 2)
        error = raised(function, x)
        return {"raised": error, "result": None if error else function(x)}

    def third(x):
        return (x * 2).select_scatter(x[0] + 1, 0, 2)

    agree(third, observe, 4, 4, 2, 5, 3, 2, backend=backend, within=KERNELS)


def with_the_last_replaced(x):
    """That the row replaced is the last one is found when there are parts of it in kernels already."""
    product = x.repeat_interleave(2, -2).prod(0)
    return product.select_scatter(product[0], 0, 2)


@pytest.mark.parametrize("program", [with_the_last_replaced], ids=operator.attrgetter("__name__"))
def test_sizes_that_are_found_equal_in_the_middle(program):
    def observe(function, shape):
        return {"result": function(torch.arange(1.0, 1 + shape[0] * shape[1]).view(shape) / 50)}

    compiled = agree(program, observe, (8, 4), (5, 3), (5, 3), (9, 3), (6, 5), backend="native", within=KERNELS)
    for compilation in bothways.history(compiled):
        assert not any("could not be lowered" in reason for reason in compilation.outcome.reasons)
