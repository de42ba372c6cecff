"""An index out of range is an error although nobody reads what was taken or written there, compiled or not."""

import pytest
import torch
import torch.nn.functional as F
from observing import BACKENDS, agree, raised

import bothways

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.every_backend]

UNREAD = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take": lambda x, i: x.take(i * 100),
    "embedding": lambda x, i: F.embedding(i, x),
    "loss": lambda x, i: F.cross_entropy(x, i.expand(3)),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x, "sum"),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "index_put": lambda x, i: x.index_put((i,), x[:1]),
    "assignment": lambda x, i: x.clone().__setitem__(i, 2.0),
}


@pytest.mark.parametrize("name", UNREAD)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_index_out_of_range_raises_though_nobody_reads_the_result(backend, name, needs_grad):
    def function(x, i):
        UNREAD[name](x, i)
        return x + 1

    def scene(compiler):
        with bothways.config.patch(kernels_for_small_graphs=True):
            compiled = compiler(function)
            x = torch.randn(3, 3).requires_grad_(needs_grad)
            return [raised(compiled, x, torch.tensor([place])) for place in (0, 5, 0)]

    agree(scene, backend, fullgraph=False)
