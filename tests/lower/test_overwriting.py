"""Results take the place of what their kernel reads last, where it reads just the element that it writes."""

import re

import pytest
import torch

import bothways
from bothways.lower.dialects.c.dialect import C

torch.manual_seed(0)
WEIGHT = torch.randn(64, 64) / 8


def element_by_element(h):
    return h.tanh() * 2 + h


def of_rows(h):
    return (h * 2).softmax(-1)


def with_sums_of_columns(h):
    g = h.tanh() * 3
    return g, g.sum(0)


def with_sums_of_rows(h):
    g = h.exp()
    return g / g.sum(-1, keepdim=True), g.sum(-1)


def backwards(h):
    return h.flip(0) + h


def turned(h):
    return h.t() * 2 + h


def moved(h):
    return torch.roll(h, 1, 0) * h


def one_row_for_all(h):
    return h * h[:1] + h[1:2]


def by_an_index(h):
    return h[torch.arange(63, -1, -1)] - h


def two_results(h):
    return h.sin(), h.cos() * h


def in_two_places(h):
    g = h.exp()
    return g * 2, h.t() + g


TAKES_ITS_PLACE = {element_by_element, with_sums_of_columns}
CASES = [
    element_by_element, of_rows, with_sums_of_columns, with_sums_of_rows, backwards, turned, moved, one_row_for_all,
    by_an_index, two_results, in_two_places,
]  # fmt: skip


@pytest.mark.parametrize("products", ["of ATen", "in routines"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_nothing_is_read_that_was_overwritten(case, products, monkeypatch):
    """The product is read by the kernel alone, and what the kernel gives by another product."""
    if products == "of ATen":
        monkeypatch.setattr(C, "multiplies", False)

    def function(x):
        results = case(x @ WEIGHT)
        results = results if isinstance(results, tuple) else (results,)
        return [result @ WEIGHT for result in results]

    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(function, backend="native", fullgraph=True)
        for _ in range(3):
            x = torch.randn(64, 64)
            torch.testing.assert_close(compiled(x), function(x), atol=1e-4, rtol=1e-4)
    if products != "of ATen":
        return
    program = bothways.explain(compiled).generated[-1].texts["Python"]
    if case in TAKES_ITS_PLACE:
        assert re.search(r"^    \w+ = mm$", program, re.MULTILINE)
    if case in (backwards, turned, one_row_for_all, by_an_index):
        assert not re.search(r"^    \w+ = mm$", program, re.MULTILINE)


def test_what_an_operation_of_the_users_gives_is_not_overwritten():
    """It may be a tensor that somewhere else is kept."""
    kept = torch.ones(64, 64)
    library = torch.library.Library("example_kept", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: kept, "CPU")
    torch.library.register_fake("example_kept::same", torch.empty_like, lib=library)

    def function(x):
        return torch.ops.example_kept.same(x).exp() @ WEIGHT

    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(function, backend="native", fullgraph=True)
        for _ in range(3):
            torch.testing.assert_close(compiled(WEIGHT), torch.ones(64, 64).exp() @ WEIGHT)
    assert bool((kept == 1).all())


def test_a_result_that_leaves_is_not_a_part_of_something_larger():
    def function(x):
        return (x @ WEIGHT).tanh()

    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(function, backend="native", fullgraph=True)
        for _ in range(2):
            result = compiled(WEIGHT)
            assert result.untyped_storage().nbytes() == 64 * 64 * 4 and result._version == 0
