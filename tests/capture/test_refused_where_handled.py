"""An operation that eager refuses, or that fails on its data, raises where the user's handler is.

A graph that fails begins anew as plain Python, unless it has changed by then what cannot be put back: what autograd
knows how it was computed, what is large. In a ``try`` the graph then ends before the operation.
"""

import contextlib
import operator

import pytest
import torch
from agreeing import agree

import bothways

backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
LARGE = 1 << 17


def into_its_neighbour(y, index):
    flat = (y * 1).reshape(-1)
    flat[1:].add_(flat[:-1])
    return flat


def item_by_item(y, index):
    flat = (y * 1).reshape(-1)
    flat[1:] = flat[:-1]
    return flat


def out_of_range(y, index):
    return y.reshape(-1)[index]


def taken_out_of_range(y, index):
    return torch.index_select(y.reshape(-1), 0, index)


def divided(y, index):
    return index // (index - 7)


def singular(y, index):
    return torch.linalg.inv(y * 0)


FAILING = [into_its_neighbour, item_by_item, out_of_range, taken_out_of_range, divided, singular]


@bothways.disable
def note(log, what):
    log.append(what)


def caught(fails, changed, y, index, log):
    changed += 1
    log.append("changed")
    try:
        y = fails(y, index)
        log.append("not refused")
    except RuntimeError as error:
        log.append(type(error).__name__)
    except IndexError:
        log.append("index")
    return y + 1


def caught_by_caller(fails, changed, y, index, log):
    def inner():
        changed.mul_(2)
        return fails(y, index)

    try:
        return inner()
    except (RuntimeError, IndexError):
        log.append("refused")
        return y


def cleaned_up(fails, changed, y, index, log):
    changed += 1
    try:
        with torch.no_grad():
            y = fails(y, index)
    finally:
        log.append("cleaned up")
    return y


class Swallowing:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")

    def __exit__(self, kind, error, traceback):
        self.log.append(("out", kind is None))
        return True


def swallowed(fails, changed, y, index, log):
    changed += 1
    with Swallowing(log):
        y = fails(y, index)
        log.append("not refused")
    with contextlib.suppress(RuntimeError, IndexError):
        y = fails(y, index)
        log.append("not refused")
    return y


def behind_a_break(fails, changed, y, index, log):
    mine = changed * 2
    note(log, "a break")
    return caught(fails, mine, y, index, log)


HANDLING = [caught, caught_by_caller, cleaned_up, swallowed, behind_a_break]


def computed():
    return torch.ones(2, 2, requires_grad=True) * 2


def large():
    return torch.zeros(LARGE)


def observed(function, call):
    fails, make, number = call
    changed, y, log = make(), torch.arange(4.0).reshape(2, 2), []
    raised = result = None
    try:
        result = function(fails, changed, y, torch.tensor([number]), log)
    except (RuntimeError, IndexError) as error:
        raised = type(error).__name__, str(error).splitlines()[0]
    return {"result": result, "raised": raised, "log": log, "y": y, "changed": changed.detach().clone()}


@backends
@pytest.mark.parametrize("make", [computed, large])
@pytest.mark.parametrize("fails", FAILING, ids=operator.attrgetter("__name__"))
@pytest.mark.parametrize("handling", HANDLING, ids=operator.attrgetter("__name__"))
def test_the_error_comes_to_its_handler(handling, fails, make, backend):
    good, bad = (fails, make, 3), (fails, make, 7)
    agree(handling, observed, bad, good, bad, good, backend=backend)


def nobody_waits(fails, changed, y, index, log):
    log.append("before")
    changed.mul_(2)
    log.append("changed")
    y = fails(changed.reshape(-1)[:4].reshape(2, 2), index)
    log.append("not refused")
    return y


@backends
@pytest.mark.parametrize("fails", [out_of_range, taken_out_of_range, singular], ids=operator.attrgetter("__name__"))
def test_an_error_that_nobody_waits_for_leaves_with_what_python_did_before(fails, backend):
    good, bad = (fails, computed, 3), (fails, computed, 7)
    agree(nobody_waits, observed, bad, good, bad, good, backend=backend)


@backends
def test_a_convolution_gives_what_is_its_own(backend):
    """To change it in place, as a discriminator does, changes no input that was computed before."""
    seen = []

    def program(x, weight, further):
        seen.append(len(x))
        hidden = torch.nn.functional.leaky_relu(torch.conv1d(x, weight), 0.2, inplace=True)
        return hidden * torch.vdot(further[0], further[1])

    def observe(run, count):
        torch.manual_seed(0)
        images = torch.randn(count, 2, 5, requires_grad=True)
        result = run(images * 2, torch.randn(3, 2, 2), torch.randn(2, 4))
        result.sum().backward()
        return {"result": result, "gradient": images.grad, "seen": seen.pop()}

    agree(program, observe, 4, 4, backend=backend, programs=1, tol=1e-5)


@backends
def test_what_is_not_waited_for_stays_in_the_graph(backend):
    def unhandled(x, index):
        x.mul_(2)
        with torch.no_grad():
            return x[index] + 1

    compiled = bothways.compile(unhandled, backend=backend)
    x = torch.zeros(LARGE)
    assert torch.equal(compiled(x, torch.tensor([3])), torch.tensor([1.0]))
    assert not bothways.history(compiled)[-1].breaks


@backends
def test_a_write_to_a_part_of_what_is_read_raises_at_its_line(backend):
    def refused(x, log):
        x.mul_(2)
        log.append("before")
        flat = (x * 1).reshape(-1)
        flat[1:].add_(flat[:-1])
        log.append("after")
        return flat

    def observe(function, call):
        x, log = computed(), []
        try:
            function(x, log)
        except RuntimeError as error:
            return {"raised": str(error), "log": log, "lines": _lines(error, refused), "x": x.detach()}
        return {"raised": None}

    agree(refused, observe, 1, 1, backend=backend)


def _lines(error, function):
    lines, step = [], error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_name == function.__name__:
            lines.append(step.tb_lineno)
        step = step.tb_next
    return lines[-1:]


SHARED = {
    "out": lambda one, x: torch.mul(x, 2, out=one.expand(3)),
    "a function in place": lambda one, x: torch.relu_(one.expand(3)),
    "inplace=True": lambda one, x: torch.nn.functional.relu(one.expand(3), inplace=True),
    "a list": lambda one, x: torch._foreach_add_([one.expand(3)], 1.0),
}


@backends
@pytest.mark.parametrize("write", SHARED.values(), ids=SHARED)
def test_a_write_to_elements_that_share_their_memory_comes_to_its_handler(write, backend):
    def program(x):
        one = x[:1] * 1
        try:
            write(one, x)
        except RuntimeError as error:
            return str(error), one
        return x * 3, one

    agree(program, lambda function, x: {"gives": function(x)}, torch.ones(3), torch.ones(3), backend=backend)


def added(x):
    x.add_(1)


def added_by_operator(x):
    x += 1


def added_to_a_view(x):
    x[:1].add_(1)


def added_by_out(x):
    torch.add(x, 1, out=x)


def laid_out_otherwise(x):
    x.unsqueeze_(0)


@backends
@pytest.mark.parametrize("change", [added, added_by_operator, added_to_a_view, added_by_out, laid_out_otherwise])
def test_a_change_of_a_tensor_of_inference_mode_comes_to_its_handler(change, backend):
    def program(x, y):
        try:
            y = y * 2
            change(x)
        except RuntimeError as error:
            return str(error), y
        return y * 3

    def observe(function, for_inference):
        with torch.inference_mode(for_inference):
            x = torch.ones(3)
        result = function(x, torch.ones(3))
        return {"gives": result, "x": x.tolist()}

    agree(program, observe, True, True, False, False, backend=backend)


@backends
@pytest.mark.parametrize("change", [added, added_by_operator, added_to_a_view])
def test_a_change_of_a_leaf_comes_to_its_handler_after_calls_with_other_inputs(change, backend):
    def program(x):
        try:
            change(x)
        except RuntimeError as error:
            return str(error), x * 2
        return x * 3

    def observe(function, is_leaf):
        x = torch.ones(3, requires_grad=True)
        return {"gives": function(x if is_leaf else x * 1)}

    agree(program, observe, False, True, False, True, backend=backend)


def rows_apart(base):
    return base[:4], base[1:]


def turned(base):
    return base[:4], base[:4].t()


def data_of_a_leaf(base):
    leaf = base[:4].clone().requires_grad_()
    return leaf.detach(), leaf


@backends
@pytest.mark.parametrize("change", [torch.Tensor.copy_, torch.Tensor.add_])
@pytest.mark.parametrize("inputs", [rows_apart, turned])
def test_a_write_to_what_is_read_beside_it_comes_to_its_handler_after_another_write(inputs, change, backend):
    def program(a, b):
        a.mul_(2)
        try:
            change(a, b)
        except RuntimeError as error:
            return str(error)
        return a * 3

    def observe(function, inputs):
        a, b = inputs(torch.arange(20.0).view(5, 4))
        counted = a._version
        return {"gives": function(a, b), "a": a.tolist(), "b": b.tolist(), "version": a._version - counted}

    agree(program, observe, inputs, inputs, backend=backend)


@backends
@pytest.mark.parametrize("inputs", [rows_apart, turned, data_of_a_leaf])
def test_inputs_that_share_memory_are_put_back_together(inputs, backend):
    def program(a, b, index):
        a.mul_(2)
        try:
            return b.reshape(-1)[index] * 2
        except IndexError as error:
            return type(error), b + 1

    def observe(function, index):
        a, b = inputs(torch.arange(20.0).view(5, 4))
        counted = a._version
        gives = function(a, b, torch.tensor([index]))
        return {"gives": gives, "a": a.tolist(), "b": b.tolist(), "version": a._version - counted}

    agree(program, observe, 40, 2, 40, backend=backend)


def read_at(y, index):
    return y[index]


@backends
@pytest.mark.parametrize("fails", [read_at, torch.nn.functional.one_hot], ids=["read", "one_hot"])
@pytest.mark.parametrize("change", [torch.Tensor.index_add_, torch.Tensor.index_copy_])
def test_a_handler_before_an_operation_that_may_break_off_in_a_tensor_with_a_history(change, fails, backend):
    """What ends in the middle of writing leaves the history as it is, so that the data can be put back."""

    def program(x, y, index, places, log):
        try:
            found = fails(x, index) if fails is read_at else fails(index, 5)
        except (IndexError, RuntimeError) as error:
            log.append(type(error).__name__)
            found = None
        change(y, 0, places, y[: len(places)] * 1.5)
        return found, y * 2

    def observe(function, call):
        index, places = map(torch.tensor, call)
        leaf, log = torch.arange(20.0).view(5, 4).requires_grad_(), []
        y, error, results = leaf * 1, None, None
        try:
            results = function(torch.ones(5, 4), y, index, places, log)
            results[1].square().sum().backward()
        except (IndexError, RuntimeError) as raised:
            error = type(raised).__name__, str(raised)
        seen = {"results": results, "y": y, "version": y._version, "gradient": leaf.grad}
        return {"raised": error, "log": log, **seen}

    both, neither, first, last = ([0, 1], [2, 3]), ([0, 9], [2, 9]), ([0, 9], [2, 3]), ([0, 1], [2, 9])
    agree(program, observe, both, both, first, last, neither, both, backend=backend)
