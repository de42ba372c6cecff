"""NumPy's random numbers: drawn once, in order, from the very generators; never a constant of a program."""

import numpy as np
import pytest
import torch
from agreeing import agree

import bothways

own = np.random.RandomState(0)
beta = np.random.beta


def mixup(x):
    lam = np.random.beta(0.4, 0.4)
    index = torch.randperm(x.shape[0])
    return lam * x + (1 - lam) * x[index], lam


def of_two_generators(x):
    return x * own.uniform(-1, 1) + np.random.normal(0, 0.1), own.randint(3), np.random.rand()


def by_its_own_name(x):
    return x + beta(1.0, 2.0) * np.random.choice(4)


def mixed_after_a_layer(x):
    layer = np.random.randint(1, 3)
    return torch.cat([x.repeat(layer, 1), x.repeat(3 - layer, 1) * 2]), layer


def observe(function, seed):
    np.random.seed(seed)
    own.seed(seed)
    torch.manual_seed(seed)
    x = torch.linspace(-1, 1, 6).reshape(3, 2).requires_grad_()
    try:
        result = function(x)
    except ValueError as error:
        return {"raised": str(error), "generator": repr(np.random.get_state())}
    first = result[0] if isinstance(result, tuple) else result
    first.sum().backward()
    return {
        "result": result,
        "gradient": x.grad,
        "types": [type(part) for part in result] if isinstance(result, tuple) else [],
        "generators": [repr(np.random.get_state()), repr(own.get_state())],
    }


@pytest.mark.every_backend
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "program", [mixup, of_two_generators, by_its_own_name, mixed_after_a_layer], ids=lambda f: f.__name__
)
def test_every_call_draws_again(program, backend):
    agree(program, observe, 0, 1, 2, 0, backend=backend, fullgraph=True, programs=1, tol=1e-6)


def flipped(x):
    return x.flip(0) * 2 if np.random.rand() < 0.5 else x * 3


def shuffled(x):
    return x[np.random.permutation(3)] * 2


def seeded(x):
    np.random.seed(7)
    return x * np.random.rand()


def in_the_middle(x):
    y = x * np.random.rand()
    return y * float(y.sum() > 0) + np.random.randn()


@pytest.mark.parametrize("program", [flipped, shuffled, seeded, in_the_middle], ids=lambda f: f.__name__)
def test_what_decides_or_is_an_array_is_plain_pythons(program):
    agree(program, observe, *range(6), 0)


def test_what_numpy_refuses_is_refused():
    agree(lambda x: x * np.random.beta(-1.0, 1.0), observe, 0, 1, 2)


def test_a_generator_that_is_given():
    def program(x, generator):
        return x * generator.uniform() + generator.randint(5)

    def observed(function, seed):
        generator = np.random.RandomState(seed)
        return {"result": function(torch.ones(3), generator), "generator": repr(generator.get_state())}

    agree(program, observed, 0, 1, 2, fullgraph=True, programs=1)


def test_a_graph_that_fails_has_drawn_nothing():
    def program(x, places):
        return x[places] * np.random.rand()

    compiled = bothways.compile(program, backend="aot_eager")
    for places in (torch.tensor([0, 1]), torch.tensor([0, 9]), torch.tensor([2, 9])):
        states = []
        for function in (program, compiled):
            np.random.seed(0)
            try:
                function(torch.ones(3), places)
            except IndexError:
                states.append("raised")
            states.append(repr(np.random.get_state()))
        assert states[: len(states) // 2] == states[len(states) // 2 :]
