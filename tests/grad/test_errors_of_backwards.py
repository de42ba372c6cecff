"""A backward that is refused raises eager's error as eager does: nothing stands behind it that eager would not show."""

import pytest
import torch
from agreeing import BACKENDS, agree

SMALL = {"kernels_for_small_graphs": True}


def changed(loss, w):
    with torch.no_grad():
        w.mul_(0.9)
    loss.backward()


def twice(loss, w):
    loss.backward()
    loss.backward()


def changed_between(loss, w):
    loss.backward(retain_graph=True)
    with torch.no_grad():
        w.mul_(0.9)
    loss.backward()


def error_of(call, *arguments):
    """What is raised, with what stands behind it; its text names nodes only behind the first sentence."""
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error).partition(":")[0][:60], error.__cause__, error.__context__, error.__suppress_context__
    return None


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("refused", [changed, twice, changed_between])
def test_an_error_has_no_other_one_behind_it(refused, backend):
    def program(x, w):
        return (x * w).sin().sum()

    def observe(function, size):
        shown = []
        for refuse in (lambda loss, w: loss.backward(), refused, refused):  # the first makes the backward a usual one
            x, w = torch.ones(size, requires_grad=True), torch.full((size,), 0.5, requires_grad=True)
            shown.append(error_of(refuse, function(x, w), w))
        return {"errors": shown}

    agree(program, observe, 3, 3, 4, 5, backend=backend, within=SMALL, fullgraph=True)
