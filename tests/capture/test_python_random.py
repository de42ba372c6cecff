"""Python's random numbers: drawn once, in order, from the very generators; never a constant of a program."""

import random
from unittest import mock

import pytest
import torch
from agreeing import agree
from sizing import BACKENDS
from torch.utils._pytree import tree_leaves

import bothways
from bothways.runtime import logs

everywhere = pytest.mark.parametrize("backend", BACKENDS)


def x():
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


def draws_agree(function, backend, generators=0, calls=4, fullgraph=True, programs=1, args=(), may_fail=False):
    """Run both from the same seeds: results, gradients and the generators afterwards are the same."""

    def observe(run, seed):
        random.seed(seed)
        own = [random.Random(seed + index) for index in range(generators)]
        tensor = x()
        result = run(tensor, *args, *own)
        first = result[0] if isinstance(result, tuple) else result
        if first.requires_grad:
            first.sum().backward()
        parts = tree_leaves(result)
        return {
            "types": [type(part).__name__ for part in parts],
            "numbers, to the last digit": [repr(part) for part in parts if not isinstance(part, torch.Tensor)],
            "result": parts,
            "gradient": tensor.grad,
            "the generator of the module": repr(random.getstate()),
            "generators": [repr(generator.getstate()) for generator in own],
        }

    agree(
        function, observe, *range(calls), backend=backend, programs=programs, tol=1e-6, fullgraph=fullgraph,
        may_fail=may_fail,
    )  # fmt: skip


@everywhere
def test_every_call_draws_again(backend):
    draws_agree(lambda x: (x + 1) * random.uniform(0, 1), backend)


@everywhere
def test_several_kinds_of_numbers_in_order(backend):
    def program(x):
        first, whole = random.random(), random.randint(1, 9)
        return x * first + whole - random.gauss(0, 1), whole + 1, random.randrange(0, 100, 7), random.triangular()

    draws_agree(program, backend)


def repeated(x):
    count = random.randint(1, 2)
    return torch.cat([x.repeat(count), x.repeat(3 - count) * 2]), count


def cropped(x):
    begin, bits = random.randrange(0, 2), random.getrandbits(1)
    return (x[begin : begin + 2] * 2 if begin < 2 else x), x.detach()[bits + 1]


def spread(x):
    computed = torch.stack([x, x + 1]).detach().exp()
    rows = computed.repeat(random.randint(1, 2), 1) * 2
    return rows.sum(0), rows.sum(1), computed


@everywhere
@pytest.mark.parametrize("program", [repeated, cropped, spread], ids=lambda f: f.__name__)
def test_what_is_drawn_lies_where_the_arguments_say(program, backend):
    """Sizes and indices that are worked out of it are right without a look, so no call runs as plain Python."""
    with bothways.config.patch(kernels_for_small_graphs=True):
        draws_agree(program, backend, calls=8)


def test_a_backward_that_waits_for_what_is_drawn_ends_the_graph():
    def program(x):
        x.grad = None
        count = random.randint(1, 2)
        rows = torch.cat([x.expand(1, 3).repeat(count, 1), x.repeat(3 - count, 1)])
        (rows.sin() * rows[:1]).sum().backward()
        return x.grad

    compiled = bothways.compile(program, backend="eager")
    draws_agree(lambda x: compiled(x), "eager", fullgraph=False, programs=None)
    codes = {found.code for compilation in bothways.history(compiled) for found in compilation.breaks}
    assert codes == {"tensor_value"}


@everywhere
def test_numbers_drawn_in_a_loop_of_a_callee(backend):
    def noisy(x, scale):
        for _ in range(3):
            x = x + scale * random.random()
        return x

    draws_agree(lambda x: noisy(x, random.randint(1, 3)), backend)


@everywhere
def test_generators_from_outside_and_made_inside(backend):
    def program(x, given):
        made = random.Random(42)
        return x + given.randint(1, 9) * made.random() + random.random(), made.random()

    draws_agree(program, backend, generators=1)


def test_a_generator_made_inside_is_returned_where_it_stands():
    def program(x):
        made = random.Random(7)
        return x + made.random(), made

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    plain, found = program(x()), compiled(x())
    torch.testing.assert_close(found[0], plain[0])
    assert found[1].getstate() == plain[1].getstate() and found[1] is not compiled(x())[1]


@everywhere
def test_states_are_set_and_taken_over(backend):
    def program(x, first, second):
        first.seed(42)
        other = random.Random(9002)
        second.setstate(other.getstate())
        return x + first.random() + second.randint(1, 10) + other.uniform(0, 1)

    draws_agree(program, backend, generators=2)


@everywhere
def test_the_same_numbers_again(backend):
    def program(x):
        state = random.getstate()
        first = random.random()
        random.setstate(state)
        return x + (first - random.random())

    draws_agree(program, backend)


def test_a_state_is_returned():
    def program(x):
        before = random.getstate()
        return x + random.random(), before

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for seed in (1, 2):
        random.seed(seed)
        plain = program(x())
        random.seed(seed)
        assert compiled(x())[1] == plain[1]


@everywhere
def test_a_decision_by_chance_breaks(backend):
    def program(x):
        if random.random() < 0.5:
            return x * 2
        return x - random.random()

    draws_agree(program, backend, fullgraph=False, calls=8, programs=None)
    with pytest.raises(bothways.errors.Unsupported, match="tensor_value"):
        bothways.compile(program, backend=backend, fullgraph=True)(x())


@everywhere
def test_a_number_made_a_text_breaks(backend):
    draws_agree(lambda x: (x + 1, f"{random.random():.3f}"), backend, fullgraph=False, programs=None)


@everywhere
def test_choices_and_shuffles_run_as_plain_python(backend):
    def program(x):
        values = [1, 2, 3]
        random.shuffle(values)
        return x * values[0], random.choice(values), random.sample(values, 2)

    draws_agree(program, backend, fullgraph=False, programs=None)


@everywhere
def test_a_size_by_chance_where_it_is_small_too(backend):
    draws_agree(lambda x: (x + 1, torch.zeros(random.randint(0, 3)) + 1), backend, calls=10, may_fail=True)


@everywhere
def test_a_graph_that_fails_leaves_the_generators_to_plain_python(backend):
    def program(x, index):
        drawn = random.random()
        try:
            return x[index] + drawn
        except IndexError:
            return x - drawn - random.random()

    for index in (1, 7):
        draws_agree(program, backend, args=(torch.tensor([index]),), may_fail=True)


def test_wrong_arguments_raise_as_in_plain_python():
    def program(x):
        return x + random.randint(5, 1)

    with pytest.raises(ValueError, match="empty range") as plain:
        program(x())
    with pytest.raises(ValueError) as found:
        bothways.compile(program, backend="eager", fullgraph=True)(x())
    assert str(found.value) == str(plain.value)


def test_one_generator_given_twice_is_not_taken_for_two():
    def program(x, first, second):
        return x + first.random() * 10 + second.random()

    compiled = bothways.compile(program, backend="eager", fullgraph=True)
    for pair in ((1, 2), (1, 1), (3, 3)):
        results = []
        for run in (program, compiled):
            made = {seed: random.Random(seed) for seed in pair}
            results.append(run(x(), *(made[seed] for seed in pair)))
        torch.testing.assert_close(*results)


def test_numbers_drawn_in_a_custom_function_stay_in_order():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + random.random()

        @staticmethod
        def backward(ctx, grad):
            return grad * random.random()

    def program(x):
        before = random.random()
        return Noisy.apply(x * before) * random.random()

    draws_agree(program, "eager", fullgraph=False, programs=None)


@everywhere
def test_a_method_that_one_generator_has_of_its_own_is_called(backend):
    def program(x, generator):
        number = generator.randint(0, 3)
        return x + number, number > 50

    def observe(run, call):
        generator = random.Random(call)
        if call % 2:
            generator.randint = lambda low, high: 70 + high
        return {"result": run(x(), generator)}

    for first in (0, 1):
        agree(program, observe, first, first + 1, first + 2, first + 3, backend=backend, programs=None)


@everywhere
def test_a_size_that_is_guessed_wrong_again_and_again_is_guessed_no_more(backend):
    """Plain Python ran most calls, after a graph that had failed: a size that is drawn was taken not to be 0 or 1."""

    def program(x, least):
        extra = random.randint(least, least + 2)
        more = torch.cat([x * 2, torch.rand(extra)])
        return (more * 3).sum() + extra

    def observe(run, call, least):
        random.seed(call)
        torch.manual_seed(call)
        return {"result": run(x(), least), "numbers": torch.get_rng_state(), "drawn": random.random()}

    failures = []
    with mock.patch.object(logs, "ran_plainly_after", failures.append):
        compiled = bothways.compile(program, backend=backend)
        for call in range(30):
            torch.testing.assert_close(observe(compiled, call, 0), observe(program, call, 0))
    assert 4 <= len(failures) <= 8
    assert all(made.conclusion.value == "a program" for made in bothways.history(compiled))
    count = len(bothways.history(compiled))
    for call in range(30):
        torch.testing.assert_close(observe(compiled, call, 0), observe(program, call, 0))
    assert len(bothways.history(compiled)) == count <= 6


def test_a_size_that_is_seldom_guessed_wrong_stays_in_its_graph():
    def program(x):
        return torch.cat([x, torch.rand(random.randint(0, 40))]).sum()

    failures = []
    random.seed(5)
    with mock.patch.object(logs, "ran_plainly_after", failures.append):
        compiled = bothways.compile(program, backend="eager")
        for _ in range(100):
            compiled(x())
    assert 0 < len(failures) < 20 and len(bothways.history(compiled)) == 1
