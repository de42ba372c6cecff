"""Arrays over a tensor's memory that are only handed on: made when the graph has run, without a break."""

import numpy as np
import pytest
import torch
from agreeing import BACKENDS, agree

import bothways


def returned(x, log):
    return x.numpy(), (x * 2).numpy(), (x > 0).numpy(), x.sum().numpy(), x.long()[0].numpy()


def kept(x, log):
    weight = torch.ones(3, requires_grad=True)
    log.append((x * weight).detach().cpu().numpy())
    log.append({"classes": x.argmax(1).cpu().numpy()})
    return x + 1


def changed_later(x, log):
    value = x * 1
    before, given = value.numpy(), x.numpy()
    value.add_(10)
    x.mul_(2)
    return before, given, value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [returned, kept, changed_later])
def test_an_array(program, backend):
    def observe(function, rows):
        x, log = torch.arange(-2.0, rows * 3 - 2).view(rows, 3), []
        result = function(x, log)
        return {"result": repr(result), "log": repr(log), "argument": x}

    agree(program, observe, 2, 2, 3, 4, backend=backend, programs=2, fullgraph=True)


def of_what_is_turned_later(x, log):
    value = x * 1
    before = value.numpy()
    value.t_()
    return before, value


def of_what_asks_for_a_gradient_later(x, log):
    value = x * 1
    before = value.numpy()
    value.requires_grad_()
    return before, value


def of_what_gets_other_data_later(x, log):
    value = x * 1
    before, given = value.numpy(), x.numpy()
    value.data = torch.zeros(3)
    x.data = torch.zeros(4)
    return before, given, value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [of_what_is_turned_later, of_what_asks_for_a_gradient_later, of_what_gets_other_data_later]
)
def test_it_is_of_the_tensor_as_that_was(program, backend):
    def observe(function, scale):
        x, log = torch.arange(6.0).view(2, 3) * scale, []
        return {"result": repr(function(x, log)), "argument": x}

    agree(program, observe, 1, 2, 2, backend=backend, programs=1, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_shares_the_memory_that_it_shares_uncompiled(backend):
    def program(x):
        y = x + 1
        return y, y.numpy(), y[0].numpy(), x.t().numpy(), y.numpy()

    def observe(function, call):
        x = torch.ones(2, 3)
        y, whole, row, turned, again = function(x)
        y[0, 0], x[1, 2], again[1, 1] = 7, 8, 9
        return {"whole": repr(whole), "row": repr(row), "turned": repr(turned), "y": y, "apart": whole is again}

    agree(program, observe, 1, 2, backend=backend, fullgraph=True, programs=1)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.numpy().mean() + x,
        lambda x: np.concatenate([x.numpy(), x.numpy()]).shape,
        lambda x: x + torch.from_numpy(x.numpy()),
        lambda x: np.mean(x.numpy()),
        lambda x: {"a": x.numpy()}["a"].shape,
        lambda x: x @ x.numpy().T,
        lambda x: bool((x.numpy() + 1).all()),
        lambda x: [float(row[0]) for row in x.numpy()],
        lambda x: x.numpy()[0] * 2,
        lambda x: (x.numpy() > 0).any(),
        lambda x: x.bfloat16().float().numpy().tolist(),
        lambda x: len(x.numpy()),
        lambda x: f"{x.numpy()}",
        lambda x: x.numpy(force=True),
    ],
)
def test_what_looks_at_it_is_plain_python(program):
    compiled = bothways.compile(program, backend="eager")
    for scale in (1, 2, 2):
        x = torch.linspace(-1, 2, 6).view(2, 3) * scale
        assert repr(compiled(x.clone())) == repr(program(x.clone()))
    with pytest.raises(bothways.errors.Unsupported):
        bothways.compile(program, backend="eager", fullgraph=True)(torch.ones(2, 3))


def test_graphs_before_and_after_what_looks_at_it():
    def program(x):
        y = (x * 2).sin()
        return y.cos() * float(y.numpy()[0, 0])

    compiled, x = bothways.compile(program, backend="eager"), torch.ones(2, 3)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
    assert bothways.explain(compiled).graph_count == 2
    assert bothways.compile(lambda x: isinstance(x.numpy(), np.ndarray), backend="eager", fullgraph=True)(x) is True


def test_what_numpy_cannot_hold_raises_as_it_does_uncompiled():
    def program(x):
        return x.numpy()

    compiled = bothways.compile(program, backend="eager")
    ones = torch.ones(2)
    for x in (torch.ones(2, requires_grad=True), ones.bfloat16(), ones.to(torch.cfloat), ones.to(torch.cfloat).conj()):
        outcomes = []
        for function in (program, compiled):
            try:
                outcomes.append(repr(function(x)))
            except (RuntimeError, TypeError) as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]
