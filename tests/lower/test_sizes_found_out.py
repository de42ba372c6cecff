"""Sizes of which more becomes known while kernels are chosen: a length that is found to be the greatest there is."""

import copy

import pytest
import torch
from torch import nn

import bothways


class Positions(nn.Module):
    """Learned positions for up to 32 tokens, as many models have them."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 32, 8))
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        x = x + self.positions[:, : x.shape[1]]
        return self.layer(torch.tanh(self.layer(self.norm(x)))).sum(1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_texts_of_the_greatest_length_there_are_positions_for(backend):
    plain = Positions()
    model = copy.deepcopy(plain)
    compiled = bothways.compile(model, backend=backend, fullgraph=True)
    for length in (12, 20, 32, 32, 16):  # the backward for 32 once looked for its loops for ever
        x = torch.randn(4, length, 8)
        results = [function(x) for function in (plain, compiled)]
        torch.testing.assert_close(results[1], results[0])
        for result in results:
            result.square().sum().backward()
        for own, expected in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, expected.grad, rtol=1e-4, atol=1e-4)


REGROUPED = {
    "halves": lambda x: (x * x).unflatten(0, (2, -1)) + 1,
    "pairs of columns": lambda x: (x * x).unflatten(1, (-1, 2)).exp(),
    "halves, added up": lambda x: (x * x).unflatten(0, (2, -1)).sum(0),
    "all of a half": lambda x: (x * x).unflatten(0, (2, -1)).flatten(1) * 2,
}


@pytest.mark.parametrize("name", REGROUPED)
def test_a_dimension_whose_parts_are_worked_out_is_regrouped(name):
    """That twice half of a size is the size is known where it is halved, and not where loops are put together."""
    compiled = bothways.compile(REGROUPED[name], backend="native", fullgraph=True)
    for rows, columns in ((6, 4), (16, 6), (8, 8), (10, 2)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x), REGROUPED[name](x))
