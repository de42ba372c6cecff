"""Version counters after a compiled step: each in-place operation counts once, as in eager, whatever the kernels do."""

import copy

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, batches
from torch import optim

import bothways

pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.in_turn("backend")]


def network():
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def versions(tensors):
    return [None if tensor is None else tensor._version for tensor in tensors]


def trail(make_step, compile_step, count=4):
    """The versions of everything that lasts, after each step."""
    torch.manual_seed(0)
    net = network()
    step, others = make_step(net)
    step = compile_step(step)
    found = []
    for batch in batches(count):
        results = step(*batch)
        states = [value for other in others for state in other.state.values() for value in state.values()]
        found.append({
            "results": versions(results),
            "parameters": versions(net.parameters()),
            "buffers": versions(net.buffers()),
            "gradients": versions(parameter.grad for parameter in net.parameters()),
            "optimizer": versions(value for value in states if isinstance(value, torch.Tensor)),
        })  # fmt: skip
    return found


OPTIMIZERS = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    "Adam": lambda parameters: optim.Adam(parameters, lr=0.1, amsgrad=True, weight_decay=0.1),
    "AdamW of lists": lambda parameters: optim.AdamW(parameters, lr=0.1, foreach=True),
    "fused AdamW": lambda parameters: optim.AdamW(parameters, lr=0.1, fused=True),
    "RMSprop": lambda parameters: optim.RMSprop(parameters, lr=0.1, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_change_counts(name, backend):
    def make(net):
        optimizer = OPTIMIZERS[name](net.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            return loss, loss.detach()

        return step, [optimizer]

    assert trail(make, lambda step: bothways.compile(step, backend=backend, fullgraph=True)) == trail(
        make, lambda step: step
    )


@pytest.mark.parametrize("clips", [False, True], ids=["as it is", "clipped"])
def test_a_scaled_update_that_is_made_counts_as_often(clips, backend):
    """Where a gradient is infinite eager leaves the update out, and a graph counts it all the same."""

    def make(net):
        optimizer = optim.AdamW(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            return loss, scaler._scale

        return step, [optimizer]

    assert trail(make, lambda step: bothways.compile(step, backend=backend)) == trail(make, lambda step: step)


AVERAGES = {
    "of all": lambda net: optim.swa_utils.AveragedModel(net),
    "moving, with buffers": lambda net: optim.swa_utils.AveragedModel(
        net, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    ),
    "by a function": lambda net: optim.swa_utils.AveragedModel(net, avg_fn=lambda mean, new, _: 0.9 * mean + 0.1 * new),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_of_models_counts_as_often(name, backend):
    def make(net):
        average = AVERAGES[name](net)
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            average.update_parameters(net)
            return [*average.parameters(), *average.buffers()]

        return step, [optimizer]

    assert trail(make, lambda step: bothways.compile(step, backend=backend)) == trail(make, lambda step: step)


@pytest.mark.parametrize("name", AVERAGES)
def test_an_average_of_models_never_counts_less_often(name, backend):
    """Not even on a GPU, where ATen counts the first model alone: a backward may hold the average."""
    counted = []

    def make(net):
        average = AVERAGES[name](net)

        def step(x, y):
            with torch.no_grad():
                net[0].weight.mul_(0.9)
            average.update_parameters(net)
            return list(average.parameters())

        return step, []

    for compile_step in (lambda step: step, lambda step: bothways.compile(step, backend=backend)):
        counted.append([found["results"] for found in trail(make, compile_step)])
    for expected, found in zip(*counted, strict=True):
        assert all(one <= other for one, other in zip(expected, found, strict=True))


def test_gradients_that_accumulate_and_averages_count_as_often(backend):
    def make(net):
        average = copy.deepcopy(net).requires_grad_(False)

        def step(x, y):
            for part, labels in zip(x.split(3), y.split(3), strict=True):
                F.cross_entropy(net(part), labels).backward()
            with torch.no_grad():
                for parameter, mean in zip(net.parameters(), average.parameters(), strict=True):
                    parameter -= 0.1 * parameter.grad
                    mean.mul_(0.9).add_(parameter.data, alpha=0.1)
            for parameter in net.parameters():
                parameter.grad.zero_()
            return list(average.parameters())

        return step, []

    assert trail(make, lambda step: bothways.compile(step, backend=backend, fullgraph=True)) == trail(
        make, lambda step: step
    )


def test_an_error_about_a_tensor_that_was_changed_tells_eagers_versions(backend):
    def told(compile_step):
        torch.manual_seed(0)
        net = network()
        optimizer = optim.Adam(net.parameters())

        def step(x, y):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()

        step = compile_step(step)
        (x, y), *_ = batches(1)
        for _ in range(3):
            step(x, y)
        kept = net(x).sum()
        step(x, y)
        with pytest.raises(RuntimeError, match="is at version") as raised:
            kept.backward()
        return str(raised.value)

    assert told(lambda step: bothways.compile(step, backend=backend, fullgraph=True)) == told(lambda step: step)


def test_outputs_that_are_others_without_a_history_share_memory_and_versions_as_in_eager(backend):
    net = network()

    def step(x, y):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        shown = loss * 2
        return shown, shown.detach(), shown.data, loss.detach(), loss.detach(), x.detach(), x.data

    def shared(step):
        net.zero_grad()
        x, y = batches(1)[0]
        shown, detached, data, *others, of_input, data_of_input = step(x, y)
        pairs = [(shown, detached), (shown, data), tuple(others), (x, of_input), (x, data_of_input)]
        found = []
        for one, other in pairs:
            before = one._version
            torch.autograd.graph.increment_version(other)
            found.append((one.data_ptr() == other.data_ptr(), one._version - before, other.requires_grad))
        return found

    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    assert shared(compiled) == shared(compiled) == shared(step)


def test_a_loss_that_is_returned_logged_and_averaged_leaves_the_step_whole(backend):
    net, log = network(), []
    average = copy.deepcopy(net).requires_grad_(False)

    def step(x, y):
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        log.append(loss.item())
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(parameter.data, 0.1)
        return loss, loss.detach()

    compiled = bothways.compile(step, backend=backend, fullgraph=True)
    for batch in batches(2):
        compiled(*batch)
    outcome = bothways.history(compiled)[-1].outcome
    assert [piece.name for piece in outcome.pieces] == ["graph" if backend == "eager" else "forward"]
