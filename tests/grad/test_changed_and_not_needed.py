"""What was changed in place matters to backwards that read it, also where one node stands for several losses."""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways
from bothways.testing import difference

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.every_backend]
SMALL = {"kernels_for_small_graphs": True}


def tried(function, *arguments, **options):
    """What is given, or that it is refused: of what was freed and what was changed, eager comes to either first."""
    try:
        return function(*arguments, **options)
    except RuntimeError:
        return "refused"


def two_losses(x, w, v):
    shared = x.sin()  # what it saves is read by both
    return (shared * w).sum(), (shared * v).sum()


def two_losses_apart(x, w, v):
    shared = x + 1  # which saves nothing: each backward frees what is its own
    return (shared * w).sum(), (shared * v).sum()


def through_one_another(x, w, v):
    first = (x * w).sin()
    return first.sum(), (first * v).sum()


@pytest.mark.parametrize("program", [two_losses, two_losses_apart, through_one_another])
@pytest.mark.parametrize("changed", [0, 1, 2])
@pytest.mark.parametrize("retained", [False, True])
def test_a_step_between_two_backwards(program, changed, retained, backend):
    def observe(function, count):
        tensors = [torch.linspace(0.5, 1, count).requires_grad_() for _ in range(3)]
        losses = function(*tensors)
        shown = []
        for number, loss in enumerate(losses):
            shown.append(tried(torch.autograd.grad, loss, tensors, retain_graph=retained, allow_unused=True))
            if number == 0:
                with torch.no_grad():
                    tensors[changed].sub_(1)
        return {"gradients": shown}

    # Other sizes are other programs at first, and then one for all.
    agree(program, observe, 3, 3, 4, 5, backend=backend, within=SMALL, fullgraph=True)


@pytest.mark.parametrize("which", [0, 1])
def test_a_result_that_was_changed_counts_for_what_was_computed_from_it_inside(which, backend):
    def program(x, w):
        first = x.erf()
        return first, first * w

    def observe(function, _):
        x, w = torch.full((3,), 0.5, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        results = function(x, w)
        copies = [result * 1 for result in results]
        with torch.no_grad():
            results[0].abs_()
        return {"gradients": tried(torch.autograd.grad, copies[which].sum(), [x, w], allow_unused=True)}

    agree(program, observe, 1, 2, backend=backend, within=SMALL, fullgraph=True)


def test_sizes_that_a_backward_compares_are_those_of_its_call(backend):
    def program(c, d):
        chosen = c.scatter_reduce(1, c.argsort(1), d, "amax")
        doubled = chosen + chosen
        with torch.no_grad():
            c.transpose(0, -1).add_(3)
            c.data.scatter_add_(0, chosen.argsort(0), chosen)
        return doubled, doubled.atan()

    def observe(function, size):
        c, d = torch.randn(size, size // 2).requires_grad_(), torch.randn(size, size // 2).requires_grad_()
        return {"gradients": tried(torch.autograd.grad, function(c, d)[0].sum(), [c, d], allow_unused=True)}

    agree(program, observe, 8, 10, 12, 10, backend=backend, within=SMALL, reset=lambda: torch.manual_seed(0))


def test_what_a_cut_graph_has_changed_counts_for_what_is_behind_it(backend):
    def program(c):
        total = c.sum(0)
        changed = total.erf()
        product = total * changed
        kept = changed.float()
        with torch.no_grad():
            changed.transpose(0, -1).abs_()
        return kept.transpose(0, -1), product.to(torch.int16)

    def observe(function, _):
        c = torch.full((1,), 0.5, requires_grad=True)
        return {"gradient": tried(torch.autograd.grad, function(c)[0], c)}

    agree(program, observe, 1, 2, backend=backend, within=SMALL)


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_gradients_that_are_differentiated_again_are_of_what_was_there(changed, backend):
    """Where the forward would run again, and reads what was changed, there is an error, and never another number."""

    def gradients(function):
        tensors = [torch.linspace(0.5, 1, 3).requires_grad_() for _ in range(3)]
        _, loss = function(*tensors)
        with torch.no_grad():
            tensors[changed].sub_(1)
        return tried(torch.autograd.grad, loss, tensors, create_graph=True, allow_unused=True)

    found = gradients(bothways.compile(two_losses, backend=backend))
    assert found == "refused" or difference(gradients(two_losses), found) is None


def by_detach(tensor):
    tensor.detach().mul_(2)


def by_out(tensor):
    with torch.no_grad():
        torch.mul(tensor, 2, out=tensor)


def without_gradients(tensor):
    with torch.no_grad():
        tensor.mul_(2)


def by_data(tensor):
    tensor.data.mul_(2)


@pytest.mark.parametrize("way", [by_detach, by_out, without_gradients, by_data])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("of", [torch.Tensor.exp, torch.Tensor.sin, torch.Tensor.square, torch.Tensor.max])
def test_a_view_of_something_computed_is_changed_behind_autograds_back(of, inside, way, backend):
    """Refused where a backward has come to need it, with the new numbers where that is not noticed."""

    def program(x):
        y = x * 2
        z = of(y[1:])
        if inside:
            way(y[2:])
        return y, z

    def observe(function, changed):
        x = torch.linspace(0.5, 1, 6).requires_grad_()
        y, z = function(x)
        if not inside:
            way((y, y[2:], z)[changed])
        return {"gradient": tried(torch.autograd.grad, z.sum(), x), "y": y.detach(), "z": z.detach()}

    agree(program, observe, 0, 0, 1, 2, backend=backend, within=SMALL)


@pytest.mark.parametrize("shape", [(), (3,), (3, 2)])
@pytest.mark.parametrize("view", [torch.Tensor.t, lambda value: value.view(value.shape), lambda value: value[...]])
def test_what_is_saved_and_leaves_a_part_as_a_view_of_all_of_it_counts_as_unchanged(view, shape, backend):
    """What a part computes for others alone, as a change between them, is no result that people see."""
    view = view if len(shape) < 2 else torch.Tensor.clone

    def program(x):
        value = x.square()
        quotient = value / (value.abs() + 1)
        angle = torch.atan2(quotient, x)
        seen = view(value)
        product = x * seen
        quotient.random_(0, 5)
        angle * x  # which nobody reads
        return seen.clamp(min=quotient), product / 3, quotient

    def observe(function, _):
        x = torch.full(shape, 3.0, requires_grad=True)
        torch.manual_seed(0)
        results = function(x)
        return {"gradients": [tried(torch.autograd.grad, one.sum(), x, retain_graph=True) for one in results]}

    agree(program, observe, 1, 2, backend=backend, within=SMALL)
