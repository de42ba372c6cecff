"""Results that ATen lays out with gaps, as it copies all the memory that a tensor lies in: who reads them next reads
them where they are."""

import pytest
import torch
from agreeing import agree

import bothways

PLACES = {
    "some columns": lambda n, m: torch.randn(n, m + 3)[:, 1:-2],
    "every other column": lambda n, m: torch.randn(n, 2 * m)[:, ::2],
    "every other row": lambda n, m: torch.randn(2 * n, m)[::2],
    "turned": lambda n, m: torch.randn(m, n + 3)[:, 1:-2].t(),
}
REPLACING = {
    "select": lambda c: c.select_scatter(c[0] + 1, 0, 2),
    "slice": lambda c: c.slice_scatter(c[:2] + 1, 0, 1, 3),
    "diagonal": lambda c: c.diagonal_scatter(c.diagonal() + 1),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("replaced", REPLACING.values(), ids=REPLACING)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_part_is_replaced_in_memory_with_gaps(place, replaced, dynamic, backend):
    def program(c):
        result = replaced(c)
        bothways.graph_break()
        return result, result.clone(), result + 1

    def observe(function, call):
        torch.manual_seed(call)
        results = function(place(24, 16 + call))
        return {"results": results, "strides": [result.stride() for result in results]}

    agree(program, observe, 0, 0, 1, backend=backend, dynamic=dynamic)
