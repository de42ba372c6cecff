"""``out=`` of operations with several results: each is the tensor that was given, changed in place."""

import pytest
import torch
from agreeing import BACKENDS, agree
from observing import facts

pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
WHOLE = torch.long


def made_inside(x, values, places):
    values, places = torch.empty(3), torch.empty(3, dtype=WHOLE)
    result = torch.max(x, 0, out=(values, places))
    return values * 2, places, result.values is values, result[1] is places, type(result).__name__


def given(x, values, places):
    torch.topk(x, 2, out=[values, places])
    return values.sum() + x[0, 0]


def rows_of_one(x, values, places):
    torch.aminmax(x, dim=0, out=(values[0], values[1]))
    return values * 2


def laid_out_by_the_kernel(x, values, places):
    torch.sort(x.t(), dim=0, out=(values, places))
    return values.stride(), places.stride(), values.reshape(-1), places + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [made_inside, given, rows_of_one, laid_out_by_the_kernel])
def test_each_is_changed_in_place(program, backend):
    def observe(function, shape):
        x = torch.linspace(-1, 2, 6).sin().view(2, 3)
        values, places = torch.zeros(shape), torch.zeros(shape, dtype=WHOLE)
        return {"result": facts(function(x, values, places)), "outs": facts((values, places))}

    agree(program, observe, (2, 2 if program is given else 3), (2, 2 if program is given else 3), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_program_without_a_break(backend):
    def observe(function, factor):
        x = torch.linspace(-1, 2, 6).view(2, 3) * factor
        values, places = torch.zeros(2, 2), torch.zeros(2, 2, dtype=WHOLE)
        return {"result": facts(function(x, values, places)), "outs": facts((values, places))}

    agree(given, observe, 1, -1, 2, backend=backend, programs=1, fullgraph=True)
    agree(made_inside, observe, 1, -1, 2, backend=backend, programs=1, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("turned", [False, True])
def test_those_that_are_resized_lie_as_the_kernel_wants(turned, backend):
    def observe(function, size):
        x = torch.linspace(-1, 2, 3 * size).sin().view(3, size)
        x = x.t() if turned else x
        values, places = torch.empty(0), torch.empty(0, dtype=WHOLE)
        return {"result": facts(function(x, values, places)), "outs": facts((values, places))}

    agree(laid_out_by_the_kernel, observe, 4, 4, 5, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_eager_refuses_is_refused(backend):
    def observe(function, kind):
        x = torch.linspace(-1, 2, 6).view(2, 3).requires_grad_(kind == "grad")
        values = torch.zeros(3, dtype=torch.double if kind == "dtype" else torch.float)
        places = torch.zeros(3, dtype=torch.int if kind == "place" else WHOLE)
        try:
            return {"result": facts(function(x, values, places)), "outs": facts((values, places))}
        except RuntimeError as error:
            return {"error": str(error), "outs": facts((values, places))}

    def program(x, values, places):
        torch.max(x, 0, out=(values, places))
        return values + 1

    agree(program, observe, "fits", "fits", "dtype", "grad", "place", "fits", backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_that_share_their_memory(backend):
    def observe(function, call):
        x, both = torch.linspace(-1, 2, 6).view(2, 3), torch.zeros(3)
        try:
            return {"result": facts(function(x, both)), "outs": both.clone()}
        except ValueError as error:  # newer versions refuse it
            return {"error": str(error), "outs": both}

    def program(x, both):
        torch.aminmax(x, dim=0, out=(both, both.view(3)))
        return both + 1

    agree(program, observe, 1, 1, backend=backend)
