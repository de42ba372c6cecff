"""An operation that changes a tensor and would make it larger is refused where eager refuses it, by every backend."""

import operator

import pytest
import torch
from agreeing import agree

BACKENDS = ["eager", "aot_eager", "native"]
pytestmark = [
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.every_backend,
    pytest.mark.usefixtures("kernels_for_all"),
]

NAMES = [
    "add_", "remainder_", "fmod_", "floor_divide_", "pow_", "atan2_", "eq_", "ge_", "clamp_min_", "xlogy_", "hypot_",
    "copysign_", "nextafter_", "heaviside_",
]  # fmt: skip


def outcome(function, call):
    own, other = call
    log = []
    try:
        return {"result": function(torch.ones(own), torch.full(other, 3.0), log), "log": log}
    except RuntimeError as error:
        return {"raised": str(error), "log": log}


def by_method(name):
    def program(x, y, log):
        z = x * 2
        log.append("before")
        return getattr(z, name)(y)

    return program


@pytest.mark.parametrize("name", NAMES)
def test_by_a_method(backend, name):
    """Those that fit come first, so that the program is there."""
    sizes = [((5,), (5,)), ((1,), (5,)), ((), (2,)), ((2, 3), (3,)), ((3,), (2, 3)), ((1,), (5,))]
    agree(by_method(name), outcome, *sizes, backend=backend)


OPERATORS = [operator.imod, operator.ifloordiv, operator.ipow, operator.iadd]


@pytest.mark.parametrize("change", OPERATORS)
def test_by_an_operator_where_it_is_handled(backend, change):
    def program(x, y, log):
        z = x * 2
        try:
            z = change(z, y)
        except RuntimeError:
            log.append("refused")
        return z + 1

    agree(program, outcome, ((1,), (5,)), ((5,), (5,)), ((2, 1), (2, 3)), ((1,), (5,)), backend=backend)


@pytest.mark.parametrize("name", ["remainder_", "eq_"])
def test_through_a_view(backend, name):
    def program(x, y, log):
        z = x * 2
        getattr(z[:1], name)(y)
        return z

    agree(program, outcome, ((3,), (1,)), ((3,), (5,)), ((3, 2), (4, 2)), ((3,), (5,)), backend=backend)
