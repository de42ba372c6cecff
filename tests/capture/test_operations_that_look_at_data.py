"""Operations that look at their data while others do not: the graph around them is compiled."""

import re
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import bothways

BACKENDS = ["eager", "aot_eager", "native"]


@pytest.fixture(autouse=True)
def small_graphs():
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def summary(function):
    return bothways.explain(function).details.split("== Program")[0]


def load(chosen, w):
    shares = (w * 2).softmax(-1)
    return (F.one_hot(chosen, 4).float().mean(0) * shares).sum() * 3


def quantiles(w, q):
    s = (w * 2).sin()
    return (torch.quantile(s, q) * 3).cos() + s.sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_hot_is_compiled_with_what_is_around_it(backend):
    compiled = bothways.compile(load, backend=backend)
    for count in (10, 11, 12, 10):
        chosen, w = torch.randint(0, 4, (count,)), torch.randn(4, requires_grad=True)
        expected, found = load(chosen, w), compiled(chosen, w)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, w), torch.autograd.grad(expected, w))
    if backend != "eager":
        assert "as captured" not in summary(compiled)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrong", [4, -1])
def test_one_hot_refuses_classes_as_eager_does(wrong, backend):
    compiled = bothways.compile(load, backend=backend)
    w = torch.randn(4, requires_grad=True)
    torch.testing.assert_close(compiled(torch.arange(4), w), load(torch.arange(4), w))
    errors = []
    for run in (load, compiled):
        with pytest.raises(RuntimeError) as raised:
            run(torch.tensor([0, 1, wrong, 2]), w)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_that_checks_its_data_stays_alone_outside(backend):
    compiled = bothways.compile(quantiles, backend=backend)
    for q in (0.2, 0.7):
        w, q = torch.randn(20, requires_grad=True), torch.tensor(q)
        expected, found = quantiles(w, q), compiled(w, q)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, w), torch.autograd.grad(expected, w))
    if backend != "eager":
        assert not re.search(r"\d as captured \(", summary(compiled))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operation_that_checks_its_data_refuses_it_as_in_eager(backend):
    compiled = bothways.compile(quantiles, backend=backend)
    for q in (0.2, 3.0, 0.7, 3.0):
        w = torch.randn(20, requires_grad=True)
        for run in (quantiles, compiled):
            with pytest.raises(RuntimeError, match="q values must be in the range") if q > 1 else nullcontext():
                run(w, torch.tensor(q))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [
        lambda x, q: torch.quantile(x, q),
        lambda x, q: torch.nanquantile(x * 2, q, dim=0, keepdim=True),
        lambda x, q: x.quantile(q, interpolation="nearest"),
        lambda x, q: (x + 1).nanquantile(q * 1),
    ],
)
def test_places_that_are_out_of_range_by_little_are_refused_as_in_eager(program, backend):
    compiled = bothways.compile(program, backend=backend)
    for q in (torch.tensor(0.5), torch.tensor([0.0, 1.0]), torch.tensor(-0.01), torch.tensor([0.5, 1.01]), -0.01, 0.3):
        x, told = torch.randn(20, requires_grad=True), []
        for run in (program, compiled, compiled):
            try:
                told.append(run(x, q.clone() if isinstance(q, torch.Tensor) else q))
            except RuntimeError as error:
                told.append(str(error))
        for found in told[1:]:
            torch.testing.assert_close(found, told[0]) if torch.is_tensor(found) else None
            assert type(found) is type(told[0]) and (torch.is_tensor(found) or found == told[0])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_reasons_are_one_line_in_plain_words(backend):
    def function(r, w):
        r.detach().add_(w.sum().detach())
        r[:2].mul_(w.sin() * 2)
        return (r * w).sum()

    compiled = bothways.compile(function, backend=backend)
    w = torch.randn(4, requires_grad=True)
    compiled((torch.ones(5, 4) * w)[1:], w)
    text = bothways.explain(compiled).details
    assert "While executing" not in text and "tlparse" not in text


def test_programs_that_take_turns_do_not_change_the_code_at_every_call():
    def function(x, kind):
        return x * 2 if kind == 0 else x + 1 if kind == 1 else x - 3

    compiled = bothways.compile(function, backend="eager")
    x = torch.randn(3)
    for kind in range(3):
        compiled(x, kind)
    changes, code = 0, compiled.__code__
    for turn in range(300):
        assert torch.equal(compiled(x, turn % 3), function(x, turn % 3))
        changes += compiled.__code__ is not code
        code = compiled.__code__
    assert changes < 20
    for _ in range(100):  # one of them is the first again where it stays the only one
        compiled(x, 1)
    code = compiled.__code__
    compiled(x, 1)
    assert compiled.__code__ is code


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_classes_that_lie_transposed_give_a_contiguous_result(backend):
    def program(classes):
        return torch.nn.functional.one_hot(classes, 4) * 2

    compiled = bothways.compile(program, backend=backend, fullgraph=True)
    for rows in (3, 3, 5):
        classes = (torch.arange(7 * rows) % 4).view(7, rows).t()
        expected, found = program(classes), compiled(classes)
        assert torch.equal(found, expected) and found.stride() == expected.stride()


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_what_is_among_others_lies_side_by_side(backend):
    def program(elements):
        return torch.isin(elements, torch.tensor([1, 2])), elements + 1

    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = bothways.compile(program, backend=backend)
        for dtype in (torch.int64, torch.bfloat16):
            elements = torch.arange(15).reshape(5, 3).t().to(dtype)
            expected, found = program(elements), compiled(elements)
            assert [part.stride() for part in found] == [part.stride() for part in expected]
            torch.testing.assert_close(found, expected)
