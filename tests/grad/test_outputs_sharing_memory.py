"""Outputs that share memory with each other in roundabout ways have eager's sizes, history and memory."""

import pytest
import torch
from observing import BACKENDS, agree, leaf

pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]


def who_shares(tensors):
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [(places.index(place), tensor.storage_offset()) for place, tensor in zip(places, tensors, strict=True)]


def seen_of(function, *given):
    """Results twice, with all they share; then one is changed, and all are looked at again."""
    seen = []
    for _ in range(2):
        results = function(*given)
        seen += [results, who_shares([*results, *given])]
        with torch.no_grad():
            results[-1].add_(1)
        seen += [[result.detach().clone() for result in results]]
    return seen


VIEWS_OF_DETACHED = {
    "of a view": lambda x: ((y := (x * 2).view(-1)), y.detach().unsqueeze(0)),
    "before what has a history": lambda x: ((y := x * 2).detach().t(), y.t()),
    "after it": lambda x: ((y := x * 2).t(), y.detach().t()),
    "of data": lambda x: ((y := x * 2).t(), y.data.t()),
    "two": lambda x: ((y := (x * 2).t().detach())[0], y[1]),
    "of an input": lambda x: (x * 2, x.detach()[1:]),
    "of a view of an input": lambda x: (x * 2, x.view(-1).detach()[1:]),
    "three": lambda x: ((y := (x * 2).view(-1)), (z := y.detach()).unsqueeze(0), z),
}


@pytest.mark.parametrize("name", VIEWS_OF_DETACHED)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_views_of_what_was_detached_are_taken_from_that(backend, name, needs_grad):
    def scene(compiler):
        return seen_of(compiler(VIEWS_OF_DETACHED[name]), leaf(4, 6).requires_grad_(needs_grad))

    agree(scene, backend)


ALIKE = {
    "one a view": lambda x: (x.sin(), x.sin().view(-1)),
    "both views": lambda x: (x.sin()[None], x.sin()[None]),
    "parts of two stacks": lambda x: ((y := torch.stack([x, x]))[0], torch.stack([x, x])[0], y[1]),
    "every other column": lambda x: (x.sin()[:, ::2], x.sin()[:, ::2], x.sin()[1:]),
    "copies": lambda x: (x.clone(), x.clone().t()),
    "of one value": lambda x: ((y := x.sin()) * 1, y * 1, (y * 1).t(), y + 0, y),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_computed_twice_alike_is_two_tensors(backend, name):
    """A kernel computes it once; whoever changes one of them does not change the other."""

    def scene(compiler):
        return seen_of(compiler(ALIKE[name]), torch.randn(4, 6))

    agree(scene, backend)


def transposed_in_place(x):
    x.transpose_(0, 1)
    return x + 1


def squeezed_and_back(x):
    x.squeeze_(0).unsqueeze_(0)
    return x * 2


def view_with_one_more(x):
    y = x.view(-1)
    y.unsqueeze_(0)
    return y, x * 2


def view_of_a_result_turned(x):
    y = (x * 2)[1:]
    y.t_()
    return y, y + 1


def changed_after_it_was_turned(x):
    y = x.view(-1)
    y.unsqueeze_(0)
    y.add_(1)
    return y * 2, x


def view_of_what_is_given_one_more(x):
    y = x + 1
    z = y.expand(*x.shape)
    y.unsqueeze_(0)
    y.add_(1)
    return y, z


IN_PLACE = [
    transposed_in_place, squeezed_and_back, view_with_one_more, view_of_a_result_turned, changed_after_it_was_turned,
    view_of_what_is_given_one_more,
]  # fmt: skip


@pytest.mark.parametrize("function", IN_PLACE)
def test_sizes_that_are_changed_in_place_are_eagers_for_all_sizes(backend, function):
    """The third call and the fourth share a program for all sizes."""

    def scene(compiler):
        compiled, seen = compiler(function), []
        for size in ((8, 9), (8, 9), (7, 5), (6, 4)):
            x = torch.randn(size)
            seen += [compiled(x), x, tuple(x.shape)]
        return seen

    agree(scene, backend)


def test_a_change_in_place_that_leaves_another_layout_behind_is_run_as_captured(backend):
    def viewed(a, d):
        d.index_copy_(0, torch.tensor([2, 0]), a[:2])
        d.mT.view(-1)[:].zero_()
        return a.cos().sum(-1)

    def scene(compiler):
        a, d = torch.randn(3, 16, 17).transpose(1, 2), torch.randn(3, 16, 17).transpose(1, 2)
        return compiler(viewed)(a, d), d

    agree(scene, backend)


DETACHED = {
    "the first": lambda x, y: (x.detach(), y + 1),
    "the second": lambda x, y: (y.detach(), x + 1),
    "data": lambda x, y: (y.data, x + 1),
    "twice": lambda x, y: (x.detach().detach(), y + 1),
}


@pytest.mark.parametrize("name", DETACHED)
@pytest.mark.parametrize("first", ["shares", "is apart"])
def test_what_was_detached_from_one_of_two_inputs_over_one_memory_counts_for_that_one(backend, name, first):
    """Whether the two share memory may be another thing in the next call."""

    def scene(compiler):
        function, seen = compiler(DETACHED[name]), []
        for shares in (first == "shares", first != "shares") * 2:
            x = torch.zeros(3)
            y = x.data if shares else torch.ones(3)
            result, _ = function(x, y)
            result.add_(1)
            seen.append([x, y, x._version, y._version])
        return seen

    agree(scene, backend)


CHANGED_THROUGH_VIEWS = {
    "a part": lambda x: ((y := x.clone()), y[..., :].sub_(1))[:1],
    "a part, returned": lambda x: ((y := x.clone()), y[..., :].sub_(1)),
    "the same": lambda x: ((y := x * 2), y.view_as(y).sub_(1)),
    "transposed": lambda x: ((y := x * 2).t().sub_(1).t(), y),
}


@pytest.mark.parametrize("name", CHANGED_THROUGH_VIEWS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_what_was_changed_through_a_view_is_none_itself(backend, name, mode):
    def scene(compiler):
        function, seen = compiler(CHANGED_THROUGH_VIEWS[name]), []
        for _ in range(2):
            with mode():
                results = function(torch.ones(3, 4))
            seen += [results, who_shares(results), [result._is_view() for result in results]]
        return seen

    agree(scene, backend)
