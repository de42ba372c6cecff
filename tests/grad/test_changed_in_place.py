"""ATen's operations that copy and change are done in place where the original is read no more, and only there."""

import pytest
import torch
from aten_counting import computing_calls

import bothways
from bothways.backends.in_place import change_in_place, in_place
from bothways.testing import difference


def places():
    return torch.tensor([2, 0, 2])


def fills_what_it_made(x):
    return (x * 2).masked_fill(x > 0, 1.0).sin()


def is_read_again(x):
    y = x * 2
    return y.masked_fill(x > 0, 1.0).sin() + y


def is_returned(x):
    y = x * 2
    return y.masked_fill(x > 0, 1.0).sin(), y


def a_view_is_read_again(x):
    y = x * 2
    row = y[0]
    return y.masked_fill(x > 0, 1.0).sin() + row


def a_view_was_read_before(x):
    y = x * 2
    total = y[0].sum()
    return y.masked_fill(x > 0, 1.0).sin() + total


def is_an_input(x):
    return x.masked_fill(x > 0, 1.0).sin() + 1


def is_a_view_of_an_input(x):
    return x.t().masked_fill(x.t() > 0, 1.0).sin() + 1


def is_expanded(x):
    return (x[:1] * 2).expand(3, 4).masked_fill(x > 0, 1.0).sin()


def reads_itself(x):
    y = x * 2
    return y.index_put((places(),), y.flip(0) + y, accumulate=True).sin()


def is_a_source_of_its_own(x):
    y = x * 2
    return y.index_copy(0, places()[:2], y[1:]).sin()


def twice(x):
    y = (x * 2).masked_fill(x > 0, 1.0)
    return y.masked_fill(x < -1, 2.0).sin(), y + 1


def picked(x):
    return x[places()].sin() * x[:, torch.tensor([1, 1])].sum()


def scattered(x):
    return torch.zeros(3, 4).scatter_add(0, (x > 0).long(), x * 2).sin()


def a_norm(x):
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)


PROGRAMS = [
    fills_what_it_made, is_read_again, is_returned, a_view_is_read_again, a_view_was_read_before, is_an_input,
    is_a_view_of_an_input, is_expanded, reads_itself, is_a_source_of_its_own, twice, picked, scattered, a_norm,
]  # fmt: skip


@pytest.mark.parametrize("gradients", [False, True], ids=["without gradients", "with gradients"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_results_gradients_and_inputs_are_eagers(program, gradients):
    def scene(function):
        seen = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            x = torch.randn(3, 4, requires_grad=gradients)
            results = function(x)
            results = results if isinstance(results, tuple) else (results,)
            if gradients:
                sum(result.sum() * (place + 2) for place, result in enumerate(results)).backward()
            seen += [*results, x.detach(), x.grad]
        return seen

    assert difference(scene(program), scene(bothways.compile(program, backend="aot_eager"))) is None


@pytest.mark.parametrize("program", [picked, a_norm, fills_what_it_made, scattered])
def test_there_are_no_more_copies_than_in_eager(program):
    def stepping(function):
        x = torch.randn(3, 4, requires_grad=True)
        return lambda: function(x).sum().backward()

    plain, compiled = stepping(program), stepping(bothways.compile(program, backend="aot_eager"))
    for _ in range(2):
        plain()
        compiled()
    expected, found = computing_calls(plain), computing_calls(compiled)
    assert found["aten::copy_"] <= expected["aten::copy_"], (found, expected)


@pytest.mark.parametrize(
    ("program", "is_changed"),
    [(fills_what_it_made, True), (a_view_was_read_before, True), (is_read_again, False), (is_returned, False),
     (a_view_is_read_again, False), (is_an_input, False), (is_a_view_of_an_input, False), (is_expanded, False)],
)  # fmt: skip
def test_only_what_is_not_read_again_is_changed(program, is_changed):
    graph = bothways.trace(program)(torch.randn(3, 4)).graph
    [filled] = [node for node in graph.nodes if node.op == "call_function" and in_place(node.target) is not None]
    change_in_place(graph)
    assert (filled.target is torch.ops.aten.masked_fill_.Scalar) is is_changed


def test_operations_that_copy_first_have_one_that_does_not():
    aten = torch.ops.aten
    pairs = {
        aten.index_put.default: aten.index_put_.default,
        aten.scatter.src: aten.scatter_.src,
        aten.scatter_reduce.two: aten.scatter_reduce_.two,
        aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
        aten.masked_fill.Tensor: aten.masked_fill_.Tensor,
        aten.masked_fill_.Tensor: None,
        aten.mul.Tensor: None,
    }
    assert {target: in_place(target) for target in pairs} == pairs
