"""An autograd engine written in Python, with a tape in a global list: it is captured like any other program."""

import pytest
import torch
from agreeing import agree
from seeding import seeded

import bothways
from bothways.testing import CompileCounter, difference

TAPE = []


class Step:
    def __init__(self, inputs, output, propagate):
        self.inputs, self.output, self.propagate = inputs, output, propagate


class Number:
    """A tensor with a name, whose operations are written to the tape."""

    def __init__(self, value, name=None):
        self.value, self.name = value, name or f"t{len(TAPE)}"

    def __add__(self, other):
        return written(Number(self.value + other.value), [self, other], lambda grad: [grad, grad])

    def __mul__(self, other):
        def propagate(grad):
            return [grad * other.value, grad * self.value]

        return written(Number(self.value * other.value), [self, other], propagate)

    def sum(self):
        return written(Number(self.value.sum()), [self], lambda grad: [grad.expand(10)])


def written(result, inputs, propagate):
    TAPE.append(Step([each.name for each in inputs], result.name, propagate))
    return result


def gradients(loss, wanted):
    found = {loss.name: torch.ones(())}
    for step in reversed(TAPE):
        if step.output in found:
            for name, grad in zip(step.inputs, step.propagate(found[step.output]), strict=True):
                found[name] = found[name] + grad if name in found else grad
    return [found[each.name] for each in wanted]


def loss_of(a, b):
    total = a + b
    return (total * b).sum()


def forward(a, b):
    return loss_of(Number(a, "a"), Number(b, "b")).value


def forward_with_a_tape_of_its_own(a, b):
    TAPE.clear()
    loss = loss_of(Number(a, "a"), Number(b, "b"))
    TAPE.clear()
    return loss.value


def backward(a, b):
    a, b = Number(a, "a"), Number(b, "b")
    return gradients(loss_of(a, b), [a, b])


def backward_with_a_tape_of_its_own(a, b):
    TAPE.clear()
    a, b = Number(a, "a"), Number(b, "b")
    found = gradients(loss_of(a, b), [a, b])
    TAPE.clear()
    return found


def check(program, operations):
    counter = CompileCounter()

    def observe(function, seed):
        generator = seeded(seed)
        TAPE.clear()
        result = function(*(torch.randn(10, generator=generator) for _ in range(2)))
        return {"result": result, "entries on the tape": len(TAPE)}

    agree(program, observe, 1, 2, backend=counter, programs=1, fullgraph=True)
    TAPE.clear()
    assert (counter.frame_count, counter.op_count) == (1, operations)


def test_a_forward_that_writes_the_tape():
    check(forward, 3)


def test_a_forward_with_a_tape_of_its_own():
    check(forward_with_a_tape_of_its_own, 3)


def test_gradients_by_the_tape():
    check(backward, 8)


def test_gradients_with_a_tape_of_their_own():
    check(backward_with_a_tape_of_its_own, 8)


@pytest.mark.parametrize("calls", [1, 2])
def test_forward_and_gradients_are_compiled_apart(calls):
    a, b = Number(torch.randn(10), "a"), Number(torch.randn(10), "b")
    TAPE.clear()
    expected = loss_of(a, b)
    wanted = gradients(expected, [a, b])
    counter = CompileCounter()
    forwards = bothways.compile(loss_of, backend=counter, fullgraph=True)
    backwards = bothways.compile(gradients, backend=counter, fullgraph=True)
    for _ in range(calls):
        TAPE.clear()
        loss = forwards(a, b)
        assert difference((expected.value, wanted), (loss.value, backwards(loss, [a, b]))) is None
    TAPE.clear()
    assert counter.frame_count == 2
