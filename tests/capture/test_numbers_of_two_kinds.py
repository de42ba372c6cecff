"""Numbers that change, where Python has an answer of its own for two kinds of them, for levels and for texts."""

import logging
import math

import pytest
import torch
from agreeing import agree

LOGGER = logging.getLogger("bothways.tests.levels")


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.levelno, record.getMessage()))


def observe(function, number):
    records = Records()
    LOGGER.addHandler(records)
    LOGGER.setLevel(logging.INFO)
    try:
        return {"result": function(torch.ones(2), number), "logged": records.seen}
    except (ValueError, RuntimeError, OverflowError) as error:
        return {"raised": (type(error).__name__, str(error)), "logged": records.seen}
    finally:
        LOGGER.removeHandler(records)


def parts_of_another_kind(x, n):
    return divmod(n, 2.5), divmod(7.5, n), divmod(n, 3), x


def with_infinities(x, n):
    return math.inf * n, n - math.inf, math.nan + n, x


def levels(x, n):
    LOGGER.log(n, "message %d", n)
    return x + 1, LOGGER.isEnabledFor(n)


def fields_that_are_counted(x, n):
    return "{1} {0}".format(n, n + 1) + "|" + "{1} {0}".format(n + 2, n + 3), x


def a_value_too_many(x, n):
    return "{}".format(n, 5) + f"{n + 1}", x  # noqa: F523


def counted_and_not(x, n):
    return "{0}".format(n) + f"{n + 1}", f"{'{0}'.format(n)} {n}", "".join([f"{n}", "{0:>{1}}".format(n, 4)]), x


def too_large_for_a_tensor(x, n):
    return torch.tensor(n * 2**59), x


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize(
    "program",
    [parts_of_another_kind, with_infinities, levels, fields_that_are_counted, a_value_too_many, counted_and_not,
     too_large_for_a_tensor],
)  # fmt: skip
def test_six_numbers(program, backend):
    agree(program, observe, 3, 4, 7, 20, 3, 31, backend=backend)
