"""Functions that loop over batches: a few turns are one graph, many are calls of one program, and nothing is unrolled
without end."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from agreeing import assert_same
from stepping import BACKENDS, batches, state_of
from torch import nn, optim

import bothways
from bothways.errors import Unsupported

OPTIMIZERS = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.1),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.01),
}


def over_batches(step, log):
    def run(given):
        total = 0.0
        for x, y in given:
            total = total + step(x, y)
        return total

    return run


def over_numbers(step, log):
    def run(given):
        for number in range(len(given)):
            log.append(step(*given[number]))
        return torch.stack(log).sum()

    return run


def while_there_are_some(step, log):
    def run(given):
        number, total = 0, 0.0
        while number < len(given):
            total = total + step(*given[number])
            number += 1
        return total

    return run


def in_a_comprehension(step, log):
    return lambda given: torch.stack([step(x, y) for x, y in given]).sum()


def epochs(step, log):
    def run(given):
        for epoch in range(2):
            for x, y in given:
                log.append((epoch, step(x, y)))

    return run


def by_a_generator(step, log):
    def losses(given):
        for x, y in given:
            yield step(x, y)

    def run(given):
        for number, loss in enumerate(losses(given)):
            log.append(loss * number)

    return run


LOOPS = [over_batches, over_numbers, while_there_are_some, in_a_comprehension, epochs, by_a_generator]


def training(loop, name="SGD"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = OPTIMIZERS[name](model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    log = []
    return loop(step, log), {"model": model, "optimizer": optimizer, "log": log}


def both_train(loop, name, backend, counts=(20, 20, 23), **options):
    plain, expected = training(loop, name)
    compiled, found = training(loop, name)
    compiled = bothways.compile(compiled, backend=backend, **options)
    for count in counts:
        results = {"result": plain(batches(count))}, {"result": compiled(batches(count))}
        assert_same(*results, f"{count} batches, {backend}", tol=1e-5)
        assert_same(state_of(expected), state_of(found), f"after {count} batches, {backend}", tol=1e-5)
    return compiled


def operations(compiled):
    return max((len(graph.graph.nodes) for graph in bothways.explain(compiled).graphs), default=0)


@pytest.mark.in_turn("name", "backend")
@pytest.mark.parametrize("name, backend", list(itertools.product(OPTIMIZERS, BACKENDS)))
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_many_turns_are_calls_of_one_program(loop, name, backend):
    compiled = both_train(loop, name, backend)
    one = both_train(over_batches, name, backend, counts=(1, 1))
    assert 0 < operations(compiled) < 5 * operations(one), "no more than a few turns are one graph"
    assert len(bothways.explain(compiled).graphs) <= 12
    assert not bothways.explain(compiled).plain_from_now_on


def test_a_few_turns_are_one_graph():
    compiled = both_train(over_batches, "SGD", "eager", counts=(3, 3))
    assert len(bothways.explain(compiled).graphs) == 1 and not bothways.explain(compiled).breaks


def test_the_users_wish_for_one_graph_is_granted_up_to_a_limit():
    compiled = both_train(over_batches, "SGD", "eager", counts=(20,), fullgraph=True)
    assert len(bothways.explain(compiled).graphs) == 1
    run, _ = training(over_batches)
    with pytest.raises(Unsupported, match=r"\[training_loop\]"):
        bothways.compile(run, backend="eager", fullgraph=True)(batches(70))


def test_gradients_that_are_added_up_in_a_loop():
    def adding(step, log):
        weight = torch.ones(6, requires_grad=True)

        def run(given):
            weight.grad = None
            for x, _ in given:
                (weight * x).sin().sum().backward()
            log.append(weight.grad.clone())

        return run

    assert len(bothways.explain(both_train(adding, "SGD", "eager", counts=(8, 8))).graphs) == 1
    compiled = both_train(adding, "SGD", "eager", counts=(40, 40))
    assert operations(compiled) < 30


def test_a_loop_in_a_function_that_is_called():
    def calling(step, log):
        inner = over_batches(step, log)

        def run(given):
            return inner(given) * 2 + 1

        return run

    compiled, one = both_train(calling, "AdamW", "eager"), both_train(over_batches, "AdamW", "eager", counts=(1, 1))
    assert 0 < operations(compiled) <= operations(one) + 5


def test_what_is_left_of_a_loop_that_ends_early():
    def ending(step, log):
        def run(given):
            for number, (x, y) in enumerate(given):
                if number == 11:
                    break
                if number % 2:
                    continue
                log.append(step(x, y))
            else:
                log.append("all")

        return run

    both_train(ending, "SGD", "eager", counts=(9, 20, 20))


def test_an_exception_in_a_turn_leaves_what_was_done_before():
    def failing(step, log):
        def run(given):
            try:
                for number, (x, y) in enumerate(given):
                    log.append(step(x, y))
                    if number == 12:
                        raise ValueError("enough")
            except ValueError as error:
                return str(error)

        return run

    both_train(failing, "SGD", "eager", counts=(9, 20, 20))
