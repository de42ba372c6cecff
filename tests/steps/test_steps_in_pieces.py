"""Steps that decide by data: an error that says what to do under ``fullgraph=True``, else pieces, made once."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS
from torch import optim

import bothways
from bothways.errors import Unsupported
from bothways.testing import difference

STEPS = 30


def network():
    """The same on each device, as the batches are: at which step data decides otherwise is part of the test."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 8, device="cpu"), torch.nn.Tanh(), torch.nn.Linear(8, 3, device="cpu")
    return torch.nn.Sequential(*layers).to(torch.empty(0).device)


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def left_out_where_not_finite():
    model, skipped = network(), []
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        if not torch.isfinite(loss):
            skipped.append(1)
            return len(skipped)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model, None


def stopped_where_gradients_are_small():
    model = network()
    optimizer = optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm > 0.3:
            optimizer.step()
        return loss.detach(), norm

    return step, model, "if norm > 0.3:"


def with_the_best_so_far():
    model, best = network(), [float("inf")]
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        if loss.item() < best[0]:
            best[0] = loss.item()
        return best[0]

    return step, model, "if loss.item() < best[0]:"


def with_line_searches(**options):
    model = network().double()  # in single precision a search may turn rounding into another step
    optimizer = optim.LBFGS(model.parameters(), lr=0.3, max_iter=3, **options)

    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, x.double(), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return step, model, None


def with_strong_line_searches():
    return with_line_searches(line_search_fn="strong_wolfe")


WAYS = [
    left_out_where_not_finite, stopped_where_gradients_are_small, with_the_best_so_far, with_line_searches,
    with_strong_line_searches,
]  # fmt: skip


def given():
    options = {"generator": torch.Generator("cpu").manual_seed(1), "device": "cpu"}
    batches = [(torch.randn(20, 6, **options), torch.randint(0, 3, (20,), **options)) for _ in range(STEPS)]
    batches = [(x.to(torch.empty(0).device), y.to(torch.empty(0).device)) for x, y in batches]
    batches[7][0][0, 0] = float("nan")
    return batches


def batches_of(way):
    return given() if way is left_out_where_not_finite else [batch for batch in given() if batch[0].isfinite().all()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_pieces_are_made_once_and_do_what_eager_does(way, backend):
    plain, expected, _ = way()
    step, model, _ = way()
    compiled, programs = bothways.compile(step, backend=backend), []
    for x, y in batches_of(way):
        assert difference(compiled(x, y), plain(x, y), tol=1e-3) is None
        programs.append(len(bothways.explain(compiled).programs))
    assert difference(model.state_dict(), expected.state_dict(), tol=1e-3) is None
    assert programs[-1] == programs[STEPS // 2] <= 6
    assert bothways.explain(compiled).breaks


STOPPED = [stopped_where_gradients_are_small, with_the_best_so_far]


@pytest.mark.parametrize("way", STOPPED, ids=lambda way: way.__name__)
def test_an_error_names_the_line_and_what_to_do(way):
    step, _, line = way()
    compiled = bothways.compile(step, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported) as raised:
        for x, y in batches_of(way)[:3]:
            compiled(x, y)
    message = str(raised.value)
    assert line in message and "hint: " in message and "test_steps_in_pieces.py" in message


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_closure_of_a_line_search_is_one_graph(backend):
    def way(compile_closure):
        model = network()
        optimizer = optim.LBFGS(model.parameters(), lr=0.3, max_iter=3)

        def closure(x, y):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            return loss

        compiled = compile_closure(closure)
        return [optimizer.step(lambda: compiled(x, y)).detach() for x, y in batches_of(way)], compiled

    expected, _ = way(lambda closure: closure)
    losses, compiled = way(lambda closure: bothways.compile(closure, backend=backend, fullgraph=True))
    assert difference(losses, expected, tol=1e-3) is None
    assert len(bothways.explain(compiled).programs) <= 2


def test_a_rate_that_follows_the_loss_is_one_graph():
    """What ``ReduceLROnPlateau`` decides by the loss is decided behind the graph."""

    def way():
        model = network()
        optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        schedule = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, threshold=0.05)

        def step(x, y):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            schedule.step(loss.item())
            return loss.detach()

        return step, optimizer

    (plain, expected), (step, optimizer) = way(), way()
    compiled = bothways.compile(step, fullgraph=True)
    for x, y in batches_of(way):
        assert difference(compiled(x, y), plain(x, y), tol=1e-3) is None
        assert optimizer.param_groups[0]["lr"] == expected.param_groups[0]["lr"]
    assert optimizer.param_groups[0]["lr"] < 0.05
