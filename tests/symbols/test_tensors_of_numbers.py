"""``torch.tensor`` of numbers that change: the graph makes it, and one program is for all of them."""

import math

import pytest
import torch
from agreeing import BACKENDS, agree

MADE = {
    "a whole number": lambda n, f: torch.tensor(n),
    "a fraction": lambda n, f: torch.tensor(f),
    "as another dtype": lambda n, f: torch.tensor(n, dtype=torch.float64),
    "as a wider one": lambda n, f: torch.tensor(f, dtype=torch.bfloat16),
    "of whole numbers": lambda n, f: torch.tensor([n, 2, n + 1]),
    "of both kinds": lambda n, f: torch.tensor((n, 0.5, 1)),
    "of lists": lambda n, f: torch.tensor([[f, 1.0], [2.0, n * 0.5]], dtype=torch.float32),
    "as_tensor": lambda n, f: torch.as_tensor([f, 2 * f]),
    "of another place": lambda n, f: torch.tensor([f], device="cpu"),
    "an old constructor": lambda n, f: torch.FloatTensor([f, n]),
}


def observe(function, n):
    return {"result": function(torch.arange(3.0), n, n * 0.3)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MADE)
def test_one_program_is_for_all_numbers(name, backend):
    def program(x, n, f):
        made = MADE[name](n, f)
        return x.sum() * made, made, made.dtype, made.is_leaf

    agree(program, observe, 3, 3, 4, 7, 12, backend=backend, fullgraph=True, programs=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_list_from_outside(backend):
    def program(x, n, f, state):
        return x[:2] * torch.tensor(state).unsqueeze(0)

    def looked_at(function, n):
        return {"result": function(torch.arange(3.0), n, 0.5, [n * 0.1, n * 0.2])}

    agree(program, looked_at, 3, 3, 4, 7, backend=backend, fullgraph=True, programs=2)


def test_what_torch_refuses_or_converts_in_its_own_way():
    programs = {
        "no float holds it": lambda x, n, f: torch.tensor(f * 1e39),
        "too large for a byte": lambda x, n, f: torch.tensor(n + 250, dtype=torch.uint8),
        "a fraction as a whole number": lambda x, n, f: torch.tensor(f, dtype=torch.int64),
        "lists of several lengths": lambda x, n, f: torch.tensor([[f], [f, 1.0]]),
        "truths": lambda x, n, f: torch.tensor([n, True]),
        "of half precision": lambda x, n, f: torch.tensor(n * 1e5, dtype=torch.float16),
        "one that asks for its gradient": lambda x, n, f: torch.tensor(f, requires_grad=True),
        "not a number": lambda x, n, f: torch.tensor(f * math.inf),
    }

    def looked_at(function, n):
        try:
            made = function(torch.arange(3.0), n, n * 0.3)
        except (RuntimeError, ValueError, TypeError, OverflowError) as error:
            return {"error": type(error)}
        return {"result": made, "is a leaf that asks": (made.is_leaf, made.requires_grad)}

    for program in programs.values():
        agree(program, looked_at, 3, 4, 5, 9)
