"""What is read of a tensor before a break is what was there then, whatever Python does to the tensor at the break."""

import pytest
import torch
from agreeing import BACKENDS, agree

import bothways


@bothways.disable
def ten_more(tensor):
    tensor.add_(10)


def number_of_an_argument(x):
    before = x[0].item(), float(x[1])
    ten_more(x)
    return before


def number_of_a_view(x):
    y = x * 2
    first = y[0]
    before = first.item()
    shown, least = f"{first.item():.2f}", min(first.item(), 100.0)
    ten_more(y)
    return before, shown, least, y


def truth(x):
    y = x > 0
    before, first = bool(y[0]), y[1].item()
    y.apply_(lambda _: False)
    return before, first, y


def list_of_numbers(x):
    y = x * 2
    before = y[1:].tolist()
    ten_more(y)
    return before[0], y


def number_beside_an_array(x):
    y = x * 2
    array, before = y.numpy(), y[0].item()
    array[0] = 17
    return array.tolist(), before, y


def array_of_what_is_resized(x):
    y = x * 2
    array = y.numpy()
    y.resize_(1)
    return array.tolist(), y


def array_of_what_gets_other_memory(x):
    y = x * 2
    array = y.numpy()
    y.set_(torch.zeros(4, device="cpu"))
    return array.tolist(), y


# Neither Python nor NumPy writes to the memory of a GPU.
OF_THE_CPU = [truth, number_beside_an_array, array_of_what_is_resized, array_of_what_gets_other_memory]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [number_of_an_argument, number_of_a_view, list_of_numbers, *OF_THE_CPU])
def test_it_is_as_it_was(program, backend):
    def observe(function, scale):
        x = torch.tensor([1.5, -2.5, 3.0], device="cpu" if program in OF_THE_CPU else None) * scale
        return {"result": function(x), "argument": x}

    agree(program, observe, 1, 2, 2, backend=backend)
