"""Graphs that change their inputs and then fail on data: the call starts again, as if nothing had happened."""

import contextlib
import copy
import traceback

import pytest
import torch
import torch.nn.functional as F
from agreeing import agree

import bothways
from bothways.testing import difference

BACKENDS = ["eager", "aot_eager", "native"]


def pick(x, index):
    return x[index]


def change_and_pick(x, index, log):
    x.add_(1)
    log.append("added")
    y = pick(x, index)
    log.append("picked")
    return y * 2


def catch_it(x, index, log):
    try:
        x.add_(1)
        y = pick(x, index)
    except IndexError as error:
        log.append(str(error))
        y = x.mul_(3)
    finally:
        log.append("done")
    return y * 2


def change_a_view(x, index, log):
    part = x.view(-1)[1:3]
    part.mul_(4)
    x[index] = 7.0
    return part.sum()


def change_between(x, index, log):
    y = pick(x, torch.zeros(1, dtype=torch.long))
    x.mul_(2)
    y = y + pick(x, index)
    x.sub_(1)
    return y


def give_other_sizes(x, index, log):
    torch.add(index, 1, out=x)
    log.append("smaller")
    return pick(torch.arange(8.0), index)


def give_more_room(x, index, log):
    torch.cat([index, torch.ones(99)], out=x)
    log.append("larger")
    return pick(torch.arange(8.0), index)


def transpose(x, index, log):
    x.unsqueeze_(0).t_()
    x[1:].mul_(2)
    log.append("a column")
    return pick(x, index)


class Normalised(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.calls = 0

    def forward(self, x, index, log):
        self.calls += 1
        return F.cross_entropy(self.norm(x.view(2, 2, -1)).mean(-1), index.expand(2))


def shown(function, index, state=dict):
    """What a call shows: its result or error with the user's lines, and what it changed."""
    x, log = torch.arange(8.0), []
    try:
        result = function(x, torch.tensor([index]), log)
    except Exception as error:
        steps = traceback.extract_tb(error.__traceback__)
        lines = [(step.name, step.lineno) for step in steps if step.filename == __file__]
        result = type(error).__name__, str(error), lines
    return {"result": result, "input": x, "version": x._version, "log": log, "state": copy.deepcopy(state())}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "function", [change_and_pick, catch_it, change_a_view, change_between, give_other_sizes, give_more_room, transpose]
)
def test_an_error_finds_the_inputs_as_they_were(function, backend):
    agree(function, shown, 1, 99, 2, 99, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "norm", [torch.nn.BatchNorm1d(2), torch.nn.InstanceNorm1d(2, track_running_stats=True)], ids=["batch", "instance"]
)
def test_running_statistics_are_updated_once_where_the_loss_fails(norm, backend):
    module = Normalised(copy.deepcopy(norm))
    begin = copy.deepcopy(module.state_dict())

    def reset():
        module.load_state_dict(begin)
        module.calls = 0

    def observe(function, index):
        return shown(function, index, lambda: [module.state_dict(), module.calls])

    agree(module, observe, 1, 5, 0, 5, backend=backend, reset=reset)


def test_what_is_too_large_to_copy_keeps_what_was_done_to_it(monkeypatch):
    monkeypatch.setattr("bothways.runtime.kept_inputs.MOST_ELEMENTS", 4)
    expected = shown(change_and_pick, 99)
    found = shown(bothways.compile(change_and_pick, backend="eager"), 99)
    assert found["result"][:2] == expected["result"][:2] and torch.equal(found["input"], expected["input"])


def test_an_input_that_became_part_of_autograds_graph_keeps_what_was_done_to_it():
    def program(x, w, index):
        x.mul_(w)
        return x[index]

    for function in (program, bothways.compile(program, backend="eager")):
        x = torch.ones(3)
        with pytest.raises(IndexError):
            function(x, torch.full((3,), 2.0, requires_grad=True), torch.tensor([9]))
        assert torch.equal(x.detach(), torch.full((3,), 2.0)) and x.requires_grad


def change_data_and_pick(x, index, log):
    x.data.add_(1)
    return pick(x, index)


def test_what_has_no_version_and_is_too_large_to_copy_is_not_done_twice(monkeypatch):
    monkeypatch.setattr("bothways.runtime.kept_inputs.MOST_ELEMENTS", 4)
    compiled = bothways.compile(change_data_and_pick, backend="eager")
    for index in (1, 99, 99):
        assert torch.equal(shown(compiled, index)["input"], shown(change_data_and_pick, index)["input"])


@pytest.mark.parametrize(("inside", "elements"), [(True, 1 << 16), (True, 4), (False, 1 << 16)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_tensors_are_changed_once(backend, inside, elements, monkeypatch):
    """Outside of inference mode they refuse to be changed, after it was done."""
    monkeypatch.setattr("bothways.runtime.kept_inputs.MOST_ELEMENTS", elements)
    compiled = bothways.compile(change_and_pick, backend=backend)
    for index in (1, 99, 2):
        errors, states = [], []
        for function in (change_and_pick, compiled):
            with torch.inference_mode():
                x = torch.arange(8.0)
            with torch.inference_mode(inside):
                try:
                    function(x, torch.tensor([index]), [])
                    errors.append(None)
                except (IndexError, RuntimeError) as error:
                    errors.append((type(error), str(error)))
            states.append(x.tolist())
        assert errors[0] == errors[1] and states[0] == states[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_was_not_changed_yet_can_still_be_differentiated_with(backend):
    def program(x, index, log):
        y = pick(x, index)
        x.add_(1)
        return y

    compiled = bothways.compile(program, backend=backend)
    compiled(torch.ones(3), torch.tensor([1]), [])
    x, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    product = (x * weight).sum()
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([9]), [])
    product.backward()  # x is what it saved
    assert torch.equal(weight.grad, x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("changed", [lambda x: x.data.add_(1), lambda x: x.add_(1), lambda x: x.detach().add_(1)])
def test_an_input_that_was_put_back_can_still_be_differentiated_with(changed, backend):
    """The user's line fails before the one that changes it, and whether a graph has changed it by then is not known."""

    def program(x, other, index, log):
        other.add_(1)
        pick(other, index)
        changed(x)
        log.append(pick(x, index))

    def observe(function, index):
        x, weight, other, log = torch.ones(3), torch.ones(3, requires_grad=True), torch.ones(3), []
        products = (x * weight).sum(), (other * weight).sum()
        with contextlib.suppress(IndexError):
            function(x, other, torch.tensor([index]), log)
        return {"gradients": [derivative(product, weight) for product in products], "log": log}

    agree(program, observe, 1, 9, 2, 9, backend=backend)


def derivative(product, weight):
    try:
        return torch.autograd.grad(product, weight)[0]
    except RuntimeError as error:
        return str(error).partition("[")[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_expanded_tensors_refuse_at_the_users_line_and_are_put_back(backend):
    def program(base, wide):
        base.add_(1)
        wide.add_(1)

    def tried(function):
        base = torch.ones(2, 1)
        with pytest.raises(RuntimeError) as raised:
            function(base, base.expand(2, 3))
        lines = [step.lineno for step in traceback.extract_tb(raised.tb) if step.filename == __file__]
        return str(raised.value), lines[1:], base

    compiled = bothways.compile(program, backend=backend)
    for _ in range(2):
        assert difference(tried(program), tried(compiled)) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_that_share_their_memory_are_put_back(backend):
    """Then no graph waits to the end with what it writes."""

    def program(x, other, index, log):
        x.add_(1)
        other.data.mul_(2)
        log.append(pick(x, index))

    def tried(function, index):
        memory, log = torch.arange(8.0), []
        with contextlib.suppress(IndexError):
            function(memory[:4], memory[1:5], torch.tensor([index]), log)
        return memory, memory._version, log

    compiled = bothways.compile(program, backend=backend)
    for index in (1, 99, 99, 2):
        assert difference(tried(program, index), tried(compiled, index)) is None


def whole_quotient(x, y):
    return torch.div(x, y, rounding_mode="floor")


def whole_quotient_in_place(x, y):
    return x.div_(y, rounding_mode="trunc")


def bits(x, y):
    return x.float() | y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [whole_quotient, whole_quotient_in_place, bits])
def test_what_dtypes_and_zeros_do_not_allow_is_caught_where_the_user_catches_it(function, backend):
    def program(x, y, log):
        log.append("asked")
        try:
            return function(x, y) + 1
        except RuntimeError as error:
            log.append(str(error))
            return x

    compiled = bothways.compile(program, backend=backend)
    for divisor in (torch.ones(3).long(), torch.tensor([1, 0, 1]), torch.tensor([1, 0, 1])):
        found = []
        for called in (program, compiled):
            x, log = torch.tensor([1, 2, 3]), []
            found.append((called(x, divisor, log), x, log))
        assert difference(*found) is None


def test_a_model_with_batch_norm_copies_no_statistics():
    """Its operations take any data, so that no call begins anew."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.1))
    compiled = bothways.compile(model, backend="eager", fullgraph=True)
    compiled(torch.randn(5, 4))
    assert "keep_inputs" not in bothways.explain(compiled).code


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_norm_of_a_number_of_rows_that_data_decides_may_fail(backend):
    norm = torch.nn.BatchNorm1d(3)
    begin = copy.deepcopy(norm.state_dict())

    def program(x, mask):
        try:
            return norm(x[mask])
        except ValueError as error:
            return str(error)

    def observe(function, rows):
        result = function(torch.arange(18.0).view(6, 3).sin(), torch.arange(6) < rows)
        return {"result": result, "state": copy.deepcopy(norm.state_dict())}

    agree(
        program, observe, 5, 4, 1, 3, 1, backend=backend, reset=lambda: norm.load_state_dict(begin),
        within={"sizes_from_data": True},
    )  # fmt: skip
