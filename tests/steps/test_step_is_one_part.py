"""A captured step is compiled as one piece: neither settings that change in it nor values that leave it cut it."""

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches
from torch import nn, optim

import bothways


def pieces(make, given, tol=1e-5):
    """The pieces that the one program of a step consists of, which trains as plain Python does."""
    with bothways.config.patch(kernels_for_small_graphs=True):
        compiled = agree(make, given, "native", programs=1, tol=tol)
    return [str(piece) for piece in bothways.explain(compiled).outcomes[-1].pieces]


def training(body, make_optimizer=lambda parameters: optim.AdamW(parameters, lr=0.01)):
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = make_optimizer(model.parameters())
        return body(model, optimizer), {"model": model, "optimizer": optimizer}

    return make


def autocast_with_a_scaler(model, optimizer, clips=True):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def a_scaler_without_clipping(model, optimizer):
    return autocast_with_a_scaler(model, optimizer, clips=False)


def autocast_inside_of_autocast(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model[0](x)
            with torch.autocast("cpu", enabled=False):
                hidden = model[1](hidden.float())
            out = model[2:](hidden)
        loss = F.cross_entropy(out.float(), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), out.detach().float()

    return step


def everything_under_autocast(model, optimizer):
    def step(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        return loss.detach()

    return step


def regions_without_gradients(model, optimizer):
    averages = [parameter.detach().clone() for parameter in model.parameters()]

    def step(x, y):
        optimizer.zero_grad()
        with torch.no_grad():
            guess = model(x).argmax(-1)
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        weight = torch.softmax(model(x), -1).amax()
        torch.set_grad_enabled(before)
        loss = F.cross_entropy(model(x), y) + weight * F.cross_entropy(model(x), guess)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(averages, model.parameters(), strict=True):
                average.lerp_(parameter, 0.1)
        return loss.detach(), [average.clone() for average in averages]

    return step


def values_that_leave_and_are_read(model, optimizer):
    def step(x, y):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        guess = out.detach().argmax(-1)
        right = (guess == y).float()
        shown = loss.detach()
        return shown, shown * 2, guess, right, right.mean(), norm, norm.log()

    return step


STEPS = [
    autocast_with_a_scaler, a_scaler_without_clipping, autocast_inside_of_autocast, everything_under_autocast,
    regions_without_gradients, values_that_leave_and_are_read,
]  # fmt: skip


@pytest.mark.parametrize("body", STEPS, ids=lambda body: body.__name__)
def test_a_step_is_one_piece_with(body):
    [piece] = pieces(training(body), batches(4), 1e-5 if body in STEPS[-2:] else 1e-2)
    assert piece.startswith("forward: ")


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("body", STEPS, ids=lambda body: body.__name__)
def test_a_step_trains_as_plain_python_with(body, backend):
    agree(training(body), batches(4), backend, programs=1, tol=1e-5 if body in STEPS[-2:] else 1e-2)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_an_update_that_is_one_operation_of_scaled_gradients(name):
    """It is given the scale, and whether a gradient is infinite: then it changes nothing."""
    options = {"momentum": 0.9, "nesterov": True} if name == "SGD" else {}
    make = training(
        a_scaler_without_clipping, lambda parameters: getattr(optim, name)(parameters, lr=0.01, fused=True, **options)
    )
    given = batches(6)
    given[3] = (given[3][0] * float("inf"), given[3][1])
    [piece] = pieces(make, given, 1e-2)
    assert piece.startswith("forward: ")


def test_a_value_that_autograd_follows_is_cut_off_still():
    """People may hook what is returned while the rest is computed from it."""
    weight = torch.randn(6, 6, requires_grad=True)

    def plain(x):
        hidden = torch.tanh(x @ weight)
        buffer = torch.zeros(6, 6)
        buffer.add_(hidden)  # from here on it has a history
        return hidden, buffer, torch.sigmoid(buffer * hidden).sum()

    compiled = bothways.compile(plain, backend="aot_eager")
    x = torch.randn(6, 6)
    for function in (plain, compiled):
        seen = []
        hidden, buffer, loss = function(x)
        hidden.register_hook(lambda gradient: seen.append(gradient.sum()))  # noqa: B023
        buffer.register_hook(lambda gradient: seen.append(gradient.sum()))  # noqa: B023
        loss.backward()
        assert len(seen) == 2
        if function is plain:
            expected = seen, weight.grad
            weight.grad = None
    torch.testing.assert_close((seen, weight.grad), expected)


def test_the_scale_follows_eagers_to_the_last_bit():
    def step(scale, tracker, found, gradients):
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale.reciprocal())
        torch._amp_update_scale_(scale, tracker, found, 1.1, 0.3, 2)
        return scale.clone()

    def run(function, infinite):
        scale, tracker = torch.tensor(3.0), torch.zeros((), dtype=torch.int32)
        trail = []
        for number in range(6):
            found = torch.zeros(())
            gradients = [torch.full((3,), float("inf") if number in infinite else 5.0), torch.ones(2, 2)]
            function(scale, tracker, found, gradients)
            versions = [tensor._version for tensor in (scale, tracker, found, *gradients)]
            trail.append((scale.item(), tracker.item(), found.item(), [one.tolist() for one in gradients], versions))
        return trail

    for backend in BACKENDS:
        with bothways.config.patch(kernels_for_small_graphs=True):
            compiled = bothways.compile(step, backend=backend, fullgraph=True)
            for infinite in ((), (1,), (2, 3)):
                assert str(run(compiled, infinite)) == str(run(step, infinite)), backend
