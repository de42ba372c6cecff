"""What replaces a part of a copy has the shape of that part, or eager raises there, whether the copy is read or not."""

import pytest
import torch
from agreeing import BACKENDS, agree

PARTS = {
    "select_scatter": lambda x, y: x.select_scatter(y, 0, 2),
    "a row of the wrong size": lambda x, y: torch.select_scatter(x, y[:2], 0, 1),
    "from the end": lambda x, y: x.select_scatter(y, dim=-2, index=-3),
    "of no such dimension": lambda x, y: x.select_scatter(y, 2, 0),
    "slice_scatter": lambda x, y: x.slice_scatter(x[:2], 0, 0, 7),
    "of defaults": lambda x, y: x.slice_scatter(x[1:]),
    "by a step": lambda x, y: torch.slice_scatter(x, x[:2], 0, 0, None, 2),
    "by no step": lambda x, y: x.slice_scatter(x, 0, 0, None, 0),
    "between": lambda x, y: x.slice_scatter(x[1:3], start=-3, end=-1),
    "beyond": lambda x, y: x.slice_scatter(x[:0], 0, 9, 12),
    "diagonal_scatter": lambda x, y: x.diagonal_scatter(y[:3]),
    "another diagonal": lambda x, y: torch.diagonal_scatter(x, y[:2], -1),
    "above": lambda x, y: x.diagonal_scatter(y[:4], 1, dim1=1, dim2=0),
    "of one dimension": lambda x, y: x.diagonal_scatter(y, 0, 1, 1),
    "as_strided_scatter": lambda x, y: x.as_strided_scatter(y, (4,), (1,)),
}


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("replaced", PARTS.values(), ids=PARTS)
def test_a_part_that_does_not_fit_is_refused_there(replaced, is_read, backend):
    def program(x, y, log):
        try:
            log.append("before")
            copy = replaced(x * 2, y)
            log.append("after")
        except (RuntimeError, IndexError, ValueError) as error:
            return type(error).__name__, str(error), x * 3
        return copy if is_read else x * 4

    def observe(function, rows):
        log = []
        x = torch.arange(rows * 5.0).reshape(rows, 5)
        return {"result": function(x, torch.ones(5), log), "log": log}

    agree(program, observe, 3, 3, 2, 4, 6, 1, 2, backend=backend, within={"kernels_for_small_graphs": True})


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
def test_parts_that_fit_stay_in_the_graph(backend):
    def program(x, y):
        x = x.select_scatter(y, 0, 1).slice_scatter(x[1:3], 0, -2).slice_scatter(x[::2] + 1, step=2)
        return x.diagonal_scatter(y[:2], 3), x.diagonal_scatter(y[: x.shape[0]]) if x.shape[0] < 5 else x

    def observe(function, rows):
        return {"results": function(torch.arange(rows * 5.0).reshape(rows, 5), torch.ones(5))}

    agree(program, observe, 3, 3, 4, 6, backend=backend, within={"kernels_for_small_graphs": True}, fullgraph=True)
