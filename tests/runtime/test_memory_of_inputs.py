"""Tensors whose elements are not what is in their memory: a program made for plain tensors does not take them.

They have the class, dtype, sizes, strides and device of a plain tensor. A kernel would read memory that means something
else, or memory that is not there. And memory that belongs to several tensors, whose storages do not tell.
"""

import numpy
import pytest
import torch
from seeding import seeded

import bothways
from bothways.calls.call_library import call_library
from bothways.grad.nodes import changed
from bothways.testing import difference, same


def plain():
    return torch.arange(1.0, 17.0).reshape(4, 4)


SPECIAL = {
    "negated": lambda: torch._neg_view(plain()),
    "imaginary part of a conjugate": lambda: torch.complex(plain(), plain()).conj().imag,
    "zeros that were never written": lambda: torch._efficientzerotensor((4, 4)),
    "rows of zeros that were never written": lambda: torch._efficientzerotensor((5, 4))[1:],
    "mkldnn": lambda: plain().to_mkldnn(),
    "sparse": lambda: plain().to_sparse(),
    "nested": lambda: torch.nested.nested_tensor([plain()]),
}


@pytest.mark.in_turn("backend")
@pytest.mark.filterwarnings("ignore:.*prototype stage")
@pytest.mark.parametrize("in_c", [True, False], ids=["table", "python"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", SPECIAL)
def test_a_program_for_plain_tensors_does_not_take_it(name, backend, in_c):
    def program(x):
        return x * x

    with bothways.config.patch(guards_in_c=in_c):
        compiled = bothways.compile(program, backend=backend, dynamic=False)
        for _ in range(2):
            assert same(compiled(plain()), program(plain()))
        for _ in range(2):
            expected, given = program(SPECIAL[name]()), compiled(SPECIAL[name]())
            assert given.layout is expected.layout and given.is_nested == expected.is_nested
            if expected.is_nested:
                expected, given = expected.unbind()[0], given.unbind()[0]
            assert same(given.to_dense(), expected.to_dense())
        assert same(compiled(plain()), program(plain()))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_conjugated_inputs_are_told_apart(backend):
    def program(x):
        y = x.resolve_conj()  # x itself, or a copy
        y.mul_(2)
        return y.imag + 1

    def run(function, make):
        x = make()
        return function(x), x.resolve_conj()

    def numbers():
        return torch.complex(plain(), plain())

    compiled = bothways.compile(program, backend=backend, dynamic=False)
    for make in (numbers, lambda: numbers().conj(), numbers):
        for _ in range(2):
            assert same(run(compiled, make), run(program, make))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_functional_tensors_are_told_apart(backend):
    compiled = bothways.compile(lambda x: x * 2 + 1, backend=backend, dynamic=False)
    for _ in range(2):
        compiled(plain())
    given = compiled(torch._to_functional_tensor(plain()))
    assert torch._is_functional_tensor(given)
    assert same(torch._from_functional_tensor(given), plain() * 2 + 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_batched_gradients_are_told_apart(backend):
    compiled = bothways.compile(lambda x: torch.sin(x) * 2, backend=backend, dynamic=False)
    with torch.no_grad():
        for _ in range(2):
            compiled(torch.ones(4))

    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return compiled(grad)

    x = torch.ones(4, requires_grad=True)
    (grads,) = torch.autograd.grad(Passes.apply(x), x, torch.eye(4), is_grads_batched=True)
    assert same(grads, torch.sin(torch.eye(4)) * 2)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_tangent_of_zeros_that_were_never_written(backend):
    compiled = bothways.compile(lambda x: torch.sin(x) * 2, backend=backend, dynamic=False)
    x = plain().requires_grad_()
    (grad,) = torch.autograd.grad(compiled(x), x, torch._efficientzerotensor((4, 4)))
    assert same(grad, torch.zeros(4, 4))


# Two tensors over the same bytes, with a storage each; all but the last two share some of them.


def numbers():
    return numpy.arange(1.0, 12.0, dtype=numpy.float32)


def slices(first, second):
    array = numbers()
    return torch.from_numpy(array[first]), torch.from_numpy(array[second])


def buffers():
    array = bytearray(numbers().tobytes())
    return [torch.frombuffer(array, dtype=torch.float32, count=8, offset=offset) for offset in (0, 8)]


def handed_over(tensor, other):
    return tensor[:8], torch.from_dlpack(other(tensor))[3:]


TWICE = {
    "one array": lambda: slices(slice(8), slice(8)),
    "slices that meet": lambda: slices(slice(8), slice(3, 11)),
    "slices that meet, the other way": lambda: slices(slice(3, 11), slice(8)),
    "a buffer": buffers,
    "handed over": lambda: handed_over(torch.arange(1.0, 12.0), lambda tensor: tensor),
    "handed over as an array": lambda: handed_over(torch.arange(1.0, 12.0, device="cpu"), torch.Tensor.numpy),
    "slices that do not meet": lambda: slices(slice(0, 5), slice(5, 10)),
    "two arrays": lambda: (torch.from_numpy(numbers()), torch.from_numpy(numbers())),
}


def changes_first(a, b, weight):
    a.add_(1)
    c = b * 2 + weight
    a.mul_(0.5)
    return c.sin() + b


def changes_second(a, b, weight):
    c = a * 2 + weight
    b.mul_(3)
    return c * a


def writes_out(a, b, weight):
    torch.mul(b, 2, out=a)
    return b + weight * a


def only_reads(a, b, weight):
    return (a * 2 + b).sin() * weight


@pytest.mark.in_turn("backend")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("in_c", [True, False], ids=["C", "python"])
@pytest.mark.parametrize("program", [changes_first, changes_second, writes_out, only_reads])
def test_what_lies_over_what_is_changed_is_changed_too(program, in_c, backend, monkeypatch):
    if not in_c:
        monkeypatch.setattr(changed, "apart", lambda count, changed: None)
    compiled = bothways.compile(program, backend=backend)
    sides = []
    with bothways.config.patch(kernels_for_small_graphs=True):
        for function in (program, compiled):
            shown = []
            for make in [*TWICE.values(), *TWICE.values()]:
                for grad in (False, True):
                    a, b = make()
                    result = function(a, b, torch.tensor(2.0, device=a.device, requires_grad=grad))
                    shown.append((result, a.clone(), b.clone()))
            sides.append(shown)
    assert difference(*sides) is None


OUTSIDE = torch.nn.Module()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_buffer_or_a_global_that_lies_over_an_argument(backend):
    def program(a):
        a.add_(1)
        OUTSIDE.buffer.mul_(2)
        return a * OUTSIDE.buffer + OUTSIDE.plain

    compiled = bothways.compile(program, backend=backend)
    sides = []
    with bothways.config.patch(kernels_for_small_graphs=True):
        for function in (program, compiled):
            shown = []
            for apart in (True, False, True):
                array, other = numbers(), numbers()
                OUTSIDE.register_buffer("buffer", torch.from_numpy(other if apart else array))
                OUTSIDE.plain = torch.from_numpy(array)
                a = torch.from_numpy(array)
                shown.append((function(a), a.clone(), OUTSIDE.buffer.clone()))
            sides.append(shown)
    assert difference(*sides) is None


@pytest.mark.parametrize("count", [2, 40])
def test_memories_in_any_order_are_told_apart(count):
    library = call_library()
    if library is None:
        pytest.skip("no C compiler")
    are_apart = library.apart(count, range(count))
    array = numpy.zeros(4 * count, dtype=numpy.float32)
    own = [torch.from_numpy(array[4 * index : 4 * index + 4]) for index in range(count)]
    for seed in range(5):
        order = torch.randperm(count, generator=seeded(seed)).tolist()
        assert are_apart(*(own[index] for index in order))
    for place in range(count):
        shifted = torch.from_numpy(array[1:5] if place else array[3:7])
        assert not are_apart(*own[:place], shifted, *own[place + 1 :])
    views = [torch.zeros(9)[index:] for index in range(count)]
    assert are_apart(*views)
    assert not are_apart(*views[:-1], views[0][1:])
