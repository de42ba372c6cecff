"""What stands between a backward and the next step: clipping, averages, accumulation, hand-written updates, state."""

import copy

import pytest
import torch
import torch.nn.functional as F
from stepping import BACKENDS, agree, batches, state_of
from torch import nn, optim
from torch.nn import utils
from torch.optim import swa_utils

import bothways
from bothways.testing import difference


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def training(act, make_model=perceptron, make_optimizer=None):
    """``act(model, optimizer, loss)`` is what a step does with its loss."""

    def make():
        model = make_model()
        optimizer = (make_optimizer or (lambda p: optim.SGD(p, lr=0.1, momentum=0.9)))(model.parameters())

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            return loss.detach(), act(model, optimizer, loss)

        return step, {"model": model, "optimizer": optimizer}

    return make


CLIPS = {
    "by norm": lambda ps: utils.clip_grad_norm_(ps, 0.1),
    "by the largest": lambda ps: utils.clip_grad_norm_(ps, 0.1, norm_type=float("inf")),
    "by the sum": lambda ps: utils.clip_grad_norm_(ps, 0.1, norm_type=1),
    "by norm, all at once": lambda ps: utils.clip_grad_norm_(ps, 0.1, foreach=True),
    "by norm, one by one": lambda ps: utils.clip_grad_norm_(ps, 0.1, foreach=False),
    "by a norm that must be finite": lambda ps: utils.clip_grad_norm_(ps, 0.1, error_if_nonfinite=True),
    "by value": lambda ps: utils.clip_grad_value_(ps, 0.01),
    "by value, all at once": lambda ps: utils.clip_grad_value_(ps, 0.01, foreach=True),
    "by value, one by one": lambda ps: utils.clip_grad_value_(ps, 0.01, foreach=False),
    "the norm alone": lambda ps: utils.get_total_norm([p.grad for p in ps]),
    "a norm that must be finite": lambda ps: utils.get_total_norm([p.grad for p in ps], error_if_nonfinite=True),
    "with a norm": lambda ps: utils.clip_grads_with_norm_(ps, 0.1, utils.get_total_norm([p.grad for p in ps], 3.0)),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CLIPS)
def test_gradients_are_clipped(name, backend):
    def act(model, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        norm = CLIPS[name](list(model.parameters()))
        optimizer.step()
        return norm

    agree(training(act), batches(), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_norm_that_is_not_finite_is_the_users_error(backend):
    """The step that meets it runs as plain Python, and leaves behind what eager leaves."""

    def act(model, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()

    def with_dropout():
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))

    given = batches(6)
    given[3] = (given[3][0] * float("inf"), given[3][1])
    trails = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        step, changed = training(act, with_dropout)()
        if is_compiled:
            step = bothways.compile(step, backend=backend, fullgraph=True)
        trail = []
        for batch in given:
            try:
                step(*batch)
            except RuntimeError as error:
                assert "non-finite" in str(error)
                trail.append("raised")
            trail.append(state_of(changed))
        trails.append(trail)
    assert trails[0].count("raised") == 1
    assert difference(trails[0], trails[1], tol=1e-5) is None


def test_a_norm_that_must_be_finite_after_changes_breaks():
    """Gradients that were added to are not as they were, so the step could not be begun again."""

    def act(model, optimizer, loss):
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()

    agree(training(act), batches(), "eager", fullgraph=False)


AVERAGES = {
    "equal": lambda model: swa_utils.AveragedModel(model),
    "exponential": lambda model: swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9)),
    "one by one": lambda model: swa_utils.AveragedModel(model, avg_fn=swa_utils.get_ema_avg_fn(0.9)),
    "of buffers too": lambda model: swa_utils.AveragedModel(
        model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    ),
}


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AVERAGES)
def test_models_are_averaged(name, backend):
    def make():
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        average = AVERAGES[name](model)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            return loss.detach()

        return step, {"model": model, "average": average}

    agree(make, batches(7), backend, programs=1)


def test_an_average_begins_anew():
    """The program is the same: it asks the count when it runs."""

    def make():
        model, counts = nn.Linear(6, 3), []

        def weigh(average, current, count):
            counts.append(1)
            return average * 0.5 + current * 0.5

        average = swa_utils.AveragedModel(model, avg_fn=weigh)

        def step(x, y):
            with torch.no_grad():
                model.weight.add_(x.mean())
            average.update_parameters(model)

        return step, {"model": model, "average": average}

    results = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        step, changed = make()
        step = bothways.compile(step, backend="eager", fullgraph=True) if is_compiled else step
        for number, batch in enumerate(batches(6)):
            if number == 4:
                changed["average"].n_averaged.zero_()
            step(*batch)
            results.append(changed["average"].module.weight.detach().clone())
    assert difference(results[:6], results[6:], tol=1e-6) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_average_by_hand(backend):
    def make():
        model = perceptron()
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        average = copy.deepcopy(model).requires_grad_(False)

        def step(x, y):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.mul_(0.9).add_(theirs, alpha=0.1)
            average[0].weight.data.lerp_(model[0].weight.data, 0.1)

        return step, {"model": model, "optimizer": optimizer, "average": average}

    agree(make, batches(), backend, programs=1)


def forget_before(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def zero_before(model, optimizer, loss):
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()


def zero_after(model, optimizer, loss):
    loss.backward()
    optimizer.step()
    model.zero_grad(set_to_none=False)


def update_by_hand(model, optimizer, loss):
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def update_by_hand_and_zero(model, optimizer, loss):
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
            parameter.grad.zero_()


def update_data(model, optimizer, loss):
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.data.sub_(gradient, alpha=0.1)


def change_gradients(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    model[0].weight.grad *= 0.5
    model[0].bias.grad = model[0].bias.grad * 2 + 1
    model[2].bias.grad = None
    seen = model[2].weight.grad.sum()
    optimizer.step()
    return seen


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("act", "programs"),
    [(forget_before, 1), (zero_before, 2), (zero_after, 2), (update_by_hand, 1), (update_by_hand_and_zero, 2),
     (update_data, 1), (change_gradients, 1)],
)  # fmt: skip
def test_gradients_and_updates_by_hand(act, programs, backend):
    """Gradients that stay from step to step are missing in the first, which has a program of its own."""
    agree(training(act, make_optimizer=lambda p: optim.SGD(p, lr=0.1)), batches(), backend, programs=programs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_accumulate_over_a_loop_inside(backend):
    def make():
        model = perceptron()
        optimizer = optim.AdamW(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            total = 0.0
            for part, labels in zip(x.chunk(3), y.chunk(3), strict=True):
                loss = F.cross_entropy(model(part), labels) / 3
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            return total

        return step, {"model": model, "optimizer": optimizer}

    agree(make, batches(), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_some_parameters_are_frozen(backend):
    def frozen():
        model = perceptron()
        model[0].requires_grad_(False)
        return model

    agree(training(forget_before, frozen), batches(), backend, programs=1)


def test_parameters_are_frozen_in_the_middle_of_training():
    """A program for each of the two, and none when the first are back."""
    results = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        step, changed = training(forget_before, make_optimizer=lambda p: optim.AdamW(p, lr=0.1))()
        step = bothways.compile(step, backend="native", fullgraph=True) if is_compiled else step
        for number, batch in enumerate(batches(8)):
            changed["model"][0].requires_grad_(number not in (3, 4))
            step(*batch)
            results.append(state_of(changed))
    assert difference(results[:8], results[8:], tol=1e-5) is None
    assert len([one for one in bothways.history(step) if one.graphs]) == 2


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.table((x.abs().sum(1) * 7).long() % 6).tanh())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_is_in_two_places(backend):
    agree(training(forget_before, Tied), batches(), backend, programs=1)


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.spread, self.norm = nn.Conv1d(1, 4, 3, bias=False), nn.BatchNorm1d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.drop(F.relu(self.norm(self.spread(x[:, None])))).flatten(1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_and_random_numbers_are_those_of_eager(backend):
    agree(training(forget_before, Image), batches(), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make_model", [perceptron, Image])
def test_a_last_batch_of_another_size_has_one_program_more(make_model, backend):
    given = batches(9)
    for number, size in ((3, 4), (6, 4), (7, 3)):
        given[number] = tuple(part[:size] for part in given[number])
    agree(training(forget_before, make_model), given, backend, programs=2)


class Copied(dict):
    """Tensors by name, as often as they are copied."""

    def __deepcopy__(self, memo):
        return {name: tensor.detach().clone() for name, tensor in self.items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_are_given_to_the_model(backend):
    def make():
        model = perceptron()
        parameters = Copied((name, p.detach().clone().requires_grad_()) for name, p in model.named_parameters())
        optimizer = optim.SGD(parameters.values(), lr=0.1, momentum=0.9)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(torch.func.functional_call(model, dict(parameters), (x,)), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, {"parameters": parameters, "optimizer": optimizer}

    agree(make, batches(), backend, programs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_state_is_saved_and_loaded_in_the_middle(backend):
    """Either way: what a compiled training saves goes on plainly, and the other way round."""

    def begin(is_compiled):
        torch.manual_seed(0)
        step, changed = training(forget_before, Image, lambda p: optim.AdamW(p, lr=0.01))()
        return bothways.compile(step, backend=backend, fullgraph=True) if is_compiled else step, changed

    def run(is_compiled, given, saved=None):
        step, changed = begin(is_compiled)
        if saved is not None:
            changed["model"].load_state_dict(saved[0])
            changed["optimizer"].load_state_dict(saved[1])
            torch.set_rng_state(saved[2])
        for batch in given:
            step(*batch)
        return copy.deepcopy((changed["model"].state_dict(), changed["optimizer"].state_dict(), torch.get_rng_state()))

    given = batches(8)
    expected = run(False, given[4:], run(False, given[:4]))
    assert difference(expected, run(True, given[4:], run(False, given[:4])), tol=1e-5) is None
    assert difference(expected, run(False, given[4:], run(True, given[:4])), tol=1e-5) is None
    assert difference(expected, run(True, given[4:], run(True, given[:4])), tol=1e-5) is None


def test_state_is_loaded_into_a_training_that_goes_on():
    results = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        step, changed = training(forget_before, make_optimizer=lambda p: optim.AdamW(p, lr=0.1))()
        step = bothways.compile(step, backend="native", fullgraph=True) if is_compiled else step
        saved = None
        for number, batch in enumerate(batches(10)):
            if number == 3:
                saved = copy.deepcopy([changed["model"].state_dict(), changed["optimizer"].state_dict()])
            if number in (6, 8):
                changed["model"].load_state_dict(saved[0])
                changed["optimizer"].load_state_dict(saved[1])
            step(*batch)
            results.append(state_of(changed))
    assert difference(results[:10], results[10:], tol=1e-5) is None
    assert len([one for one in bothways.history(step) if one.graphs]) == 1
