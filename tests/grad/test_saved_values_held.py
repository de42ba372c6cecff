"""Who holds a view of what a backward reads, and changes it before, gets eager's error, or eager's gradient: what is
saved and what is held lie in one memory, with one version."""

import pytest
import torch
from replaying import graphs

import bothways
from bothways.testing import same

BACKENDS = ["eager", "aot_eager", "native"]
pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]


HELD = {
    "a part": lambda h: h[1:],
    "a column": lambda h: h[:, 1],
    "flat": lambda h: h.view(-1),
    "another shape": lambda h: h.view(2, 6)[None],
    "transposed": lambda h: h.t(),
    "detached": lambda h: h.detach(),
    "detached, a part": lambda h: h.detach()[1:],
    "as it is": lambda h: h.view_as(h),
    "every other": lambda h: h[:, ::2],
}


def by_detach(view):
    view.detach().mul_(2)


def without_gradients(view):
    with torch.no_grad():
        view[0].mul_(2)


def by_out(view):
    with torch.no_grad():
        torch.add(view.detach()[0], 1, out=view.detach()[0])


def by_data(view):
    view.data[0].mul_(2)


CHANGES = [by_detach, without_gradients, by_out, by_data]


def outcome(function, change, again=False):
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=True)
    loss, view = function(x)
    if again:
        loss.backward(retain_graph=True)
    shares, versions = view.untyped_storage().nbytes(), [loss._version, view._version]
    change(view)
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return "refused", shares, versions
    return x.grad, shares, versions


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("operation", [torch.exp, torch.tanh])
def test_a_view_of_what_the_backward_reads_is_changed(backend, operation, name, change):
    def function(x):
        h = operation(x * x)
        return h.sum(), HELD[name](h)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for again in (False, True, False):
        expected, found = outcome(function, change, again), outcome(compiled, change, again)
        assert same(expected, found), (expected, found)
    assert len(bothways.history(compiled)) == 1


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["a part", "flat", "detached"])
def test_what_is_left_alone_has_its_gradient(backend, name, change):
    """What the backward does not read may be changed."""

    def function(x):
        h = x * 2
        return (h + 1).exp().sum(), HELD[name](h)

    compiled = bothways.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        assert same(outcome(function, change), outcome(compiled, change))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["a part", "flat", "detached", "transposed"])
def test_where_the_forward_is_replayed(backend, name, change):
    def function(x):
        h = (x * x).exp()
        return h.sum(), HELD[name](h)

    with graphs():
        compiled = bothways.compile(function, backend=backend, fullgraph=True)
        for _ in range(6):
            expected, found = outcome(function, change)[0], outcome(compiled, change)[0]
            assert same(expected, found), (expected, found)
