"""What could give away that images lie pixel by pixel in compiled programs: random numbers, shared memory, versions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bothways
from bothways.grad.tracing.aliases import sharing_depends_on_layout
from bothways.grad.tracing.joint import trace_joint


@pytest.fixture(autouse=True)
def small_graphs():
    with bothways.config.patch(kernels_for_small_graphs=True):
        yield


def convolutions():
    torch.manual_seed(0)
    return nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)


def both_ways(body, calls=2):
    """Results and gradients of a body of two convolutions and an image, plain and compiled."""
    found = []
    for is_compiled in (False, True):
        first, second = convolutions()

        def function(x, first=first, second=second):
            return body(first, second, x)

        run = bothways.compile(function, backend="native") if is_compiled else function
        torch.manual_seed(1)
        seen = []
        for _ in range(calls):
            x = torch.randn(2, 3, 8, 8, requires_grad=True)
            result = run(x)
            results = result if isinstance(result, tuple) else (result,)
            sum((value * value).sum() for value in results if value.requires_grad).backward()
            seen += [*(value.detach() for value in results), x.grad, first.weight.grad, second.weight.grad]
        found.append(seen)
    return found


def assert_same(body):
    plain, compiled = both_ways(body)
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4)


def noisy(y):
    return y + torch.randn_like(y)


def masked(y):
    return y * torch.zeros_like(y).uniform_()


DRAWN = {
    "pixels in a row": lambda a, b, x: F.dropout(b(a(x)).flatten(2), 0.3),
    "one image": lambda a, b, x: F.dropout(b(a(x))[0], 0.3),
    "one more dimension": lambda a, b, x: F.dropout(b(a(x)).unsqueeze(0), 0.3),
    "groups of channels": lambda a, b, x: F.dropout(b(a(x)).unflatten(1, (2, 4)), 0.3),
    "noise": lambda a, b, x: noisy(b(a(x)).flatten(2)),
    "numbers in place": lambda a, b, x: masked(b(a(x))[0]),
    "patches as tokens": lambda a, b, x: F.dropout(a(x).flatten(2).transpose(1, 2), 0.3) @ torch.ones(8, 4),
    "a matrix turned round": lambda a, b, x: F.dropout(a(x)[0].flatten(1).t(), 0.3) @ torch.ones(8, 4),
    "behind a layer": lambda a, b, x: F.dropout(F.linear(b(a(x)).flatten(1), torch.ones(4, 512)), 0.3),
}


@pytest.mark.parametrize("name", DRAWN)
def test_random_numbers_are_drawn_for_the_same_elements(name):
    assert_same(DRAWN[name])


def reshaped(a, b, x):
    y = a(x)
    y.reshape(2, -1).add_(1)
    return b(y)


def flattened(a, b, x):
    y = a(x)
    y.flatten()[::2] = 0
    return b(y)


def copied(a, b, x):
    y = a(x)
    y.permute(0, 2, 3, 1).reshape(2, -1).mul_(2)
    return b(y)


def dropped(a, b, x):
    y = a(x)
    F.dropout(y.flatten(1), 0.5, True, True)
    return b(y)


@pytest.mark.parametrize("body", [reshaped, flattened, copied, dropped])
def test_what_is_written_to_a_view_is_written_to_what_it_views(body):
    assert_same(body)


def test_results_share_memory_where_eagers_do():
    first, second = convolutions()

    def function(x):
        y, z = first(x), second(first(x))
        return y, y.flatten(1), z, z.permute(0, 2, 3, 1).reshape(2, -1)

    for run in (function, bothways.compile(function, backend="native")):
        with torch.no_grad():
            y, view, z, copy = run(torch.randn(2, 3, 8, 8))
            y.zero_()
            z.zero_()
        assert not view.any()
        assert copy.any()


@pytest.mark.parametrize("changed", ["result", "input"])
def test_changing_what_the_backward_needs_is_an_error(changed):
    first, second = convolutions()

    def function(x):
        return second(first(x)).relu()

    for run in (function, bothways.compile(function, backend="native")):
        for _ in range(2):
            x = torch.randn(2, 3, 8, 8, requires_grad=True)
            y = run(x)
            with torch.no_grad():
                (y if changed == "result" else x).add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_changing_what_the_backward_does_not_need_is_none():
    first, second = convolutions()
    function = bothways.compile(lambda x: second(first(x)), backend="native")
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    y = function(x)
    with torch.no_grad():
        y.add_(1)
    y.sum().backward()
    assert x.grad is not None


def test_usual_networks_have_their_images_turned():
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 8),
        nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 4),
    )  # fmt: skip
    names, values = zip(*network.named_parameters(), strict=True)
    x = torch.randn(2, 3, 8, 8)

    def function(x, *parameters):
        return (torch.func.functional_call(network, dict(zip(names, parameters, strict=True)), x),)

    joint = trace_joint(function, [x, *values], True, expected=function(x, *values))
    assert joint.is_turned
    assert not sharing_depends_on_layout(torch.fx.symbolic_trace(network).graph)
